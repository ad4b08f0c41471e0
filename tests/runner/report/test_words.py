"""Numbers as people read them."""

import math

import pytest

from daso_bench.runner.report import words
from daso_bench.runner.report.data.means import geometric_mean, mean


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (127.279, "127.3 s"),
        (0.012346, "0.01235 s"),
        (0, "0 s"),
        (12346.7, "12,350 s"),
        (9.99999, "10.00 s"),
        (None, "–"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
    ],
)
def test_seconds(value: float | None, said: str) -> None:
    assert words.seconds(value).startswith(said)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (22.4e6, "22.4 MB"), (3.2e12, "3.20 TB")],
)
def test_size(value: float, said: str) -> None:
    assert words.size(value) == said


def test_means_need_two_whole_values() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert mean([2.0, 8.0]) == 5.0
    for values in ([], [2.0], [2.0, None], [2.0, math.nan], [2.0, math.inf]):
        assert mean(values) is None
        assert geometric_mean(values) is None
    assert geometric_mean([2.0, 0.0]) is None
