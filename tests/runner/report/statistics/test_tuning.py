"""Regret of default settings, and that tuning was fair."""

import pytest

from daso_bench.runner.report.statistics.ratio import Times
from daso_bench.runner.report.statistics.tuning import check_fair, regret
from daso_bench.strategies.errors import ConfigError


def test_a_default_of_120_s_against_a_tuned_100_s_is_a_regret_of_20_percent() -> None:
    one = regret(Times((120.0,)), Times((100.0,)))
    assert one.point == pytest.approx(0.20)
    assert one.interval is None


def test_the_interval_of_the_regret_is_that_of_the_ratio_minus_1() -> None:
    found = regret(Times((100.0, 104.0, 96.0, 108.0, 92.0)), Times((80.0, 84.0, 76.0, 86.0, 75.0)))
    assert found.interval is not None
    assert (found.point, found.interval.low, found.interval.high) == pytest.approx(
        (0.2467, 0.1393, 0.3642), abs=1e-4
    )


def test_a_regret_needs_both_sides() -> None:
    with pytest.raises(ConfigError, match="no runs"):
        regret(Times(()), Times((100.0,)))


def test_unequal_trials_and_seeds_that_are_tuned_on_and_scored_are_refused() -> None:
    check_fair({"ddp": 16, "daso": 16}, [1, 2], [3, 4])
    with pytest.raises(ConfigError, match="ddp 16, daso 32; must be equal"):
        check_fair({"ddp": 16, "daso": 32}, [1, 2], [3, 4])
    with pytest.raises(ConfigError, match=r"seeds \[2\]"):
        check_fair({"ddp": 16, "daso": 16}, [1, 2], [2, 3])
