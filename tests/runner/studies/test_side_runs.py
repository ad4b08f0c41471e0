"""Runs beside a study's scored ones: whose they are, what sets them apart, and when they are refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from asking import code_of, requests

from daso_bench.runner.config.schema import RunConfig
from daso_bench.runner.records.outcome import WRONG_REQUEST
from daso_bench.runner.records.seed_ranges import FRESH, PILOT, REFERENCE, SEEDS, TRIAL
from daso_bench.runner.studies import start
from daso_bench.runner.studies.pilot import pilots
from daso_bench.runner.studies.reference_runs import scored
from daso_bench.runner.studies.side_runs import baseline_of, beside
from daso_bench.strategies.errors import ConfigError

ONE_ARM = ("study.arm=ddp by nodes", "seed=0")
KINDS = pytest.mark.parametrize("kind", [(), ("--reference",)], ids=["pilot", "reference"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_baseline_is_the_arm_that_the_study_names_else_the_first_with_ddp(tmp_path: Path):
    arms = "study.arm=daso,ddp flat,'ddp by nodes, same seeds',ddp by nodes"
    daso, flat, second, nodes = requests(tmp_path, arms, "seed=4")
    assert baseline_of([daso, flat, second, nodes]).study.arm == "ddp by nodes"
    assert baseline_of([daso, second, flat]).study.arm == "ddp flat", "the named one is left out"
    (named,) = requests(tmp_path, "study.arm=daso", "seed=4", "study.baseline=daso")
    assert baseline_of([flat, named]).study.arm == "daso"


def test_a_study_without_a_baseline_has_none(tmp_path: Path):
    with pytest.raises(ConfigError, match="no baseline"):
        baseline_of(requests(tmp_path, "study.arm=daso", "seed=0"))


def test_no_other_use_has_their_seeds():
    assert sorted({FRESH, PILOT, TRIAL, REFERENCE}) == [SEEDS * number for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("derive", "first", "suffix"), [(pilots, PILOT, "_pilot"), (scored, REFERENCE, "_reference")]
)
def test_they_are_the_baseline_for_its_whole_schedule_with_seeds_and_a_study_of_their_own(
    derive: Callable[[RunConfig, int], list[RunConfig]], first: int, suffix: str, tmp_path: Path
):
    words = ("study.arm=ddp by nodes", "seed=4", "train.max_seconds=3", "train.stop=confirmed")
    base = baseline_of(requests(tmp_path, *words))
    found = derive(base, 10)
    assert [run.seed for run in found] == [first + number for number in range(10)]
    for run in found:
        assert (run.train.stop, run.train.max_seconds, run.train.epochs) == ("budget", None, 8)
        assert (run.study.name, run.study.arm) == (f"mission{suffix}", "ddp by nodes")
        assert (run.strategy, run.optimizer, run.cluster) == (base.strategy, base.optimizer, base.cluster)


def test_evaluations_lie_at_fixed_marks_where_the_study_draws_none(tmp_path: Path):
    drawn = baseline_of(requests(tmp_path, *ONE_ARM))
    fixed = baseline_of(requests(tmp_path, *ONE_ARM, "train.eval_phase=0"))
    assert beside(drawn, "_x", seed=1, phase=0.25).train.eval_phase == 0.25
    assert beside(fixed, "_x", seed=1, phase=0.25).train.eval_phase == 0.0


@KINDS
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "9"], "--runs 9: must be 10 or more"),
        (["launcher=slurm", "cluster=laptop"], "launcher=slurm: {what} are waited for"),
    ],
)
def test_what_cannot_be_waited_for_or_is_too_few_is_refused(
    kind: tuple[str, ...], words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
):
    assert code_of("pilot", "+study=mission", *ONE_ARM, *kind, *words) == WRONG_REQUEST
    what = "references" if kind else "pilots"
    assert said.format(what=what) in " ".join(capsys.readouterr().err.split())


@KINDS
def test_a_dry_run_shows_them_and_starts_and_writes_nothing(
    kind: tuple[str, ...],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(start, "run_sweep", lambda *_, **__: pytest.fail("a run was started"))
    assert code_of("pilot", "+study=mission", *ONE_ARM, *kind, "--dry-run", "--runs", "12") == 0
    said = capsys.readouterr().out
    first, suffix = (REFERENCE, "_reference") if kind else (PILOT, "_pilot")
    assert f"[12/12] ddp-small_cnn-digits-s{first + 11}-" in said
    assert str(here / "results" / f"mission{suffix}") in said
    assert said.count("would      run") == 12
    assert "eval_split: " + ("test" if kind else "validation") in said
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("miou", ("dataset=shapes", "model=small_fcn", "train.target=0.8")),
        ("top5", ("train.target_metric=top5",)),
    ],
)
def test_a_target_of_another_metric_is_refused_of_pilots_by_its_name_and_has_references(
    metric: str, words: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
):
    asked = ("pilot", "+study=quick", "strategy=ddp", "seed=0", *words, "--dry-run")
    assert code_of(*asked) == WRONG_REQUEST
    said = " ".join(capsys.readouterr().err.split())
    assert f"train.target_metric={metric}: a pilot sets targets of accuracy alone; take" in said
    assert code_of(*asked, "--reference") == 0
    assert f"target_metric: {metric}" in capsys.readouterr().out
