"""hsgd over real processes: memory and barriers of a node, training, and what a killed rank leaves behind."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from real_runs import entry, final_model, finished, history, launch, same_model
from runs import Awkward, config

from daso_bench.runner.config import schema
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.simulation.simulated_world import simulate

SEGMENTS = Path("/dev/shm")


@pytest.fixture(autouse=True)
def nothing_stays_in_memory():
    yield
    assert not left_behind()


def left_behind() -> set[str]:
    """Names of memory whose maker has ended."""
    names = {path.name for path in SEGMENTS.glob("daso-bench-*")}
    return {name for name in names if not Path("/proc", name.split("-")[2]).exists()}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *[("memory", 4), ("refused", 1), ("named", 2), ("barrier", 4), ("late", 4)],
        *[("train", 4), ("train", 3), ("levels", 4)],
    ],
)
def test_ranks_find_what_they_should(tmp_path: Path, name: str, ranks: int):
    outcome = entry(f"gloo_entries_hsgd:{name}", ranks, tmp_path)
    assert outcome.status == "finished", outcome.details


def test_h18_a_rank_killed_while_memory_is_made_leaves_none(tmp_path: Path):
    outcome = entry("gloo_entries_hsgd:killed", 2, tmp_path)
    assert outcome.status == "failed"
    assert "rank 0" in (outcome.reason or "")


@pytest.mark.parametrize(("victim", "resume"), [(0, False), (3, True)])
def test_h18_a_killed_rank_ends_all_and_the_run_resumes_bit_for_bit(
    tmp_path: Path, victim: int, resume: bool
):
    def make(results: Path) -> schema.RunConfig:
        return config(
            "hsgd",
            model=Awkward(),
            epochs=60,
            checkpoint_every_samples=7 * 16,
            results=results,
            eval_every_samples=480,
        )

    pids: list[int] = []
    killed: list[float] = []

    def kill(event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            pids.extend(event["pids"])
        if event["kind"] == "progress" and (event["progress"].get("step") or 0) > 20 and not killed:
            killed.append(time.monotonic())
            os.kill(pids[victim], signal.SIGKILL)

    broken, outcome = launch(make(tmp_path / "broken"), on_event=kill)
    assert time.monotonic() - killed[0] < 10
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert f"rank {victim}" in (outcome.reason or "")
    assert not left_behind()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    if not resume:
        return
    finished(make(tmp_path / "broken"), broken)
    whole, _ = finished(make(tmp_path / "whole"))
    assert same_model(broken, whole)
    assert history(broken) == history(whole)


@pytest.mark.parametrize(
    ("keys", "ranks"),
    [({}, [2, 2]), ({}, [2, 1]), ({"partition": "tensor", "shared_weights": False}, [2, 2])],
    ids=str,
)
def test_gloo_and_virtual_time_train_the_same_model(tmp_path: Path, keys: dict[str, Any], ranks: list[int]):
    cfg = config(
        "hsgd", keys=keys, ranks=ranks, model=Awkward(), precision="fp64", clip_norm=0.5, results=tmp_path,
        global_batch_size=20,
    )  # fmt: skip
    directory, ours = finished(cfg)
    simulated = simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path / "virtual")
    model = final_model(directory)
    for name, value in simulated.contexts[0].replica.model.named_parameters():
        assert not value.numel() or (value - model[name]).abs().max() <= 1e-12, name
    # Statistics are averaged where a model is judged: the scores agree.
    scores = [
        [(row["correct"], pytest.approx(row["loss"])) for row in rows if row["kind"] == "evaluation"]
        for rows in (read_records(directory.metrics).rows, simulated.metrics.rows)
    ]
    assert scores[0] == scores[1]
    virtual = simulated.results[0].summary
    assert ours["payload_bytes"] == virtual["payload_bytes"]
    assert ours["calls"] == virtual["calls"]
    assert ours["collectives"]["shared.barrier"] == virtual["collectives"]["shared.barrier"]
    waits = ours["strategy"]["seconds"]
    assert {"barrier_1", "barrier_4", "barrier_clip", "level1", "update"} <= set(waits)
    assert ours["strategy"]["level1"] == "shm"
