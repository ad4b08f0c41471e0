"""What the ranks of a job do when a cluster is looked at: facts, links, sums, and the contract of strategies.

All of it goes over the communicator that trainings use, in ranks that are started as theirs are. Rank 0 keeps
`check.json` in the run directory up to date, so that what was found before a failure is not lost.
"""

import logging
import os
import random
import secrets
import socket
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
from ..conformance.trial import course as trial_course
from ..launch.rank import MeetingLink as Link
from ..launch.rank import meet
from ..launch.slurm.job import ENTRY_FILE
from ..machine.facts import rank_facts
from ..records.json_lines import read_json, write_json
from ..training import gather

ENTRY = "daso_bench.runner.doctor.rank_checks:examine"
RESULT, DOING, TOKEN = "check.json", "doing.txt", "token.txt"
SCHEMA_VERSION = 1
TOKEN_S = 10.0  # network file systems show others' files late, by their rules within a few seconds
CLOCK_ROUNDS = 8
FEW_NODES = 16  # of more, not all pairs are measured
LARGE_BYTES, WINDOW = 4 * 2**20, 4
ROUND_TRIPS = 50
MEASURE_S = 0.3  # of one direction of a link, of one size of a sum
SUM_BYTES = (64 * 2**10, 2**20, 16 * 2**20)
VIRTUAL_RANKS = 128  # every rank simulates all, in 0.15 s each: of more, only agreement is looked at
GPU_FP32_TOLERANCE = 1e-5  # a GPU's kernels sum in another order in every operation, 21 steps long
_log = logging.getLogger(__name__)


class Doing:
    """Says what the ranks are at: to the supervisor, whose word on a hang then names it, and in a file."""

    def __init__(self, link: Link, file: Path | None) -> None:
        self._link, self._file, self._what = link, file, ""

    def __call__(self, what: str) -> None:
        self._what = self._link.call = what
        self._link.progress(phase=what)
        _log.info("%s", what)
        if self._file is not None:
            with suppress(OSError):  # for show
                self._file.write_text(what, encoding="utf-8")

    @property
    def call(self) -> str:
        return self._link.call

    @call.setter
    def call(self, name: str) -> None:
        self._link.call = f"{self._what}: {name}" if name else self._what


