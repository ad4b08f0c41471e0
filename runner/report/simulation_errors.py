"""How far virtual time is off: the same runs on an emulated cluster, pair by pair.

For a pair with step times e (emulated, measured) and s (simulated, predicted) the error is s/e - 1. For the
speed-up of a strategy over ddp in one configuration it is (s_ddp/s) / (e_ddp/e) - 1, for the time to target
as for the step time. Two strategies of a configuration are in the right order if virtual time says so too,
looked at where the emulated ones differ by more than 5 %. Emulated runs whose own checks failed count for
nothing.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from .. import PACKAGE

GAP = 0.05  # strategies closer than that have no order to get right
REFERENCE = PACKAGE / "results" / "reference" / "validation"
SUMMARY = "summary.json"
LIMITS = {"step time": (0.05, 0.15), "speed-up": (0.03, 0.08), "time to target": (0.05, 0.15)}
ORDER_LIMIT = 0.95
BASELINE = "ddp"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One run by both: seconds of a step, and to the target where there is one and both reached it."""

    study: str
    configuration: str
    arm: str
    seed: str
    emulated_step_s: float
    simulated_step_s: float
    emulated_target_s: float | None = None
    simulated_target_s: float | None = None

    @property
    def speed(self) -> tuple[float, float]:
        """Steps per second, emulated and simulated."""
        return 1 / self.emulated_step_s, 1 / self.simulated_step_s


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Errors of one kind: how many, median and 95th percentile of their sizes, and the mean with its sign."""

    count: int
    median: float
    p95: float
    bias: float

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Spread":
        """Of at least one error; the percentile is the smallest error that 95 % of all do not exceed."""
        sizes = sorted(abs(error) for error in errors)
        return cls(
            count=len(sizes),
            median=median(sizes),
            p95=sizes[math.ceil(0.95 * len(sizes)) - 1],
            bias=sum(errors) / len(errors),
        )


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What the pairs come to. `errors`: by kind, those of which there are any."""

    configurations: int
    pairs: int
    invalid: int  # emulated runs that their own checks refused, at their start or end, or that failed
    errors: dict[str, Spread]
    orders: int  # pairs of strategies that differ by more than `GAP`
    orders_right: int

    @property
    def short(self) -> list[str]:
        """Which limits are exceeded, in words."""
        found = []
        for kind, spread in self.errors.items():
            at_median, at_p95 = LIMITS[kind]
            if spread.median > at_median or spread.p95 > at_p95:
                found.append(
                    f"{kind}: median {spread.median:.1%} (limit {at_median:.0%}), "
                    f"95th percentile {spread.p95:.1%} (limit {at_p95:.0%})"
                )
        if self.orders and self.orders_right < ORDER_LIMIT * self.orders:
            found.append(f"order: {self.orders_right} of {self.orders} right (limit {ORDER_LIMIT:.0%})")
        return found

    def sentence(self) -> str:
        """In one sentence, for figures of virtual time."""
        told = [
            f"{kind} off by {spread.median:.1%} in the median, {spread.p95:.1%} at the 95th percentile"
            for kind, spread in self.errors.items()
        ]
        return (
            "On emulated clusters, whose links and devices are what was put in "
            f"({self.configurations} configurations of 2 to 4 ranks, {self.pairs} runs): {'; '.join(told)}; "
            f"of {self.orders} pairs of strategies that differ by more than {GAP:.0%}, {self.orders_right} "
            "in the right order."
        )


def validate(pairs: Sequence[Pair], invalid: int = 0) -> Validation:
    """The errors of `pairs`."""
    of_configuration: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        of_configuration[pair.study, pair.configuration, pair.seed].append(pair)
    errors: dict[str, list[float]] = {kind: [] for kind in LIMITS}
    orders, right = 0, 0
    for pair in pairs:
        errors["step time"].append(pair.simulated_step_s / pair.emulated_step_s - 1)
        if pair.emulated_target_s and pair.simulated_target_s:
            errors["time to target"].append(pair.simulated_target_s / pair.emulated_target_s - 1)
    for together in of_configuration.values():
        base = next((pair for pair in together if pair.arm == BASELINE), None)
        for pair in together:
            if base is not None and pair is not base:
                emulated = base.emulated_step_s / pair.emulated_step_s
                errors["speed-up"].append(base.simulated_step_s / pair.simulated_step_s / emulated - 1)
        for one, other in combinations(together, 2):
            gap = one.emulated_step_s / other.emulated_step_s
            if max(gap, 1 / gap) > 1 + GAP:
                orders += 1
                right += (gap > 1) == (one.simulated_step_s > other.simulated_step_s)
    return Validation(
        configurations=len({pair.configuration for pair in pairs}),
        pairs=len(pairs),
        invalid=invalid,
        errors={kind: Spread.of(found) for kind, found in errors.items() if found},
        orders=orders,
        orders_right=right,
    )


def reference() -> Validation | None:
    """What the project itself has measured and keeps; None where the file is missing."""
    try:
        kept = json.loads((REFERENCE / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    errors = {kind: Spread(**spread) for kind, spread in kept.pop("errors").items()}
    return Validation(errors=errors, **kept)
