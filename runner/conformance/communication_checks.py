"""Contract checks on communication and time: calls, stop requests, sync points, buckets, virtual time."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

from ..communication.link_costs import AlphaBeta
from ..training.device_model import Profile
from .checks import Candidate, Failed, RanksOfNodes, require_same_calls
from .driver import drive
from .scenario import Call, History
from .trial import (
    NETWORK,
    STEP_NS,
    STEPS,
    independent,
    plain,
    saved,
    slow_last,
    some,
    trial_scenario,
    uneven,
)

SOON = 8  # steps after which most strategies agree on a stop request
LEAVING_NS = STEP_NS // 10
"""Ranks may leave a collective of several stages, such as a broadcast in each node, this far apart."""
BUCKETS_MIB = (1.0, 1e-4)  # all gradients in one bucket, and in several
# Without latencies several buckets take as long as one, except for what the backward pass hides.
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
            for number, (call, wanted) in enumerate(zip(mine, first, strict=False), 1):
                if (call.verb, call.numbytes) != (wanted.verb, wanted.numbytes):
                    raise Failed(f"{where}: call {number} is {call}, rank {members[0]} calls {wanted}")
            if len(mine) != len(first):
                raise Failed(f"{where} makes {len(mine)} calls, rank {members[0]} {len(first)}")


def sync_points(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Where is_sync_point() is true, ranks have just waited for each other: an evaluation there is free."""
    histories = uneven(candidate, ranks)
    if independent(candidate) or histories[0].strategy.never_syncs:
        return "none: models are evaluated from copies"
    for step, met in histories[0].met.items():
        clocks = [history.clock_ns[step] for history in histories]
        apart = max(clocks) - min(clocks)
        if met and step < STEPS and apart > LEAVING_NS:  # the run ends where it ends
            last = clocks.index(max(clocks))
            raise Failed(
                f"is_sync_point() is true after step {step}, where rank {last} comes "
                f"{apart / 1e6:.1f} ms after the first: all would wait for it to evaluate"
            )
    return None


def buckets(candidate: Candidate, ranks: RanksOfNodes) -> str | None:
    """Gradients are summed in buckets of `bucket_mib`, during the backward pass unless `overlap` is false."""
    if not hasattr(candidate.config, "bucket_mib"):
        return "no key bucket_mib"
    overlap, runs = getattr(candidate.config, "overlap", True), []
    for mib in BUCKETS_MIB:
        changed = dataclasses.replace(candidate, config=dataclasses.replace(candidate.config, bucket_mib=mib))
        run = trial_scenario(changed, ranks, stop_after=1)
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


def time_kept(candidate: Candidate, ranks: RanksOfNodes) -> None:
    """In virtual time a run is no shorter than its steps, no longer than steps and all transfers in turn."""
    run = trial_scenario(candidate, ranks)
    slow = slow_last(run)
    uneasy = drive(run, network=NETWORK, step_time=lambda rank, samples: slow[rank])
    for histories, took in ((plain(candidate, ranks), (STEP_NS,) * len(slow)), (uneasy, slow)):
        for history in histories:
            _require_bounded(histories, history, took)


def _require_bounded(histories: Sequence[History], history: History, took: Sequence[int]) -> None:
    """Raise Failed unless the rank's time is within the bounds of `time_kept`."""
    topology = history.traffic.topology
    transfers = sum(
        NETWORK.duration_ns(call.verb, call.members, call.numbytes, topology.spans_nodes(call.members))
        for each in histories
        for call in each.calls
        if each.rank == min(call.members) or call.verb == "send"
    )
    slowest = max(each.steps * took[each.rank] + each.sharing_ns for each in histories)
    least = history.steps * took[history.rank]
    if not least <= history.end_ns <= slowest + transfers:
        raise Failed(
            f"rank {history.rank} takes {history.end_ns / 1e6:.3f} ms of virtual time, must be between "
            f"{least / 1e6:.3f} ms (its steps) and {(slowest + transfers) / 1e6:.3f} ms (and all transfers)"
        )


