"""What a rank process does: trains its rank among others, or all ranks in virtual time; evaluates a model."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...datasets.data import SPLITS, Data, on_device
from ...models.spec import InputSpec
from ...strategies.errors import ConfigError, ExpectedEnd
from ...strategies.topology import WORLD, Topology
from ..communication import gpus
from ..communication.gpus import connect
from ..communication.link_costs import ClusterNetwork
from ..communication.modelled_network import ModelledCommunicator
from ..communication.torch_communicator import TorchCommunicator
from ..config import load
from ..config.launchers import LocalConfig, SimulatedConfig
from ..config.model_building import build, input_spec
from ..config.reader_config import PackedReader
from ..config.run_config import RunConfig
from ..machine import gpu_facts
from ..machine.cores import RunQueue
from ..machine.environment import environment, rank_row
from ..records.json_lines import RecordWriter, read_json, write_json
from ..records.run_directory import RunDirectory, check_same_data, of_attempt
from ..simulation import timing_only
from ..simulation.gradient_pool import GradientPool
from ..simulation.simulated_world import simulate
from ..simulation.timeline import Timeline
from ..simulation.virtual_time import OutOfTime
from ..training import checkpoint
from ..training.callbacks import Callback, RunQueueTime
from ..training.context import Backend, TrainContext
from ..training.data_errors import data_errors, file_errors, image_errors
from ..training.device_model import ClusterDevice
from ..training.evaluation import score
from ..training.packed_set import of_run
from ..training.precision import AUTOCAST, DTYPES
from ..training.torch_replica import TorchReplica
from ..training.trainer import Trainer
from ..training.workload import workload_of
from .emulated.validity_checks import ValidityChecks
from .rank_process import Link, Meeting, RankTask


class NodeLost(ExpectedEnd):
    """A node of the modelled cluster has failed, as `cluster.failures_s` wanted it."""


class Appended:
    """Rows at the end of a file that is open only while one is written: ranks may be thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, row: dict[str, Any]) -> None:
        with RecordWriter(self._path) as writer:
            writer.write(row)


def run_rank(task: RankTask, link: Link) -> None:
    """Train one rank of the run in `task.run_dir`.

    Raises:
        ConfigError: the run directory asks for something impossible.
        RuntimeError: another rank is gone (torch.distributed), or whatever model and data raise.
    """
    started = time.monotonic_ns()
    run_dir, meeting = task.run_dir, task.meeting
    link.call = "rendezvous"
    config, comm = meet(task)
    link.call = ""
    comm.on_call, link.on_device = link, comm.in_flight
    attempt = len(read_json(run_dir / "status.json")["attempts"])
    _write_environment(task, config.launcher.name, comm, attempt)

    with data_errors(config.dataset):
        data = config.dataset.load()
    check_same_data(run_dir, data.files)
    backend = _backend(config, comm, meeting, data, started)
    if not isinstance(config.reader, PackedReader):  # which reads the training split from its file
        data = on_device(data, comm.device, config.launcher.device_data_mib)
    with RecordWriter(RunDirectory(run_dir).rank_records(task.rank)) as rows:
        metrics = RecordWriter(run_dir / "metrics.jsonl") if task.rank == 0 else None
        context = TrainContext(config, backend, data, rows, metrics, link, attempt, run_dir / "checkpoints")
        with image_errors(config.dataset):
            result = Trainer(context).run()
        if metrics is not None:
            metrics.close()
    comm.barrier(WORLD)
    link.finish(result.status, result.summary if task.rank == 0 else None, result.reason)
    if task.rank == 0 and result.status == "finished":
        checkpoint.drop_resume_states(run_dir / "checkpoints")
    comm.close()


def _backend(
    config: RunConfig, comm: TorchCommunicator, meeting: Meeting, data: Data, started_ns: int
) -> Backend:
    """The backend of a rank, with the checks and the slowed device of an emulated run."""
    packed, queue = of_run(config.dataset, config.reader, data), RunQueue()
    callbacks: list[Callback] = [RunQueueTime(queue, comm)]
    remarks: list[str] = []
    emulated: ClusterDevice | None = None
    if isinstance(config.launcher, LocalConfig) and meeting.network != "none":
        refuse = config.launcher.on_invalid == "refuse"
        callbacks.append(ValidityChecks(config.cluster, comm, meeting, queue, refuse=refuse))
        remarks.append(f"{meeting.network} network")
        if (lacking := meeting.known.get("network", {}).get("instead_of_kernel")) is not None:
            remarks.append(f"no kernel network: {lacking}")
        if config.cluster.device.paces:
            profile = timing_only.profile_of(config, InputSpec(*data.shape, data.classes))
            emulated = ClusterDevice(config.cluster.device, comm.rank, profile, config.seed)
            remarks.append("emulated devices")

    def make_replica(model: nn.Module, criterion: nn.Module) -> TorchReplica:
        replica = TorchReplica(model, criterion, comm)
        if emulated is not None:
            replica.pad(emulated)
        return replica

    def spend(what: str, samples: int) -> None:
        if emulated is not None:
            time.sleep(emulated.spend_ns(what, samples) / 1e9)

    return Backend(
        config.launcher.name,
        comm,
        make_replica,
        comm.device,
        common_clock=meeting.one_clock,
        started_ns=started_ns,
        spend=spend,
        callbacks=callbacks,
        remarks=tuple(remarks),
        untimed=gpus.untimed(comm.ranks_on_a_gpu),
        make_workload=partial(workload_of, packed=packed, reads=config.launcher.real_time),
    )


