"""Target and budget from pilot runs: by hand, and by the command in virtual time."""

from pathlib import Path

import pytest

from daso_bench.runner import sweep
from daso_bench.runner.cli import main
from daso_bench.runner.compose import compose
from daso_bench.runner.pilot import baseline_of, pilots
from daso_bench.runner.records import read_json
from daso_bench.runner.repetitions import PILOT
from daso_bench.runner.schema import RunConfig
from daso_bench.runner.scoring.pilot import choose, grid_step
from daso_bench.strategies.errors import ConfigError

CURVE = (0.1, 0.5, 0.8, 0.9, 0.93, 0.945, 0.95, 0.952)  # bends at its third mark
MANY = 10**9  # samples of a split that tells a thousandth


def test_the_target_is_the_first_value_of_the_grid_past_the_bend_of_the_mean_curve():
    found = choose([CURVE] * 10, [100.0] * 10, MANY, MANY)
    assert (found.knee, found.step) == (0.8, 0.001)
    assert found.value == 0.8
    assert choose([(*CURVE[:2], 0.8004, *CURVE[3:])] * 10, [1.0] * 10, MANY, MANY).value == 0.801
    assert found.neighbours == (0.799, 0.801)
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


def base(cwd: Path, *words: str) -> RunConfig:
    return baseline_of(sweep.requests(compose(["+study=mission", *words], sweep=True), cwd))


def test_pilots_are_the_baseline_on_the_validation_split_with_seeds_of_their_own(tmp_path: Path):
    first = base(tmp_path, "seed=4")
    assert first.study.arm == "ddp by nodes"
    found = pilots(first, 10)
    assert [run.seed for run in found] == [PILOT + number for number in range(10)]
    assert {run.train.eval_split for run in found} == {"validation"}
    assert {run.train.target for run in found} == {None}
    assert {run.study.name for run in found} == {"mission_pilot"}
    assert len({run.train.eval_phase for run in found}) == 1, "curves at the same marks can be averaged"
    assert base(tmp_path, "study.baseline=daso").study.arm == "daso"


def test_a_study_without_a_baseline_has_no_pilots(tmp_path: Path):
    with pytest.raises(ConfigError, match="no baseline"):
        base(tmp_path, "study.arm=daso")


def test_the_command_runs_them_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = ["+study=mission", "train.epochs=1", "cluster.nodes=2", "cluster.ranks_per_node=1"]
    with pytest.raises(SystemExit) as caught:
        main(["pilot", *words])
    said = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0, said
    kept = read_json(tmp_path / "results" / "mission_pilot" / "pilot.json")
    assert kept["runs"] == 10
    assert f"train.target={kept['value']:g} train.max_seconds=" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runs", "9"], "--runs 9: must be 10 or more"),
        (["launcher=slurm", "cluster=laptop"], "launcher=slurm: pilots are waited for"),
    ],
)
def test_what_a_pilot_cannot_do_is_refused(
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
