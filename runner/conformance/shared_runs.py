"""The runs of the trial that several checks of the contract read, and the words they share."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from ...strategies.asynchronous import AsynchronousStrategy
from . import trial
from .checks import Candidate, RanksOfNodes
from .driver import drive, jittered
from .scenario import History, Scenario
from .trial import NETWORK, STEP_NS, demanding, trial_scenario

STEPS = trial.EPOCHS * trial.STEPS_PER_EPOCH
OWN = ("step", "epoch", "finalize")
"""When a strategy's own calls are made, evaluations and checkpoints aside."""
ENOUGH = range(1, 10_000)
"""Every place that a run may have."""


def independent(candidate: Candidate) -> bool:
    """Whether ranks step at their own pace."""
    return issubclass(candidate.strategy_class, AsynchronousStrategy)


def when(candidate: Candidate, place: int) -> str:
    """A place of the run in words."""
    return f"at meeting {place}" if independent(candidate) else f"after step {place}"


@lru_cache(maxsize=8)
def plain(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run as it is: equal ranks, the trial's network. Many checks read it, none may change it."""
    return drive(trial_scenario(candidate, ranks), network=NETWORK, step_time=STEP_NS)


@lru_cache(maxsize=8)
def uneven(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run with step times that vary at random."""
    return drive(trial_scenario(candidate, ranks), network=NETWORK, step_time=jittered(STEP_NS, 3))


@lru_cache(maxsize=8)
def looked_at(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The demanding run, looked at wherever that can be: consensus, copy and save. No transfer takes time."""
    every = places_of(candidate, ranks)
    run = demanding(candidate, ranks, consensus_after=ENOUGH, save_after=ENOUGH, copies_after=every)
    return drive(run, step_time=STEP_NS)


@lru_cache(maxsize=8)
def saved(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The demanding run, saved wherever that can be, with one stop request of one step in it."""
    run = demanding(candidate, ranks, save_after=ENOUGH, stop_request=one_stop_request(ranks))
    return drive(run, network=NETWORK, step_time=STEP_NS)


def one_stop_request(ranks: RanksOfNodes) -> Callable[[int, int], bool]:
    """The last rank asks to stop in one step in the middle of the run."""
    return lambda rank, step: (rank, step) == (sum(ranks) - 1, STEPS // 2)


def some(places: Sequence[int], ranks: RanksOfNodes) -> list[int]:
    """All places on several nodes of several ranks; elsewhere a quarter of them and the last two."""
    if len(ranks) > 1 and min(ranks) > 1:
        return list(places)
    return sorted({*places[::4], *places[-2:]})


def slow_last(run: Scenario) -> tuple[int, ...]:
    """Step times of ranks of which the last takes four times as long."""
    return (*(STEP_NS for _ in range(run.topology.ranks - 1)), 4 * STEP_NS)


def places_of(candidate: Candidate, ranks: RanksOfNodes) -> range:
    """Where the demanding run can be saved or stopped: after each step, or at each meeting."""
    if independent(candidate):
        return range(1, sum(plain(candidate, ranks)[0].met.values()) + 1)
    run = demanding(candidate, ranks)
    return range(1, run.epochs * run.steps_per_epoch + 1)
