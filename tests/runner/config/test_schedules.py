"""Schedules: values by hand, and the properties that hold for every one of them."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import assert_same_models, config, whole_and_resumed

from daso_bench.runner.config.schedules import Constant, Cosine, Plateau, Polynomial, Schedule, Step, Watch
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.strategies.errors import ConfigError

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
    st.builds(Plateau, warmup_epochs=warmups),
)
epochs_of = st.integers(1, 2000)


def steps(schedule: Schedule, edges: Sequence[int], total: int = 500, per_epoch: int = 100) -> list[float]:
    """The factors of the steps between neighbouring `edges`, global samples."""
    return [schedule.factor(before, after, total, per_epoch) for before, after in itertools.pairwise(edges)]


QUARTER = 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2
EDGES = (0, 50, 100, 200, 300, 500, 700)
TWICE_DOWN = Step(warmup_epochs=0, milestones=(0.5, 0.75), decay=0.1)


@pytest.mark.parametrize(
    ("schedule", "edges", "total", "wanted"),
    [
        # Two steps of warm-up; then the rate is that of the samples before each step.
        (Cosine(warmup_epochs=1, final=0.1), EDGES, 500, [0.5, 1, 1, QUARTER, 0.55, 0.1]),
        (Polynomial(warmup_epochs=1), EDGES, 500, [0.5, 1, 1, 0.5625, 0.25, 0]),
        (TWICE_DOWN, (0, 1, 200, 201, 300, 301, 400), 400, [1, 1, 0.1, 0.1, 0.01, 0.01]),
        (Constant(warmup_epochs=2), (0, 50, 200, 400), 400, [0.25, 1, 1]),
        (Constant(), (0, 0), 400, [1]),
        # A warm-up longer than the run never fails.
        (Cosine(warmup_epochs=3), (100, 200), 200, [2 / 3]),
        (Cosine(warmup_epochs=2), (100, 200), 200, [1]),
    ],
)
def test_factors_by_hand(schedule: Schedule, edges: Sequence[int], total: int, wanted: list[float]) -> None:
    assert steps(schedule, edges, total) == pytest.approx(wanted)


@pytest.mark.parametrize("warmup_steps", [0, 3])
@pytest.mark.parametrize("power", [None, 1.0, 2.0])
def test_a_decay_is_torchs_step_by_step_and_its_last_step_is_not_wasted(
    power: float | None, warmup_steps: int
) -> None:
    """Ten steps of a hundred samples beside torch's own schedulers, warm-up included."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    after = 10 - warmup_steps
    warmup_epochs = warmup_steps / 2
    if power is None:
        decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, after)
        schedule = Cosine(warmup_epochs=warmup_epochs)
    else:
        decay = torch.optim.lr_scheduler.PolynomialLR(optimizer, after, power)
        schedule = Polynomial(warmup_epochs=warmup_epochs, power=power)
    wanted = [(step + 1) / warmup_steps for step in range(warmup_steps)]
    for _ in range(after):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        decay.step()
    factors = steps(schedule, range(0, 1001, 100), total=1000, per_epoch=200)
    assert factors == pytest.approx(wanted, rel=1e-12)
    assert factors[-1] > 0.009


