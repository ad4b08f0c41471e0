"""The train loop in virtual time: its steps, exactness of evaluation, agreement, clock, resume."""

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import (
    PERIODS,
    AsksAt,
    Awkward,
    Blobs,
    Dies,
    assert_same_models,
    config,
    dies_after,
    evaluations,
    judged,
    simulated,
)

from daso_bench.datasets.data import Data, Split
from daso_bench.models.spec import InputSpec, Model
from daso_bench.runner.communication.link_costs import AlphaBeta, Network
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.schedules import Step
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.clock import PARTS
from daso_bench.runner.training.state import TrainState
from daso_bench.runner.training.trainer import Observer, Trainer
from daso_bench.strategies.daso import DASO
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Progress

SLOW = AlphaBeta(inter_latency_s=0.001)


# ------------------------------------------------------------------ one step

PLAIN_SGD = SGD(lr=0.05, momentum=0, nesterov=False, weight_decay=0)


def rank0_updates(cfg) -> list[tuple[float, float]]:
    """Of each step: the norms of rank 0's update and of the gradient that its optimizer applied."""
    norms = []

    class Watched(Trainer):
        def step(self) -> None:
            replica = self.context.replica
            before = replica.flat()
            super().step()
            if self.context.comm.rank == 0:
                norms.append(((before - replica.flat()).norm().item(), replica.gradients().norm().item()))

    simulated(cfg, loop=Watched)
    return norms


def test_each_step_has_its_own_learning_rate():
    """A warm-up of 6 steps, the base rate for 3 steps, and a tenth of it for the last 3."""
    schedule = Step(warmup_epochs=1, milestones=(0.75,), decay=0.1)
    updates = rank0_updates(config(ranks=[1, 1], epochs=2, optimizer=PLAIN_SGD, schedule=schedule))
    rates = [update / gradient for update, gradient in updates]
    factors = [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1, 1, 0.1, 0.1, 0.1]
    assert rates == pytest.approx([0.05 * factor for factor in factors], rel=1e-3)


class Tenfold(DDP):
    """Applies ten times the gradient."""

    def before_step(self, progress: Progress) -> None:
        self.replica.load_gradients(10 * self.replica.gradients())


def test_gradients_are_clipped_after_the_strategy_has_changed_them():
    cfg = config(ranks=[1, 1], epochs=1, optimizer=PLAIN_SGD, clip_norm=0.01)
    updates = rank0_updates(dataclasses.replace(cfg, strategy_class=Tenfold))
    assert [update for update, _ in updates] == pytest.approx([0.05 * 0.01] * 6, rel=1e-3)


# ------------------------------------------------------------------ resume