# ------------------------------------------------------------------ stop requests


def hears_stop_requests(candidate: Candidate, ranks: RanksOfNodes) -> str:
    """All ranks learn of a stop request at the same step, by stop_agreed(), without an extra call."""
    delay = largest_delay(candidate, ranks)
    if isinstance(delay, str):
        return delay
    return f"within {delay} steps" if delay else "at once"


@lru_cache(maxsize=8)
def largest_delay(candidate: Candidate, ranks: RanksOfNodes) -> int | str:
    """Steps after which the slowest stop request was agreed on; a remark where none was tried.

    Raises Failed: ranks do not agree on a request, or not at the same step, or make an extra call for it.
    """
    total, quiet = sum(ranks), plain(candidate, ranks)
    for history in quiet:
        if any(history.agreed.values()):
            raise Failed(f"rank {history.rank}: stop_agreed() is true without a stop request")
    delays = [0]
    begins = some((0, 1, STEPS // 3 + 1, STEPS // 2), ranks)
    for asking in range(total):
        for begin in begins if asking in (0, total - 1) else begins[:1]:
            if not any(met for step, met in quiet[0].met.items() if begin < step < STEPS):
                return f"not tried: after step {begin + 1} the ranks meet only at the end"
            what = f"a stop request of rank {asking} in step {begin + 1}"
            histories = _ask_to_stop(candidate, ranks, asking, begin)
            delays.append(_require_heard(candidate, histories, what, begin, asking))
            if not independent(candidate):
                for history, undisturbed in zip(histories, quiet, strict=True):
                    calls, usual = (
                        [c for c in h.calls if c.during in ("step", "epoch") and c.step < history.steps]
                        for h in (history, undisturbed)
                    )
                    require_same_calls(calls, usual, f"{what} changes the calls of rank {history.rank}")
    for history in saved(candidate, ranks):
        if not any(history.agreed.values()):
            raise Failed(
                f"a stop request in step {STEPS // 2 + 1} alone never makes "
                f"stop_agreed() true on rank {history.rank}"
            )
    return max(delays)


def _ask_to_stop(candidate: Candidate, ranks: RanksOfNodes, asking: int, begin: int) -> list[History]:
    """The run in which rank `asking` requests a stop from step `begin` on, or a part of the run."""
    run = trial_scenario(candidate, ranks, stop_request=lambda rank, step: rank == asking and step >= begin)
    if not independent(candidate):
        part = dataclasses.replace(run, stop_after=min(begin + SOON, STEPS))
        histories = drive(part, network=NETWORK, step_time=STEP_NS)
        if all(any(history.agreed.values()) for history in histories):
            return histories
    return drive(run, network=NETWORK, step_time=STEP_NS)


def _require_heard(
    candidate: Candidate, histories: Sequence[History], what: str, begin: int, asking: int
) -> int:
    """Steps of the asking rank from its stop request until all agree; raises Failed if they do not."""
    first = [next((step for step, heard in h.agreed.items() if heard), None) for h in histories]
    for history, step in zip(histories, first, strict=True):
        if step is None:
            raise Failed(f"{what} never makes stop_agreed() true on rank {history.rank}")
    if independent(candidate):
        met = [
            sum(h.met[k] for k in h.met if k <= (step or 0)) for h, step in zip(histories, first, strict=True)
        ]
        if len(set(met)) > 1:
            raise Failed(f"{what} makes stop_agreed() true at different sync points of the ranks: {met}")
    else:
        for history in histories:
            different = [k for k in history.agreed if history.agreed[k] != histories[0].agreed[k]]
            if different:
                raise Failed(
                    f"{what}: after step {different[0]} stop_agreed() is {history.agreed[different[0]]} on "
                    f"rank {history.rank} and {histories[0].agreed[different[0]]}"
                )
    heard = first[asking]
    assert heard is not None
    return heard - 1 - begin
