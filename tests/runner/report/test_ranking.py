"""Tiers and their words, from times written by hand."""

import pytest

from daso_bench.runner.report.sections.sensitivity import Times, ranking_words, tiers

ORDERED = {
    "ddp": {"": 3.0, "rings": 3.1},
    "daso": {"": 1.0, "rings": 1.2},
    "lasgd": {"": 2.0, "rings": 2.5},
}
SWAPPED = {**ORDERED, "hsgd": {"": 4.0, "rings": 3.0}}
# Neighbours keep their order, but d passes b and c.
PASSED = {
    "a": {"": 1.0, "x": 9.0},
    "b": {"": 2.0, "x": 10.0},
    "c": {"": 3.0, "x": 11.0},
    "d": {"": 4.0, "x": 8.0},
}
TURNS = "it turns, or they are less than 1 % apart,"
NO_TIME = "has a time under every assumption"


@pytest.mark.parametrize(
    ("times", "expected", "words"),
    [
        (ORDERED, [["daso"], ["lasgd"], ["ddp"]], "daso, then lasgd, then ddp"),
        (
            SWAPPED,
            [["daso"], ["lasgd"], ["ddp", "hsgd"]],
            f"daso, then lasgd, then no order between ddp and hsgd: {TURNS} under 'rings'",
        ),
        (
            PASSED,
            [["a", "b", "c", "d"]],
            f"no ranking: no order between a, b, c and d: {TURNS} under 'x'",
        ),
        (
            {"a": {"": 100.0, "near": 100.0}, "b": {"": 100.5, "near": 99.5}},
            [["a", "b"]],
            f"no ranking: no order between a and b: {TURNS} as configured and under 'near'",
        ),
        ({"a": {"": 1.0}}, [["a"]], f"no ranking: only a {NO_TIME}"),
        ({}, [], f"no ranking: no arm {NO_TIME}"),
    ],
    ids=["strict", "swapped", "passed", "close", "one", "none"],
)
def test_arms_stand_in_tiers_fastest_first(times: Times, expected: list[list[str]], words: str) -> None:
    assert tiers(times) == expected
    assert ranking_words(times) == words


@pytest.mark.parametrize(("second", "cut"), [(101.0, True), (100.9, False), (99.5, False)])
@pytest.mark.parametrize("where", ["", "rings"])
def test_an_order_needs_one_percent_at_every_point(where: str, second: float, cut: bool) -> None:
    times = {"a": {"": 100.0, "rings": 100.0}, "b": {"": 110.0, "rings": 110.0} | {where: second}}
    assert (len(tiers(times)) == 2) == cut
