"""A claim to be judged, what stands between a measured interval and a verdict on it, and the verdict.

Source: docs/method.md, "Verdict on a claim".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ....strategies.errors import ConfigError, above, at_least, one_of

HEADLINES = ("fixed_work", "time_to_target", "efficiency", "quality_at_time")
QUANTIFIERS = ("typical", "up_to")
FEWEST_RUNS = 5  # below: an interval, but no verdict
FEWEST_EVALUATIONS = 20  # before the crossing, of the median run of either arm

Word = Literal[
    "no verdict",
    "not testable here",
    "inconclusive (too noisy)",
    "reproduced",
    "contradicted",
    "smaller here",
    "partly",
    "inconclusive",
    "supported",
]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a source says: times as fast (`value`, above 1), or a direction only (None).

    `quantifier`: "typical", or "up_to" where some configuration is said to reach it. `quality_margin`: δ of
    "no loss", in points of the metric. Raises ConfigError for a value not above 1 or an unknown word.
    """

    value: float | None = None
    headline: str = "fixed_work"
    quantifier: str = "typical"
    quality_margin: float = 0.5

    def __post_init__(self) -> None:
        one_of("headline", self.headline, HEADLINES)
        one_of("quantifier", self.quantifier, QUANTIFIERS)
        above("quality_margin", self.quality_margin, 0.0)
        if self.value is not None and not (self.value > 1 and math.isfinite(self.value)):
            raise ConfigError(f"value={self.value}: must be above 1 and finite, or null for a direction only")


def times_as_fast(less_time_percent: float) -> float:
    """c for "x % less time": 1 / (1 - x/100); 34 % gives 1.515. Raises ConfigError outside (0, 100)."""
    if not 0 < less_time_percent < 100:
        raise ConfigError(f"less_time_percent={less_time_percent}: must be above 0 and below 100")
    return 1 / (1 - less_time_percent / 100)


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All that decides on a verdict besides the interval.

    `runs`: n of the compared arm with fewer. `clock_floor`, `fresh_floor`: m_clock and m_fresh as shares,
    None if A′ or A″ was not run. `fresh_unknown`: why m_fresh is None although A″ was run. `biased`: A/A′
    misses 1. `evaluations`: before the crossing, of the median run, the smaller of both arms; only
    time_to_target needs it. `bound`: T / (T - exposed - waiting) of the baseline, where devices differ
    (`uneven`) that of perfect balance, of an efficiency all cores at work as one alone is (`headroom`), None
    if unknown; `bound_limit`: its upper 95 % limit. `bound_unknown`: why it is none, or not as low as it
    could be. `own_conditions`: these are the claim's own stated ones. `differs`: what differs from them
    beyond the declared error of an emulation, `not_stated`: what the source does not give. `forbidden`: why
    sections on study design and validity forbid a verdict ("weak baseline"). Raises ConfigError for a
    negative number or a bound below 1.
    """

    runs: int
    clock_floor: float | None
    fresh_floor: float | None
    fresh_unknown: str = ""
    biased: bool = False
    evaluations: float | None = None
    bound: float | None = None
    bound_limit: float | None = None
    uneven: bool = False
    headroom: bool = False
    bound_unknown: str = ""
    own_conditions: bool = False
    differs: tuple[str, ...] = ()
    not_stated: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lows = {"runs": 0, "clock_floor": 0, "fresh_floor": 0, "evaluations": 0, "bound": 1, "bound_limit": 1}
        for name, low in lows.items():
            value = getattr(self, name)
            if value is not None:
                at_least(name, value, low)

    @property
    def floor(self) -> float | None:
        """m = max(m_clock, m_fresh); None if one is missing."""
        if self.clock_floor is None or self.fresh_floor is None:
            return None
        return max(self.clock_floor, self.fresh_floor)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One word on one claim.

    `remarks`: further statements about the true gain or its standing ("exceeded", "a gain", "quality lost",
    "provisional"). `reasons`: why there is no verdict, or what it could not take into account. `smallest_n`:
    runs per arm that would decide at the present estimate and spread, at most 100; None if none does or none
    is needed.
    """

    word: Word
    remarks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    smallest_n: int | None = None


def no_verdict_reasons(conditions: Conditions, headline: str) -> tuple[str, ...]:
    """Why no verdict may be given at all; empty if one may."""
    found: list[str] = []
    if conditions.runs < FEWEST_RUNS:
        found.append(f"{conditions.runs} runs per arm: a verdict needs {FEWEST_RUNS}")
    for name, value in (("A′", conditions.clock_floor), ("A″", conditions.fresh_floor)):
        if value is None:
            unknown = conditions.fresh_unknown if name == "A″" else ""
            found.append(f"no noise floor: {unknown}" if unknown else f"{name} is missing: no noise floor")
    if headline == "time_to_target":
        if conditions.evaluations is None:
            found.append("the evaluations before the crossing were not counted")
        elif conditions.evaluations < FEWEST_EVALUATIONS:
            found.append(
                f"{conditions.evaluations:g} evaluations before the crossing: must be {FEWEST_EVALUATIONS}"
            )
    return (*found, *conditions.forbidden)


def untestable_reasons(claim: Claim, conditions: Conditions) -> tuple[str, ...]:
    """Why the claim cannot be tested here (rule 1); empty if it can.

    An unknown bound forbids nothing, nor does any bound in the claim's own conditions.
    """
    found = [f"differs from the claim's: {what}" for what in conditions.differs]
    bound, value = conditions.bound, claim.value
    if value is not None and bound is not None and bound < value and not conditions.own_conditions:
        found.append(beyond_bound(bound, value, conditions))
    return tuple(found)


def beyond_bound(bound: float, value: float, conditions: Conditions) -> str:
    """That the claimed factor is above what could be had."""
    what = "no communication saving"
    if conditions.uneven:
        what = "not even perfect balance without communication"
    if conditions.headroom:
        what = "not even all cores at work, each as fast as one alone,"
    return f"{what} can exceed {bound:.3g} here, the claim is {value:.4g}"


def differences(
    claimed: Mapping[str, object], here: Mapping[str, object], errors: Mapping[str, float] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what differs, what is not stated) of a claim's conditions: hardware class, world size, network.

    A condition that the source does not give is None or absent; numbers may differ by the declared relative
    error of the emulation or simulation in `errors`.
    """
    differs: list[str] = []
    not_stated: list[str] = []
    for key, mine in here.items():
        theirs = claimed.get(key)
        if theirs is None:
            not_stated.append(key)
        elif not _alike(theirs, mine, (errors or {}).get(key, 0.0)):
            differs.append(f"{key} {theirs}, here {mine}")
    return tuple(differs), tuple(not_stated)


def _alike(theirs: object, mine: object, error: float) -> bool:
    if isinstance(theirs, int | float) and isinstance(mine, int | float):
        return abs(mine - theirs) <= error * abs(theirs)
    return theirs == mine
