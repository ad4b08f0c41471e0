"""`daso-bench tune`: equal trials for all arms, and a study of the winners, run in virtual time."""

import csv
from pathlib import Path

import pytest
from asking import code_of

from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.runner.config.compose import compose
from daso_bench.runner.records.exit_codes import WRONG_REQUEST
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.seed_ranges import TRIAL
from daso_bench.runner.report.statistics.tuning import Trial
from daso_bench.runner.studies import sweep
from daso_bench.runner.studies.tune import baseline_of
from daso_bench.runner.studies.tuning_arms import StudyArm, arms_of

STUDY = """\
# @package _global_
# Two arms on two ranks
defaults:
  - override /launcher: simulated
  - override /cluster: ethernet_1g
study: {name: small}
cluster: {nodes: 2, ranks_per_node: 1}
model: {channels: [4, 4, 4]}
train: {epochs: 1, target: 0.1, eval_every_samples: 574, eval_phase: auto}
hydra:
  mode: MULTIRUN
  sweeper:
    params: {seed: "0"}
    sets:
      arm: {flat: strategy=ddp, gossip: strategy=sgp}
"""


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> list[StudyArm]:
    words = ["+study=mission", "study.arm=ddp by nodes,ddp flat,daso", "seed=0"]
    composed = compose(words, sweep=True)
    return arms_of(composed, sweep.requests(composed, tmp_path_factory.mktemp("arms")))


def trials(*crossed_s: float | None) -> list[Trial]:
    return [Trial(number=n, state="finished", crossed_s=s, train_s=9.0) for n, s in enumerate(crossed_s)]


def test_the_better_ddp_on_the_tuning_seeds_is_the_baseline_whichever_the_study_names(arms: list[StudyArm]):
    """Flat 110 s and hierarchical 100 s: hierarchical is A."""
    daso = trials(1.0, 1.0)
    nodes_wins = {"ddp flat": trials(110.0, None), "ddp by nodes": trials(100.0, 9.0), "daso": daso}
    flat_wins = {"ddp flat": trials(99.0, None), "ddp by nodes": trials(100.0, 9.0), "daso": daso}
    assert baseline_of(arms, nodes_wins) == "ddp by nodes"
    assert baseline_of(arms, flat_wins) == "ddp flat"


def test_without_a_trial_that_worked_in_both_the_study_names_the_baseline(arms: list[StudyArm]):
    lost = [Trial(number=0, state="failed")]
    assert baseline_of(arms, {"ddp flat": trials(1.0), "ddp by nodes": lost, "daso": lost}) == "ddp by nodes"
    assert baseline_of(arms[2:], {"daso": trials(1.0)}) == ""
    left = {"ddp flat": trials(1.0), "daso": trials(1.0)}
    assert baseline_of(arms[1:], left) == "ddp flat", "the one that the study names was left out"


@pytest.mark.timeout(300)  # a dozen runs and a report
def test_a_study_is_tuned_run_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "study").mkdir(parents=True)
    (tmp_path / "mine" / "study" / "small.yaml").write_text(STUDY)
    assert code_of("tune", "+study=small", "--trials", "4", "--config-dir", "mine") == 0
    said = " ".join(capsys.readouterr().out.split())
    folder = tmp_path / "results" / "small_tune"
    assert f"2 arms x 4 trials = 8 runs, seeds {TRIAL} and on: {folder}" in said
    assert f"daso-bench --config-dir {folder} +study=small_tuned" in said
    kept = read_json(folder / "tune.json")
    assert (kept["seeds"], kept["baseline"]) == ([TRIAL + n for n in range(4)], "flat")
    gossip = kept["arms"]["gossip"]
    refused = [one for one in gossip["trials"] if one["state"] == "refused"]
    assert all("num_peers=2: must be <= 1" in one["reason"] for one in refused)
    assert (
        gossip["failed"]
        == len(refused)
        == sum(one["settings"].get("strategy.num_peers") == 2 for one in gossip["trials"])
    )
    assert refused, "four points have both values of a choice of two"
    assert gossip["winner"] in {one["number"] for one in gossip["trials"] if one["crossed_s"] is not None}
    assert gossip["device_s"] == pytest.approx(2 * sum(one["train_s"] for one in gossip["trials"]))

    command = ("--config-dir", str(folder), "+study=small_tuned")
    assert code_of("--dry-run", *command) == 0
    assert "[6/6]" in capsys.readouterr().out
    assert code_of(*command) == 0
    report = tmp_path / "results" / "small_tuned" / "report"
    with open(report / "tuning.csv", encoding="utf-8", newline="") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"flat", "gossip"}
    assert (rows["gossip"]["trials"], rows["gossip"]["failed_trials"]) == ("4", str(len(refused)))
    assert float(rows["gossip"]["device_hours"]) == pytest.approx(gossip["device_s"] / 3600, rel=1e-3)
    page = (report / "index.html").read_text()
    assert "equally tuned" in page
    assert "paper&#39;s settings" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "6"], "--trials=6: must be a power of two, 4 or more"),
        (["study.tune_trials=2"], "study.tune_trials=2: must be a power of two, 4 or more"),
        ([f"seed={TRIAL + 3}"], f"seeds [{TRIAL + 3}] were tuned on and are scored"),
        (["launcher=slurm", "cluster=laptop"], "launcher=slurm: trials are waited for"),
        (["study.role=same_seeds"], "nothing to tune"),
    ],
)
def test_what_tuning_cannot_do_is_refused_before_anything_runs(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    assert code_of("tune", "+study=mission", "study.arm=ddp flat", *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_without_the_data_nothing_is_tuned_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    looked: list[str] = []
    real = ImageFolder.prepare
    monkeypatch.setattr(
        ImageFolder, "prepare", lambda self, *rest: (looked.append(self.root), real(self, *rest))
    )
    words = ("+study=quick", "dataset=imagefolder", "dataset.root=nope")
    assert code_of("tune", *words) == 2
    said = capsys.readouterr()
    assert "nope: no such folder" in said.err
    assert len(said.out.splitlines()) < 5
    assert len(looked) == 1
    assert not list(tmp_path.rglob("*.json")) + list(tmp_path.rglob("*.yaml"))


def test_an_arm_of_which_no_trial_ran_ends_the_tuning_without_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("daso_bench.runner.studies.start.run_sweep", lambda *_, **__: WRONG_REQUEST)
    assert code_of("tune", "+study=mission", "study.arm=ddp flat", "--trials", "4") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "ddp flat: none of its 4 trials could be started" in said
    assert not list(tmp_path.rglob("*.json")) + list(tmp_path.rglob("*.yaml"))
