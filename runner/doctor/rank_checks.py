"""The checks by each rank of `daso-bench check launcher=slurm`: facts, links, sums, strategies' contract.

The ranks are started as those of a training are, and use the same communicator. Rank 0 updates `check.json`
in the run directory after each part, so that a later failure loses nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...strategies.errors import ConfigError
from ...strategies.topology import WORLD
from ..communication.torch_communicator import TorchCommunicator
from ..conformance import real_processes
from ..conformance.checks import Candidate, Failed
from ..conformance.trial import trial_scenario
from ..launch.rank import meet
from ..launch.rank_process import Link, RankTask
from ..launch.slurm.job import ENTRY_FILE
from ..machine.facts import process_facts
from ..machine.gpu_facts import nccl_version
from ..records.json_lines import read_json, write_json

ENTRY = "daso_bench.runner.doctor.rank_checks:examine"
RESULT, PHASE_FILE = "check.json", "doing.txt"
SCHEMA_VERSION = 1
FEW_NODES = 16  # of more, not all pairs are measured
LARGE_BYTES, WINDOW = 4 * 2**20, 4
ROUND_TRIPS = 50
MEASURE_S = 0.3  # of one direction of a link, of one size of a sum
SUM_BYTES = (64 * 2**10, 2**20, 16 * 2**20)
GPU_FP32_TOLERANCE = 1e-5  # a GPU's kernels sum in another order in every operation, 21 steps long
_log = logging.getLogger(__name__)


def examine(task: RankTask, link: Link) -> None:
    """Check the cluster as one rank; arguments and errors as of `rank.run_rank`. Strategies: entry.json."""
    run_dir, rank = task.run_dir, task.rank
    result: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "complete": False, "contracts": []}

    def save(**parts: Any) -> None:
        result.update(parts)
        if rank == 0:
            write_json(run_dir / RESULT, result)

    def phase(name: str) -> None:
        """Note what this rank does now, for the supervisor and in a file."""
        link.call = name
        link.progress(phase=name)
        _log.info("%s", name)
        if rank == 0:
            with suppress(OSError):  # the check does not need this file
                (run_dir / PHASE_FILE).write_text(name, encoding="utf-8")

    phase("rendezvous")
    config, comm = meet(task)
    topology, comm.on_call = comm.topology, link
    phase("facts of each rank")
    rows = comm.gather_values(facts_of(comm, config.results_dir, task.meeting.host, task.threads))
    versions = {**rows[0]["versions"], "nccl": nccl_version() if comm.backend == "nccl" else None}
    save(ranks_of_nodes=list(topology.ranks_of_nodes), backend=comm.backend, versions=versions, rows=rows)
    hosts = [rows[topology.on_node(node)[0]]["host"] for node in range(topology.nodes)]
    save(pairs=links(comm, hosts, phase))
    save(collectives=sums(comm, phase))
    for entry in read_json(run_dir / ENTRY_FILE)["strategies"]:
        phase(f"contract of {entry['name']}")
        candidate = real_processes.candidate_of(entry["name"], entry["keys"], entry["builtin"])
        save(contracts=[*result["contracts"], contract(comm, candidate, run_dir)])
    save(complete=True)
    comm.barrier(WORLD)
    link.finish("finished", None, None)
    comm.close()


# ------------------------------------------------------------------ facts


def facts_of(comm: TorchCommunicator, results_dir: Path, master: str, threads: int) -> dict[str, Any]:
    """This rank's row: its `ProcessFacts`, its place and its device."""
    facts = process_facts(results_dir, master=master, with_torch=True)
    device = comm.device
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    place = {"rank": comm.rank, "local_rank": comm.local_rank, "node": comm.node}
    return {**facts.as_row(), **place, "threads": threads, "device": f"{device}{name}"}


# ------------------------------------------------------------------ links and sums


def pairs_of(nodes: int) -> list[tuple[int, int]]:
    """The pairs of nodes to measure: all, or of many nodes the neighbours in a ring."""
    if nodes <= FEW_NODES:
        return list(combinations(range(nodes), 2))
    return [(node, node + 1) for node in range(nodes - 1)] + [(0, nodes - 1)]


