"""`daso-bench pilot --reference`: seeds of its own on the scored split, and a file that a report finds."""

from pathlib import Path

import pytest

from daso_bench.runner import sweep
from daso_bench.runner.cli import main
from daso_bench.runner.compose import compose
from daso_bench.runner.convergence import match, read
from daso_bench.runner.pilot import baseline_of
from daso_bench.runner.reference_runs import scored
from daso_bench.runner.repetitions import FRESH, PILOT, REFERENCE, SEEDS, TRIAL
from daso_bench.runner.report.load import load_runs
from daso_bench.runner.schema import RunConfig

QUICK = (
    "+study=mission",
    "train.epochs=1",
    "cluster.nodes=2",
    "cluster.ranks_per_node=1",
    "train.target=0.2",
)


def base(cwd: Path, *words: str) -> RunConfig:
    return baseline_of(sweep.requests(compose(["+study=mission", *words], sweep=True), cwd))


def test_they_are_the_baseline_as_it_is_scored_with_seeds_of_their_own(tmp_path: Path):
    first = base(tmp_path, "seed=4", "train.max_seconds=3")
    found = scored(first, 10)
    assert [run.seed for run in found] == [REFERENCE + number for number in range(10)]
    assert {run.train.eval_split for run in found} == {"test"}
    assert {(run.train.target, run.train.max_seconds, run.train.stop) for run in found} == {
        (0.95, None, "budget")
    }
    assert {run.study.name for run in found} == {"mission_reference"}
    assert len({run.train.eval_phase for run in found}) == 10, "drawn for each, as in a study"


def test_no_other_use_has_their_seeds():
    assert sorted({FRESH, PILOT, TRIAL, REFERENCE}) == [SEEDS * number for number in (1, 2, 3, 4)]


def test_the_command_stores_what_later_runs_are_held_against(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["pilot", *QUICK, "--reference", "--output", "mine"])
    said = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0, said
    found = read(tmp_path / "mine" / "convergence" / "mission.yaml")
    assert f"{len(found.samples) - found.missed} of 10 runs reached 0.2" in said
    assert found.command.endswith("--reference --runs 10")
    runs = load_runs(tmp_path / "results" / "mission_reference", "test")
    assert all(match(run.config, [found]) is found for run in runs)
    crossed = [run.crossing.scored_samples if run.crossing else run.samples for run in runs]
    assert sorted(found.samples) == pytest.approx(sorted(value for value in crossed if value))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--reference", "--runs", "9"], "--runs 9: must be 10 or more"),
        (["--reference", "train.target=null"], "train.target=null: a reference tells how many samples"),
        (["--reference", "launcher=slurm", "cluster=laptop"], "launcher=slurm: references are waited for"),
        (["--output", "mine"], "--output mine: belongs to --reference"),
    ],
)
def test_what_a_reference_cannot_be_made_of_is_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["pilot", "+study=mission", *words])
    assert caught.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
