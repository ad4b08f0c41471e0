"""Training of one rank: reads the run directory, joins the other ranks, trains, reports its end."""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from ...datasets.data import Data
from ...models.spec import InputSpec
from ...strategies.errors import ConfigError
from ...strategies.topology import WORLD, Topology
from ..communication import gpus
from ..communication.gpus import connect
from ..communication.link_costs import ClusterNetwork
from ..communication.modelled_network import ModelledCommunicator
from ..communication.torch_communicator import TorchCommunicator
from ..config import load
from ..config.launchers import LocalConfig
from ..config.model_building import build
from ..config.reader_config import order_alone
from ..config.run_config import RunConfig
from ..machine import gpu_facts
from ..machine.cores import RunQueue
from ..machine.environment import environment, rank_row
from ..records.json_lines import RecordWriter, read_json, write_json
from ..records.run_directory import RunDirectory, check_same_data, of_attempt
from ..simulation.timing_only import profile_of
from ..training import checkpoint
from ..training.callbacks import RunQueueTime
from ..training.context import Backend, Listener, TrainContext
from ..training.data_errors import data_errors, file_errors, image_errors
from ..training.device_model import ClusterDevice
from ..training.evaluation import score
from ..training.packed_set import of_run
from ..training.precision import AUTOCAST, DTYPES
from ..training.torch_replica import TorchReplica
from ..training.trainer import Trainer
from ..training.workload import workload_of
from .emulated.validity_checks import ValidityChecks
from .rank_process import Meeting

log = logging.getLogger(__name__)


class SupervisorLink(Listener, Protocol):
    """The supervisor's end of this rank."""

    call: str
    steps: int

    def finish(
        self, status: str, summary: dict[str, Any] | None = None, reason: str | None = None
    ) -> None: ...


class MeetingLink(SupervisorLink, Protocol):
    """The link of a real process: also where all ranks meet, and the collective of this rank's GPU."""

    meeting: Meeting
    on_device: Callable[[], str]


def run_rank(
    run_dir: Path,
    rank: int,
    ranks: int,
    port: int,
    listener: socket.socket | None,
    threads: int,
    link: MeetingLink,
) -> None:
    """Train one rank of the run in `run_dir`.

    Args:
        port: of the rendezvous at `link.meeting.host`; rank 0 serves it on the open socket `listener`.
        threads: of this rank's torch operations.

    Raises:
        ConfigError: the run directory asks for something impossible.
        RuntimeError: another rank is gone (torch.distributed), or whatever model and data raise.
    """
    started = time.monotonic_ns()
    link.call = "rendezvous"
    config, comm = meet(run_dir, rank, ranks, port, listener, threads, link.meeting)
    link.call = ""
    comm.on_call, link.on_device = link, comm.in_flight
    device = comm.device
    attempt = len(read_json(run_dir / "status.json")["attempts"])
    _write_environment(run_dir, config.launcher.name, comm, threads, device, attempt, link.meeting.known)

    with data_errors(config.dataset):
        data = config.dataset.load()
    check_same_data(run_dir, data.files)
    packed = of_run(config.dataset, config.reader, data)
    queue = RunQueue()
    emulated = _emulated(config, comm, link.meeting, data, queue)

    def make_replica(model: nn.Module, criterion: nn.Module) -> TorchReplica:
        replica = TorchReplica(model, criterion, comm)
        if emulated is not None and emulated.device is not None:
            replica.pad(emulated.device)
        return replica

    backend = Backend(
        config.launcher.name,
        comm,
        make_replica,
        device,
        common_clock=link.meeting.one_clock,
        started_ns=started,
        callbacks=(RunQueueTime(queue, comm), *(() if emulated is None else (emulated.checks,))),
        untimed=gpus.untimed(comm.ranks_on_a_gpu),
        make_workload=partial(workload_of, packed=packed, order_alone=order_alone(config.launcher)),
        **({} if emulated is None else {"spend": emulated.spend, "remarks": emulated.remarks}),
    )
    with RecordWriter(RunDirectory(run_dir).rank_records(rank)) as rows:
        metrics = RecordWriter(run_dir / "metrics.jsonl") if rank == 0 else None
        context = TrainContext(config, backend, data, rows, metrics, link, attempt, run_dir / "checkpoints")
        with image_errors(config.dataset):
            result = Trainer(context).run()
        if metrics is not None:
            metrics.close()
    comm.barrier(WORLD)
    link.finish(result.status, result.summary if rank == 0 else None, result.reason)
    if rank == 0 and result.status == "finished":
        checkpoint.drop_resume_states(run_dir / "checkpoints")
    comm.close()


