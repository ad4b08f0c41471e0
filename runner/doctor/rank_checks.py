"""The checks by each rank of `daso-bench check launcher=slurm`: facts, links, sums, strategies' contract.

The ranks are started as those of a training are, and use the same communicator. Rank 0 updates `check.json`
in the run directory after each part, so that a later failure loses nothing.
"""

import logging
import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...strategies.asynchronous import AsynchronousStrategy
from ...strategies.errors import ConfigError
from ...strategies.topology import WORLD
from ..communication.torch_communicator import TorchCommunicator
from ..conformance import real_processes
from ..conformance.checks import Candidate, Failed
from ..conformance.driver import drive
from ..conformance.scenario import Call, History
from ..conformance.trial import trial_scenario
from ..launch.rank import meet
from ..launch.rank_process import Link, RankTask
from ..launch.slurm.job import ENTRY_FILE
from ..machine.facts import process_facts
from ..machine.gpu_facts import nccl_version
from ..records.json_lines import read_json, write_json
from ..training import gather

ENTRY = "daso_bench.runner.doctor.rank_checks:examine"
RESULT, PHASE_FILE, TOKEN = "check.json", "doing.txt", "token.txt"
SCHEMA_VERSION = 1
TOKEN_S = 10.0  # network file systems show files of other hosts late, but within a few seconds
CLOCK_ROUNDS = 8
FEW_NODES = 16  # of more, not all pairs are measured
LARGE_BYTES, WINDOW = 4 * 2**20, 4
ROUND_TRIPS = 50
MEASURE_S = 0.3  # of one direction of a link, of one size of a sum
SUM_BYTES = (64 * 2**10, 2**20, 16 * 2**20)
VIRTUAL_RANKS = 128  # every rank simulates all, in 0.15 s each; with more ranks only agreement is checked
GPU_FP32_TOLERANCE = 1e-5  # a GPU's kernels sum in another order in every operation, 21 steps long
_log = logging.getLogger(__name__)


class Phase:
    """The phase of the check, for the supervisor, whose message about a hang names it, and in a file."""

    def __init__(self, link: Link, file: Path | None) -> None:
        self._link, self._file, self._name = link, file, ""

    def __call__(self, name: str) -> None:
        self._name = self._link.call = name
        self._link.progress(phase=name)
        _log.info("%s", name)
        if self._file is not None:
            with suppress(OSError):  # the check does not need this file
                self._file.write_text(name, encoding="utf-8")

    @property
    def call(self) -> str:
        return self._link.call

    @call.setter
    def call(self, name: str) -> None:
        self._link.call = f"{self._name}: {name}" if name else self._name


def examine(task: RankTask, link: Link) -> None:
    """Check the cluster as one rank; arguments and errors as of `rank.run_rank`. Strategies: entry.json."""
    run_dir, rank = task.run_dir, task.rank
    phase = Phase(link, run_dir / PHASE_FILE if rank == 0 else None)
    phase("rendezvous")
    config, comm = meet(task)
    topology = comm.topology
    comm.on_call = phase  # pyright: ignore[reportAttributeAccessIssue] (a property where an attribute is asked)
    result: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "complete": False, "contracts": []}

    def save(**parts: Any) -> None:
        result.update(parts)
        if rank == 0:
            write_json(run_dir / RESULT, result)

    row = facts_of(comm, run_dir, config.results_dir, task.meeting.host, task.threads, phase)
    rows = gather.values(comm, row)
    save(**about(comm, rows))
    hosts = [rows[topology.on_node(node)[0]]["host"] for node in range(topology.nodes)]
    pairs, remark = links(comm, hosts, phase)
    save(pairs=pairs, pairs_remark=remark)
    save(collectives=sums(comm, phase), control_barrier_us=control_barrier_us(comm, phase))
    for entry in read_json(run_dir / ENTRY_FILE)["strategies"]:
        phase(f"contract of {entry['name']}")
        candidate = real_processes.candidate_of(entry["name"], entry["keys"], entry["builtin"])
        save(contracts=[*result["contracts"], contract(comm, candidate, run_dir / "checkpoints")])
    save(complete=True)
    comm.barrier(WORLD)
    link.finish("finished", None, None)
    comm.close()


# ------------------------------------------------------------------ facts


def facts_of(
    comm: TorchCommunicator,
    run_dir: Path,
    results_dir: Path,
    master: str,
    threads: int,
    phase: Callable[[str], None],
) -> dict[str, Any]:
    """This rank's row: its `ProcessFacts`, and what it measures with the other ranks."""
    phase("facts of each rank")
    facts = process_facts(results_dir, master=master, with_torch=True)
    phase("rank 0's file, as others see it")
    after_s = token_seen_s(comm, run_dir)
    phase("clocks")
    offset_s, error_s = clock_offset_s(comm)
    device = comm.device
    return {
        **facts.as_row(),
        "rank": comm.rank,
        "local_rank": comm.local_rank,
        "node": comm.node,
        "threads": threads,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "sees_token": after_s is not None,
        "token_after_s": after_s,
        "clock_offset_s": offset_s,
        "clock_error_s": error_s,
    }


