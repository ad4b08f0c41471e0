"""The contract on calls, bytes and time: as many as stated, in the same order on all ranks, and no longer."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from ..communication.link_costs import AlphaBeta
from ..training.device_model import Profile
from .checks import Candidate, Failed, RanksOfNodes
from .driver import drive
from .scenario import Call, Course, History
from .script import Script
from .shared_runs import OWN, STEPS, independent, plain, slow_last, uneven
from .traffic import IN_STEP, Sizes, script
from .trial import NETWORK, STEP_NS, course

LEAVING_NS = STEP_NS // 10
"""Ranks may leave a collective of several stages, such as a broadcast in each node, so far apart."""
BUCKETS_MIB = (1.0, 1e-4)  # all gradients in one bucket, and in several
# Without latencies several buckets take as long as one, but for what is hidden behind the backward pass.
BANDWIDTH = AlphaBeta(intra_bytes_per_s=1e5, inter_bytes_per_s=1e5)


def calls_in_step(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """All members of a group make the same calls on it, in the same order, with the same number of bytes."""
    histories = uneven(candidate, ranks)
    orders: dict[tuple[str, tuple[int, ...]], dict[int, list[Call]]] = {}
    for history in histories:
        for call in history.calls:
            if call.verb != "send":
                orders.setdefault((call.channel, call.members), {}).setdefault(history.rank, []).append(call)
    for (channel, members), calls in orders.items():
        first = calls.get(members[0], [])
        for member in members:
            mine = calls.get(member, [])
            where = f"rank {member} on {channel} over ranks {list(members)}"
            for number, (one, other) in enumerate(zip(mine, first, strict=False), 1):
                if (one.verb, one.numbytes) != (other.verb, other.numbytes):
                    raise Failed(f"{where}: call {number} is {one}, rank {members[0]} calls {other}")
            if len(mine) != len(first):
                raise Failed(f"{where} makes {len(mine)} calls, rank {members[0]} {len(first)}")


def sync_points(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Where is_sync_point() says yes ranks have just waited for each other: an evaluation there is free."""
    histories = uneven(candidate, ranks)
    if independent(candidate) or histories[0].strategy.never_syncs:
        return "none: models are judged from copies"
    for step, met in histories[0].met.items():
        clocks = [history.clock_ns[step] for history in histories]
        apart = max(clocks) - min(clocks)
        if met and step < STEPS and apart > LEAVING_NS:  # the run ends where it ends
            last = clocks.index(max(clocks))
            raise Failed(
                f"is_sync_point() says yes after step {step}, where rank {last} comes "
                f"{apart / 1e6:.1f} ms after the first: all would wait for it to evaluate"
            )
    return None


