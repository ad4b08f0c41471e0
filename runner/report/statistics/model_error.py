"""Model error of virtual time: how far ratios of simulated times are from measured ones.

`results/reference/validation/pairs.csv` holds the time of a step of the same runs, measured on emulated
clusters and simulated. The error of a strategy in one configuration is ln of its simulated speed-up over ddp,
over the measured one. Every ratio of times in virtual time carries it. Source: docs/method.md, "Model error
of virtual time".
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from statistics import fmean, median, stdev
from typing import Any

from ... import PACKAGE

PAIRS = PACKAGE / "results" / "reference" / "validation" / "pairs.csv"
BASELINE = "ddp"
FEWEST_PAIRS = 15  # of one strategy; fewer say too little of its spread
SLACK = 1.05  # times beyond the validated ratios that still count as validated
ALL = "all strategies"

Pair = Mapping[str, Any]
"""A run both emulated and simulated: a row of pairs.csv with its times as numbers or None, in seconds."""


@dataclass(frozen=True, kw_only=True)
class ModelError:
    """The model error of one ratio, in ln of the ratio.

    kind: the strategy whose pairs it is from, or `ALL`; count: those pairs.
    bias: what is taken off ln of the ratio; 0 where the error is `carried`.
    sd: of a single error around `bias`.
    reach: size around `bias` that a new error exceeds with probability 1 - level. The errors have a heavier
        tail than a normal distribution, so an interval of t and `sd` alone would be too narrow.
    typical, p95: sizes that half and 95 % of the errors do not exceed, as shares of the ratio.
    carried: whether the ratio lies outside of the validated ones, so that no bias is known there.
    """

    kind: str
    count: int
    bias: float
    sd: float
    reach: float
    typical: float
    p95: float
    carried: bool


def by_configuration(pairs: Sequence[Pair]) -> Iterable[list[Pair]]:
    """The pairs of each study, configuration and seed."""
    together: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        together[pair["study"], pair["configuration"], pair["seed"]].append(pair)
    return together.values()


def speedup_errors(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The pairs that have a ddp of their own configuration, with two more columns.

    `speedup`: the simulated one over ddp. `error`: ln(simulated / measured), above 0 where the strategy gains
    too much in virtual time.
    """
    errors: list[dict[str, Any]] = []
    for together in by_configuration(pairs):
        for base, pair in permutations(together, 2):
            if base["arm"] == BASELINE:
                simulated = base["simulated_step_s"] / pair["simulated_step_s"]
                measured = base["emulated_step_s"] / pair["emulated_step_s"]
                errors.append({**pair, "speedup": simulated, "error": math.log(simulated / measured)})
    return errors


@cache
def reference_pairs() -> tuple[Pair, ...]:
    """The pairs that the project has measured and keeps. Raises OSError where they were not installed."""
    with open(PAIRS, encoding="utf-8", newline="") as file:
        return tuple(
            {
                key: (float(text) if text else None) if key.endswith("_s") else text
                for key, text in row.items()
            }
            for row in csv.DictReader(file)
        )


def model_error(strategy: str, over: str, log_ratio: float | None, *, level: float) -> ModelError:
    """The error of a simulated ratio of `strategy` over the strategy `over`.

    `log_ratio`: ln of the simulated ratio of times a sample, None where it is not known.

    The pairs are the strategy's own, or where these are fewer than `FEWEST_PAIRS` all pairs. Their mean error
    is the bias if the ratio lies among their ratios. Elsewhere, and over another strategy than ddp, no bias
    is known: then the root mean square of the errors takes the place of their standard deviation, and of own
    and all pairs those count whose errors reach farther.
    """
    nearest = strategy if len(_errors(strategy)) >= FEWEST_PAIRS else ALL
    if over == BASELINE and log_ratio is not None:
        validated = [error["speedup"] for error in _errors(nearest)]
        if min(validated) / SLACK <= math.exp(log_ratio) <= max(validated) * SLACK:
            return _error_of(nearest, level, carried=False)
    carried = (_error_of(kind, level, carried=True) for kind in (ALL, nearest))
    return max(carried, key=lambda error: error.reach)


def size(errors: Sequence[float], share: float) -> float:
    """The smallest size of an error that a share of all of them does not exceed."""
    sizes = sorted(abs(error) for error in errors)
    return sizes[max(0, math.ceil(share * len(sizes) - 1e-9) - 1)]


@cache
def _errors(kind: str) -> list[dict[str, Any]]:
    return [error for error in speedup_errors(reference_pairs()) if kind in (ALL, error["arm"])]


@cache
def _error_of(kind: str, level: float, *, carried: bool) -> ModelError:
    errors = [error["error"] for error in _errors(kind)]
    bias = 0.0 if carried else fmean(errors)
    # Rank (count + 1) · level of all sizes, or the largest.
    share = min(1.0, (len(errors) + 1) / len(errors) * level)
    return ModelError(
        kind=kind,
        count=len(errors),
        bias=bias,
        sd=math.sqrt(fmean([error**2 for error in errors])) if carried else stdev(errors),
        reach=size([error - bias for error in errors], share),
        typical=math.expm1(median(map(abs, errors))),
        p95=math.expm1(size(errors, 0.95)),
        carried=carried,
    )