def token_seen_s(comm: TorchCommunicator, run_dir: Path, patience_s: float = TOKEN_S) -> float | None:
    """Seconds until this rank sees the file that rank 0 has just written; None if it does not."""
    drawn = torch.tensor(list(secrets.token_bytes(16)), dtype=torch.uint8)
    comm.broadcast(drawn, 0, WORLD, channel="control").wait()
    token, file = bytes(drawn.tolist()).hex(), run_dir / TOKEN
    if comm.rank == 0:
        file.write_text(token)
    comm.barrier(WORLD)
    after_s = look_for(file, token, patience_s)
    comm.barrier(WORLD)
    if comm.rank == 0:
        file.unlink()
    return after_s


def look_for(file: Path, token: str, patience_s: float) -> float | None:
    """Seconds until `file` holds `token`; None if it does not within `patience_s`."""
    began = time.monotonic()
    while True:
        with suppress(OSError):
            os.listdir(file.parent)  # makes a network file system look again
            if file.read_text() == token:
                return time.monotonic() - began
        if time.monotonic() - began >= patience_s:
            return None
        time.sleep(0.1)


def clock_offset_s(comm: TorchCommunicator) -> tuple[float, float]:
    """This host's wall clock minus that of rank 0, and the error of that; both of the best round.

    In a round all ranks meet, take the time, and meet again. Rank 0 enters the first meeting before any rank
    leaves it, and leaves the second one after all ranks have entered it: a round trip to all ranks at once.
    """
    rounds: list[tuple[float, float]] = []
    stamps = torch.zeros(comm.topology.ranks, dtype=torch.float64)
    for _ in range(CLOCK_ROUNDS):
        entered = time.time()
        comm.all_gather(stamps, torch.tensor([entered], dtype=torch.float64), WORLD, channel="control").wait()
        zero_entered, stamp = stamps[0].item(), time.time()
        comm.barrier(WORLD)
        left = torch.tensor([time.time()], dtype=torch.float64)
        comm.broadcast(left, 0, WORLD, channel="control").wait()
        rounds.append((left.item() - zero_entered, stamp - (left.item() + zero_entered) / 2))
    took_s, offset_s = min(rounds)
    return (offset_s if comm.rank else 0.0), took_s / 2


def about(comm: TorchCommunicator, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The head of the result: the rows of the ranks, and what is the same for all."""
    return {
        "ranks_of_nodes": list(comm.topology.ranks_of_nodes),
        "backend": comm.backend,
        "threads": min(row["threads"] for row in rows),  # with `auto`, a rank has its share of the cores
        "versions": {**rows[0]["versions"], "nccl": nccl_version() if comm.backend == "nccl" else None},
        "rows": list(rows),
    }


# ------------------------------------------------------------------ links and sums


def pairs_of(nodes: int) -> tuple[list[tuple[int, int]], str | None]:
    """The pairs of nodes to measure, and a remark if not all: a ring, and as many pairs at random."""
    all_pairs = [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    if nodes <= FEW_NODES:
        return all_pairs, None
    ring = [(node, node + 1) for node in range(nodes - 1)] + [(0, nodes - 1)]
    drawn = random.Random(nodes).sample([pair for pair in all_pairs if pair not in set(ring)], nodes)
    remark = f"{len(ring)} neighbours and {nodes} other pairs at random, of {len(all_pairs)}"
    return sorted({*ring, *drawn}), remark


def links(
    comm: TorchCommunicator, hosts: Sequence[str], phase: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """Latency and rate between the first ranks of nodes, one pair at a time; on every rank."""
    leaders = [comm.topology.on_node(node)[0] for node in range(comm.topology.nodes)]
    pairs, remark = pairs_of(comm.topology.nodes)
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
    gathered = [pair for of_rank in gather.values(comm, measured) for pair in of_rank]
    return sorted(gathered, key=lambda pair: pair["nodes"]), remark


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
    synchronise(comm)


def synchronise(comm: TorchCommunicator) -> None:
    """Wait for the GPU: there a communicator's `wait` only orders the stream."""
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)


