"""The equally tuned rows: a comparison of their own, what tuning cost, regret, and whether it was fair."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, all_compared, section_of, table, tables_of

from daso_bench.runner.records.json_lines import write_json
from daso_bench.runner.records.study_plan import TRIAL
from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.fairness import FairnessRow, fairness, forbidding
from daso_bench.runner.report.claims.study_checks import all_speedups
from daso_bench.runner.report.data.arms import row_of
from daso_bench.runner.report.data.load import find_runs
from daso_bench.runner.report.sections.tuned import TunedSection, regret_words

TOLD = {"tune_trials": 8, "tune_space": "all", "tune_failed": 2, "tune_device_hours": 0.25}
NONE = {"tune_trials": 16, "tune_space": "", "tune_failed": 0, "tune_device_hours": 0.0}
CROSSED, MISSED = (0.6, 0.7, 0.74, 0.76), (0.1, 0.2, 0.3, 0.4)


def rows(
    make_run: Make,
    root: Path,
    strategy: str,
    default: Sequence[float],
    tuned: Sequence[float],
    *,
    first_seed: int = 0,
    told: dict[str, Any] = TOLD,
    **more: Any,
) -> None:
    """Runs of an arm as default and tuned; T_train of four evaluations, negative: the target was missed."""
    for times, place, settings in (
        (default, {"arm": strategy, "tuned": "", **NONE}, {"sync_every": 4}),
        (tuned, {"arm": f"{strategy} tuned", "tuned": strategy, **told}, {"sync_every": 8}),
    ):
        for seed, whole_s in enumerate(times, first_seed):
            accuracies = CROSSED if whole_s > 0 else MISSED
            place = {"role": "", "baseline": "ddp tuned" if place["tuned"] else "", **place}
            arm = "tuned" if place["tuned"] else ""
            keys = {"place": place, "settings": settings, "arm": arm, "train_s": abs(whole_s) / 4, **more}
            make_run(root, strategy, seed, accuracies, **keys)


def only(root: Path) -> dict[str, Any]:
    """The row of the one tuned arm."""
    ((_, row),) = section_of(TunedSection, all_compared(root)).arms
    return row


def test_tuned_rows_are_a_comparison_of_their_own_with_their_own_baseline(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path, "ddp", (100, 101, 102), (90, 91, 92))
    rows(make_run, tmp_path, "daso", (80, 81, 82), (70, 71, 72))
    both = all_compared(tmp_path)
    assert [one.tuned for one in both] == [False, True]
    assert [row_of(one, both) for one in both] == ["paper's settings", "equally tuned"]
    assert row_of(both[0], both[:1]) == ""
    found = all_speedups(both)
    assert [one.baseline.label for one in found] == ["ddp", "ddp tuned"]
    ratios = [one.lines[0].fixed_work for one in found]
    assert [one.point if one else None for one in ratios] == pytest.approx([101 / 81, 91 / 71], rel=1e-3)


def test_a_default_of_120_s_against_a_tuned_100_s_is_a_regret_of_20_percent(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path, "daso", (120, 120, 120), (100, 100, 100), target=None)
    (row,) = tables_of(TunedSection, all_compared(tmp_path))["tuning"]
    assert (row["arm"], row["trials"], row["failed_trials"], row["device_hours"]) == ("daso", 8, 2, 0.25)
    assert (row["regret"], row["winner"]) == (pytest.approx(0.2), "strategy.sync_every=8")
    assert (row["default_runs"], row["tuned_runs"], row["space"]) == (3, 3, "all")
    assert (regret_words(row), row["remarks"]) == ("20.0% [20.0%, 20.0%]", "")


def test_times_to_the_target_carry_their_grid_into_the_regret(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path, "ddp", (120, 120, 120), (100, 100, 100))
    row = only(tmp_path)
    assert row["regret"] == pytest.approx(0.2)
    assert row["regret_low"] < 0.05
    assert row["regret_high"] > 0.35


REACHED = "reached the target: {} of 3 as default, {} of 3 tuned"
ALL = (100, 100, 100)


@pytest.mark.parametrize(
    ("default", "tuned", "shown", "remarks"),
    [
        ((120, 120, -120), ALL, r"≥ \d+\.\d% \[.*, no upper end\]", REACHED.format(2, 3)),
        (ALL, (80, 80, -80), r"≤ -?\d+\.\d% \[no lower end, .*\]", REACHED.format(3, 2)),
        ((120, -120, -120), ALL, "–", REACHED.format(1, 3)),
        ((120, 120), (100, 100), "–", "fewer than 3 runs count"),
        ((), ALL, "–", "no run with the default settings"),
    ],
    ids=["defaults missed it", "tuned missed it", "few reached it", "two runs", "no default"],
)
def test_why_there_is_no_regret_or_no_end_of_its_interval(
    make_run: Make,
    tmp_path: Path,
    default: tuple[float, ...],
    tuned: tuple[float, ...],
    shown: str,
    remarks: str,
):
    rows(make_run, tmp_path, "ddp", default, tuned)
    row = only(tmp_path)
    assert re.fullmatch(shown, regret_words(row))
    assert row["remarks"] == remarks


def test_second_baselines_are_no_tuned_arms(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path, "ddp", (120,), (100,))
    place = {"arm": "ddp tuned, fresh seeds", "tuned": "ddp", "role": "fresh_seeds", **TOLD}
    make_run(tmp_path, "ddp", 10**6, CROSSED, place=place, arm="tuned fresh")
    assert only(tmp_path)["arm"] == "ddp"


@pytest.mark.usefixtures("undrawn")
def test_the_page_shows_both_rows_and_what_tuning_cost(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path / "runs", "ddp", (100, 101, 102), (90, 91, 92))
    rows(make_run, tmp_path / "runs", "daso", (80, 81, 82), (70, 71, 72))
    trial = make_run(tmp_path / "trials", place={"arm": "ddp"}, study="quick_tune")
    shutil.copytree(trial.parent, tmp_path / "runs" / "quick_tune")
    won = {"settings": {"strategy.sync_every": 8}, "trials": [{"run": trial.name, "train_s": 9.0}]}
    write_json(tmp_path / "runs" / "quick_tune" / "tune.json", {"arms": {"ddp": won, "daso": won}})
    page = report(tmp_path / "runs" / "quick", tmp_path / "out").read_text()
    titles = re.findall(r"<(?:h2|p class=.kicker.)>([^<]*)", page)
    for row in ("paper&#39;s settings", "equally tuned"):
        assert any(f"over 2×2 ranks, {row} ·" in " ".join(title.split()) for title in titles), row
    assert "What tuning found" in titles
    assert [row["arm"] for row in table(tmp_path / "out" / "tuning.csv")] == ["ddp", "daso"]
    told = [row for row in table(tmp_path / "out" / "claims.csv") if row["claim"] == "daso_time"]
    assert [(row["arm"], row["where"].endswith(", equally tuned")) for row in told] == [
        ("daso", False),
        ("daso tuned", True),
    ]


def ledger(root: Path, *, tuned: bool = True) -> list[FairnessRow]:
    (found,) = [one for one in all_compared(root) if one.tuned is tuned]
    baseline, arm = found.arms
    return fairness(baseline.runs, arm.runs)


def tuning_of(found: list[FairnessRow]) -> FairnessRow:
    return next(row for row in found if row.key == "tuning")


def test_the_ledger_has_trials_seeds_and_space_and_lets_searched_keys_differ(make_run: Make, tmp_path: Path):
    rows(make_run, tmp_path, "ddp", (100,), (90,))
    rows(make_run, tmp_path, "daso", (80,), (70,))
    for path in find_runs(tmp_path):
        if "daso-" in path.name:
            file = path / "config.yaml"
            file.write_text(file.read_text().replace("lr: 0.1", "lr: 0.3"))
    row = tuning_of(ledger(tmp_path))
    assert row.baseline == row.arm == f"8 trials, seeds {TRIAL} to {TRIAL + 7}: all"
    assert (row.equal, row.forbids) == (True, False)
    assert "optimizer.lr" not in {row.key for row in forbidding(ledger(tmp_path))}
    own = ledger(tmp_path, tuned=False)
    assert "optimizer.lr" in {one.key for one in forbidding(own)}, "only what was tuned may differ so"
    assert tuning_of(own).baseline == "none: the study's own settings"


@pytest.mark.parametrize(
    ("first_seed", "trials", "wrong"),
    [
        (0, 16, "study.tune_trials: ddp tuned 8, daso tuned 16; must be equal for all arms"),
        (TRIAL + 3, 8, f"seeds [{TRIAL + 3}] were tuned on and are scored"),
    ],
)
def test_unequal_numbers_of_trials_and_scored_seeds_that_were_tuned_on_forbid_a_verdict(
    make_run: Make, tmp_path: Path, first_seed: int, trials: int, wrong: str
):
    rows(make_run, tmp_path, "ddp", (), (90,), first_seed=first_seed)
    told = {**TOLD, "tune_trials": trials}
    rows(make_run, tmp_path, "daso", (), (70,), first_seed=first_seed, told=told)
    row = tuning_of(ledger(tmp_path))
    assert row.wrong.startswith(wrong)
    assert row.forbids
