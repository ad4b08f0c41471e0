"""Contract checks on stop requests: all ranks agree on a request at the same step."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from .checks import Candidate, Failed, RanksOfNodes
from .driver import drive
from .scenario import History
from .trial import NETWORK, STEP_NS, STEPS, independent, plain, saved, some, trial_scenario

SOON = 8  # steps after which most strategies agree on a stop request


def hears_stop_requests(candidate: Candidate, ranks: RanksOfNodes) -> str:
    """All ranks learn of a stop request at the same step, by stop_agreed(), without an extra call."""
    delay = largest_delay(candidate, ranks)
    if isinstance(delay, str):
        return delay
    return f"within {delay} steps" if delay else "at once"


@lru_cache(maxsize=8)
def largest_delay(candidate: Candidate, ranks: RanksOfNodes) -> int | str:
    """Steps after which the slowest stop request was agreed on; a remark where none was tried.

    Raises:
        Failed: ranks do not agree on a request, or not at the same step, or make an extra call for it.
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
                _require_no_other_calls(histories, quiet, what)
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


def _require_no_other_calls(histories: Sequence[History], quiet: Sequence[History], what: str) -> None:
    for history, undisturbed in zip(histories, quiet, strict=True):
        calls, usual = (
            Counter(c for c in h.calls if c.during in ("step", "epoch") and c.step < history.steps)
            for h in (history, undisturbed)
        )
        for call in [*(calls - usual), *(usual - calls)]:
            raise Failed(f"{what} changes the calls of rank {history.rank} in step {call.step + 1}: {call}")


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
