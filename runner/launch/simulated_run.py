"""A run in virtual time: one process computes all ranks, writes their records, reports to the supervisor."""

import socket
from pathlib import Path
from typing import Any

import torch

from ...datasets.data import SPLITS, Data
from ...models.spec import InputSpec
from ...strategies.errors import ExpectedEnd
from ...strategies.topology import Topology
from ..communication import gpus
from ..communication.link_costs import ClusterNetwork
from ..config import load
from ..config.model_building import input_spec
from ..config.run_config import RunConfig
from ..machine.environment import environment, rank_row
from ..records.json_lines import RecordWriter, read_json, write_json
from ..records.run_directory import RunDirectory, check_same_data, of_attempt
from ..simulation import timing_only
from ..simulation.simulated_world import simulate
from ..simulation.simulator import OutOfTime
from ..simulation.timeline import Timeline
from ..training import checkpoint
from ..training.context import Rows
from ..training.data_errors import data_errors, image_errors
from ..training.device_model import ClusterDevice
from .rank import SupervisorLink


class NodeLost(ExpectedEnd):
    """A node of the modelled cluster has failed, as `cluster.failures_s` wanted it."""


class Appended:
    """Rows at the end of a file that is open only while one is written: ranks may be thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, row: dict[str, Any]) -> None:
        """Append `row`."""
        with RecordWriter(self._path) as writer:
            writer.write(row)


def run_all(
    run_dir: Path,
    rank: int,
    ranks: int,
    port: int,
    listener: socket.socket | None,
    threads: int,
    link: SupervisorLink,
) -> None:
    """Train all ranks of the run in `run_dir`.

    Raises:
        NodeLost: this attempt has come to its time in `cluster.failures_s`.
    """
    torch.set_num_threads(threads)
    config = load.load(run_dir / "config.yaml")
    topology = Topology.of(config.cluster.ranks_of_nodes)
    attempt = len(read_json(run_dir / "status.json")["attempts"])
    data, spec = _data_and_spec(config)
    check_same_data(run_dir, data.files)
    profile = timing_only.profile_of(config, spec)
    if config.launcher.timing_only:
        config = timing_only.without_numbers(config, profile)
    _write_environment(run_dir, topology, threads, attempt)
    failures = config.cluster.failures_s
    fails_s = failures[attempt - 1] if attempt <= len(failures) else None
    timeline = Timeline(topology) if config.launcher.timeline else None

    def tick() -> None:
        link.steps += 1  # the stall watch counts it as progress

    def rank_rows(rank: int) -> Rows:
        return Appended(RunDirectory(run_dir).rank_records(rank))

    with RecordWriter(run_dir / "metrics.jsonl") as metrics:
        try:
            with image_errors(config.dataset):
                results = simulate(
                    config,
                    data,
                    network=ClusterNetwork(config.cluster.links, topology),
                    device=lambda rank: ClusterDevice(config.cluster.device, rank, profile, config.seed),
                    profile=profile,
                    timing_only=config.launcher.timing_only,
                    remarks=(f"simulated: {config.cluster.validity}",),
                    checkpoints=run_dir / "checkpoints",
                    attempt=attempt,
                    listeners=lambda rank: link if rank == 0 else None,
                    tick=tick,
                    rank_rows=rank_rows,
                    metrics=metrics,
                    until_ns=None if fails_s is None else round(fails_s * 1e9),
                    timeline=timeline,
                ).results
        except OutOfTime as error:
            raise NodeLost(
                f"a node was lost after {fails_s} s of virtual time (cluster.failures_s); "
                "`daso-bench resume` goes on from the last checkpoint, or from the start if there is none"
            ) from error
        finally:  # also of a run that failed, where it is needed most
            if timeline is not None:
                timeline.write(run_dir / of_attempt("timeline", attempt))
    first = results[0]
    link.finish(first.status, first.summary, first.reason)
    if first.status == "finished":
        checkpoint.drop_resume_states(run_dir / "checkpoints")


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


def _write_environment(run_dir: Path, topology: Topology, threads: int, attempt: int) -> None:
    rows = [
        rank_row(
            rank=rank,
            node=topology.node_of_rank[rank],
            local_rank=topology.local_ranks[rank],
            device="virtual",
            threads=threads,
        )
        for rank in range(topology.ranks)
    ]
    write_json(
        run_dir / of_attempt("environment", attempt),
        environment(
            rows,
            backend="virtual time",
            world="simulated",
            extra={"arithmetic": gpus.numeric_flags()},
        ),
    )
