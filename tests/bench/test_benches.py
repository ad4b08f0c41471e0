"""What the benches compute from times, against hand-computed numbers; quick ones are run, made small."""

import math

import links
import pytest
from figures import Figure, upper_limit
from links import MIB, Message


def logs(mean: float, deviation: float, n: int) -> list[float]:
    """n ratios whose logarithms have this mean and sample deviation exactly."""
    spread = deviation * math.sqrt((n - 1) / n)
    return [math.exp(math.log(mean) + (spread if place % 2 else -spread)) for place in range(n)]


@pytest.mark.parametrize(("mean", "limit"), [(1.010, 1.0163), (1.015, 1.0213)])
def test_upper_limit_of_30_pairs(mean: float, limit: float) -> None:
    assert upper_limit(logs(mean, 0.02, 30)) == pytest.approx(limit, abs=5e-5)


def test_a_line_says_ok_or_short() -> None:
    assert Figure("x", 1.01, 1.03, "").line() == "bench x 1.01 1.03 ok"
    assert Figure("x", 1.04, 1.03, "").line() == "bench x 1.04 1.03 short"
    assert Figure("x", 1.04, None, "").line() == "bench x 1.04 - ok"
    assert Figure("x", 5.2, 5, "", at_least=True).line() == "bench x 5.2 >=5 ok"
    assert Figure("x", 4.9, 5, "", at_least=True).line() == "bench x 4.9 >=5 short"
    assert not Figure("x", math.nan, 5, "", at_least=True).ok
    assert not Figure("x", math.nan, 1.03, "").ok


def message(took_s: float, asked_s: float = 1.0) -> Message:
    return Message(size=MIB, pause_ms=20, asked_s=asked_s, took_s=took_s)


def test_a_link_is_judged_by_its_worst_long_message_and_its_fastest_one() -> None:
    messages = [message(1.02), message(1.25), message(0.01, asked_s=0.015)]
    off, fastest = links.of_rate("x", messages, floor_s=0.001, too_fast=1.1)
    assert (off.name, fastest.name) == ("x_off", "x_fastest")
    assert off.value == pytest.approx(0.2)  # of its rate is lacking
    assert fastest.value == pytest.approx(1.5)  # though it is too short for `off`
    assert (off.ok, fastest.ok) == (False, False)
    assert "0.800 of asked, 1 MiB after 20 ms; floor 1.0 ms" in off.detail
    off, fastest = links.of_rate("x", messages[:1], floor_s=0.1, too_fast=1.1)
    assert math.isnan(off.value)
    assert (off.ok, fastest.ok) == (True, True)
