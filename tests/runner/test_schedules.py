"""Schedules: values by hand, and the properties that hold for every one of them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.runner.schedules import Constant, Cosine, Polynomial, Step
from daso_bench.strategies.errors import ConfigError

Schedule = Constant | Step | Cosine | Polynomial

warmups = st.floats(0, 5)
schedules = st.one_of(
    st.builds(Constant, warmup_epochs=warmups),
    st.builds(
        Step,
        warmup_epochs=warmups,
        milestones=st.lists(st.floats(0, 1), max_size=4, unique=True).map(lambda found: tuple(sorted(found))),
        decay=st.floats(0.01, 1),
    ),
    st.builds(Cosine, warmup_epochs=warmups, final=st.floats(0, 1)),
    st.builds(Polynomial, warmup_epochs=warmups, power=st.floats(0.5, 2)),
)
epochs_of = st.integers(1, 2000)


def test_cosine_by_hand() -> None:
    schedule = Cosine(warmup_epochs=1, final=0.1)
    factors = [schedule.factor(samples, 500, 100) for samples in (0, 50, 100, 200, 300, 500, 700)]
    quarter = 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2
    assert factors == pytest.approx([0, 0.5, 1, quarter, 0.55, 0.1, 0.1])


def test_step_by_hand() -> None:
    schedule = Step(warmup_epochs=0, milestones=(0.5, 0.75), decay=0.1)
    factors = [schedule.factor(samples, 400, 100) for samples in (1, 200, 201, 300, 301, 400)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_constant_by_hand() -> None:
    assert [Constant(warmup_epochs=2).factor(n, 400, 100) for n in (50, 200, 400)] == [0.25, 1, 1]
    assert Constant().factor(0, 400, 100) == 1


@given(schedules, epochs_of, st.integers(1, 50), st.floats(0, 1.2))
def test_a_factor_is_a_share(schedule: Schedule, samples: int, epochs: int, at: float) -> None:
    total = samples * epochs
    assert 0 <= schedule.factor(round(at * total), total, samples) <= 1


@given(schedules, st.integers(10, 2000), st.integers(6, 50))
def test_the_warmup_rises_to_one_without_a_jump(schedule: Schedule, samples: int, epochs: int) -> None:
    """Where no milestone lies in it: linear, and at its end no jump of more than a sample."""
    total, end = samples * epochs, schedule.warmup_epochs * samples
    if isinstance(schedule, Step) and any(share * total <= end + 1 for share in schedule.milestones):
        return
    before, after = math.floor(end), math.ceil(end)
    if end > 0:
        assert schedule.factor(before, total, samples) == pytest.approx(before / end)
    step = 1 / max(end, 1) + math.pi / (total - end)
    assert schedule.factor(after, total, samples) >= 1 - step


@given(warmups, st.floats(0, 1), epochs_of, st.integers(6, 50))
def test_cosine_falls_to_its_final_fraction(warmup: float, final: float, samples: int, epochs: int) -> None:
    schedule, total = Cosine(warmup_epochs=warmup, final=final), samples * epochs
    start = math.ceil(warmup * samples)
    values = [schedule.factor(start + (total - start) * i // 20, total, samples) for i in range(21)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(values))
    assert values[-1] == pytest.approx(final, abs=1e-12)


def test_polynomial_by_hand() -> None:
    schedule = Polynomial(warmup_epochs=1)
    factors = [schedule.factor(samples, 500, 100) for samples in (0, 50, 100, 200, 300, 500, 700)]
    assert factors == pytest.approx([0, 0.5, 1, 0.5625, 0.25, 0, 0])


@pytest.mark.parametrize(
    ("schedule", "first"),
    [(Step(milestones=(0.5, 0.75)), 200), (Step(milestones=()), None), (Cosine(), None), (Constant(), None)],
)
def test_where_the_rate_first_falls_by_a_step(schedule: Schedule, first: int | None) -> None:
    assert schedule.first_decay(400, 100) == first


def test_a_warmup_longer_than_the_run_never_fails() -> None:
    assert Cosine(warmup_epochs=3).factor(200, 200, 100) == pytest.approx(2 / 3)
    assert Cosine(warmup_epochs=2).factor(200, 200, 100) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(warmup_epochs=-1), "schedule.warmup_epochs=-1: must be >= 0"),
        (lambda: Cosine(warmup_epochs=math.inf), "schedule.warmup_epochs=inf: must be finite"),
        (lambda: Cosine(final=2), "schedule.final=2: must be between 0 and 1"),
        (lambda: Polynomial(power=0), "schedule.power=0: must be > 0"),
        (lambda: Step(decay=0), "schedule.decay=0: must be > 0"),
        (lambda: Step(decay=2), "schedule.decay=2: must be between 0 and 1"),
        (lambda: Step(milestones=(0.5, 60)), "schedule.milestones=60: must be between 0 and 1"),
        (lambda: Step(milestones=(0.7, 0.5)), r"schedule.milestones=\[0.7, 0.5\]: must ascend"),
    ],
)
def test_bad_values_are_refused(make: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
