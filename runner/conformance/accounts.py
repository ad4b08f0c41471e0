"""Contract checks on communication and time: order of calls, bucket sizes, bounds of virtual time."""

import dataclasses
from collections.abc import Sequence

from ..communication.link_costs import AlphaBeta
from ..training.device_model import Profile
from .checks import Candidate, Failed, RanksOfNodes
from .driver import drive
from .scenario import Call, History
from .trial import (
    NETWORK,
    STEP_NS,
    STEPS,
    independent,
    plain,
    slow_last,
    trial_scenario,
    uneven,
)

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