def links(
    comm: TorchCommunicator, hosts: Sequence[str], phase: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Latency and rate between the first ranks of nodes, one pair at a time; on every rank."""
    leaders = [comm.topology.on_node(node)[0] for node in range(comm.topology.nodes)]
    pairs = pairs_of(comm.topology.nodes)
    measured: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(pairs, 1):
        phase(f"link {hosts[a]} - {hosts[b]} ({number} of {len(pairs)})")
        comm.barrier(WORLD)
        if comm.rank == leaders[a]:
            figures = measure(comm, leaders[b], first=True)
            measured.append(
                {"nodes": [a, b], "a": hosts[a], "b": hosts[b], "backend": comm.backend, **figures}
            )
        elif comm.rank == leaders[b]:
            measure(comm, leaders[a], first=False)
    phase("links")
    gathered = [pair for of_rank in comm.gather_values(measured) for pair in of_rank]
    return sorted(gathered, key=lambda pair: pair["nodes"])


def measure(comm: TorchCommunicator, peer: int, *, first: bool) -> dict[str, Any]:
    """Measure the link to `peer`, which calls this too: the rate is that of the slower direction."""
    small = torch.zeros(2, device=comm.device)
    large = [torch.zeros(LARGE_BYTES // 4, device=comm.device) for _ in range(WINDOW)]

    def trip() -> float:
        """Seconds of a message there and back."""
        began = time.perf_counter()
        for sends in (first, not first):
            pass_on(comm, peer, [small], sends=sends)
        return time.perf_counter() - began

    def stream(sends: bool, windows: int) -> float:
        """Seconds to send `large` one way, `windows` times; the receiver confirms at the end."""
        trip()
        began = time.perf_counter()
        for _ in range(windows):
            pass_on(comm, peer, large, sends=sends)
        pass_on(comm, peer, [small], sends=not sends)
        return time.perf_counter() - began

    for _ in range(3):
        trip()
    latency_s = median(trip() for _ in range(ROUND_TRIPS)) / 2
    for sends in (first, not first):
        once_s = stream(sends, 1)
    small.fill_(max(1, min(16, round(MEASURE_S / max(once_s, 1e-6)))))
    pass_on(comm, peer, [small], sends=first)
    windows = int(small[0].item())
    numbytes = windows * WINDOW * LARGE_BYTES
    rates = [8e-9 * numbytes / stream(sends, windows) for sends in (first, not first)]
    return {"latency_us": 1e6 * latency_s, "rate_gbit": min(rates), "rate_gbit_each_way": rates}


def pass_on(comm: TorchCommunicator, peer: int, tensors: Sequence[Tensor], *, sends: bool) -> None:
    """Send all `tensors` to `peer`, or receive them, and wait for the end."""
    works = [
        comm.exchange({peer: tensor} if sends else {}, {} if sends else {peer: tensor}, tag)
        for tag, tensor in enumerate(tensors)
    ]
    for work in works:
        work.wait()
    comm.synchronise()


def sums(comm: TorchCommunicator, phase: Callable[[str], None]) -> list[dict[str, Any]]:
    """All-reduce over all ranks at several sizes; `bus_gbit` is 2 (n - 1) / n sizes in the slowest time."""
    ranks = comm.topology.ranks
    rows: list[dict[str, Any]] = []
    for numbytes in SUM_BYTES if ranks > 1 else ():
        phase(f"all_reduce of {numbytes // 1024} KiB")
        tensor = torch.zeros(numbytes // 4, device=comm.device)
        once_s = max(comm.gather_values([timed(comm, tensor, 1) for _ in range(2)][-1]))
        times = max(3, min(100, round(MEASURE_S / max(once_s, 1e-6))))
        seconds = max(comm.gather_values(timed(comm, tensor, times) / times))
        bus_gbit = 8e-9 * numbytes * 2 * (ranks - 1) / ranks / seconds
        rows.append({"bytes": numbytes, "seconds": seconds, "bus_gbit": bus_gbit})
    return rows


def timed(comm: TorchCommunicator, tensor: Tensor, times: int) -> float:
    """Seconds of so many sums of `tensor` over all ranks, as this rank measures them."""
    comm.barrier(WORLD)
    began = time.perf_counter()
    for _ in range(times):
        comm.all_reduce(tensor, WORLD, channel="gradients").wait()
    comm.synchronise()
    return time.perf_counter() - began


# ------------------------------------------------------------------ the contract


def contract(comm: TorchCommunicator, candidate: Candidate, folder: Path) -> dict[str, Any]:
    """The conformance kit's trial run on this communicator; rank 0 compares all ranks with virtual time.

    Returns strategy, status (ok, refuses, FAILED), text, seconds. Raises what the strategy raises.
    """
    began = time.monotonic()
    ranks = comm.topology.ranks_of_nodes
    status, text = "ok", None
    try:
        measured, remark = real_processes.without_measuring(candidate, ranks)
        measured.strategy_class.check(measured.config, trial_scenario(measured, ranks).plan)
        real_processes.walk(comm, measured, folder)
        if comm.rank == 0:
            walks = real_processes.walks_of(folder, measured.name, comm.topology.ranks)
            tolerance = GPU_FP32_TOLERANCE if comm.device.type == "cuda" else 0.0
            text = real_processes.require_as_in_virtual_time(measured, ranks, walks, comm.backend, tolerance)
            text = text or remark
    except ConfigError as error:
        status, text = "refuses", str(error)
    except Failed as error:
        status, text = "FAILED", str(error)
    seconds = time.monotonic() - began
    return {"strategy": candidate.name, "status": status, "text": text, "seconds": seconds}
