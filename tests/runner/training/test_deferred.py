"""Deferred evaluation: copies set aside at marks, judged later, stamped with when they were complete."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from runs import AsksAt, Awkward, Blobs, Dies, config, dies_after, evaluations, simulated

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records import target_crossing
from daso_bench.runner.records.json_lines import surviving
from daso_bench.runner.simulation.simulated_world import Recorded, SimulatedRun

SLOW = AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6)


def run(strategy: str = "sgp", **keys: Any) -> SimulatedRun:
    """Rank 1 is half as fast as the others."""
    cfg = config(strategy, model=Awkward(), **keys)
    return simulated(cfg, network=SLOW, step_time=lambda rank, n: 2_000_000 * (2 if rank == 1 else 1))


def saved(cfg: RunConfig, folder: Path, **more: Any) -> SimulatedRun:
    """A run with checkpoints, whose steps all take the same time."""
    return simulated(cfg, checkpoints=folder, step_time=lambda rank, n: 2_000_000, **more)


@pytest.mark.parametrize("strategy", ["ddp", "sgp"])
def test_a_copy_is_the_model_that_would_have_been_judged_on_the_spot(strategy: str):
    later, now = (evaluations(run(strategy, eval_mode=mode)) for mode in ("deferred", "inline"))
    for name in ("step", "epoch", "samples", "correct", "loss", "train_loss", "learning_rate"):
        assert [row[name] for row in later] == pytest.approx([row[name] for row in now], rel=1e-6), name


def test_copies_beyond_the_memory_are_dropped_and_counted():
    done = run(eval_every_samples=16, eval_copies_mib=1e-9)
    rows = evaluations(done)
    assert [row["mode"] for row in rows] == ["deferred", "inline"]
    assert done.results[0].summary["copies_dropped"] == 22


@pytest.mark.parametrize(
    ("strategy", "evaluation", "checkpoint"),
    [("sgp", 32, 80), ("lasgd", 96, 96)],
    ids=["between evaluations", "where one is due"],
)
def test_a_checkpoint_judges_what_waits_and_a_resumed_run_goes_on_alike(
    strategy: str, evaluation: int, checkpoint: int, tmp_path: Path
):
    cfg = config(strategy, eval_every_samples=evaluation, checkpoint_every_samples=checkpoint)
    noted: list[list[dict[str, Any]]] = []

    class Kept(dies_after(12)):
        """Keeps what rank 0 had noted."""

        def run(self) -> Any:
            if self.context.comm.rank == 0:
                assert isinstance(self.context.metrics, Recorded)
                noted.append(self.context.metrics.rows)
            return super().run()

    whole = evaluations(saved(cfg, tmp_path / "whole"))
    with pytest.raises(Dies):
        saved(cfg, tmp_path / "cut", loop=Kept)
    last = max(int(path.name.removeprefix("step_")) for path in (tmp_path / "cut").glob("step_*"))
    after = evaluations(saved(cfg, tmp_path / "cut", attempt=2))
    kept = [row for row in noted[0] if row["kind"] == "evaluation" and row["step"] <= last]
    for mine, theirs in zip(kept + after, whole, strict=True):
        for name in ("step", "correct", "loss"):
            assert mine[name] == theirs[name], name


@pytest.mark.parametrize("at", [4, 5, 11])
def test_a_run_that_stops_where_an_evaluation_is_due_is_evaluated_after_its_resume(at: int, tmp_path: Path):
    """From steps 5 and 11 on, all ranks agree to stop at the end of an epoch, whose mark is passed there."""
    cfg = config("lasgd", dataset=Blobs(samples=96), epochs=3)
    asked = saved(cfg, tmp_path, listeners=lambda rank: AsksAt(at if rank == 3 else 10**9))
    assert {result.status for result in asked.results} == {"cancelled"}
    again = saved(cfg, tmp_path, attempt=2)
    assert {result.status for result in again.results} == {"finished"}
    rows = surviving([*asked.metrics.rows, *again.metrics.rows])
    assert [row["index"] for row in rows if row["kind"] == "evaluation"] == [0, 1, 2]


# ------------------------------------------------------------------ train.stop

# An epoch of 6 steps, sync points after each 6 steps and at the end of each epoch.
SYNC_POINTS: dict[str, dict[str, Any]] = {
    "local_sgd": {"sync_every": 6},
    "daso": {"warmup_epochs": 0, "cooldown_epochs": 0},
}
CROSSING = ("to_target_train_s", "to_target_samples", "crossing_s")


@cache
def stopped(strategy: str, stop: str, **keys: Any) -> SimulatedRun:
    """Up to 12 epochs with an evaluation after every second step."""
    kinds: dict[str, Any] = {"keys": SYNC_POINTS.get(strategy), "epochs": 12, "target": 0.9}
    return run(strategy, stop=stop, eval_every_samples=32, **kinds, **keys)


@pytest.mark.parametrize("stop", ["first", "confirmed"])
@pytest.mark.parametrize("strategy", ["daso", "local_sgd", "sgp", "lasgd"])
def test_a_run_that_stops_at_its_target_is_judged_as_one_that_goes_on(strategy: str, stop: str):
    """Nothing but the end of the run is another one: the same copies, the same times."""
    whole, cut = stopped(strategy, "budget"), stopped(strategy, stop)
    rows = evaluations(cut)
    copies = [row for row in rows if row["mode"] == "deferred"]
    assert copies
    for mine, theirs in zip(copies, evaluations(whole), strict=False):
        for name in ("step", "samples", "train_s", "loss", "correct"):
            assert mine[name] == theirs[name], name
    for name in CROSSING:
        assert cut.results[0].summary[name] == whole.results[0].summary[name] is not None, name


@pytest.mark.parametrize(("stop", "times"), [("first", 1), ("confirmed", 2)])
@pytest.mark.parametrize("strategy", ["daso", "local_sgd"])
def test_copies_are_judged_at_the_next_sync_point_and_the_run_ends_there(
    strategy: str, stop: str, times: int
):
    done = stopped(strategy, stop)
    (end,) = {context.progress.step for context in done.contexts}
    reached = [row["step"] for row in evaluations(done) if row["reached"]]
    first = next(a for a, b in zip(reached, reached[times - 1 :], strict=False) if b - a == 2 * (times - 1))
    assert end == -(-(first + 2 * (times - 1)) // 6) * 6
    assert {result.reason for result in done.results} == {f"target reached (train.stop={stop})"}
    last = evaluations(done)[-1]
    assert (last["mode"], last["step"]) == ("inline", end)
    assert not any(label.startswith("train.stop") for label in done.results[0].summary["labels"])
    # Judging cost no training time: up to here it is that of the run that went on.
    whole = stopped(strategy, "budget", max_steps=end)
    assert done.results[0].summary["train_s"] == whole.results[0].summary["train_s"]


@pytest.mark.parametrize("strategy", ["sgp", "lasgd"])
def test_without_sync_points_it_trains_to_the_end_and_says_so(strategy: str):
    done = stopped(strategy, "first")
    assert done.contexts[0].progress.samples >= 12 * 96
    label = "train.stop=first stops no strategy without sync points: copies are judged later"
    assert label in done.results[0].summary["labels"]
    assert done.results[0].reason is None
    inline = stopped(strategy, "first", eval_mode="inline")
    assert inline.contexts[0].progress.samples < 12 * 96
    label = "evaluated inline without sync points: ranks waited for every evaluation"
    assert label in inline.results[0].summary["labels"]
    assert inline.results[0].reason == "target reached (train.stop=first)"


def test_a_checkpoint_that_was_asked_for_judges_copies_and_may_end_the_run(tmp_path: Path):
    cfg = config(
        "sgp", epochs=20, target=0.9, stop="first", eval_every_samples=32, checkpoint_every_samples=160
    )
    done = simulated(cfg, checkpoints=tmp_path)
    assert done.results[0].reason == "target reached (train.stop=first)"
    (end,) = {context.progress.step for context in done.contexts}
    assert end % 10 == 0
    assert end < 120
    assert f"checkpoints that made ranks wait: {end // 10}" in done.results[0].summary["labels"]


def test_a_final_evaluation_that_takes_the_crossing_back_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    """The copy of step 6 meets the target alone; the model that is evaluated there does not."""

    def meets(row: dict[str, Any], *_: object) -> bool:
        return row["step"] >= 40 or (row["step"], row["mode"]) == (6, "deferred")

    monkeypatch.setattr(target_crossing, "meets", meets)
    done = stopped.__wrapped__("local_sgd", "first")
    assert (6, "inline") in [(row["step"], row["mode"]) for row in evaluations(done)]
    (end,) = {context.progress.step for context in done.contexts}
    assert end >= 40
    assert done.results[0].reason == "target reached (train.stop=first)"
    assert done.results[0].summary["crossing_s"] is not None
