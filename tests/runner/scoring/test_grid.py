"""Claims of "up to" over a grid: what contradicts one, what reproduces one, and what stays open."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.runner.scoring.claims import Claim, Conditions, Verdict, Word
from daso_bench.runner.scoring.estimate import Interval
from daso_bench.runner.scoring.grid import Configuration, configuration, grid_verdict, strict_level
from daso_bench.runner.scoring.ratio import Times, welch
from daso_bench.strategies.errors import ConfigError

CLAIM = Claim(value=1.5, quantifier="up_to")
SMALL, GAINED = Interval(0.90, 1.20), Interval(1.10, 1.20)


def cell(
    name: str,
    interval: Interval | None,
    bound: float | None = 1.6,
    strict: Interval | None = None,
    **more: object,
) -> Configuration:
    fields = {"runs": 5, "clock_floor": 0.02, "fresh_floor": 0.0, "bound": bound} | more
    return Configuration(
        name=name,
        interval=interval,
        strict=strict or interval,
        conditions=Conditions(**fields),  # type: ignore[arg-type]
    )


def cells(
    count: int, interval: Interval = SMALL, bound: float | None = 1.6, **more: object
) -> list[Configuration]:
    return [cell(f"c{number}", interval, bound, **more) for number in range(count)]  # type: ignore[arg-type]


def word(grid: list[Configuration], *, declared: bool = True, spans: bool = True) -> str:
    return grid_verdict(CLAIM, grid, declared=declared, spans=spans).word


@pytest.mark.parametrize("interval", [SMALL, GAINED])
def test_six_declared_configurations_that_all_gain_less_contradict(interval: Interval) -> None:
    assert word(cells(6, interval)) == "contradicted"


def test_if_no_configuration_leaves_room_the_claim_is_not_testable() -> None:
    found = grid_verdict(CLAIM, cells(6, bound=1.4), declared=True, spans=True)
    assert found.word == "not testable here"
    assert found.reasons == ("no communication saving can exceed 1.4 here, the claim is 1.5",)


def test_five_configurations_are_inconclusive() -> None:
    found = grid_verdict(CLAIM, cells(5), declared=True, spans=True)
    assert found.word == "inconclusive"
    assert found.reasons == ("best configuration: c0", "5 configurations: a contradiction needs 6")


def test_one_bound_above_the_claim_is_enough() -> None:
    assert word([*cells(5, bound=1.1), cell("roomy", SMALL, 1.5)]) == "contradicted"
    assert word([*cells(5, bound=1.1), cell("tight", SMALL, 1.4999)]) == "not testable here"


def test_a_bound_that_nobody_knows_neither_contradicts_nor_forbids() -> None:
    found = grid_verdict(CLAIM, cells(6, bound=None), declared=True, spans=True)
    assert found.word == "inconclusive"
    assert "no configuration is known to leave room for the claim" in found.reasons
    assert word([*cells(5, bound=1.1), cell("unknown", SMALL, None)]) == "inconclusive"


def test_a_grid_chosen_afterwards_or_too_narrow_is_inconclusive() -> None:
    assert word(cells(6), declared=False) == "inconclusive"
    assert word(cells(6), spans=False) == "inconclusive"


def test_one_configuration_that_is_not_smaller_keeps_the_grid_open_and_the_best_is_named() -> None:
    found = grid_verdict(CLAIM, [*cells(6), cell("wide", Interval(1.1, 1.6))], declared=True, spans=True)
    assert found.word == "inconclusive"
    assert found.reasons == ("best configuration: wide", "not smaller in wide")


@pytest.mark.parametrize("more", [{"runs": 3}, {"fresh_floor": None}, {"differs": ("ranks",)}])
def test_a_configuration_that_cannot_be_judged_does_not_count_as_smaller(more: dict[str, object]) -> None:
    assert word([*cells(6), cell("odd", SMALL, **more)]) == "inconclusive"  # type: ignore[arg-type]


def test_one_configuration_reproduces_it_at_the_stricter_level_only() -> None:
    strict = cell("best", Interval(1.42, 1.58), strict=Interval(1.39, 1.62))
    loose = cell("best", Interval(1.42, 1.58), strict=Interval(1.37, 1.64))
    found = grid_verdict(CLAIM, [*cells(5), strict], declared=True, spans=True)
    assert found.word == "reproduced"
    assert found.reasons == ("reproduced in best",)
    assert word([*cells(5), loose]) == "inconclusive"
    assert word([strict], declared=False, spans=False) == "reproduced"


def test_an_upper_limit_of_the_bound_in_the_claim_s_own_conditions_contradicts_by_itself() -> None:
    own = cell("own", Interval(1.1, 1.3), 1.2, own_conditions=True, bound_limit=1.24)
    found = grid_verdict(CLAIM, [own, cell("other", Interval(1.1, 1.6))], declared=False, spans=False)
    assert found.word == "contradicted"
    assert found.reasons == ("the bound rules it out in own",)


def test_low_bounds_do_not_stop_a_grid_that_holds_the_claim_s_own_conditions() -> None:
    assert word([*cells(5, bound=1.4), cell("own", SMALL, 1.4, own_conditions=True)]) == "inconclusive"


def test_a_grid_without_any_verdict_has_none_and_says_why() -> None:
    found = grid_verdict(CLAIM, cells(6, runs=3), declared=True, spans=True)
    assert found.word == "no verdict"
    assert found.reasons[0] == "c0: 3 runs per arm: a verdict needs 5"
    assert word(cells(6, differs=("ranks",))) == "not testable here"
    assert word(cells(6, runs=3, bound=1.4)) == "no verdict"


def test_order_bias_anywhere_makes_the_grid_provisional() -> None:
    grid = [*cells(6), cell("seventh", SMALL, biased=True)]
    assert grid_verdict(CLAIM, grid, declared=True, spans=True).remarks == ("provisional",)


def test_the_stricter_level_shares_the_error_among_all_configurations() -> None:
    assert strict_level(1) == pytest.approx(0.95)
    assert strict_level(6) == pytest.approx(1 - 0.05 / 6)
    base, arm = Times((100.0, 104.0, 96.0, 108.0, 92.0)), Times((80.0, 84.0, 76.0, 86.0, 75.0))
    ratio = welch(base, arm, level=0.9)
    assert ratio is not None
    made = configuration("one", ratio, cells(1)[0].conditions, 6)
    assert made.interval is not None
    assert made.strict is not None
    assert made.interval.low == pytest.approx(1.1393, abs=1e-4)
    # t at 0.9917, two-sided, with 7.976 degrees of freedom is 3.4821 against 2.3074 at 0.95.
    shares = [math.log(ratio.point / one.low) for one in (made.strict, made.interval)]
    assert shares[0] / shares[1] == pytest.approx(1.509, abs=2e-3)
    assert configuration("none", None, cells(1)[0].conditions, 6).strict is None


@pytest.mark.parametrize(
    ("claim", "grid", "said"),
    [
        (Claim(value=1.5), cells(6), "a grid judges up_to"),
        (Claim(quantifier="up_to"), cells(6), "a grid judges up_to"),
        (CLAIM, [], "one or more"),
        (CLAIM, [*cells(2), *cells(1)], "each name once"),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(claim: Claim, grid: list[Configuration], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        grid_verdict(claim, grid, declared=True, spans=True)


ends = st.none() | st.tuples(st.floats(0, 3), st.floats(0, 3)).map(
    lambda pair: Interval(min(pair), max(pair))
)
conditions = st.builds(
    Conditions,
    runs=st.integers(3, 8),
    clock_floor=st.floats(0, 0.3),
    fresh_floor=st.none() | st.floats(0, 0.3),
    bound=st.none() | st.floats(1, 2),
    bound_limit=st.none() | st.floats(1, 2),
    own_conditions=st.booleans(),
    differs=st.sampled_from([(), (), ("ranks",)]),
)


@given(st.lists(st.tuples(ends, ends, conditions), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_every_grid_gets_exactly_one_verdict(
    parts: list[tuple[Interval | None, Interval | None, Conditions]], declared: bool, spans: bool
) -> None:
    grid = [
        Configuration(name=str(index), interval=interval, strict=strict, conditions=known)
        for index, (interval, strict, known) in enumerate(parts)
    ]
    found = grid_verdict(CLAIM, grid, declared=declared, spans=spans)
    assert found.word in ("no verdict", "not testable here", "reproduced", "contradicted", "inconclusive")
    by_bound = any(known.own_conditions and (known.bound_limit or 2) < 1.25 for _, _, known in parts)
    assert found.word != "contradicted" or (declared and spans and len(grid) >= 6) or by_bound


@pytest.mark.parametrize(
    ("quality", "said"),
    [("supported", "reproduced"), ("contradicted", "contradicted"), ("inconclusive", "inconclusive")],
)
def test_a_gain_counts_only_with_its_quality(quality: Word, said: str) -> None:
    kept = Verdict(word=quality)
    grid = [replace(each, kept=kept) for each in cells(6, Interval(1.6, 1.7), bound=2.0)]
    assert word(grid) == said


def test_a_loss_of_quality_makes_no_configuration_smaller_than_its_time_alone() -> None:
    grid = [replace(each, kept=Verdict(word="supported")) for each in cells(6)]
    assert word(grid) == word(cells(6)) == "contradicted"
