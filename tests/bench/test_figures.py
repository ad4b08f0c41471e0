"""The statistics of paired blocks, against hand-computed limits."""

import math

import pytest

from figures import Figure, geometric_mean, upper_limit


def logs(mean: float, deviation: float, n: int) -> list[float]:
    """n ratios whose logarithms have this mean and sample deviation exactly."""
    spread = deviation * math.sqrt((n - 1) / n)
    return [math.exp(math.log(mean) + (spread if place % 2 else -spread)) for place in range(n)]


@pytest.mark.parametrize(("mean", "limit"), [(1.010, 1.0163), (1.015, 1.0213)])
def test_upper_limit_of_30_pairs(mean: float, limit: float):
    ratios = logs(mean, 0.02, 30)
    assert geometric_mean(ratios) == pytest.approx(mean)
    assert upper_limit(ratios) == pytest.approx(limit, abs=5e-5)


def test_a_line_says_ok_or_short():
    assert Figure("x", 1.01, 1.03, "").line() == "bench x 1.01 1.03 ok"
    assert Figure("x", 1.04, 1.03, "").line() == "bench x 1.04 1.03 short"
    assert Figure("x", 1.04, None, "").line() == "bench x 1.04 - ok"
    assert Figure("x", 5.2, 5, "", at_least=True).line() == "bench x 5.2 >=5 ok"
    assert Figure("x", 4.9, 5, "", at_least=True).line() == "bench x 4.9 >=5 short"
    assert not Figure("x", math.nan, 5, "", at_least=True).ok
    assert not Figure("x", math.nan, 1.03, "").ok
