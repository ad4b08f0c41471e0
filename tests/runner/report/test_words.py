"""Numbers as people read them; means and shares of time."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
from sharing import there

from daso_bench.runner.report import words
from daso_bench.runner.report.data.means import geometric_mean, mean, time_shares


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


def test_means_need_two_whole_values() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert mean([2.0, 8.0]) == 5.0
    for values in ([], [2.0], [2.0, None], [2.0, math.nan], [2.0, math.inf]):
        assert mean(values) is None
        assert geometric_mean(values) is None
    assert geometric_mean([2.0, 0.0]) is None


# null: a GPU waited, and its host did not
@pytest.mark.parametrize("missing", [{}, {"blocked_s": None}, {"blocked_s": {"intra": "x"}}])
def test_shares_of_time_need_what_every_run_was_blocked(missing: dict[str, Any]) -> None:
    parts = {"compute": 5.0, "exposed": 2.0, "waiting": 1.0, "data": 1.0, "step_other": 1.0}
    run: Any = SimpleNamespace(parts_s=parts, summary={"blocked_s": {"intra": 1.0, "inter": 2.0}})
    shares = there(time_shares([run]))
    assert shares["blocked on inter"] == pytest.approx(0.2)
    assert time_shares([run, SimpleNamespace(parts_s=parts, summary=missing)]) is None  # pyright: ignore
