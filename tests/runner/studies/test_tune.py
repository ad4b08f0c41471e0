"""`daso-bench tune`: equal trials for all arms, and a study of the winners, run in virtual time."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
from asking import code_of

from daso_bench.runner.config.load import requests
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import WRONG_REQUEST
from daso_bench.runner.records.study_plan import TRIAL
from daso_bench.runner.studies import start
from daso_bench.runner.studies.tune import Trial, baseline_of, common_times, trials_of, winner
from daso_bench.runner.studies.tuned_study import StudyArm, arms_of

STUDY = """\
# @package _global_
# Two arms on two ranks
defaults:
  - override /launcher: simulated
  - override /cluster: ethernet_1g
  - override /model: mlp
study: {name: small}
cluster: {nodes: 2, ranks_per_node: 1}
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
    words = ["+study=mission", "study.arm=ddp by nodes,ddp flat,daso", "seed=0", "train.max_seconds=9"]
    return arms_of(requests(words, sweep=True, cwd=tmp_path_factory.mktemp("arms")))


def test_every_arm_has_the_same_trials_with_the_same_seeds_on_the_validation_split(arms: list[StudyArm]):
    trials = trials_of(arms, 16)
    assert list(trials) == ["ddp by nodes", "ddp flat", "daso"]
    for of_arm in trials.values():
        assert [trial.number for trial in of_arm] == list(range(16))
        for trial in of_arm:
            run = trial.request.config
            assert run is not None
            assert run.seed == TRIAL + trial.number
            train = run.train
            assert (train.eval_split, train.stop, train.max_seconds) == ("validation", "budget", None)
            assert (train.target, train.epochs, run.study.name) == (0.95, 8, "mission_tune")
            assert run.optimizer.lr == trial.settings.get("optimizer.lr", arms[0].config.optimizer.lr)
        assert len({trial.settings.get("optimizer.lr") for trial in of_arm}) == 16


GOSSIP = (
    *("+study=mission", "study.arm=ddp flat,sgp", "seed=0", "--trials", "4"),
    *("cluster.nodes=2", "cluster.ranks_per_node=1"),
)


def test_a_dry_run_shows_every_trial_with_its_settings_and_starts_and_writes_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(start, "run_sweep", lambda *_, **__: pytest.fail("a run was started"))
    assert code_of("tune", *GOSSIP, "--dry-run") == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"2 arms x 4 trials = 8 runs, seeds {TRIAL} and on:")
    flat, gossip = lines.index("ddp flat"), lines.index("sgp")
    assert lines[flat + 1] == "  0  the default settings  run"
    for one, other in zip(lines[flat + 2 : flat + 5], lines[gossip + 2 : gossip + 5], strict=True):
        assert one.split()[:4] == other.split()[:4], "all arms have the same common coordinates"
        assert other.endswith("run") != ("strategy.num_peers=2" in other)
    assert sum("refused: sgp, trial" in line for line in lines) > 0
    assert not list(here.iterdir())


def result(
    number: int, crossed_s: float | None = None, metric: float | None = 0.9, state: str = "finished"
) -> Trial:
    what: Any = {"request": None, "settings": {}}
    return Trial(**what, number=number, state=state, crossed_s=crossed_s, metric=metric, train_s=10.0)


UNREACHED = [result(number, metric=metric) for number, metric in enumerate((math.nan, 0.7, 0.8, None))]


@pytest.mark.parametrize(
    ("trials", "lower", "number"),
    [
        # The shortest time to the target, of equals the first; any time is better than none.
        ([result(0, None, 0.99), result(1, 8.0, 0.91), result(2, 7.0, 0.9), result(3, 7.0, 0.99)], False, 2),
        # Where none crossed the best last metric; no number is the worst.
        (UNREACHED, False, 2),
        (UNREACHED, True, 1),
        # What failed or diverged never wins.
        ([result(0, 5.0, state="diverged"), result(1, 6.0, state="failed"), result(2, 9.0)], False, 2),
        ([result(0, state="refused")], False, None),
    ],
    ids=["time", "highest metric", "lowest loss", "failed", "none"],
)
def test_the_winner_is_the_best_of_the_trials_with_a_result(
    trials: list[Trial], lower: bool, number: int | None
):
    won = winner(trials, lower=lower)
    assert (won and won.number) == number


def test_baselines_are_compared_by_the_trials_that_crossed_in_both():
    flat = [result(0, 110.0), result(1, 50.0), result(2), result(3, 121.0)]
    nodes = [result(0, 100.0), result(1), result(2, 10.0), result(3, 110.0)]
    assert common_times({"flat": flat, "nodes": nodes}) == {"flat": [110.0, 121.0], "nodes": [100.0, 110.0]}