def sums(comm: TorchCommunicator, phase: Callable[[str], None]) -> list[dict[str, Any]]:
    """All-reduce over all ranks at several sizes; `bus_gbit` is 2 (n - 1) / n sizes in the slowest time."""
    ranks = comm.topology.ranks
    rows: list[dict[str, Any]] = []
    for numbytes in SUM_BYTES if ranks > 1 else ():
        phase(f"all_reduce of {numbytes // 1024} KiB")
        tensor = torch.zeros(numbytes // 4, device=comm.device)
        once_s = max(gather.values(comm, [timed(comm, tensor, 1) for _ in range(2)][-1]))
        times = max(3, min(100, round(MEASURE_S / max(once_s, 1e-6))))
        seconds = max(gather.values(comm, timed(comm, tensor, times) / times))
        bus_gbit = 8e-9 * numbytes * 2 * (ranks - 1) / ranks / seconds
        rows.append(
            {
                "verb": "all_reduce",
                "backend": comm.backend,
                "bytes": numbytes,
                "seconds": seconds,
                "bus_gbit": bus_gbit,
            }
        )
    return rows


def timed(comm: TorchCommunicator, tensor: Tensor, times: int) -> float:
    """Seconds of so many sums of `tensor` over all ranks, as this rank measures them."""
    comm.barrier(WORLD)
    began = time.perf_counter()
    for _ in range(times):
        comm.all_reduce(tensor, WORLD, channel="gradients").wait()
    synchronise(comm)
    return time.perf_counter() - began


def control_barrier_us(comm: TorchCommunicator, phase: Callable[[str], None]) -> float:
    """Microseconds of a barrier of all ranks on the control channel, which is gloo also where NCCL trains."""
    phase("barriers on the control channel")
    took: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        comm.barrier(WORLD)
        took.append(1e6 * (time.perf_counter() - began))
    return median(took)


# ------------------------------------------------------------------ the contract


def contract(comm: TorchCommunicator, candidate: Candidate, folder: Path) -> dict[str, Any]:
    """The conformance kit's trial run on this communicator, compared with virtual time.

    Returns strategy, status (ok, refuses, FAILED), text, seconds. Raises what the strategy raises.
    """
    began = time.monotonic()
    status, text = "ok", None
    try:
        text = _tried(comm, candidate, folder)
    except ConfigError as error:
        status, text = "refuses", str(error)
    except Failed as error:
        status, text = "FAILED", str(error)
    seconds = time.monotonic() - began
    return {"strategy": candidate.name, "status": status, "text": text, "seconds": seconds}


def _tried(comm: TorchCommunicator, candidate: Candidate, folder: Path) -> str | None:
    """Run the trial; returns a remark, if any. Raises Failed on all ranks or on none."""
    ranks = comm.topology.ranks_of_nodes
    candidate, remark = real_processes.without_measuring(candidate, ranks)
    candidate.strategy_class.check(candidate.config, trial_scenario(candidate, ranks).plan)
    walks = {name: _on_cpu(walk) for name, walk in real_processes.walks_on(comm, candidate, folder).items()}
    if issubclass(candidate.strategy_class, AsynchronousStrategy):
        _require_agreement(comm, walks)
        return real_processes.OWN_PACE
    if comm.topology.ranks > VIRTUAL_RANKS:
        _require_agreement(comm, walks)
        return f"with more than {VIRTUAL_RANKS} ranks not held against virtual time: it ends, and ranks agree"
    other_sizes, problem = False, None
    try:
        other_sizes = _held_against_virtual_time(comm, candidate, walks)
    except Failed as failed:
        problem = str(failed)
    gathered = gather.values(comm, [other_sizes, problem])
    problems = [text for _, text in gathered if text is not None]
    if problems:
        more = f" (and {len(problems) - 1} more ranks)" if len(problems) > 1 else ""
        raise Failed(problems[0] + more)
    if any(sizes_differ for sizes_differ, _ in gathered):
        _require_agreement(comm, walks)
        return real_processes.OTHER_SIZES
    return remark


def _held_against_virtual_time(
    comm: TorchCommunicator, candidate: Candidate, walks: dict[str, History]
) -> bool:
    """Compare with virtual time; True if batches had other sizes there, and nothing can be compared."""
    on_gpu = comm.device.type == "cuda"
    for name, (dtype, tolerance) in real_processes.PRECISIONS.items():
        virtual = drive(real_processes.scenario_of(candidate, comm.topology.ranks_of_nodes, dtype))[comm.rank]
        if walks[name].sizes != virtual.sizes:
            return True
        allowed = GPU_FP32_TOLERANCE if on_gpu and name == "fp32" else tolerance
        real_processes.require_as_virtual(walks[name], virtual, f"{name} over {comm.backend}", allowed)
    allowed = GPU_FP32_TOLERANCE if on_gpu else 0.0
    real_processes.require_resumed(walks["resumed"], walks["fp32"], f"fp32 over {comm.backend}", allowed)
    return False


def _require_agreement(comm: TorchCommunicator, walks: dict[str, History]) -> None:
    """Every rank compares the final models and calls of all ranks, so that all fail or none."""
    everyone = comm.topology.members(WORLD, 0)
    for name in real_processes.PRECISIONS:
        walk = walks[name]
        calls = [
            # Without this, the list of all ranks would be most of what is sent.
            (c.during, c.channel, c.verb, None if c.members == everyone else c.members, c.numbytes)
            for c in walk.calls
        ]
        histories = [
            History(
                rank,
                names=walk.names,
                final=torch.tensor(final, dtype=walk.final.dtype),
                calls=[
                    Call(0, during, channel, verb, everyone if members is None else tuple(members), numbytes)
                    for during, channel, verb, members, numbytes in theirs
                ],
            )
            for rank, (final, theirs) in enumerate(gather.values(comm, [walk.final.tolist(), calls]))
        ]
        real_processes.require_agreement_of(histories, f"{name} over {comm.backend}")


def _on_cpu(history: History) -> History:
    """Move the tensors to the CPU, where those of virtual time are."""
    history.parameters = {step: value.cpu() for step, value in history.parameters.items()}
    history.final, history.given = history.final.cpu(), history.given.cpu()
    return history
