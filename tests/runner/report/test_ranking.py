"""Tiers and their words, from times written by hand."""

import pytest

from daso_bench.runner.report.ranking import lasting_words, ranking_words, tiers

ORDERED = {
    "ddp": {"": 3.0, "rings": 3.1},
    "daso": {"": 1.0, "rings": 1.2},
    "lasgd": {"": 2.0, "rings": 2.5},
}
SWAPPED = {**ORDERED, "hsgd": {"": 4.0, "rings": 3.0}}


def test_a_strict_order_is_fastest_first_whatever_the_order_given() -> None:
    assert tiers(ORDERED) == [["daso"], ["lasgd"], ["ddp"]]
    assert ranking_words(ORDERED) == "daso, then lasgd, then ddp"


def test_two_arms_that_swap_share_a_tier_and_the_words_say_where() -> None:
    assert tiers(SWAPPED) == [["daso"], ["lasgd"], ["ddp", "hsgd"]]
    assert ranking_words(SWAPPED) == (
        "daso, then lasgd, then (no order between ddp and hsgd: it turns with 'rings')"
    )


def test_all_before_a_cut_are_faster_than_all_behind_not_only_the_neighbours() -> None:
    times = {
        "a": {"": 1.0, "x": 9.0},
        "b": {"": 2.0, "x": 10.0},
        "c": {"": 3.0, "x": 11.0},
        "d": {"": 4.0, "x": 8.0},
    }
    assert tiers(times) == [["a", "b", "c", "d"]]
    assert ranking_words(times) == "no ranking: between a, b, c and d it turns with 'x'"


@pytest.mark.parametrize(("second", "cut"), [(101.0, True), (100.9, False), (100.0, False), (99.5, False)])
@pytest.mark.parametrize("where", ["", "rings"])
def test_an_order_needs_one_percent_at_every_point(where: str, second: float, cut: bool) -> None:
    times = {"a": {"": 100.0, "rings": 100.0}, "b": {"": 110.0, "rings": 110.0} | {where: second}}
    assert (len(tiers(times)) == 2) == cut


def test_a_closed_gap_is_told_from_a_turn() -> None:
    times = {
        "a": {"": 100.0, "near": 100.0, "turned": 100.0, "equal": 5.0},
        "b": {"": 100.5, "near": 99.5, "turned": 99.0, "equal": 5.0},
    }
    assert ranking_words(times) == (
        "no ranking: between a and b it turns with 'turned';"
        " they are less than 1 % apart as configured and with 'near' and 'equal'"
    )


def test_one_arm_or_none_is_no_ranking() -> None:
    assert ranking_words({}) == "no ranking: no arm has a time under every assumption"
    assert ranking_words({"a": {"": 1.0}}) == "no ranking: only a has a time under every assumption"


def test_what_holds_at_all_sizes() -> None:
    other = {arm: {"": times[""]} for arm, times in ORDERED.items()} | {"lasgd": {"": 5.0}}
    assert lasting_words({"": SWAPPED}) == (
        "Under every assumption: daso is faster than lasgd, ddp and hsgd; lasgd is faster than ddp and hsgd."
    )
    assert lasting_words({"4 nodes": SWAPPED, "8 nodes": other}) == (
        "At 4 nodes and 8 nodes, under every assumption: daso is faster than lasgd and ddp."
    )
    assert lasting_words({"4": {"a": {"": 1.0}, "b": {"": 1.0}}}) == (
        "At 4, under every assumption: no two arms keep their order."
    )