def test_without_a_common_crossing_the_time_of_all_work_counts_and_failed_trials_do_not():
    flat = [result(0), result(1, 3.0), result(2, state="failed")]
    assert common_times({"flat": flat, "nodes": [result(0), result(1), result(2)]}) == {
        "flat": [10.0, 10.0],
        "nodes": [10.0, 10.0],
    }
    assert common_times({"flat": [result(0, state="refused")], "nodes": [result(0)]}) == {
        "flat": [],
        "nodes": [],
    }


def results(*crossed_s: float | None) -> list[Trial]:
    return [result(number, seconds) for number, seconds in enumerate(crossed_s)]


def test_the_better_ddp_on_the_tuning_seeds_is_the_baseline_whichever_the_study_names(arms: list[StudyArm]):
    """Flat 110 s and hierarchical 100 s: hierarchical is A."""
    daso = results(1.0, 1.0)
    nodes_wins = {"ddp flat": results(110.0, None), "ddp by nodes": results(100.0, 9.0), "daso": daso}
    flat_wins = {"ddp flat": results(99.0, None), "ddp by nodes": results(100.0, 9.0), "daso": daso}
    assert baseline_of(arms, nodes_wins) == "ddp by nodes"
    assert baseline_of(arms, flat_wins) == "ddp flat"


def test_without_a_trial_that_worked_in_both_the_study_names_the_baseline(arms: list[StudyArm]):
    lost = [result(0, state="failed")]
    assert baseline_of(arms, {"ddp flat": results(1.0), "ddp by nodes": lost, "daso": lost}) == "ddp by nodes"
    assert baseline_of(arms[2:], {"daso": results(1.0)}) == ""
    left = {"ddp flat": results(1.0), "daso": results(1.0)}
    assert baseline_of(arms[1:], left) == "ddp flat", "the one that the study names was left out"


@pytest.mark.timeout(300)  # a dozen runs and a report
def test_a_study_is_tuned_run_and_reported(here: Path, capsys: pytest.CaptureFixture[str]):
    (here / "mine" / "study").mkdir(parents=True)
    (here / "mine" / "study" / "small.yaml").write_text(STUDY)
    assert code_of("tune", "+study=small", "--trials", "4", "--config-dir", "mine") == 0
    said = " ".join(capsys.readouterr().out.split())
    folder = here / "results" / "small_tune"
    assert f"2 arms x 4 trials = 8 runs, seeds {TRIAL} and on: {folder}" in said
    assert f"daso-bench --config-dir {folder} +study=small_tuned" in said
    kept = read_json(folder / "tune.json")
    assert (kept["seeds"], kept["baseline"]) == ([TRIAL + n for n in range(4)], "flat")
    gossip = kept["arms"]["gossip"]
    refused = [one for one in gossip["trials"] if one["state"] == "refused"]
    assert all("num_peers=2: must be <= 1" in one["reason"] for one in refused)
    two_peers = [one for one in gossip["trials"] if one["settings"].get("strategy.num_peers") == 2]
    assert gossip["failed"] == len(refused) == len(two_peers)
    assert refused, "four points have both values of a choice of two"
    assert gossip["winner"] in {one["number"] for one in gossip["trials"] if one["crossed_s"] is not None}
    assert gossip["device_s"] == pytest.approx(2 * sum(one["train_s"] for one in gossip["trials"]))

    command = ("--config-dir", str(folder), "+study=small_tuned")
    assert code_of(*command) == 0
    assert "[5/5]" in capsys.readouterr().out, "same seeds are not run in virtual time"
    report = here / "results" / "small_tuned" / "report"
    with open(report / "tuning.csv", encoding="utf-8", newline="") as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"flat", "gossip"}
    assert (rows["gossip"]["trials"], rows["gossip"]["failed_trials"]) == ("4", str(len(refused)))
    assert float(rows["gossip"]["device_hours"]) == pytest.approx(gossip["device_s"] / 3600, rel=1e-3)
    page = (report / "index.html").read_text()
    assert "equally tuned" in page
    assert "paper&#39;s settings" in page


def test_an_arm_of_which_no_trial_ran_ends_the_tuning_without_a_study(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(start, "run_sweep", lambda *_, **__: WRONG_REQUEST)
    assert code_of("tune", "+study=mission", "study.arm=ddp flat", "--trials", "4") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "ddp flat: none of its 4 trials could be started" in said
    assert not list(here.rglob("*.json")) + list(here.rglob("*.yaml"))
