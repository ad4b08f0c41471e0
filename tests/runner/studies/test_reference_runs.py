"""`daso-bench pilot --reference`: runs on the scored split, and a file that a report finds."""

from pathlib import Path

import pytest
from asking import code_of, requests

from daso_bench.runner.report.claims.convergence_points import match, read
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.studies.reference_runs import scored
from daso_bench.runner.studies.side_runs import baseline_of

QUICK = (
    "+study=mission",
    "train.epochs=1",
    "cluster.nodes=2",
    "cluster.ranks_per_node=1",
    "train.target=0.2",
)


def test_they_are_the_baseline_as_it_is_scored(tmp_path: Path):
    found = scored(baseline_of(requests(tmp_path, "study.arm=ddp by nodes", "seed=4")), 10)
    assert {(run.train.eval_split, run.train.target) for run in found} == {("test", 0.95)}
    assert len({run.train.eval_phase for run in found}) == 10, "drawn for each, as in a study"


def test_the_command_stores_what_later_runs_are_held_against(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    code = code_of("pilot", *QUICK, "--reference", "--output", "mine")
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0, said
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
        (["--reference", "train.target=null"], "train.target=null: a reference tells how many samples"),
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
    assert code_of("pilot", "+study=mission", "seed=0", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
