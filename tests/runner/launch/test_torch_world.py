"""Real processes over gloo: verbs of the communicator, the gradient hook, whole runs against virtual time."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import real_runs
from real_runs import final_model, finished, history, launch, same_model
from runs import Awkward, config

from daso_bench.runner.config import schema
from daso_bench.runner.launch.rank import evaluate
from daso_bench.runner.records.json_lines import read_json, read_records
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.clock import PARTS

CYCLING = {"warmup_epochs": 1, "cooldown_epochs": 1}


def entry(tmp_path: Path, name: str, ranks: int) -> dict[str, Any]:
    outcome = real_runs.entry(f"gloo_entries:{name}", ranks, tmp_path)
    assert outcome.status == "finished", outcome.details
    return outcome.summary


def test_every_verb(tmp_path: Path):
    summary = entry(tmp_path, "verbs", 4)
    # Rank 0: five all-reduces over both nodes and one over peers; broadcast and reduce stay inside; control
    # is not counted.
    assert summary["verbs"]["parameters.all_reduce"] == 6
    assert summary["calls"] == {"intra": 3, "inter": 8}


@pytest.mark.parametrize(("name", "ranks"), [("hook", 2), ("weights", 2), ("undone", 3)])
def test_gradient_averaging(tmp_path: Path, name: str, ranks: int):
    entry(tmp_path, name, ranks)


def test_one_all_reduce_per_bucket_and_step_and_nothing_else(tmp_path: Path):
    # Before the step after the first the buckets are rebuilt; 8 steps of one 349 kB model: one bucket each
    # but the first.
    summary = entry(tmp_path, "hook", 2)
    assert set(summary["verbs"]) <= {"gradients.all_reduce", "parameters.broadcast", "control.all_gather"}
    assert summary["verbs"]["gradients.all_reduce"] <= 9


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("ddp", {}),
        ("daso", CYCLING),
        ("daso", {**CYCLING, "sync_every": 2, "wait_batches": 2}),
        ("daso", {**CYCLING, "blocking": "gradients"}),
    ],
)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("fp64", 1e-12)])
def test_gloo_and_virtual_time_train_the_same_model(tmp_path: Path, strategy, keys, precision, tolerance):
    cfg = config(strategy, keys=keys, precision=precision, results=tmp_path, global_batch_size=20)
    directory, ours = finished(cfg)
    simulated = simulate(cfg, cfg.dataset.load())
    theirs = simulated.contexts[0].replica.model.state_dict()
    for name, value in final_model(directory).items():
        assert (value - theirs[name]).abs().max() <= tolerance, name
    rows = [row for row in read_records(directory.metrics).rows if row["kind"] == "evaluation"]
    wanted = [row["correct"] for row in simulated.metrics.rows if row["kind"] == "evaluation"]
    assert [row["correct"] for row in rows] == wanted
    # The same events and the same counted bytes: one strategy source, two worlds.
    virtual = simulated.results[0].summary
    assert ours["strategy"].get("steps_of_phase") == virtual["strategy"].get("steps_of_phase")
    for link in ("intra", "inter"):
        assert ours["payload_bytes"][link] == virtual["payload_bytes"][link]


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(tmp_path: Path, strategy: str):
    keys = (
        {"warmup_epochs": 5, "cooldown_epochs": 5, "sync_every": 3, "wait_batches": 3}
        if strategy == "daso"
        else {}
    )

    def make(results: Path) -> schema.RunConfig:
        return config(
            strategy,
            keys=keys,
            model=Awkward(),
            epochs=60,
            checkpoint_every_samples=7 * 16,
            results=results,
            eval_every_samples=480,
        )

    whole, _ = finished(make(tmp_path / "whole"))
    pids: list[int] = []

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            pids.extend(event["pids"])
        if event["kind"] == "progress" and (event["progress"].get("step") or 0) > 20 and pids:
            os.kill(pids[2], signal.SIGKILL)
            pids.clear()

    broken, outcome = launch(make(tmp_path / "broken"), on_event=kill)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert "rank 2" in (outcome.reason or "")
    assert "SIGKILL" in (outcome.reason or "")
    finished(make(tmp_path / "broken"), broken)
    assert same_model(broken, whole)
    start = [row for row in read_records(broken.metrics).rows if row["kind"] == "start"][1]
    assert start["resumed_from"] is not None
    assert history(broken) == history(whole)
    assert not list(broken.checkpoints.glob(".partial*"))


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_time_adds_up_and_the_saved_model_scores_as_recorded(tmp_path: Path, strategy: str):
    cfg = config(
        strategy, keys=CYCLING if strategy == "daso" else {}, results=tmp_path, model=Awkward(), epochs=30
    )
    directory, _ = finished(cfg)
    for rank in range(4):
        rows = read_records(directory.rank_records(rank)).rows
        stretches = [row for row in rows if row["kind"] == "stretch"]
        last = next(row for row in rows if row["kind"] == "segments")
        train = last["segments_s"]["train"]
        assert sum(row["parts_s"][part] for row in stretches for part in PARTS) == pytest.approx(
            train, rel=0.01
        )
        assert sum(last["segments_s"].values()) == pytest.approx(last["wall_s"], rel=0.01)
    alone = evaluate(directory.path)
    row = [row for row in read_records(directory.metrics).rows if row["kind"] == "evaluation"][-1]
    assert (alone["correct"], alone["count"]) == (row["correct"], row["count"])
    machine = read_json(directory.environment)
    assert [(r["rank"], r["node"], r["local_rank"], r["threads"]) for r in machine["ranks"]] == [
        (0, 0, 0, 1),
        (1, 0, 1, 1),
        (2, 1, 0, 1),
        (3, 1, 1, 1),
    ]


def test_a_run_that_diverges_is_a_row_with_a_status(tmp_path: Path):
    from daso_bench.runner.config.optimizers import SGD

    cfg = config(results=tmp_path, optimizer=SGD(lr=1e30))
    directory, outcome = launch(cfg)
    assert (outcome.status, outcome.exit_code) == ("diverged", 1)
    assert "not finite" in (outcome.reason or "")
    assert directory.status()["status"] == "diverged"
    assert [row["kind"] for row in read_records(directory.metrics).rows][-1] == "summary"
