"""How long a sweep takes: estimated from its finished runs, and shown while it goes."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.records.study_plan import stages_of
from daso_bench.runner.studies.plan import PlannedRun
from daso_bench.runner.studies.run_plan import estimate, slurm_limit, virtual_work


def configs(folder: Path, *words: str) -> list[RunConfig]:
    asked = requests(["+study=quick", f"results_dir={folder}", *words], sweep=True, cwd=folder)
    return [request.config for request in asked if request.config is not None]


def plan(configs: Sequence[RunConfig]) -> Sequence[PlannedRun]:
    """Of runs as their folders are now."""
    return [PlannedRun.of(config) for config in configs]


def finish(config: RunConfig, *walls_s: float) -> None:
    """The run directory of a run that finished in the last of so many attempts."""
    directory = RunDirectory.create(config.tree, config.results_dir)
    for wall in walls_s:
        directory.begin_attempt()
        directory.end_attempt("finished", None)
        status = read_json(directory.status_file)
        attempt = status["attempts"][-1]
        attempt["ended_unix"] = attempt["started_unix"] + wall
        write_json(directory.status_file, status)


def test_arms_are_taken_to_cost_what_their_finished_runs_did(tmp_path: Path) -> None:
    wanted = configs(tmp_path, "strategy=ddp,daso,hsgd", "seed=0,1")
    by_arm = {(run.strategy_name, run.seed): run for run in wanted}
    assert estimate(plan(wanted)) is None
    finish(by_arm["ddp", 0], 10.0)
    finish(by_arm["daso", 0], 30.0)
    # One more of either, and two of the arm without a finished run, which take the mean.
    words_shown, each_s = estimate(plan(wanted)) or ("", 0.0)
    assert each_s == pytest.approx((10 + 30 + 2 * 20) / 4, abs=0.01)
    assert re.fullmatch(
        r"4 runs to do: about 1 min 20 s here, \S+ core-hours \(from 2 finished runs\)", words_shown
    )


def test_what_was_interrupted_tells_no_time(tmp_path: Path) -> None:
    wanted = configs(tmp_path, "strategy=ddp", "seed=0,1")
    finish(wanted[0], 10.0, 10.0)
    assert estimate(plan(wanted)) is None


def test_before_a_run_has_finished_samples_and_a_rate_tell_the_hours(tmp_path: Path) -> None:
    words = ("strategy=ddp,daso", "dataset=imagenet_sized", "model=resnet50", "study.samples_per_s=3376")
    sizes = ("train.epochs=90", "train.global_batch_size=2048", "train.eval_every_samples=null")

    def told(*more: str) -> str:
        asked = configs(tmp_path, *words, *sizes, *more)
        assert asked
        return virtual_work(plan(asked))

    beside = "at study.samples_per_s=3376, beside starts and evaluations (no run has finished yet)"
    assert told("seed=0") == f"2 runs to do, 230.6 M training samples: 18 h 58 min {beside}"
    assert told("seed=0,1").startswith("4 runs to do, 461.2 M training samples: 37 h 56 min")
    assert told("seed=0", "strategy=ddp", "train.max_steps=1000").startswith("1 run to do, 2.0 M training")
    unrated = "samples (study.samples_per_s=RATE says how long they take)"
    assert told("seed=0", "study.samples_per_s=null").endswith(unrated)
    assert told("seed=0", "launcher.timing_only=true", "train.target=null") == "", "nothing is computed"
    assert told("seed=0", "launcher=local", "cluster=laptop") == "", "its ranks wait for each other"
    (with_rate, *_), (without, *_) = (configs(tmp_path, f"study.samples_per_s={r}") for r in ("9", "null"))
    assert with_rate.run_id == without.run_id
    finish(with_rate, 10.0)
    assert virtual_work(plan([with_rate, *configs(tmp_path, "seed=1")])) == ""


def test_a_dry_run_tells_memory_and_hours_where_neither_data_nor_a_gpu_are(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(["+study=paper_daso_imagenet", "seed=0", "study.arm=daso", "--dry-run"]) in (0, 2)
    shown = capsys.readouterr().out
    assert "memory: 64 ranks x 634.4 MiB" in shown
    assert "1 run to do, 114.4 M training samples: 9 h 24 min at study.samples_per_s=3376" in shown
    assert run(["+study=mission_gpu", "seed=0", "study.arm=daso", "--dry-run"]) == 2
    shown = capsys.readouterr().out
    assert "would      refuse: launcher.device=cuda: torch sees no GPU" in shown
    assert "1 run to do, 0.5 M training samples: 10.8 s at study.samples_per_s=41512" in shown


def test_jobs_may_use_up_their_time_limits(tmp_path: Path) -> None:
    words = ("launcher=slurm", "launcher.timeout_min=90", "strategy=ddp", "seed=0,1", "cluster=laptop")
    limit = "at most 12 hours of a rank in all (launcher.timeout_min x ranks)"
    assert slurm_limit(plan(configs(tmp_path, *words))) == limit
    assert slurm_limit(plan(configs(tmp_path, "strategy=ddp", "seed=0"))) == ""


def test_a_sweep_starts_at_once_and_tells_what_is_left(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", "seed=0,1", "model=mlp", "train.epochs=1", "launcher=simulated", "cluster=ethernet_1g"]
    assert run(words) == 0
    shown = capsys.readouterr().out
    folder = here / "results" / "runs"
    (stage,) = stages_of(folder)
    for name in stage.runs:
        assert stage.unix < read_json(folder / name / "status.json")["attempts"][0]["started_unix"]
    assert len(stage.runs) == 2
    assert "to do: about" not in shown
    assert re.search(r"\[2/2\] ddp-mlp-digits-s1-\w+  \([\d.]+ s left\)", shown)
    assert run([*words, "seed=0,1,2", "--dry-run"]) == 0
    left = r"1 run to do: about [\d.]+ s here, \S+ core-hours \(from 2 finished runs\)"
    assert re.search(left, capsys.readouterr().out)
