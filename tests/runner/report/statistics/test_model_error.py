"""Model error of virtual time: how it is chosen, and how often statements on simulated ratios are false."""

import math
import os
from dataclasses import replace

import numpy as np
import pytest
from sharing import there
from simulated_studies import draw_logs, wrong

from daso_bench.runner.report.statistics.model_error import (
    ALL,
    ModelError,
    model_error,
    reference_pairs,
    speedup_errors,
)
from daso_bench.runner.report.statistics.noise_floor import distance
from daso_bench.runner.report.statistics.verdict import number_rule
from daso_bench.runner.report.statistics.welch import LEVEL, Times, t_limit, welch, with_model_error

STUDIES = int(os.environ.get("DASO_BENCH_STUDIES", "400"))
GAINS = (0.95, 0.99, 1.0, 1.01, 1.05, 1.1, 1.25, 1.515, 2.0)
CLAIMS = (1.05, 1.1, 1.25, 1.515)
ERRORS = speedup_errors(reference_pairs())
FAMILIES = ("daso", "ednncomm", "lasgd")


def of_kind(kind: str) -> np.ndarray:
    return np.array([error["error"] for error in ERRORS if kind in (ALL, error["arm"])])


def chosen(strategy: str, ratio: float, over: str = "ddp") -> ModelError:
    return model_error(strategy, over, math.log(ratio), level=LEVEL)


def test_the_stored_pairs_are_those_that_the_rules_name() -> None:
    assert (len(reference_pairs()), len(ERRORS)) == (87, 62)
    logs = of_kind(ALL)
    assert (logs.mean(), logs.std(ddof=1)) == pytest.approx((0.0215, 0.0281), abs=1e-4)
    measured = [error["speedup"] / math.exp(error["error"]) for error in ERRORS]
    assert {kind: len(of_kind(kind)) for kind in FAMILIES} == {"daso": 22, "ednncomm": 20, "lasgd": 20}
    assert (min(measured), max(measured)) == pytest.approx((1.270, 4.507), abs=1e-3)


@pytest.mark.parametrize(
    ("strategy", "ratio", "over", "kind", "bias"),
    [
        ("daso", 2.0, "ddp", "daso", 0.0207),
        ("lasgd", 2.0, "ddp", "lasgd", 0.0316),
        ("daso", 4.0, "ddp", "daso", 0.0),  # beyond its own validated ratios, not beyond all
        ("lasgd", 1.1, "ddp", ALL, 0.0),  # of all pairs the errors scatter more than of its own
        ("hsgd", 2.0, "ddp", ALL, 0.0215),
        ("daso", 1.1, "ddp", "daso", 0.0),
        ("hsgd", 5.2, "ddp", ALL, 0.0),
        ("hsgd", 2.0, "sgp", ALL, 0.0),  # no pair is over another strategy than ddp
    ],
)
def test_the_nearest_kind_is_used_and_its_bias_where_it_was_validated(
    strategy: str, ratio: float, over: str, kind: str, bias: float
) -> None:
    found = chosen(strategy, ratio, over)
    assert (found.kind, found.carried) == (kind, bias == 0.0)
    assert found.bias == pytest.approx(bias, abs=1e-4)
    around = of_kind(found.kind) - (0.0 if found.carried else found.bias)
    assert found.sd == pytest.approx(math.sqrt((around**2).sum() / (len(around) - (not found.carried))))


@pytest.mark.parametrize(
    ("strategy", "half"),
    [("daso", 0.0877), ("ednncomm", 0.1005), ("lasgd", 0.0692), ("hsgd", 0.0794)],
)
def test_a_ratio_without_scatter_has_the_interval_of_its_model_error(strategy: str, half: float) -> None:
    """Where the tail is heavy it ends there: of daso t · sd · sqrt(1 + 1/n) is 0.058 alone."""
    plain = there(welch(Times((2.0,) * 5), Times((1.0,) * 5)))
    error = chosen(strategy, 2.0)
    made = with_model_error(plain, error)
    assert made.point == pytest.approx(2 * math.exp(-error.bias))
    assert math.log(made.high / made.point) == pytest.approx(half, abs=1e-4)
    assert made.low == pytest.approx(made.point**2 / made.high)
    assert half == pytest.approx(
        max(error.reach, float(t_limit(LEVEL, error.count - 1)) * error.sd * math.sqrt(1 + 1 / error.count)),
        abs=1e-4,
    )
    more = replace(made, estimate=replace(made.estimate, counts=(100, 100)))
    assert more.interval == made.interval, "more runs do not validate the model"
    assert 0 < made.p_no_gain < 1e-6
    assert made.model_error == error


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_interval_reaches_as_far_as_errors_with_a_heavy_tail(kind: str) -> None:
    """A new error is the largest of n + 1 in 1 of n + 1: with 20 to 22 pairs all of them lie inside."""
    error = chosen(kind, 2.0)
    assert np.abs(of_kind(kind) - error.bias).max() == pytest.approx(error.reach)


# ------------------------------------------------------------------ how often printed statements are false


def false_statements(strategy: str, kind: str, cv: float, gain: float) -> dict[str, float]:
    """Shares of `STUDIES` or some more studies in virtual time that print something false, by what it is.

    `gain`: the true one; the simulated ratio is that times exp(an error of `kind`). 5 runs of each arm.
    """
    rng = np.random.default_rng([len(strategy), len(kind), round(100 * cv), round(100 * gain)])
    errors = of_kind(kind)
    errors = np.tile(errors, math.ceil(STUDIES / len(errors)))  # each equally often: no chance in that
    base, fresh, arm = (draw_logs(rng, (len(errors), 5), cv) for _ in range(3))
    arm -= (np.log(gain) + errors)[:, None]
    low, high = np.array([ends(strategy, *study) for study in zip(base, arm, strict=True)]).T
    typical = model_error(strategy, "ddp", 0.0, level=LEVEL).typical
    floor = np.maximum(typical, distance(base.mean(axis=1) - fresh.mean(axis=1)))
    found = {
        "a gain": float(np.mean((low > 1 + floor) & (gain <= 1))),
        "slower": float(np.mean((high < 1) & (gain >= 1))),
    }
    for value in CLAIMS:
        rules = number_rule(low, high, floor, value)
        found[f"{value} times"] = float(np.mean(wrong(rules, low, floor, value, gain)))
    return found


def ends(strategy: str, base: np.ndarray, arm: np.ndarray) -> tuple[float, float]:
    """Of the interval of a study's ratio, from ln T of its runs."""
    plain = there(welch(*(Times(tuple(np.exp(logs))) for logs in (base, arm))))
    made = with_model_error(plain, model_error(strategy, "ddp", plain.estimate.difference, level=LEVEL))
    return made.low, made.high


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("cv", [0.0, 0.03])
@pytest.mark.parametrize(("strategy", "kind"), [("hsgd", ALL), *((name, name) for name in FAMILIES)])
def test_no_printed_statement_is_false_in_more_than_5_of_100_studies(
    strategy: str, kind: str, cv: float, gain: float
) -> None:
    found = false_statements(strategy, kind, cv, gain)
    assert max(found.values()) <= 0.05, found