def meet(task: RankTask) -> tuple[RunConfig, TorchCommunicator]:
    """Read the run directory, take this rank's device, and meet the other ranks; errors as of `run_rank`."""
    torch.set_num_threads(task.threads)
    config = load.load(task.run_dir / "config.yaml")
    if config.launcher.pin:
        torch.set_num_interop_threads(1)  # more would share this rank's cores
    topology = Topology.of(config.cluster.ranks_of_nodes)
    if topology.ranks != task.ranks:
        raise ConfigError(f"{task.run_dir}: asks for {topology.ranks} ranks, {task.ranks} were started")
    comm = connect(
        topology,
        task.rank,
        host=task.meeting.host,
        port=task.port,
        listener_fd=task.listener_fd(),
        device=gpus.device_of(config.cluster, config.launcher, topology, task.rank),
        mixed=len(set(config.cluster.device.kind)) > 1,
        share_gpus=config.launcher.may_share_gpus(config.cluster.device.kind),
        timeout_s=config.launcher.stall_s + 60,  # the supervisor's stall watch comes first and names the rank
        interface=task.meeting.interface,
    )
    gpus.choose_precision(config.train.precision, comm.device)
    if task.meeting.network == "modelled":
        comm = ModelledCommunicator(comm, ClusterNetwork(config.cluster.links.or_free(), topology))
    return config, comm


def _write_environment(task: RankTask, launcher: str, comm: TorchCommunicator, attempt: int) -> None:
    """environment.json from all ranks' own rows, by rank 0. Each later attempt has a file of its own."""
    row = rank_row(
        rank=comm.rank,
        node=comm.node,
        local_rank=comm.local_rank,
        device=str(comm.device),
        device_model=gpus.device_model(comm.device),
        threads=task.threads,
        interop_threads=torch.get_num_interop_threads(),
    )
    row |= {"pid": os.getpid(), "gpu": gpu_facts.of_rank(comm.device)}
    rows = comm.gather_values(row)
    if comm.rank == 0:
        extra = task.meeting.known | {"arithmetic": gpus.numeric_flags()}
        facts = environment(rows, backend=comm.backend, world=launcher, extra=extra)
        write_json(task.run_dir / of_attempt("environment", attempt), facts)


def run_all(task: RankTask, link: Link) -> None:
    """Train all ranks of the run in `task.run_dir` in this process, in virtual time.

    Raises NodeLost: this attempt has come to its time in `cluster.failures_s`.
    """
    torch.set_num_threads(task.threads)
    run_dir = task.run_dir
    config = load.load(run_dir / "config.yaml")
    topology = Topology.of(config.cluster.ranks_of_nodes)
    attempt = len(read_json(run_dir / "status.json")["attempts"])
    data, spec = _data_and_spec(config)
    check_same_data(run_dir, data.files)
    profile = timing_only.profile_of(config, spec)
    if config.launcher.timing_only:
        config = timing_only.without_numbers(config, profile)
    device = _device_of_all(config)
    on_gpu = [f"computed on {gpus.device_model(device)}"] if device.type == "cuda" else []
    facts = _virtual_environment(task, topology, device)

    def tick() -> None:
        link.steps += 1  # the stall watch counts it as progress

    pool = _pool(task, config, attempt, facts, tick)
    failures = config.cluster.failures_s
    fails_s = failures[attempt - 1] if attempt <= len(failures) else None
    timeline = Timeline(topology) if config.launcher.timeline else None

    with RecordWriter(run_dir / "metrics.jsonl") as metrics:
        try:
            with image_errors(config.dataset):
                first, *_ = simulate(
                    config,
                    data,
                    network=ClusterNetwork(config.cluster.links, topology),
                    device=lambda rank: ClusterDevice(config.cluster.device, rank, profile, config.seed),
                    profile=profile,
                    timing_only=config.launcher.timing_only,
                    remarks=(f"simulated: {config.cluster.validity}", *on_gpu),
                    checkpoints=run_dir / "checkpoints",
                    attempt=attempt,
                    listeners=lambda rank: link if rank == 0 else None,
                    tick=tick,
                    rank_rows=lambda rank: Appended(RunDirectory(run_dir).rank_records(rank)),
                    metrics=metrics,
                    until_ns=None if fails_s is None else round(fails_s * 1e9),
                    timeline=timeline,
                    pool=pool,
                    computes_on=device,
                ).results
        except OutOfTime as error:
            raise NodeLost(
                f"a node was lost after {fails_s} s of virtual time (cluster.failures_s); "
                "`daso-bench resume` goes on from the last checkpoint, or from the start if there is none"
            ) from error
        finally:  # also of a run that failed, where it is needed most
            if timeline is not None:
                timeline.write(run_dir / of_attempt("timeline", attempt))
    link.finish(first.status, first.summary, first.reason)
    if first.status == "finished":
        checkpoint.drop_resume_states(run_dir / "checkpoints")


