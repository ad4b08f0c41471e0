"""Evaluations cost no training time, and rows state the time and the samples of the model that they judge.

All registered strategies run in virtual time, on even ranks, beside a slow node, and with random step times.
What rows say is compared with the simulator's clock in a run that is evaluated at its end alone.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import MLP, NAMES, PERIODS, Blobs, config, evaluations, simulated, strategy_class
from torch import Tensor

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.simulation.simulated_world import SimulatedRun
from daso_bench.runner.training.device_model import StepTime
from daso_bench.runner.training.evaluation import Evaluator, Score
from daso_bench.runner.training.trainer import Observer, Trainer
from daso_bench.strategies.base import AsynchronousStrategy

EPOCH, EPOCHS, BATCH = 96, 4, 16
NEVER = 10**9
OFTEN = EPOCH // 4
CADENCES = [(OFTEN, "inline"), (OFTEN, "deferred"), (EPOCH, "auto"), (4 * EPOCH, "auto")]
NETWORK = AlphaBeta(intra_latency_s=2e-4, inter_latency_s=1e-3)
MS = 1_000_000


def jittered() -> StepTime:
    """Every rank draws the time of each step between 0.5 and 1.5 ms."""
    draws = [random.Random(rank) for rank in range(4)]
    return lambda rank, samples: int(MS * draws[rank].uniform(0.5, 1.5))


STEP_TIMES: dict[str, Callable[[], StepTime]] = {
    "even": lambda: lambda rank, samples: MS,
    "slow node": lambda: lambda rank, samples: MS * (3 if rank > 1 else 1),
    "jitter": jittered,
}


class Watch(Observer):
    """What the ranks of a run do, by the simulator's clock.

    `steps[rank]`: by the samples in the model, nanoseconds from the first step until this rank had them;
    `trained`: samples of all ranks' steps; `start`: the first weight before training.
    """

    def __init__(self) -> None:
        self.began: dict[int, int] = {}
        self.steps: dict[int, dict[int, int]] = {}
        self.trained, self.start = 0, 0.0

    def on_train_start(self, trainer: Trainer) -> None:
        context = trainer.context
        self.began[context.comm.rank], self.steps[context.comm.rank] = context.comm.now(), {}
        self.start = context.replica.flat()[0].item()

    def on_step(self, trainer: Trainer, loss: Tensor) -> None:
        context = trainer.context
        self.trained += context.progress.samples_of_rank[context.comm.rank]

    def on_boundary(self, trainer: Trainer, *, met: bool, last: bool) -> None:
        # At one's own pace samples become known when a round is applied.
        comm, samples = trainer.context.comm, trainer.context.progress.samples
        self.steps[comm.rank].setdefault(samples, comm.now() - self.began[comm.rank])

    def moment_s(self, samples: int) -> float:
        """When the last rank had a model of so many samples, in a run that nothing has interrupted."""
        return max(steps[samples] for steps in self.steps.values()) / 1e9


def run(
    name: str, times: str, every: int, mode: str, watch: Watch | None = None, **keys: Any
) -> SimulatedRun:
    """Four epochs on 2 nodes of 2 ranks."""
    folder = keys.pop("checkpoints", None)
    cfg = config(
        name,
        **{"keys": PERIODS.get(name), "model": MLP(hidden=[4]), "dataset": Blobs(samples=EPOCH), **keys},
        epochs=EPOCHS,
        global_batch_size=BATCH,
        precision="fp64",
        eval_every_samples=every,
        eval_mode=mode,
    )
    return simulated(
        cfg,
        network=NETWORK,
        step_time=STEP_TIMES[times](),
        loop=partial(Trainer, observer=watch),
        checkpoints=folder,
    )


@cache
def watched(name: str, times: str, every: int = NEVER, mode: str = "auto") -> tuple[Watch, SimulatedRun]:
    """A run that several tests read; without `every` it is evaluated at its end alone."""
    watch = Watch()
    return watch, run(name, times, every, mode, watch)


@pytest.mark.parametrize("times", ["slow node", "jitter"])
@pytest.mark.parametrize("name", NAMES)
def test_evaluations_at_any_distance_leave_training_time_as_it_is(name: str, times: str):
    """A quarter of an epoch, one and four; from copies, and inline wherever there are sync points."""
    wanted = watched(name, times)[1].results[0].summary["train_s"]
    for every, mode in CADENCES:
        _, done = watched(name, times, every, mode)
        if mode != "inline" or not done.contexts[0].strategy.never_syncs:
            got = done.results[0].summary["train_s"]
            assert got == pytest.approx(wanted, rel=1e-9), (mode, every)


@pytest.mark.parametrize("times", ["slow node", "jitter"])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_moment_at_which_its_model_was_ready(name: str, times: str):
    alone, reference = watched(name, times)
    _, done = watched(name, times, OFTEN, "deferred")
    *copies, last = evaluations(done)
    assert copies
    assert {row["mode"] for row in copies} == {"deferred"}
    for row in copies:
        moment = row["train_s"] - row["make_model_s"]
        assert moment == pytest.approx(alone.moment_s(row["samples"]), rel=1e-9), row["samples"]
        assert row["make_model_s"] == 0 or not done.contexts[0].strategy.copies_are_whole
    assert last["train_s"] == pytest.approx(evaluations(reference)[-1]["train_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("ednncomm", {"sync_every": 1000, "sync_at_epoch_end": False}),
        ("local_sgd", {"sync_every": 1000}),
        ("sgp", {}),
    ],
)
def test_making_a_model_costs_the_same_from_a_copy_and_inline(name: str, keys: dict[str, Any]):
    """In the middle of a round, as the strategy averages: between leaders alone it takes less."""
    rows = evaluations(run(name, "even", OFTEN, "auto", keys=keys))
    assert {row["mode"] for row in rows} == {"deferred", "inline"}
    costs = [row["make_model_s"] for row in rows]
    assert costs == pytest.approx([costs[-1]] * len(rows), rel=1e-9)
    assert costs[-1] > 0


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_that_nobody_asked_for_leave_training_time_as_it_is(name: str, tmp_path: Path):
    """Once an epoch, or at the next sync point."""
    wanted = watched(name, "jitter")[1].results[0].summary["train_s"]
    done = run(name, "jitter", NEVER, "auto", checkpoints=tmp_path)
    summary = done.results[0].summary
    assert summary["train_s"] == pytest.approx(wanted, rel=1e-9)
    assert (summary["checkpoints"] == 0) is done.contexts[0].strategy.never_syncs
    assert not any("checkpoints" in label for label in summary["labels"])


def test_a_checkpoint_between_sync_points_is_labelled(tmp_path: Path):
    """Periods of 4 steps, a checkpoint after every 3: two of seven are at a sync point or later."""
    kinds: dict[str, Any] = {"checkpoints": tmp_path, "checkpoint_every_samples": 3 * BATCH}
    labels = run("local_sgd", "jitter", NEVER, "auto", **kinds).results[0].summary["labels"]
    assert labels == ["checkpoints that made ranks wait: 6"]


# ------------------------------------------------------------------ samples in the model


class Counter(torch.optim.Optimizer):
    """Adds the samples of this rank's step to each parameter; ranks times the mean are those in the model."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step of BATCH / 4 samples."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter += BATCH / 4


