"""Verdicts over all sizes of a study, from run directories: what contradicts, reproduces, or is missing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_answer import BASE, study

from daso_bench.runner.claims import load
from daso_bench.runner.report.answer import answers
from daso_bench.runner.report.arms import compare
from daso_bench.runner.report.grids import declared
from daso_bench.runner.report.judge import judge
from daso_bench.runner.report.judged import Judged
from daso_bench.runner.report.load import Run, load_runs
from daso_bench.runner.report.verdict_words import claim_rows, remarks, workload

Make = Callable[..., Path]
# The share of the baseline's time in exposed transfers, beside 0.1 of waiting: bounds of 1.11 to 2.5.
SHARES = (-0.05, 0.0, 0.1, 0.2, 0.3, 0.5)


def grid(
    make_run: Make,
    root: Path,
    *,
    shares: Sequence[float] = SHARES,
    fast: Sequence[int] = (),
    gain: float = 1.7,
    accuracies: Sequence[float] = (0.60, 0.70, 0.74, 0.78),
) -> None:
    """A size for each of `shares`; in those of `fast` the arm is `gain` times as fast, else as ddp."""
    for number, share in enumerate(shares):
        place = {"size": f"{10 * number} Gbit/s"}
        study(make_run, root, arm=(), fresh=1.0, exposed=share, place=place)
        for seed, whole_s in enumerate(BASE):
            train_s = whole_s / 4 / (gain if number in fast else 1)
            own = place | {"arm": "daso", "role": ""}
            make_run(root, "daso", seed, accuracies, train_s=train_s, exposed=share, place=own)


def plan(root: Path, unix: float, runs: Sequence[Run] | None = None) -> None:
    """A stage of the study's plan with all runs, or some."""
    ids = [run.run_id for run in (load_runs(root, "test") if runs is None else runs)]
    with (root / "quick" / "plan.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "stage", "unix": unix, "runs": ids}) + "\n")


def verdicts(root: Path) -> list[Judged]:
    claims = [claim for claim in load() if claim.id == "daso_time"]
    return judge(claims, answers(compare(load_runs(root, "test"))))


def over_all(root: Path) -> Judged:
    (found,) = [one for one in verdicts(root) if one.over]
    return found


def test_six_declared_sizes_that_all_gain_less_contradict_the_claim(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path)
    plan(tmp_path, unix=999.0)
    found = over_all(tmp_path)
    assert found.verdict.word == "contradicted", found.verdict
    assert found.over == tuple(f"{10 * number} Gbit/s" for number in range(6))
    assert workload(found) == "quick, small_cnn on digits, local, over 6 configurations"
    assert sum(not one.over for one in verdicts(tmp_path)) == 6, "each size keeps its own verdict"
    assert claim_rows([found])[0]["where"].endswith("over 6 configurations")


@pytest.mark.parametrize("unix", [1000.0, None])
def test_what_was_not_declared_before_the_first_run_contradicts_nothing(
    make_run: Make, tmp_path: Path, unix: float | None
):
    """All runs began at 1000."""
    grid(make_run, tmp_path)
    if unix is not None:
        plan(tmp_path, unix)
    found = over_all(tmp_path)
    assert found.verdict.word == "inconclusive"
    assert "not declared before the first scored run" in remarks(found)


def test_one_size_that_came_later_is_not_declared(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path)
    runs = load_runs(tmp_path, "test")
    plan(tmp_path, 999.0, [run for run in runs if run.size != "50 Gbit/s"])
    plan(tmp_path, 2000.0)
    assert over_all(tmp_path).verdict.word == "inconclusive"


def test_a_plan_that_is_damaged_declares_what_is_whole_in_it(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path)
    folder = tmp_path / "quick"
    ids = [run.run_id for run in load_runs(tmp_path, "test")]
    lines: list[Any] = [
        3,
        {"unix": "never", "runs": ids},
        {"unix": 1.0, "runs": 5},
        {"unix": True, "runs": ids},
    ]
    (folder / "plan.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"unix": 9\n')
    assert over_all(tmp_path).verdict.word == "inconclusive"
    plan(tmp_path, 999.0)
    assert over_all(tmp_path).verdict.word == "contradicted"


def test_one_size_at_the_stricter_level_reproduces_the_claim(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path, fast=[4])
    found = over_all(tmp_path)
    assert found.verdict.word == "reproduced", found.verdict
    assert found.verdict.reasons[0] == "reproduced in 40 Gbit/s"
    assert found.measured.endswith("at most, in 40 Gbit/s")
    assert found.measured.startswith("1.700 [")


def test_the_level_is_stricter_the_more_sizes_there_are(make_run: Make, tmp_path: Path):
    """1.55 with this scatter reproduces 1.515 where it is the only size, and not as one of six."""
    grid(make_run, tmp_path, fast=[4], gain=1.55)
    found = verdicts(tmp_path)
    words = {one.comparison.size: one.verdict.word for one in found if one.comparison and not one.over}
    assert words["40 Gbit/s"] == "reproduced"
    assert over_all(tmp_path).verdict.word == "inconclusive"
    assert "best configuration: 40 Gbit/s" in over_all(tmp_path).verdict.reasons


def test_a_gain_with_a_loss_of_accuracy_reproduces_nothing(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path, fast=range(6), accuracies=(0.60, 0.70, 0.74, 0.76))
    plan(tmp_path, unix=999.0)
    assert over_all(tmp_path).verdict.word == "contradicted"


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((0.1, 0.1, 0.1, 0.2, 0.3, 0.5), "does not span the communication share"),  # none with little
        ((-0.05, 0.0, 0.1, 0.1, 0.2, 0.23), "no communication saving can exceed 1.49"),  # none with room
    ],
)
def test_a_grid_goes_from_little_communication_to_enough(
    make_run: Make, tmp_path: Path, shares: Sequence[float], said: str
):
    grid(make_run, tmp_path, shares=shares)
    plan(tmp_path, unix=999.0)
    found = over_all(tmp_path)
    assert found.verdict.word in ("inconclusive", "not testable here")
    assert any(said in reason for reason in found.verdict.reasons), found.verdict


def test_one_size_is_no_grid(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path, shares=SHARES[-1:])
    assert not any(one.over for one in verdicts(tmp_path))


def test_runs_that_tell_no_start_were_not_declared_before_it(make_run: Make, tmp_path: Path):
    grid(make_run, tmp_path, shares=SHARES[-1:])
    plan(tmp_path, unix=999.0)
    runs = load_runs(tmp_path, "test")
    (one,) = verdicts(tmp_path)
    assert declared([one], runs)
    assert not declared([one], [])