def examine(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Link
) -> None:
    """What each rank does; arguments and errors as of `rank.run_rank`. entry.json names the strategies."""
    doing = Doing(link, run_dir / DOING if rank == 0 else None)
    doing("rendezvous")
    config, comm = meet(run_dir, rank, ranks, port, listener, threads, link.meeting)
    topology = comm.topology
    comm.on_call = doing  # pyright: ignore[reportAttributeAccessIssue] (a property where an attribute is asked)
    found: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "complete": False, "contracts": []}

    def keep(**news: Any) -> None:
        found.update(news)
        if rank == 0:
            write_json(run_dir / RESULT, found)

    own = facts_of(comm, run_dir, config.results_dir, link.meeting.host, threads, doing)
    rows = gather.values(comm, own)
    keep(**about(comm, rows))
    hosts = [rows[topology.on_node(node)[0]]["host"] for node in range(topology.nodes)]
    pairs, remark = links(comm, hosts, doing)
    keep(pairs=pairs, pairs_remark=remark)
    keep(collectives=sums(comm, doing), control_barrier_us=control_barrier_us(comm, doing))
    for asked in read_json(run_dir / ENTRY_FILE)["strategies"]:
        doing(f"contract of {asked['name']}")
        candidate = real_processes.candidate_of(asked["name"], asked["keys"], asked["builtin"])
        keep(contracts=[*found["contracts"], contract(comm, candidate, run_dir / "checkpoints")])
    keep(complete=True)
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
    doing: Callable[[str], None],
) -> dict[str, Any]:
    """This rank's row: `rank_facts`, and what only a rank among others can know."""
    doing("facts of each rank")
    row = rank_facts(results_dir, master=master, with_torch=True)
    doing("rank 0's file, as others see it")
    after_s = token_seen_s(comm, run_dir)
    doing("clocks")
    offset_s, error_s = clock_offset_s(comm)
    device = comm.device
    return {
        **row,
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
    """This host's wall clock minus rank 0's, and by how much that may be wrong; of the best round.

    In a round all meet, take the time, and meet again. Rank 0 enters the first meeting before anybody leaves
    it and leaves the second one after everybody has entered it: like a message there and back, for all at
    once.
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
    """The head of the result: the ranks' rows, and what is the same for all."""
    return {
        "ranks_of_nodes": list(comm.topology.ranks_of_nodes),
        "backend": comm.backend,
        "threads": min(row["threads"] for row in rows),  # left to itself, a rank has its share of the cores
        "versions": {**rows[0]["versions"], "nccl": nccl_version() if comm.backend == "nccl" else None},
        "rows": list(rows),
    }


def nccl_version() -> str:
    """Of the library that torch has loaded."""
    from torch.cuda import nccl

    return ".".join(str(part) for part in nccl.version())


# ------------------------------------------------------------------ links and sums


def pairs_of(nodes: int) -> tuple[list[tuple[int, int]], str | None]:
    """The pairs of nodes to measure, and a remark where they are not all: a ring, and as many at random."""
    everyone = [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    if nodes <= FEW_NODES:
        return everyone, None
    ring = [(node, node + 1) for node in range(nodes - 1)] + [(0, nodes - 1)]
    others = random.Random(nodes).sample([pair for pair in everyone if pair not in set(ring)], nodes)
    remark = f"{len(ring)} neighbours and {nodes} other pairs at random, of {len(everyone)}"
    return sorted({*ring, *others}), remark


def links(
    comm: TorchCommunicator, hosts: Sequence[str], doing: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str | None]:
    """Latency and rate between the first ranks of nodes, one pair at a time; on every rank."""
    leaders = [comm.topology.on_node(node)[0] for node in range(comm.topology.nodes)]
    pairs, remark = pairs_of(comm.topology.nodes)
    measured: list[dict[str, Any]] = []
    for number, (a, b) in enumerate(pairs, 1):
        doing(f"link {hosts[a]} - {hosts[b]} ({number} of {len(pairs)})")
        comm.barrier(WORLD)
        if comm.rank == leaders[a]:
            figures = measure(comm, leaders[b], first=True)
            measured.append(
                {"nodes": [a, b], "a": hosts[a], "b": hosts[b], "backend": comm.backend, **figures}
            )
        elif comm.rank == leaders[b]:
            measure(comm, leaders[a], first=False)
    doing("links")
    every = [pair for found in gather.values(comm, measured) for pair in found]
    return sorted(every, key=lambda pair: pair["nodes"]), remark


def measure(comm: TorchCommunicator, other: int, *, first: bool) -> dict[str, Any]:
    """One link, with `other` doing the same: the rate is that of the slower direction."""
    small = torch.zeros(2, device=comm.device)
    large = [torch.zeros(LARGE_BYTES // 4, device=comm.device) for _ in range(WINDOW)]

    def trip() -> float:
        """There and back."""
        began = time.perf_counter()
        for sends in (first, not first):
            pass_on(comm, other, [small], sends=sends)
        return time.perf_counter() - began

    def stream(sends: bool, windows: int) -> float:
        """`windows` times all of `large` one way; the other side says when it has them."""
        trip()
        began = time.perf_counter()
        for _ in range(windows):
            pass_on(comm, other, large, sends=sends)
        pass_on(comm, other, [small], sends=not sends)
        return time.perf_counter() - began

    for _ in range(3):
        trip()
    latency_s = median(trip() for _ in range(ROUND_TRIPS)) / 2
    for sends in (first, not first):
        once_s = stream(sends, 1)
    small.fill_(max(1, min(16, round(MEASURE_S / max(once_s, 1e-6)))))
    pass_on(comm, other, [small], sends=first)
    windows = int(small[0].item())
    numbytes = windows * WINDOW * LARGE_BYTES
    rates = [8e-9 * numbytes / stream(sends, windows) for sends in (first, not first)]
    return {"latency_us": 1e6 * latency_s, "rate_gbit": min(rates), "rate_gbit_each_way": rates}


def pass_on(comm: TorchCommunicator, other: int, tensors: Sequence[Tensor], *, sends: bool) -> None:
    """Send all `tensors` to `other`, or receive them, and wait until that is done."""
    works = [
        comm.exchange({other: tensor} if sends else {}, {} if sends else {other: tensor}, tag)
        for tag, tensor in enumerate(tensors)
    ]
    for work in works:
        work.wait()
    synchronise(comm)


def synchronise(comm: TorchCommunicator) -> None:
    """On a GPU `wait` only has the stream wait."""
    if comm.device.type == "cuda":
        torch.cuda.synchronize(comm.device)


def sums(comm: TorchCommunicator, doing: Callable[[str], None]) -> list[dict[str, Any]]:
    """All-reduce over all ranks at several sizes; `bus_gbit` is 2 (n - 1) / n sizes in the slowest's time."""
    ranks = comm.topology.ranks
    found: list[dict[str, Any]] = []
    for numbytes in SUM_BYTES if ranks > 1 else ():
        doing(f"all_reduce of {numbytes // 1024} KiB")
        tensor = torch.zeros(numbytes // 4, device=comm.device)
        once_s = max(gather.values(comm, [timed(comm, tensor, 1) for _ in range(2)][-1]))
        times = max(3, min(100, round(MEASURE_S / max(once_s, 1e-6))))
        seconds = max(gather.values(comm, timed(comm, tensor, times) / times))
        bus_gbit = 8e-9 * numbytes * 2 * (ranks - 1) / ranks / seconds
        found.append(
            {
                "verb": "all_reduce",
                "backend": comm.backend,
                "bytes": numbytes,
                "seconds": seconds,
                "bus_gbit": bus_gbit,
            }
        )
    return found


def timed(comm: TorchCommunicator, tensor: Tensor, times: int) -> float:
    """Seconds that so many sums of `tensor` over all ranks take this one."""
    comm.barrier(WORLD)
    began = time.perf_counter()
    for _ in range(times):
        comm.all_reduce(tensor, WORLD, channel="gradients").wait()
    synchronise(comm)
    return time.perf_counter() - began


def control_barrier_us(comm: TorchCommunicator, doing: Callable[[str], None]) -> float:
    """A barrier of all ranks on the control channel, which is gloo's also where NCCL trains."""
    doing("barriers on the control channel")
    took: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        comm.barrier(WORLD)
        took.append(1e6 * (time.perf_counter() - began))
    return median(took)


# ------------------------------------------------------------------ the contract


def contract(comm: TorchCommunicator, candidate: Candidate, folder: Path) -> dict[str, Any]:
    """The conformance kit's trial run on this communicator, held against virtual time; rank 0's word counts.

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
    """All ranks come to the same: Failed on all or on none."""
    ranks = comm.topology.ranks_of_nodes
    candidate, remark = real_processes.without_measuring(candidate, ranks)
    candidate.strategy_class.check(candidate.config, trial_course(candidate, ranks).plan)
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
    verdicts = gather.values(comm, [other_sizes, problem])
    problems = [told for _, told in verdicts if told is not None]
    if problems:
        more = f" (and {len(problems) - 1} more ranks)" if len(problems) > 1 else ""
        raise Failed(problems[0] + more)
    if any(other for other, _ in verdicts):
        _require_agreement(comm, walks)
        return real_processes.OTHER_SIZES
    return remark


def _held_against_virtual_time(
    comm: TorchCommunicator, candidate: Candidate, walks: dict[str, History]
) -> bool:
    """Whether batches had other sizes than in virtual time, so that nothing can be compared."""
    on_gpu = comm.device.type == "cuda"
    for name, (dtype, tolerance) in real_processes.PRECISIONS.items():
        virtual = drive(real_processes.course_of(candidate, comm.topology.ranks_of_nodes, dtype))[comm.rank]
        if walks[name].sizes != virtual.sizes:
            return True
        allowed = GPU_FP32_TOLERANCE if on_gpu and name == "fp32" else tolerance
        real_processes.require_as_virtual(walks[name], virtual, f"{name} over {comm.backend}", allowed)
    allowed = GPU_FP32_TOLERANCE if on_gpu else 0.0
    real_processes.require_resumed(walks["resumed"], walks["fp32"], f"fp32 over {comm.backend}", allowed)
    return False


def _require_agreement(comm: TorchCommunicator, walks: dict[str, History]) -> None:
    """Every rank looks at all ranks' ends and calls, so that all fail or none."""
    everyone = comm.topology.members(WORLD, 0)
    for name in real_processes.PRECISIONS:
        walk = walks[name]
        calls = [
            # A long list of all ranks would be most of what is sent.
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
    """Where virtual time's tensors are."""
    history.parameters = {step: value.cpu() for step, value in history.parameters.items()}
    history.final, history.given = history.final.cpu(), history.given.cpu()
    return history
