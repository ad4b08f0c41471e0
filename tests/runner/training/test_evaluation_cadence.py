"""Evaluations cost no training time, and rows state the time and the samples of the model that they judge.

All registered strategies run in virtual time, on even ranks, beside a slow node, and with random step times.
What rows say is compared with the simulator's own clock, and with a run that is evaluated at its end alone.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import MLP, NAMES, PERIODS, Blobs, config, strategy_class
from torch import Tensor

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training.device_model import StepTime
from daso_bench.runner.training.evaluation import Evaluator, Score
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.base import AsynchronousStrategy

EPOCH, EPOCHS, BATCH = 96, 4, 16
NEVER = 10**9
OFTEN = EPOCH // 4
CADENCES = [(OFTEN, "inline"), (OFTEN, "deferred"), *((every, "auto") for every in (OFTEN, EPOCH, 4 * EPOCH))]
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


class Watch:
    """What a run does, from the simulator's clock: nanoseconds since the first step, by rank.

    `steps[rank]` holds, by the samples in the model, when this rank had them; `ready` when the last rank had
    the model of an inline evaluation, in training time; `judged` is the first weight of each judged model,
    `start` that of the first one.
    """

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, int]] = {}
        self.entered: dict[int, list[int]] = {}
        self.made: dict[int, list[int]] = {}
        self.resumed: dict[int, list[int]] = {}
        self.ended: dict[int, int] = {}
        self.start, self.judged = 0.0, list[float]()
        self.trained: dict[int, int] = {}

    def loop(self) -> type[Trainer]:
        """The loop that notes it."""
        watch = self

        class Noted(Evaluator):
            def _score(self) -> Score:
                if self.context.comm.rank == 0:
                    watch.judged.append(self.context.replica.flat()[0].item())
                return super()._score()

        class Noting(Trainer):
            def begin(self, resumed_from: str | None) -> None:
                super().begin(resumed_from)
                rank = self.context.comm.rank
                self.evaluator = Noted(self.context, self.accounting)
                watch.steps[rank], watch.entered[rank], watch.made[rank] = {}, [], []
                watch.resumed[rank] = [self.context.comm.now()]
                watch.trained[rank] = 0
                watch.start = self.context.replica.flat()[0].item()

            def step(self) -> None:
                super().step()
                watch.trained[self.context.comm.rank] += self.context.progress.samples_of_rank[
                    self.context.comm.rank
                ]

            def after_step(self) -> None:
                super().after_step()
                # At one's own pace samples become known when a round is applied.
                rank = self.context.comm.rank
                watch.steps[rank].setdefault(
                    self.context.progress.samples, self.context.comm.now() - watch.resumed[rank][0]
                )

            def _evaluate(self) -> None:
                context, rank = self.context, self.context.comm.rank
                averaged_model = context.strategy.averaged_model

                def noted() -> Any:
                    watch.entered[rank].append(context.comm.now())
                    return averaged_model()

                score = self.evaluator._score

                def made() -> Score:
                    if len(watch.made[rank]) < len(watch.entered[rank]):
                        watch.made[rank].append(context.comm.now())
                    return score()

                context.strategy.averaged_model, self.evaluator._score = noted, made
                super()._evaluate()
                context.strategy.averaged_model, self.evaluator._score = averaged_model, score
                watch.resumed[rank].append(context.comm.now())

            def _end(self) -> Outcome:
                finish = self.context.strategy.finalize

                def noted() -> None:
                    finish()
                    watch.ended[self.context.comm.rank] = self.context.comm.now()

                self.context.strategy.finalize = noted
                return super()._end()

        return Noting

    def moment_s(self, samples: int) -> float:
        """When the last rank had a model of so many samples, in a run that nothing has interrupted."""
        return max(steps[samples] for steps in self.steps.values()) / 1e9

    def stretches_s(self) -> list[float]:
        """Training time up to each inline evaluation, its making not included."""
        return self._sums(self.entered)

    def ready_s(self) -> list[float]:
        """Training time up to each inline evaluation, and the making of its model alone."""
        made, before = self._lasts(self.made), [0.0, *self.stretches_s()]
        return [before[k] + (made[k] - self._lasts(self.resumed)[k]) / 1e9 for k in range(len(made))]

    def total_s(self) -> float:
        """Training time of the whole run."""
        return self.stretches_s()[-1] + (max(self.ended.values()) - self._lasts(self.resumed)[-1]) / 1e9

    def _sums(self, stamps: dict[int, list[int]]) -> list[float]:
        sums, total = [], 0
        for stopped, began in zip(self._lasts(stamps), self._lasts(self.resumed), strict=False):
            total += stopped - began
            sums.append(total / 1e9)
        return sums

    @staticmethod
    def _lasts(stamps: dict[int, list[int]]) -> list[int]:
        return [max(times) for times in zip(*stamps.values(), strict=True)]


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
    return simulate(
        cfg,
        cfg.dataset.load(),
        network=NETWORK,
        step_time=STEP_TIMES[times](),
        loop=(watch or Watch()).loop(),
        checkpoints=folder,
    )


def evaluations(done: SimulatedRun) -> list[dict[str, Any]]:
    return [row for row in done.metrics.rows if row["kind"] == "evaluation"]


@cache
def watched(name: str, times: str, every: int = NEVER, mode: str = "auto") -> tuple[Watch, SimulatedRun]:
    """A run that several tests read; without `every` it is evaluated at its end alone."""
    watch = Watch()
    return watch, run(name, times, every, mode, watch)


@pytest.mark.parametrize("times", STEP_TIMES)
@pytest.mark.parametrize("name", NAMES)
def test_evaluations_at_any_distance_leave_training_time_as_it_is(name: str, times: str):
    """A quarter of an epoch, one and four; from copies, and inline wherever there are sync points."""
    alone, reference = watched(name, times)
    wanted = alone.total_s()
    assert reference.results[0].summary["train_s"] == pytest.approx(wanted, rel=1e-9)
    for every, mode in CADENCES:
        _, done = watched(name, times, every, mode)
        if mode != "inline" or not done.contexts[0].strategy.never_syncs:
            got = done.results[0].summary["train_s"]
            assert got == pytest.approx(wanted, rel=1e-9), (mode, every)


@pytest.mark.parametrize("times", STEP_TIMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_moment_at_which_its_model_was_ready(name: str, times: str):
    alone, _ = watched(name, times)
    watch, done = watched(name, times, OFTEN, "inline")
    inline = evaluations(done)
    assert [row["train_s"] for row in inline] == pytest.approx(watch.ready_s(), rel=1e-9)
    without = [row["train_s"] - row["make_model_s"] for row in inline]
    assert without == pytest.approx(watch.stretches_s(), rel=1e-9)
    _, done = watched(name, times, OFTEN, "deferred")
    *copies, last = evaluations(done)
    assert copies
    assert {row["mode"] for row in copies} == {"deferred"}
    for row in copies:
        moment = row["train_s"] - row["make_model_s"]
        assert moment == pytest.approx(alone.moment_s(row["samples"]), rel=1e-9), row["samples"]
        assert row["make_model_s"] == 0 or not done.contexts[0].strategy.copies_are_whole
    assert last["train_s"] - last["make_model_s"] == pytest.approx(alone.stretches_s()[-1], rel=1e-9)


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
    alone, _ = watched(name, "jitter")
    done = run(name, "jitter", NEVER, "auto", checkpoints=tmp_path)
    summary = done.results[0].summary
    assert summary["train_s"] == pytest.approx(alone.total_s(), rel=1e-9)
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
@pytest.mark.parametrize("times", STEP_TIMES)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_counts_the_samples_in_its_model(name: str, times: str, mode: str):
    if name in OWN_PACE:
        check_counts(name, times, mode)
        return
    watch, done = watched(name, times, OFTEN, mode)
    rows = evaluations(done)
    assert [row["samples"] for row in rows] == [row["step"] * BATCH for row in rows]
    assert rows[-1]["samples"] == EPOCH * EPOCHS == sum(watch.trained.values())


@pytest.mark.parametrize("mode", ["inline", "deferred"])
def test_lasgd_counts_the_samples_in_its_model_with_longer_rounds(mode: str):
    check_counts("lasgd", "slow node", mode, {"sync_every": 3})


def check_counts(name: str, times: str, mode: str, keys: dict[str, Any] | None = None) -> None:
    """Steps in flight are in a model that all ranks stop for, and not in a copy of a round."""
    watch = Watch()
    kinds: dict[str, Any] = {"keys": keys} if keys else {}
    done = run(name, times, OFTEN, mode, watch, optimizer=Counting(), **kinds)
    rows, ranks = evaluations(done), len(done.contexts)
    assert len(rows) > 1
    counted = [ranks * (weight - watch.start) for weight in watch.judged]
    assert [row["samples"] for row in rows] == pytest.approx(counted)
    trained = sum(watch.trained.values())
    strategy = done.results[0].summary["strategy"]
    assert rows[-1]["samples"] == trained == EPOCH * EPOCHS + strategy["overshoot_samples"]
    assert done.results[0].summary["samples_per_s"] == pytest.approx(
        trained / done.results[0].summary["train_s"], rel=1e-9
    )
    assert [row["samples"] for row in rows] == sorted({row["samples"] for row in rows})
