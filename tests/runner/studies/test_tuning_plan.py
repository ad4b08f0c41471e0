"""The trials of a tuning: the same for every arm, interleaved; and a look at them that starts nothing."""

from pathlib import Path

import pytest
from asking import code_of

from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.load import to_plain
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.records.seed_ranges import TRIAL
from daso_bench.runner.studies import start, sweep
from daso_bench.runner.studies.tuning_arms import StudyArm, arms_of
from daso_bench.runner.studies.tuning_plan import Plan, planned


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> list[StudyArm]:
    words = ["+study=mission", "study.arm=ddp by nodes,ddp flat,daso", "seed=0", "train.max_seconds=9"]
    composed = compose(words, sweep=True)
    return arms_of(composed, sweep.requests(composed, tmp_path_factory.mktemp("arms")))


@pytest.fixture(scope="module")
def plans(arms: list[StudyArm]) -> list[Plan]:
    return planned(arms, 16)


def of(plans: list[Plan], name: str) -> list[Plan]:
    return [plan for plan in plans if plan.arm.name == name]


def test_every_arm_has_the_same_trials_with_the_same_seeds_on_the_validation_split(plans: list[Plan]):
    for name in ("ddp by nodes", "ddp flat", "daso"):
        runs = [plan.request.config for plan in of(plans, name)]
        assert [plan.number for plan in of(plans, name)] == list(range(16))
        assert [run and run.seed for run in runs] == [TRIAL + number for number in range(16)]
        for run in runs:
            assert run is not None
            train = run.train
            assert (train.eval_split, train.stop, train.max_seconds) == ("validation", "budget", None)
            assert (train.target, train.epochs, run.study.name) == (0.95, 8, "mission_tune")


def test_trial_0_is_the_default_and_all_arms_have_the_same_common_coordinates(plans: list[Plan]):
    flat, daso = of(plans, "ddp flat"), of(plans, "daso")
    assert [plan.settings for plan in (flat[0], daso[0])] == [{}, {}]
    common = ("optimizer.lr", "schedule.warmup_epochs", "optimizer.weight_decay")
    for one, other in zip(flat[1:], daso[1:], strict=True):
        assert [one.settings[key] for key in common] == [other.settings[key] for key in common]
        assert one.request.config is not None
        assert one.request.config.optimizer.lr == one.settings["optimizer.lr"]
    assert len({plan.settings["optimizer.lr"] for plan in flat[1:]}) == 15


def test_trials_are_interleaved_and_the_order_of_the_arms_moves_on(plans: list[Plan]):
    order = sweep.arrange([plan.request for plan in plans])
    names = [request.config.study.arm for request in order if request.config is not None]
    first, second, third = names[0:3], names[3:6], names[6:9]
    assert first == ["ddp by nodes", "ddp flat", "daso"]
    assert second == [*first[1:], first[0]]
    assert third == [first[2], *first[:2]]
    assert [r.config.seed - TRIAL for r in order if r.config is not None] == [n // 3 for n in range(48)]


GOSSIP = (
    *("+study=mission", "study.arm=ddp flat,sgp", "seed=0", "--trials", "4"),
    *("cluster.nodes=2", "cluster.ranks_per_node=1"),
)


def test_a_dry_run_shows_every_trial_with_its_settings_and_starts_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(start, "run_sweep", lambda *_, **__: pytest.fail("a run was started"))
    assert code_of("tune", *GOSSIP, "--dry-run") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]).startswith(f"2 arms x 4 trials = 8 runs, seeds {TRIAL} and on:")
    common = ["optimizer.lr", "schedule.warmup_epochs", "optimizer.weight_decay"]
    flat, gossip = lines.index(["ddp", "flat"]), lines.index(["sgp"])
    assert lines[flat + 1] == ["trial", *common, "strategy.bucket_mib", "would"]
    assert lines[gossip + 1] == ["trial", *common, "strategy.num_peers", "strategy.graph", "would"]
    assert lines[flat + 2] == ["0", "0.05", "1", "0.0001", "25", "run"], "trial 0 has the default settings"
    for one, other in zip(lines[flat + 3 : flat + 6], lines[gossip + 3 : gossip + 6], strict=True):
        assert one[:4] == other[:4], "all arms have the same common coordinates"
        assert other[6:] == (["run"] if other[4] == "1" else ["count", "as", "failed:", "refused"])
    refused = [line for line in lines if line[:2] == ["refused:", "sgp,"]]
    assert len(refused) == sum(line[4] == "2" for line in lines[gossip + 2 : gossip + 6]) > 0
    assert not list(tmp_path.iterdir())


def test_a_dry_run_says_what_is_done_and_how_long_the_rest_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = ["+study=mission", "study.arm=ddp flat", "seed=0"]
    composed = compose(words, sweep=True)
    first = planned(arms_of(composed, sweep.requests(composed, tmp_path)), 4)[0].request.config
    assert first is not None
    directory = RunDirectory.create(to_plain(first), first.results_dir)
    directory.begin_attempt()
    directory.end_attempt("finished", None)
    assert code_of("tune", *words, "--trials", "4", "--dry-run") == 0
    shown = capsys.readouterr().out
    trials = [line.split() for line in shown.splitlines() if line[:4] in ("0   ", "1   ")]
    assert [trial[5:] for trial in trials] == [["skip:", "finished", "already"], ["run"]]
    assert "3 runs to do: about " in shown
    assert "core-hours (from 1 finished run)" in shown
