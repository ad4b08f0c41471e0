"""Pilots and reference runs: the baseline on seeds of their own; the target and the stored points."""

from collections.abc import Callable
from pathlib import Path

import pytest
from asking import code_of, requests

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.study_plan import PILOT, REFERENCE
from daso_bench.runner.report.claims.convergence_points import match, read
from daso_bench.runner.report.data.load import load_runs
from daso_bench.runner.studies import start
from daso_bench.runner.studies.pilot import baseline_of, choose, grid_step, pilots, scored
from daso_bench.strategies.errors import ConfigError

ONE_ARM = ("study.arm=ddp by nodes", "seed=0")


def test_the_baseline_is_the_arm_that_the_study_names_else_the_first_with_ddp(tmp_path: Path):
    arms = "study.arm=daso,ddp flat,'ddp by nodes, same seeds',ddp by nodes"
    daso, flat, second, nodes = requests(tmp_path, arms, "seed=4")
    assert baseline_of([daso, flat, second, nodes]).study.arm == "ddp by nodes"
    assert baseline_of([daso, second, flat]).study.arm == "ddp flat", "the named one is left out"
    (named,) = requests(tmp_path, "study.arm=daso", "seed=4", "study.baseline=daso")
    assert baseline_of([flat, named]).study.arm == "daso"


@pytest.mark.parametrize(
    ("derive", "first", "suffix", "judged", "phases"),
    [
        # Curves at the same marks can be averaged.
        (pilots, PILOT, "_pilot", ("validation", None), 1),
        (scored, REFERENCE, "_reference", ("test", 0.95), 10),
    ],
    ids=["pilots", "references"],
)
def test_they_are_the_baseline_for_its_whole_schedule_with_seeds_and_a_study_of_their_own(
    derive: Callable[[RunConfig, int], list[RunConfig]],
    first: int,
    suffix: str,
    judged: tuple[str, float | None],
    phases: int,
    tmp_path: Path,
):
    words = ("study.arm=ddp by nodes", "seed=4", "train.max_seconds=3", "train.stop=confirmed")
    base = baseline_of(requests(tmp_path, *words))
    runs = derive(base, 10)
    assert [run.seed for run in runs] == [first + number for number in range(10)]
    assert len({run.train.eval_phase for run in runs}) == phases
    for run in runs:
        assert (run.train.eval_split, run.train.target) == judged
        assert (run.train.stop, run.train.max_seconds, run.train.epochs) == ("budget", None, 8)
        assert (run.study.name, run.study.arm) == (f"mission{suffix}", "ddp by nodes")
        assert (run.strategy, run.optimizer, run.cluster) == (base.strategy, base.optimizer, base.cluster)


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "run_sweep", lambda *_, **__: pytest.fail("a run was started"))


@pytest.mark.usefixtures("nothing_runs")
def test_a_dry_run_shows_them_and_starts_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]):
    assert code_of("pilot", "+study=mission", *ONE_ARM, "--dry-run", "--runs", "12") == 0
    said = capsys.readouterr().out
    assert f"[12/12] ddp-small_cnn-digits-s{PILOT + 11}-" in said
    assert str(here / "results" / "mission_pilot") in said
    assert said.count("would      run") == 12
    assert "eval_split: validation" in said
    assert not list(here.iterdir())


@pytest.mark.usefixtures("here", "nothing_runs")
def test_references_may_have_a_target_of_another_metric(capsys: pytest.CaptureFixture[str]):
    words = ("strategy=ddp", "seed=0", "dataset=shapes", "model=small_fcn", "train.target=0.8")
    assert code_of("pilot", "+study=quick", *words, "--reference", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "eval_split: test" in said
    assert "target_metric: miou" in said


CURVE = (0.1, 0.5, 0.8, 0.9, 0.93, 0.945, 0.95, 0.952)  # bends at its third mark
MANY = 10**9  # samples of a split that tells a thousandth


def test_the_target_is_the_first_value_of_the_grid_past_the_bend_of_the_mean_curve():
    found = choose([CURVE] * 10, [100.0] * 10, MANY, MANY)
    assert (found.knee, found.step) == (0.8, 0.001)
    assert found.value == 0.8
    assert choose([(*CURVE[:2], 0.8004, *CURVE[3:])] * 10, [1.0] * 10, MANY, MANY).value == 0.801
    assert found.reached == 1.0


def test_it_is_lower_where_fewer_than_nine_in_ten_pilots_reach_that():
    low = tuple(0.7 * value for value in CURVE)  # ends at 0.6664
    assert choose([CURVE] * 9 + [low], [1.0] * 10, MANY, MANY).value > 0.7
    found = choose([CURVE] * 8 + [low] * 2, [1.0] * 10, MANY, MANY)
    assert found.value == 0.666
    assert found.reached == 1.0


def test_the_budget_is_twice_the_median_time_of_a_pilot():
    times = [100.0, 90.0, 110.0, 95.0, 105.0, 1000.0, 99.0, 101.0, 98.0, 102.0]
    assert choose([CURVE] * 10, times, MANY, MANY).budget_s == pytest.approx(201.0)


def test_the_grid_is_as_coarse_as_two_small_splits_can_tell_apart():
    """0.9 of 288 and of 360 samples: 2.4 points of error, so steps of 2.5."""
    assert grid_step(0.9, 288, 360) == 0.025
    assert grid_step(0.9, 10_000, 10_000) == 0.005
    assert grid_step(1.0, 288, 360) == 0.001
    with pytest.raises(ConfigError, match="must be 1 or more each"):
        grid_step(0.5, 0, 10)
    found = choose([CURVE] * 10, [1.0] * 10, 288, 360)
    assert found.step == 0.05
    assert found.value == 0.8


@pytest.mark.parametrize(
    ("curves", "said"),
    [
        ([CURVE] * 9, "9 pilot runs"),
        ([CURVE[:2]] * 10, "2 evaluations"),
        ([(0.0, 0.0, 0.0004)] * 10, "no value"),
    ],
)
def test_too_little_sets_no_target(curves: list[tuple[float, ...]], said: str):
    with pytest.raises(ConfigError, match=said):
        choose(curves, [1.0] * len(curves), MANY, MANY)


QUICK = (
    *("+study=mission", "model=mlp", "train.epochs=1", "launcher=simulated", "cluster=ethernet_1g"),
    *("cluster.nodes=2", "cluster.ranks_per_node=1"),
)


def test_the_command_runs_them_and_says_what_to_type(here: Path, capsys: pytest.CaptureFixture[str]):
    code = code_of("pilot", *QUICK)
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0, said
    kept = read_json(here / "results" / "mission_pilot" / "pilot.json")
    assert kept["runs"] == 10
    assert f"train.target={kept['value']:g} train.max_seconds=" in said


def test_the_command_stores_what_later_runs_are_held_against(here: Path, capsys: pytest.CaptureFixture[str]):
    code = code_of("pilot", *QUICK, "train.target=0.2", "--reference", "--output", "mine")
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0, said
    found = read(here / "mine" / "convergence" / "mission.yaml")
    assert f"{len(found.samples) - found.missed} of 10 runs reached 0.2" in said
    assert found.command.endswith("--reference --runs 10")
    runs = load_runs(here / "results" / "mission_reference", "test")
    assert all(match(run.config, [found]) is found for run in runs)
    crossed = [run.crossing.scored_samples if run.crossing else run.samples for run in runs]
    assert sorted(found.samples) == pytest.approx(sorted(value for value in crossed if value))