def traffic_formula(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Counted calls and bytes of each verb equal the strategy's own `expected_traffic`."""
    run = course(candidate, ranks)
    for history in plain(candidate, ranks):
        replica = history.replica
        expected = candidate.strategy_class.expected_traffic(
            candidate.config, run.plan, history.rank, replica.numel, replica.buffers.numel
        )
        if expected is None:
            return "no formula"
        counted: dict[str, tuple[int, int]] = {}
        for call in history.calls:
            if call.during in OWN:
                key = f"{call.channel}.{call.verb}"
                calls, numbytes = counted.get(key, (0, 0))
                counted[key] = (calls + 1, numbytes + call.numbytes)
        for key in sorted(counted.keys() | expected.keys()):
            got, must = counted.get(key, (0, 0)), expected.get(key, (0, 0))
            if got != must:
                raise Failed(
                    f"rank {history.rank}: {got[0]} calls of {key} with {got[1]} bytes, "
                    f"expected_traffic says {must[0]} with {must[1]}"
                )
    return None


def traffic_by_step(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Each rank makes in each step just the calls that the strategy's description asks for."""
    run, histories = course(candidate, ranks), plain(candidate, ranks)
    wanted = _script(candidate, run, histories[0])
    if wanted is None:
        return "no description of its own in the kit"
    for history in histories:
        require_calls(history, wanted.calls[history.rank])
    return None


def require_calls(history: History, wanted: Sequence[Call]) -> None:
    """Raise Failed at the first step in which a rank's own calls are not the `wanted` ones, in any order."""
    ours = {(call.step, call.during): Counter[Call]() for call in [*history.calls, *wanted]}
    must = {key: Counter[Call]() for key in ours}
    for call in history.calls:
        ours[call.step, call.during][call] += 1
    for call in wanted:
        must[call.step, call.during][call] += 1
    for key in sorted(key for key in ours if key[1] in OWN):
        where = f"rank {history.rank}, step {key[0] + 1}" + ("" if key[1] == "step" else f" ({key[1]})")
        for call in ours[key] - must[key]:
            raise Failed(f"{where}: one call too many: {call}")
        for call in must[key] - ours[key]:
            raise Failed(f"{where}: a call is missing: {call}")


def buckets(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Gradients are summed in buckets of `bucket_mib`, beside the backward pass unless `overlap` is false."""
    if not hasattr(candidate.config, "bucket_mib"):
        return "no key bucket_mib"
    overlap, runs = getattr(candidate.config, "overlap", True), []
    for mib in BUCKETS_MIB:
        changed = dataclasses.replace(candidate, config=dataclasses.replace(candidate.config, bucket_mib=mib))
        run = course(changed, ranks, stop_after=1)
        runs.append(drive(run, network=BANDWIDTH, step_time=STEP_NS))
    for whole, cut in zip(*runs, strict=True):
        sums = [
            call for call in cut.calls if (call.step, call.during, call.channel) == (0, "step", "gradients")
        ]
        if not sums:
            continue
        if cut.replica.averaging.reduction is None:
            _require_bytes(cut, sums)
        hidden = whole.clock_ns[1] - cut.clock_ns[1]
        if overlap != (hidden > len(sums)):  # each rounds to a nanosecond
            raise Failed(
                f"rank {cut.rank}: {hidden} ns of the sums of {len(sums)} buckets are hidden behind the "
                f"backward pass, with overlap={str(overlap).lower()}"
            )
    return None


def _require_bytes(history: History, sums: Sequence[Call]) -> None:
    sizes = [slot.numel for slot in history.replica.parameters.slots]
    element = history.replica.parameters.empty().element_size()
    cut = Profile.by_size(sizes).buckets(element, BUCKETS_MIB[1])
    must = [element * (sum(sizes[first:last]) + (not number)) for number, (first, last) in enumerate(cut)]
    got = [call.numbytes for call in sums]
    if got != must:
        raise Failed(
            f"rank {history.rank}: buckets of {got} bytes, bucket_mib={BUCKETS_MIB[1]} asks for {must}"
        )


def time_kept(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """In virtual time the run takes as long as its description says, and blocks nowhere else."""
    run = course(candidate, ranks)
    slow = slow_last(run)
    for name, took in (("equal ranks", (STEP_NS,) * len(slow)), ("a slow rank", slow)):
        even, times = took is not slow, lambda rank, samples, took=took: took[rank]
        histories = plain(candidate, ranks) if even else drive(run, network=NETWORK, step_time=times)
        wanted = _script(candidate, run, histories[0], took)
        if took is slow and candidate.builtin in IN_STEP:
            wanted = None
        _require_no_wait(candidate, histories)
        for history in histories:
            if wanted is None:
                _require_bounded(candidate, histories, history, took)
            elif history.end_ns != wanted.clock[history.rank]:
                raise Failed(
                    f"{name}: rank {history.rank} takes {history.end_ns / 1e6:.3f} ms of virtual time, "
                    f"must take {wanted.clock[history.rank] / 1e6:.3f} ms"
                )
        if wanted is None:
            return f"{name}: upper bound only"
    return None


def _require_no_wait(candidate: Candidate, histories: Sequence[History]) -> None:
    """LASGD never stands still between its first step and its last."""
    if candidate.builtin != "lasgd":
        return
    for history in histories:
        if history.blocked_ns:
            raise Failed(
                f"rank {history.rank} stands still for {history.blocked_ns / 1e6:.3f} ms while it trains"
            )


def _require_bounded(
    candidate: Candidate, histories: Sequence[History], history: History, took: Sequence[int]
) -> None:
    """Not longer than all calls of all ranks one after the other, and not shorter than the own steps."""
    topology = history.traffic.topology
    transfers = sum(
        NETWORK.duration_ns(call.verb, call.members, call.numbytes, topology.spans_nodes(call.members))
        for each in histories
        for call in each.calls
        if each.rank == min(call.members) or call.verb == "send"
    )
    slowest = max(each.steps * took[each.rank] + each.sharing_ns for each in histories)
    own = history.steps * took[history.rank]
    if not own <= history.end_ns <= slowest + transfers:
        raise Failed(
            f"rank {history.rank} takes {history.end_ns / 1e6:.3f} ms of virtual time, must be between "
            f"{own / 1e6:.3f} ms (its steps) and {(slowest + transfers) / 1e6:.3f} ms (and all transfers)"
        )


def _script(
    candidate: Candidate, run: Course, history: History, took: Sequence[int] | None = None
) -> Script | None:
    if candidate.builtin is None:
        return None
    sizes = Sizes(history.replica.numel, history.replica.buffers.numel)
    step_ns = (lambda rank: STEP_NS) if took is None else (lambda rank: took[rank])
    return script(candidate.builtin, run, sizes, NETWORK, step_ns)
