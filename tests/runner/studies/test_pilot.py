"""Target and budget from pilot runs: by hand, and by the command in virtual time."""

from pathlib import Path

import pytest
from asking import code_of, requests

from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.report.statistics.planning import choose, grid_step
from daso_bench.runner.studies.pilot import pilots
from daso_bench.runner.studies.side_runs import baseline_of
from daso_bench.strategies.errors import ConfigError

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


def test_pilots_see_the_validation_split_alone_and_aim_at_nothing(tmp_path: Path):
    base = baseline_of(requests(tmp_path, "study.arm=ddp by nodes", "seed=4"))
    found = pilots(base, 10)
    assert {(run.train.eval_split, run.train.target) for run in found} == {("validation", None)}
    assert len({run.train.eval_phase for run in found}) == 1, "curves at the same marks can be averaged"


def test_the_command_runs_them_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = ["+study=mission", "train.epochs=1", "cluster.nodes=2", "cluster.ranks_per_node=1"]
    code = code_of("pilot", *words)
    said = " ".join(capsys.readouterr().out.split())
    assert code == 0, said
    kept = read_json(tmp_path / "results" / "mission_pilot" / "pilot.json")
    assert kept["runs"] == 10
    assert f"train.target={kept['value']:g} train.max_seconds=" in said