def test_resume_with_a_transfer_pending(tmp_path: Path):
    # Epoch 1 begins with `0 S0`: the checkpoint after its first batch holds a transfer that is merged later.
    keys = {**PERIODS["daso"], "sync_every": 4, "wait_batches": 3}
    cfg = config("daso", keys=keys, checkpoint_every_samples=7 * 16)
    whole = simulated(
        cfg,
        checkpoints=tmp_path / "whole",
        network=AlphaBeta(inter_latency_s=0.05),
        step_time=lambda r, n: 10**7,
    )
    with pytest.raises(Dies):
        simulated(cfg, checkpoints=tmp_path / "broken", loop=dies_after(8))
    state = checkpoint.read(tmp_path / "broken" / "step_0000000007" / "rank_0.pt")
    assert len(state["strategy"]["pending"]) == 1
    assert isinstance(state["strategy"]["pending"][0][3], torch.Tensor)
    resumed = simulated(cfg, checkpoints=tmp_path / "broken", attempt=2)
    assert_same_models(whole, resumed)
    epochs = [row["strategy"] for row in resumed.metrics.rows if row["kind"] == "epoch"]
    whole_epochs = [row["strategy"] for row in whole.metrics.rows if row["kind"] == "epoch"]
    keys = ("phase", "sync_every", "starts", "merges", "averages", "waited_batches", "active")
    assert [[e[k] for k in keys] for e in epochs] == [[e[k] for k in keys] for e in whole_epochs[1:]]
    assert [e["phase"] for e in epochs] == ["cycling", "cycling", "cool-down"], "no second warm-up"


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"ranks": [4]}, r"ranks \[4\], this run .* on ranks \[2, 2\]"),
        ({"seed": 1}, r"step_0000000003: is a checkpoint of run ddp-.*, this run is ddp-.*; remove it"),
        ({}, "step_0000000003: was saved on cuda, and this rank is on cpu"),
    ],
    ids=["shape", "run", "device"],
)
def test_resume_refuses_another_shape_another_run_and_another_kind_of_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], words: str
):
    if not broken:
        state_dict = TrainState.state_dict
        monkeypatch.setattr(TrainState, "state_dict", lambda state: state_dict(state) | {"device": "cuda"})
    with pytest.raises(Dies):
        simulated(config(**broken, checkpoint_every_samples=48), checkpoints=tmp_path, loop=dies_after(4))
    with pytest.raises(ConfigError, match=words):
        simulated(config(checkpoint_every_samples=48), checkpoints=tmp_path, attempt=2)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, caplog):
    cfg = config(checkpoint_every_samples=48)
    whole = simulated(cfg, checkpoints=tmp_path / "whole")
    with pytest.raises(Dies):
        simulated(cfg, checkpoints=tmp_path / "broken", loop=dies_after(11))
    newest = checkpoint.complete(tmp_path / "broken")[0]
    victim = newest / "rank_2.pt"
    victim.write_bytes(victim.read_bytes()[: victim.stat().st_size // 2])
    resumed = simulated(cfg, checkpoints=tmp_path / "broken", attempt=2)
    assert resumed.metrics.rows[0]["resumed_from"] == "step_0000000006"
    assert str(victim) in caplog.text
    assert_same_models(whole, resumed)


# ------------------------------------------------------------------ evaluation


class Zero(Model):
    """Says class 0 whatever it sees."""

    name = "zero"

    def build(self, spec: InputSpec) -> torch.nn.Module:
        """A module with one weight of no use."""

        class AlwaysZero(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = torch.nn.Parameter(torch.zeros(1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.tensor([[1.0, 0.0]]).expand(len(x), 2) + self.w * 0

        return AlwaysZero()


def labelled(*labels: int) -> Data:
    """Empty images of these classes, the same in all splits."""
    images = torch.zeros(len(labels), 1, 1, 1)
    split = Split(images=images, labels=torch.tensor(labels), mean=(0.0,), std=(1.0,))
    return Data(name="labelled", classes=2, shape=(1, 1, 1), train=split, validation=split, test=split)


@pytest.mark.parametrize("ranks", [[1], [2], [2, 1], [2, 2]], ids=str)
def test_one_of_seven_samples_scores_one_seventh_on_any_number_of_ranks(ranks: list[int]):
    cfg = config(ranks=ranks, model=Zero(), epochs=1, global_batch_size=7)
    row = evaluations(simulate(cfg, labelled(0, 1, 1, 1, 1, 1, 1)))[0]
    assert (row["correct"], row["count"], row["accuracy"]) == (1, 7, 1 / 7)


# ------------------------------------------------------------------ stopping together


def test_half_the_ranks_right_stops_nobody():
    """One node's shard all right, the other's all wrong: 0.5 globally reaches 0.4 and not 0.6."""
    for target, steps in ((0.6, 3), (0.4, 1)):
        cfg = config(ranks=[1, 1], model=Zero(), epochs=3, global_batch_size=8, target=target, stop="first")
        done = simulate(cfg, labelled(0, 0, 0, 0, 1, 1, 1, 1))
        assert [context.progress.step for context in done.contexts] == [steps, steps]


def test_ranks_with_different_losses_choose_the_same_period():
    """Nothing is good enough for this rule, so it changes B after every epoch: on all ranks alike."""
    keys = {**PERIODS["daso"], "plateau_patience": 0, "plateau_threshold": 0.99}
    done = simulated(config("daso", keys=keys, epochs=6))
    records = [[row["strategy"] for row in kept.rows if row["kind"] == "epoch"] for kept in done.rank_rows]
    periods = [[(first["sync_every"], first["wait_batches"]) for first in rank] for rank in records]
    assert periods[0] == [(4, 1), (4, 1), (2, 1), (1, 1), (4, 1), (4, 1)]
    assert all(first == periods[0] for first in periods)


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_a_loss_that_explodes_ends_all_ranks_at_one_step(strategy: str):
    keys = PERIODS.get(strategy)
    done = simulated(config(strategy, keys=keys, optimizer=SGD(lr=1e30), epochs=6))
    assert {result.status for result in done.results} == {"diverged"}
    assert len({context.progress.step for context in done.contexts}) == 1
    assert done.results[0].reason is not None
    assert "not finite" in done.results[0].reason
    assert done.results[0].summary["final_accuracy"] is None


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_a_run_told_to_stop_at_any_step_has_the_history_of_an_unbroken_one(tmp_path: Path, strategy: str):
    # One rank is told to; also at a step that ends an epoch, whose evaluation is still due, and at the last.
    keys = {**PERIODS["daso"], "sync_every": 2, "wait_batches": 2} if strategy == "daso" else {}
    cfg = config(strategy, keys=keys, model=Awkward(), dataset=Blobs(samples=64), epochs=3)
    whole = simulated(cfg, checkpoints=tmp_path / "whole")
    steps = whole.contexts[0].progress.step
    for at in range(1, steps + 1):
        folder = tmp_path / f"asked_{at}"
        asked = simulated(
            cfg, checkpoints=folder, listeners=lambda rank, at=at: AsksAt(at if rank == 3 else 10**9)
        )
        if {result.status for result in asked.results} == {"finished"}:
            continue  # nobody meets any more to agree on it
        again = simulated(cfg, checkpoints=folder, attempt=2)
        assert_same_models(whole, again)
        assert again.results[0].status == "finished"
        rows, kinds = [*asked.metrics.rows, *again.metrics.rows], ("evaluation", "epoch")
        assert judged(rows, kinds) == judged(whole.metrics.rows, kinds), at


class AsksOnce(AsksAt):
    def interrupted(self) -> str | None:
        return "interrupt" if self.step == self.at else None


class Agreed(Observer):
    """Notes the steps in which ranks agreed to ask for the reason of a stop request."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step_counted(self, trainer: Trainer, *, agreed: bool, met: bool) -> None:
        self.steps += [trainer.context.progress.step] * agreed


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("daso", {"warmup_epochs": 0, "cooldown_epochs": 0, "sync_every": 4, "wait_batches": 3}),
        ("local_sgd", {"sync_every": 5}),
        ("sgp", {"graph": "ring"}),
    ],
)
def test_a_stop_request_that_is_under_way_survives_a_resume(
    tmp_path: Path, strategy: str, keys: dict[str, Any]
):
    cfg = config(strategy, keys=keys, checkpoint_every_samples=16, epochs=1, dataset=Blobs(samples=320))

    def agreed(loop: type[Trainer], **more: Any) -> list[int]:
        seen = Agreed()
        with contextlib.suppress(Dies):
            # Rank 3 asks, and node 0 is the first to read what is under way.
            times = {"network": SLOW, "step_time": lambda rank, n: 1000_000 * (1 + rank)}
            simulated(cfg, loop=lambda context: loop(context, seen), **times, **more)
        return seen.steps

    ask: dict[str, Any] = {"listeners": lambda rank: AsksOnce(7 if rank == 3 else 10**9)}
    whole = agreed(Trainer, **ask)
    assert len(whole) == 4, "once on each rank"
    for step in range(9, whole[0] + 1):
        folder = tmp_path / str(step)
        before = agreed(dies_after(step), checkpoints=folder, **ask)
        assert before + agreed(Trainer, checkpoints=folder, attempt=2) == whole, step


def test_time_budget_stops_all_and_is_called_timed_out(tmp_path: Path):
    done = simulated(
        config(max_seconds=0.1, epochs=50), step_time=lambda rank, n: 10_000_000, checkpoints=tmp_path
    )
    assert {result.status for result in done.results} == {"timed_out"}
    # Found out after step 11 ends beyond 0.1 s, told in the next step's gradients.
    assert {context.progress.step for context in done.contexts} == {12}


@pytest.mark.parametrize(("strategy", "steps"), [("ddp", 4), ("lasgd", 7)])
def test_max_steps_ends_the_run_and_is_its_label(strategy: str, steps: int):
    """Ranks at their own pace stop by samples."""
    done = simulated(config(strategy, max_steps=steps), network=SLOW, step_time=lambda rank, n: 2_000_000)
    label = f"stopped by train.max_steps={steps}"
    assert (done.results[0].status, done.results[0].reason) == ("finished", label)
    assert done.results[0].summary["labels"] == [label]
    assert steps * 16 <= done.contexts[0].progress.samples < 384
    assert strategy != "ddp" or evaluations(done)[-1]["step"] == steps


# ------------------------------------------------------------------ clock


def test_workers_at_their_own_pace_end_by_samples_and_not_by_a_limit():
    # The last one is five times as slow.
    done = simulated(
        config("lasgd"), network=SLOW, step_time=lambda rank, n: 2_000_000 * (5 if rank == 3 else 1)
    )
    steps = [context.progress.step for context in done.contexts]
    assert steps[3] >= 9
    assert steps[0] > 4 * steps[3]
    assert (done.results[0].status, done.results[0].reason) == ("finished", None)
    assert done.results[0].summary["labels"] == []
    assert evaluations(done)[-1]["samples"] == done.contexts[0].progress.samples >= 384
    assert [row["epoch"] for row in done.metrics.rows if row["kind"] == "epoch"] == [0, 1, 2, 3]


def test_workers_at_other_steps_save_together_and_go_on(tmp_path: Path):
    cfg = config("lasgd", checkpoint_every_samples=100)

    def train(attempt: int, loop: type[Trainer] = Trainer) -> SimulatedRun:
        # The last worker is five times as slow: when all meet, it is at an earlier step.
        slow = {"network": SLOW, "step_time": lambda rank, n: 2_000_000 * (5 if rank == 3 else 1)}
        return simulated(cfg, checkpoints=tmp_path, attempt=attempt, loop=loop, **slow)

    with pytest.raises(Dies):
        train(1, dies_after(30))
    path, damage = checkpoint.newest_valid(tmp_path)
    assert path is not None
    assert damage == []
    steps = [checkpoint.read(path / checkpoint.rank_file(rank))["progress"]["step"] for rank in range(4)]
    assert path.name == f"step_{steps[0]:010d}", "rank 0's"
    assert steps[3] < steps[0]
    done = train(2)
    assert done.metrics.rows[0]["resumed_from"] == path.name
    assert {result.status for result in done.results} == {"finished"}


def test_a_round_may_end_several_epochs():
    cfg = config("lasgd", dataset=Blobs(samples=16))
    done = simulated(cfg, network=SLOW, step_time=lambda rank, n: 100_000)
    assert [row["epoch"] for row in done.metrics.rows if row["kind"] == "epoch"] == [0, 1, 2, 3]
    assert {context.progress.epoch for context in done.contexts} == {4}


def test_train_time_is_the_sum_of_the_slowest_intervals():
    """Two intervals, 10 and 8 s on rank 0, 8 and 10 s on rank 1: 20 s, not the 18 s of the larger sum."""
    times = {0: (10, 8), 1: (8, 10)}

    class Uneven(Trainer):
        def step(self) -> None:
            super().step()
            # After the last collective of the interval: no rank waits for the other before the evaluation.
            comm = self.context.comm
            assert isinstance(comm, SimulatedCommunicator)
            comm.simulator.advance(comm.rank, times[comm.rank][self.context.progress.epoch] * 10**9)

    done = simulated(config(ranks=[1, 1], epochs=2, global_batch_size=96), loop=Uneven)
    assert [row["train_s"] for row in evaluations(done)] == [10.0, 20.0]
    kept = [
        [row["train_s"] for row in rows.rows if row["kind"] == "train_interval"][:2]
        for rows in done.rank_rows
    ]
    assert kept == [[10.0, 8.0], [8.0, 10.0]]


@dataclasses.dataclass(frozen=True)
class AllReduces(Network):
    """All-reduces of these payloads take so long, everything else is free."""

    ns: int
    chosen: Callable[[int], bool] = lambda payload: payload > 100

    def duration_ns(self, verb, members, payload, inter):
        return self.ns if verb == "all_reduce" and self.chosen(payload) else 0


def test_the_last_average_is_training_time():
    """Six steps of 10 ms in a round of 100, and 25 ms for the average that ends the run."""
    cfg = config("local_sgd", keys={"sync_every": 100}, ranks=[1, 1], epochs=1)
    done = simulated(cfg, network=AllReduces(25_000_000), step_time=lambda rank, n: 10**7)
    assert done.results[0].summary["train_s"] == pytest.approx(0.060 + 0.025)


def test_waiting_for_what_is_in_flight_is_training_and_only_the_average_is_making_the_model(
    monkeypatch: pytest.MonkeyPatch,
):
    """An evaluation right after `S`: 25 ms until the transfer is parked, then 25 ms to average a copy."""
    keys = {"warmup_epochs": 0, "cooldown_epochs": 0, "sync_every": 4, "wait_batches": 3}
    # DASO lets nobody evaluate there.
    monkeypatch.setattr(DASO, "is_sync_point", lambda strategy, progress: True)
    cfg = config("daso", keys=keys, ranks=[1, 1], epochs=1, eval_every_samples=16, eval_mode="inline")
    first = evaluations(simulated(cfg, network=AllReduces(25_000_000), step_time=lambda rank, n: 10**7))[0]
    assert first["make_model_s"] == 0.025
    assert first["train_s"] == pytest.approx(0.010 + 0.025 + 0.025)


def test_waiting_is_told_from_transfer():
    """Ranks enter an all-reduce at 0 and 30 ms and leave at 50 ms: waiting 30 and 0, transfer 20 and 20."""
    cfg = config(ranks=[1, 1], epochs=1, global_batch_size=96)
    done = simulated(cfg, network=AllReduces(20_000_000), step_time=lambda rank, n: rank * 30_000_000)
    parts = [
        next(row for row in kept.rows if row["kind"] == "train_interval")["parts_s"]
        for kept in done.rank_rows
    ]
    assert [part["waiting"] for part in parts] == [0.03, 0.0]
    assert [part["exposed"] for part in parts] == [0.02, 0.02]
    assert [part["compute"] for part in parts] == [0.0, 0.03]


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_parts_add_up_to_train_and_segments_to_the_clock(strategy: str):
    cfg = config(strategy, keys=PERIODS.get(strategy))
    done = simulated(
        cfg,
        network=AlphaBeta(inter_latency_s=0.003, intra_latency_s=0.001),
        step_time=lambda rank, n: (rank + 1) * 5_000_000,
    )
    for kept, context in zip(done.rank_rows, done.contexts, strict=True):
        stretches = [row for row in kept.rows if row["kind"] == "train_interval"]
        train = sum(row["train_s"] for row in stretches)
        parts = sum(row["parts_s"][part] for row in stretches for part in PARTS)
        assert parts == pytest.approx(train, rel=0.01)
        segments = next(row for row in kept.rows if row["kind"] == "segments")
        assert segments["segments_s"]["train"] == pytest.approx(train, rel=1e-9)
        assert sum(segments["segments_s"].values()) == pytest.approx(context.comm.now() / 1e9, rel=0.01)


def test_only_the_judged_models_making_is_charged():
    """1 s for each average of buffers, the making of DDP's evaluable model."""
    cfg = config(ranks=[1, 1], model=Awkward(), epochs=2, global_batch_size=96)
    done = simulated(
        cfg,
        network=AllReduces(10**9, lambda payload: payload == 2 * 16 * 4),
        step_time=lambda rank, n: 10**10,
    )
    assert [row["train_s"] for row in evaluations(done)] == [11.0, 21.0]
    assert [row["make_model_s"] for row in evaluations(done)] == [1.0, 1.0]


def test_the_record_says_from_which_weights_and_over_which_batches_a_run_went():
    """Equal for the strategies of a repetition, another with another seed."""

    def digests(strategy: str, seed: int = 0) -> dict[str, str | None]:
        return simulated(config(strategy, seed=seed, epochs=1)).results[0].summary["digests"]

    base = digests("ddp")
    assert all(base.values())
    assert digests("placebo") == digests("heterogeneous") == base
    other = digests("ddp", seed=1)
    assert other["initial_weights"] != base["initial_weights"]
    assert other["first_batches"] != base["first_batches"]
