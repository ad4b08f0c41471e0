"""Real processes over gloo: verbs, gradient hooks, shared memory, runs against virtual time, killed ranks."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from real_runs import entry, final_model, finished, history, launch, same_model
from runs import PERIODS, Awkward, Blobs, KilledOnce, SmallCNN, config, simulated

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch.rank import evaluate
from daso_bench.runner.records.json_lines import read_json, read_records
from daso_bench.runner.training.clock import PARTS

CYCLING = PERIODS["daso"]


@pytest.fixture(autouse=True)
def nothing_stays_in_memory():
    yield
    assert not left_behind()


def left_behind() -> set[str]:
    """Names of shared memory whose maker has ended."""
    names = {path.name for path in Path("/dev/shm").glob("daso-bench-*")}
    return {name for name in names if not Path("/proc", name.split("-")[2]).exists()}


ENTRIES = {
    "gloo_entries": {"undone": 3},
    "gloo_entries_ddp": {"algorithms": 4, "stamps": 4, "overlap": 2, "half": 2, "powersgd": 2, "raises": 2},
    "gloo_entries_hsgd": {"memory": 4, "refused": 1, "barrier": 4, "late": 4},
}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(f"{module}:{name}", ranks) for module, names in ENTRIES.items() for name, ranks in names.items()],
)
def test_ranks_find_what_they_should(tmp_path: Path, name: str, ranks: int):
    finished(config(ranks=[ranks], results=tmp_path), entry=name)


def test_every_verb(tmp_path: Path):
    _, summary = finished(config(ranks=[4], results=tmp_path), entry="gloo_entries:verbs")
    # Rank 0: five all-reduces over both nodes and one over peers; broadcast and reduce stay inside; control
    # is not counted.
    assert summary["verbs"]["parameters.all_reduce"] == 6
    assert summary["calls"] == {"intra": 3, "inter": 8}


def test_one_all_reduce_per_bucket_and_step_and_nothing_else(tmp_path: Path):
    # Before the step after the first the buckets are rebuilt; 8 steps of one 349 kB model: one bucket each
    # but the first.
    _, summary = finished(config(ranks=[2], results=tmp_path), entry="gloo_entries:hook")
    verbs = summary["verbs"]
    assert set(verbs) <= {"gradients.all_reduce", "parameters.broadcast", "control.all_gather"}
    assert verbs["gradients.all_reduce"] <= 9


@pytest.mark.parametrize(
    ("name", "rank", "details"),
    [("ddp:raises_alone", 1, "this bucket does not add up"), ("hsgd:killed", 0, "SIGKILL")],
)
def test_a_rank_that_fails_ends_the_run_and_is_named(tmp_path: Path, name: str, rank: int, details: str):
    """Its sum fails; or it is killed while shared memory is made."""
    outcome = entry(f"gloo_entries_{name}", 2, tmp_path)
    assert outcome.status == "failed"
    assert f"rank {rank}" in (outcome.reason or "")
    assert details in f"{outcome.reason}{outcome.details}"


POWERSGD = {"algorithm": "hierarchical", "hook": "powersgd", "powersgd_start_steps": 3}
IN_PARTS: dict[str, Any] = {"accumulate": 3, "dataset": Blobs(samples=50)}
CLIPPED: dict[str, Any] = {"model": Awkward(), "clip_norm": 0.5}
CHANNELS_LAST: dict[str, Any] = {"model": SmallCNN(channels=[4, 6], norm="batch"), "channels_last": True}


@pytest.mark.parametrize(
    ("strategy", "keys", "ranks", "tolerance", "train"),
    [
        ("ddp", {}, [2, 2], 1e-12, {}),
        ("ddp", {}, [2, 1], 1e-10, CHANNELS_LAST),
        ("ddp", {}, [2, 1], 1e-10, IN_PARTS),
        ("ddp", {"overlap": False}, [2, 1], 1e-10, IN_PARTS),
        ("ddp", {"algorithm": "hierarchical"}, [2, 1], 1e-10, IN_PARTS),
        ("ddp", {"algorithm": "sliced", "overlap": False}, [2, 2], 1e-10, {}),
        ("ddp", POWERSGD, [2, 1], 1e-10, {}),
        ("daso", {**CYCLING, "sync_every": 2, "wait_batches": 2}, [2, 2], 1e-12, {}),
        ("daso", {**CYCLING, "blocking": "gradients"}, [2, 2], 1e-12, {}),
        ("hsgd", {}, [2, 1], 1e-12, CLIPPED),
        ("hsgd", {}, [2, 1], 1e-10, {**IN_PARTS, "clip_norm": 0.5}),
        ("hsgd", {"level2_algorithm": "linear"}, [2, 2], 1e-12, CLIPPED),
        ("hsgd", {"partition": "tensor", "shared_weights": False}, [2, 2], 1e-12, CLIPPED),
    ],
    ids=str,
)
def test_gloo_and_virtual_time_train_the_same_model_and_count_the_same(
    tmp_path: Path,
    strategy: str,
    keys: dict[str, Any],
    ranks: list[int],
    tolerance: float,
    train: dict[str, Any],
):
    """One strategy source, two worlds. Statistics are averaged where a model is judged: the scores agree."""
    cfg = config(
        strategy, keys=keys, ranks=ranks, precision="fp64", results=tmp_path, global_batch_size=20, **train
    )
    directory, ours = finished(cfg)
    done = simulated(cfg, checkpoints=tmp_path / "virtual")
    model, virtual = final_model(directory), done.results[0].summary
    for name, value in done.contexts[0].replica.model.named_parameters():
        assert not value.numel() or (value - model[name]).abs().max() <= tolerance, name
    scores = [
        [(row["correct"], pytest.approx(row["loss"])) for row in rows if row["kind"] == "evaluation"]
        for rows in (read_records(directory.metrics).rows, done.metrics.rows)
    ]
    assert scores[0] == scores[1]
    for counted in ("payload_bytes", "ring_bytes", "calls"):
        assert ours[counted] == virtual[counted], counted
    if strategy == "hsgd":
        assert ours["collectives"]["shared.barrier"] == virtual["collectives"]["shared.barrier"]
        assert ours["strategy"]["level1"] == "shm"
        waits = set(ours["strategy"]["seconds"])
        assert {"barrier_1", "barrier_4", "barrier_clip", "level1", "update"} <= waits
    else:
        assert ours["strategy"].get("steps_of_phase") == virtual["strategy"].get("steps_of_phase")
        assert strategy != "ddp" or ours["strategy"] == virtual["strategy"]


@pytest.mark.parametrize(
    ("strategy", "keys", "victim"),
    [("daso", {**CYCLING, "sync_every": 3, "wait_batches": 3}, 2), ("hsgd", {}, 0)],
    ids=["daso", "hsgd"],
)
def test_a_killed_rank_ends_all_and_the_run_resumes_bit_for_bit(
    tmp_path: Path, strategy: str, keys: dict[str, Any], victim: int
):
    killed = tmp_path / "killed"

    def make(results: Path) -> RunConfig:
        model = KilledOnce(rank=victim, killed=str(killed))
        return config(
            strategy, keys=keys, model=model, epochs=6, checkpoint_every_samples=7 * 16, results=results,
            eval_every_samples=96,
        )  # fmt: skip

    pids: list[int] = []
    broken, outcome = launch(
        make(tmp_path / "broken"), on_event=lambda event: pids.extend(event.get("pids", []))
    )
    assert time.time() - killed.stat().st_mtime < 10
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert f"rank {victim}: killed by SIGKILL" in (outcome.reason or "")
    kinds = {row["kind"] for row in read_records(broken.metrics).rows}
    assert ("evaluation" in kinds, "summary" in kinds) == (True, False), "what it has measured is kept"
    assert not left_behind()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finished(make(tmp_path / "broken"), broken)
    whole, _ = finished(make(tmp_path / "whole"))
    assert same_model(broken, whole)
    assert history(broken) == history(whole)
    start = [row for row in read_records(broken.metrics).rows if row["kind"] == "start"][1]
    assert start["resumed_from"] == "step_0000000014"
    assert not list(broken.checkpoints.glob(".partial*"))


def test_time_adds_up_and_the_saved_model_scores_as_recorded(tmp_path: Path):
    cfg = config("daso", keys=CYCLING, results=tmp_path, model=Awkward(), epochs=30)
    directory, _ = finished(cfg)
    for rank in range(4):
        rows = read_records(directory.rank_records(rank)).rows
        intervals = [row for row in rows if row["kind"] == "train_interval"]
        last = next(row for row in rows if row["kind"] == "segments")
        train = last["segments_s"]["train"]
        assert sum(row["parts_s"][part] for row in intervals for part in PARTS) == pytest.approx(
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