@given(schedules, epochs_of, st.integers(1, 50), st.floats(0, 1.2), st.integers(1, 100))
def test_a_factor_is_a_share(schedule: Schedule, samples: int, epochs: int, at: float, size: int) -> None:
    total, before = samples * epochs, round(at * samples * epochs)
    assert 0 <= schedule.factor(before, before + size, total, samples) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(warmup_epochs=-1), "schedule.warmup_epochs=-1: must be >= 0"),
        (lambda: Cosine(warmup_epochs=math.inf), "schedule.warmup_epochs=inf: must be finite"),
        (lambda: Cosine(final=2), "schedule.final=2: must be between 0 and 1"),
        (lambda: Polynomial(power=0), "schedule.power=0: must be > 0"),
        (lambda: Plateau(patience=-1), "schedule.patience=-1: must be >= 0"),
        (lambda: Plateau(threshold=1), "schedule.threshold=1: must be >= 0 and < 1"),
        (lambda: Step(decay=2), "schedule.decay=2: must be between 0 and 1"),
        (lambda: Step(milestones=(0.5, 60)), "schedule.milestones=60: must be between 0 and 1"),
        (lambda: Step(milestones=(0.7, 0.5)), r"schedule.milestones=\[0.7, 0.5\]: must ascend"),
    ],
)
def test_bad_values_are_refused(make: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


# ------------------------------------------------------------------ plateau


def factors(schedule: Plateau, losses: list[float]) -> list[float]:
    """The factor after each epoch."""
    watch, found = Watch(), []
    for loss in losses:
        watch = schedule.after_epoch(watch, loss)
        found.append(watch.factor)
    return found


def test_a_plateau_by_hand() -> None:
    schedule = Plateau(decay=0.5, patience=1, threshold=0.1, final=0.2)
    # Best 1; 0.95 and 0.91 are no tenth less: two epochs waited, more than one. 0.8 is an improvement.
    losses = [1, 0.95, 0.91, 0.8, 0.79, 0.78, 0.77, 0.76, 0.75, 0.74]
    assert factors(schedule, losses) == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2]


@settings(deadline=None)  # the first call loads torch's optimizers
@given(
    st.lists(st.floats(0.01, 3) | st.sampled_from([1.0, 0.9999, 0.99]), min_size=1, max_size=40),
    st.floats(0.1, 0.9),
    st.integers(0, 4),
    st.sampled_from([0.0, 1e-4, 0.05]),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.01, 0.3]),
)
def test_it_decides_as_torchs_scheduler_does(
    losses: list[float], decay: float, patience: int, threshold: float, cooldown: int, final: float
) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        factor=decay,
        patience=patience,
        threshold=threshold,
        cooldown=cooldown,
        min_lr=final,
        eps=0,
    )
    wanted = []
    for loss in losses:
        reference.step(loss)
        wanted.append(optimizer.param_groups[0]["lr"])
    schedule = Plateau(decay=decay, patience=patience, threshold=threshold, cooldown=cooldown, final=final)
    assert factors(schedule, losses) == pytest.approx(wanted, rel=1e-12)


QUICK = Plateau(patience=0, decay=0.5, threshold=0.3)  # drops after a few epochs


def train(strategy: str = "ddp", **more: Any) -> SimulatedRun:
    """Ten epochs; the loss of later ones is no 30 % below the best. more: as of `simulate`."""
    cfg = config(strategy, schedule=QUICK, epochs=10, clip_norm=0.5, seed=3)
    return simulate(cfg, cfg.dataset.load(), **more)


def rates(done: SimulatedRun) -> list[tuple[int, float, float]]:
    rows = [row for row in done.metrics.rows if row["kind"] == "epoch"]
    return [(row["epoch"], row["learning_rate"], row["train_loss"]) for row in rows]


@pytest.mark.parametrize("strategy", ["ddp", "local_sgd", "daso"])
def test_a_run_lowers_its_rate_by_the_global_loss_alike_on_all_ranks(strategy: str) -> None:
    done = train(strategy=strategy)
    watch, found = Watch(), rates(done)
    for _, rate, loss in found:
        assert rate == pytest.approx(0.05 * watch.factor)
        watch = QUICK.after_epoch(watch, loss)
    assert watch.factor < 1
    assert all(context.state.watch == watch for context in done.contexts)
    assert len({context.state.learning_rate for context in done.contexts}) == 1


def test_a_resumed_run_goes_on_waiting_where_it_was(tmp_path: Path) -> None:
    whole, resumed = whole_and_resumed(train, tmp_path, 45)
    first = resumed.metrics.rows[0]["step"]
    assert 0 < first < 45
    assert rates(resumed) == [row for row in rates(whole) if row[0] >= first // 6]
    assert [c.state.watch for c in resumed.contexts] == [c.state.watch for c in whole.contexts]
    assert_same_models(resumed, whole)


def test_ranks_without_a_common_epoch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule=plateau: reads the loss of each epoch.* strategy=lasgd"):
        config("lasgd", schedule=Plateau())
