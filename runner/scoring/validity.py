"""What measuring itself costs: whether the clock slows steps down, and evaluations training.

Neither looks at a result; what fails invalidates. Source: the measuring rules (time to accuracy), "validity,
fairness ledger, guard".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from ...strategies.errors import ConfigError
from . import estimate
from .estimate import LEVEL

FEWEST_PAIRS = 30  # of blocks with and without the clock
FEWEST_STEPS = 20  # of a block: single steps scatter too much
OVERHEAD = 1.02  # times a step without the clock, at most
FEWEST_RUNS = 5  # at each cadence
VIRTUAL = 1e-9  # relative: on the virtual clock nothing but rounding may differ


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """How many times as long steps take with the clock: geometric mean, and its one-sided limits."""

    mean: float
    low: float
    limit: float

    @property
    def valid(self) -> bool:
        return self.limit <= OVERHEAD

    @property
    def heavy(self) -> bool:
        """Whether it is shown to cost more than is allowed; one that is neither may be either."""
        return self.low > OVERHEAD


def clock_overhead(log_ratios: Sequence[float], *, steps: int = FEWEST_STEPS) -> Overhead:
    """From interleaved pairs of blocks: ln of the time of a step with the clock over one without it.

    `steps`: of each block. The limits are the one-sided 95 % t limits of the geometric mean. Raises
    ConfigError for fewer than 30 pairs, blocks of fewer than 20 steps, or a ratio that is not finite.
    """
    if len(log_ratios) < FEWEST_PAIRS:
        raise ConfigError(f"{len(log_ratios)} pairs of blocks: must be {FEWEST_PAIRS} or more")
    if steps < FEWEST_STEPS:
        raise ConfigError(f"blocks of {steps} steps: must be {FEWEST_STEPS} or more")
    found = estimate.paired(log_ratios, [0.0] * len(log_ratios))
    half = float(stdtrit(found.df, LEVEL)) * found.error
    ends = (math.exp(found.difference + side * half) for side in (0, -1, 1))
    return Overhead(**dict(zip(("mean", "low", "limit"), ends, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Cadence:
    """Whether an arm trains as fast whatever its evaluations' distance.

    `changes`: times their distance -> training time per sample over that at the study's own distance,
    geometric mean. `limit`: by how much they may differ from 1, as a share; None if not known. `why`: what is
    missing for a judgement; "" if there is one.
    """

    changes: Mapping[float, float]
    limit: float | None
    why: str = ""

    @property
    def judged(self) -> bool:
        return not self.why

    @property
    def largest(self) -> float:
        """The largest change up or down, as a share."""
        return max((math.expm1(abs(math.log(change))) for change in self.changes.values()), default=0.0)

    @property
    def fails(self) -> bool:
        """Whether evaluating is seen in the training time: then the arm gets no verdict in this mode."""
        return self.judged and self.limit is not None and self.largest > self.limit


def cadence(log_ratios: Mapping[float, Sequence[float]], *, virtual: bool, floor: float | None) -> Cadence:
    """From pairs of runs with one seed that differ in the distance of their evaluations alone.

    Args:
        log_ratios: times the distance of the evaluations (1/4, 4) -> for each seed the ln of training time
            per sample over that at the study's own distance.
        virtual: the virtual clock, which has no noise: equal means equal, and one run is enough.
        floor: m_clock of the study as a share, elsewhere the limit; None if it is not known.
    """
    known = {times: values for times, values in log_ratios.items() if values}
    changes = {times: math.exp(math.fsum(values) / len(values)) for times, values in sorted(known.items())}
    if virtual:
        worst = {times: max(values, key=abs) for times, values in known.items()}
        return Cadence(
            changes={times: math.exp(worst[times]) for times in changes},
            limit=VIRTUAL,
            why="" if changes else "no run at another distance",
        )
    fewest = min(map(len, known.values()), default=0)
    why = ""
    if fewest < FEWEST_RUNS:
        why = f"{fewest} pairs of runs at another distance of evaluations: must be {FEWEST_RUNS}"
    elif floor is None:
        why = "no clock floor to hold the change against (study.role=clock)"
    return Cadence(changes=changes, limit=floor, why=why)