def _pool(
    task: RankTask, config: RunConfig, attempt: int, facts: dict[str, Any], tick: Callable[[], None]
) -> GradientPool:
    """The pool that computes gradients as the launcher asks, or as was chosen before.

    That is: by an earlier attempt, or by another run of the same folder with the same work. Otherwise two
    runs would differ in bits by luck. `facts`, with the choice, go into this attempt's environment.json.
    """
    launcher, train = config.launcher, config.tree["train"]
    asked = launcher.rank_compute if isinstance(launcher, SimulatedConfig) else "auto"
    keys = ("global_batch_size", "precision", "channels_last", "accumulate")
    work = {"asked": asked, "ranks": config.cluster.ranks, "on": facts["computed_on"]}
    work |= {part: config.tree[part] for part in ("model", "dataset")} | {key: train[key] for key in keys}
    files = [task.run_dir / of_attempt("environment", number) for number in range(1, attempt + 1)]
    chosen = next(_choices(files[:-1]), None)
    if chosen is None and asked == "auto" and not launcher.timing_only:
        others = _choices(sorted(task.run_dir.parent.glob("*/environment.json")))
        chosen = next((choice for choice in others if choice["work"] == work), None)
    if chosen is not None:
        asked, facts["rank_compute"] = chosen["way"], chosen
    write_json(files[-1], facts)

    def record(choice: dict[str, Any]) -> None:
        facts.setdefault("rank_compute", {**choice, "work": work})  # the first says how it was chosen
        write_json(files[-1], facts)

    return GradientPool(config.cluster.ranks, tick, asked, record)


def _choices(files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """How gradients are computed, of those attempts that have chosen."""
    facts = (read_json(file) for file in files if file.is_file())
    return (fact["rank_compute"] for fact in facts if "rank_compute" in fact)


def _device_of_all(config: RunConfig) -> torch.device:
    """The device that computes all virtual ranks, with the precision of its products set."""
    launcher = config.launcher
    if launcher.timing_only:
        return torch.device("cpu")
    device = gpus.device_of_all(launcher.device if isinstance(launcher, SimulatedConfig) else "cpu")
    gpus.choose_precision(config.train.precision, device)
    return device


def _virtual_environment(task: RankTask, topology: Topology, device: torch.device) -> dict[str, Any]:
    """What environment.json says of virtual ranks. `computed_on`: the GPU that computed them all, or CPU."""
    model = gpus.device_model(device)
    ranks = [
        rank_row(
            rank=rank,
            node=node,
            local_rank=local,
            device="virtual",
            device_model=model,
            threads=task.threads,
        )
        for rank, (node, local) in enumerate(zip(topology.node_of_rank, topology.local_ranks, strict=True))
    ]
    extra = {
        "arithmetic": gpus.numeric_flags(),
        "computed_on": model if device.type == "cuda" else "CPU",
        "gpu": gpu_facts.of_rank(device),
    }
    return environment(ranks, backend="virtual time", world="simulated", extra=extra)


def _data_and_spec(config: RunConfig) -> tuple[Data, InputSpec]:
    """The data, or with `timing_only` their sizes, and what the model is to take in."""
    dataset = config.dataset
    samples, spec = dataset.info().samples, input_spec(dataset)
    if samples is None or spec is None or not config.launcher.timing_only:
        with data_errors(dataset):
            data = dataset.load()
        spec = InputSpec(*data.shape, data.classes)
        if not config.launcher.timing_only:
            return data, spec
        samples = {split: len(data.split(split)) for split in SPLITS}
    return timing_only.ghost_data(type(dataset).__name__, *(samples[split] for split in SPLITS)), spec


def evaluate(run_dir: Path) -> dict[str, Any]:
    """Score a run's saved model in this process: an evaluation's numbers, the split, the file that was read.

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