@dataclass(frozen=True, kw_only=True)
class Counting(SGD):
    """Trains nothing, counts samples."""

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """The counter."""
        return Counter(parameters)


OWN_PACE = [name for name in NAMES if issubclass(strategy_class(name), AsynchronousStrategy)]


@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN_PACE])
def test_a_row_counts_the_samples_in_its_model(name: str, mode: str):
    watch, done = watched(name, "slow node", OFTEN, mode)
    rows = evaluations(done)
    assert [row["samples"] for row in rows] == [row["step"] * BATCH for row in rows]
    assert rows[-1]["samples"] == EPOCH * EPOCHS == watch.trained


@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize("times", ["slow node", "jitter"])
@pytest.mark.parametrize("keys", [{}, {"sync_every": 3}], ids=["each step", "longer rounds"])
@pytest.mark.parametrize("name", OWN_PACE)
def test_a_row_counts_the_samples_in_a_model_of_ranks_at_their_own_pace(
    name: str, keys: dict[str, Any], times: str, mode: str, monkeypatch: pytest.MonkeyPatch
):
    """Steps in flight are in a model that all ranks stop for, and not in a copy of a round."""
    judged: list[float] = []
    score = Evaluator._score

    def noted(evaluator: Evaluator) -> Score:
        if evaluator.context.comm.rank == 0:
            judged.append(evaluator.context.replica.flat()[0].item())
        return score(evaluator)

    monkeypatch.setattr(Evaluator, "_score", noted)
    watch = Watch()
    done = run(name, times, OFTEN, mode, watch, optimizer=Counting(), **({"keys": keys} if keys else {}))
    rows, ranks = evaluations(done), len(done.contexts)
    assert len(rows) > 1
    assert [row["samples"] for row in rows] == pytest.approx([ranks * (w - watch.start) for w in judged])
    summary = done.results[0].summary
    assert rows[-1]["samples"] == watch.trained
    assert watch.trained == EPOCH * EPOCHS + summary["strategy"]["overshoot_samples"]
    assert summary["samples_per_s"] == pytest.approx(watch.trained / summary["train_s"], rel=1e-9)