def meet(
    run_dir: Path,
    rank: int,
    ranks: int,
    port: int,
    listener: socket.socket | None,
    threads: int,
    meeting: Meeting,
) -> tuple[RunConfig, TorchCommunicator]:
    """Read the run directory, take this rank's device, and meet the other ranks; errors as of `run_rank`."""
    torch.set_num_threads(threads)
    config = load.load(run_dir / "config.yaml")
    if config.launcher.pin:
        torch.set_num_interop_threads(1)  # more would share this rank's cores
    topology = Topology.of(config.cluster.ranks_of_nodes)
    if topology.ranks != ranks:
        raise ConfigError(f"{run_dir}: asks for {topology.ranks} ranks, {ranks} were started")
    comm = connect(
        topology,
        rank,
        host=meeting.host,
        port=port,
        listener_fd=listener.detach() if listener else None,
        device=gpus.device_of(config.cluster, config.launcher, topology, rank),
        mixed=len(set(config.cluster.device.kind)) > 1,
        share_gpus=config.launcher.share_gpus,
        timeout_s=config.launcher.stall_s + 60,  # the supervisor's stall watch comes first and names the rank
        interface=meeting.interface,
    )
    gpus.choose_precision(config.train.precision, comm.device)
    if meeting.network == "modelled":
        comm = ModelledCommunicator(comm, ClusterNetwork(config.cluster.links.or_free(), topology))
    return config, comm


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """What makes this rank slower than its machine, and checks it. `device`: None: the real one."""

    checks: ValidityChecks
    device: ClusterDevice | None
    remarks: tuple[str, ...]

    def spend(self, what: str, samples: int) -> None:
        """Let the time pass that the emulated device takes for work between its steps."""
        if self.device is not None:
            time.sleep(self.device.spend_ns(what, samples) / 1e9)


def _emulated(
    config: RunConfig, comm: TorchCommunicator, meeting: Meeting, data: Data, queue: RunQueue
) -> Emulated | None:
    launcher, cluster = config.launcher, config.cluster
    if not isinstance(launcher, LocalConfig) or meeting.network == "none":
        return None
    device = None
    if cluster.device.paces:
        profile = profile_of(config, InputSpec(*data.shape, data.classes))
        device = ClusterDevice(cluster.device, comm.rank, profile, config.seed)
    instead = meeting.known.get("network", {}).get("instead_of_kernel")
    return Emulated(
        checks=ValidityChecks(cluster, comm, meeting, queue, refuse=launcher.on_invalid == "refuse"),
        device=device,
        remarks=(
            f"{meeting.network} network",
            *([] if instead is None else [f"no kernel network: {instead}"]),
            *(["emulated devices"] if device is not None else []),
        ),
    )


def evaluate(run_dir: Path) -> dict[str, Any]:
    """Score a run's saved model alone, in this process.

    Returns the task's numbers as in an evaluation's row, the split, and the file that was read.

    Raises:
        ConfigError: the run has no whole checkpoint, or the data set's files are others by now, bad or gone.
        MachineError: they cannot be read.
    """
    config = load.load(run_dir / "config.yaml")
    folder = run_dir / "checkpoints"
    file = folder / checkpoint.FINAL / checkpoint.MODEL
    if not file.is_file():
        path, damage = checkpoint.newest_valid(folder)
        if path is None:
            raise ConfigError("; ".join(damage) or f"{folder}: holds no checkpoint")
        file = path / checkpoint.MODEL
    with data_errors(config.dataset):
        data = config.dataset.load()
    check_same_data(run_dir, data.files)
    dtype = DTYPES[config.train.precision]
    channels, height, width = data.shape
    model = build(config.model, InputSpec(channels, height, width, data.classes)).to(dtype=dtype)
    model.load_state_dict(checkpoint.read(file)["model"])
    samples = data.split(config.train.eval_split)
    task = config.task(data.classes)
    with file_errors(config.dataset):
        result = score(
            model,
            samples,
            torch.arange(len(samples)),
            torch.device("cpu"),
            dtype,
            task=task,
            batch_size=task.evaluation_batch(height, width),
            autocast=AUTOCAST.get(config.train.precision),
        )
    return {
        **result.numbers(),
        "split": config.train.eval_split,
        "file": str(file),
    }


def _write_environment(
    run_dir: Path,
    world: str,
    comm: TorchCommunicator,
    threads: int,
    device: torch.device,
    attempt: int,
    known: dict[str, Any],
) -> None:
    """environment.json from all ranks' own rows, by rank 0.

    Each later attempt has a file of its own.
    """
    row = rank_row(
        rank=comm.rank,
        node=comm.node,
        local_rank=comm.local_rank,
        device=str(device),
        device_model=gpus.device_model(device),
        threads=threads,
        interop_threads=torch.get_num_interop_threads(),
    )
    row |= {"pid": os.getpid(), "gpu": gpu_facts.of_rank(device)}
    rows = comm.gather_values(row)
    if comm.rank == 0:
        write_json(
            run_dir / of_attempt("environment", attempt),
            environment(
                rows, backend=comm.backend, world=world, extra=known | {"arithmetic": gpus.numeric_flags()}
            ),
        )
