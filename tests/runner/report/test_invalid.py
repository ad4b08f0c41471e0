"""A run that says of itself that it measured the machine gives no numbers, and is named with the reason."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.load import load_run

Make = Callable[..., Path]
REASON = "threads of rank 1 stood ready without a core for 0.07 s in each second of training, all together"


def checked(path: Path) -> Path:
    """The run as one on a modelled network: its summary has what its checks found."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "summary":
            row["validity"] = {"network": "modelled"}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_an_invalid_run_counts_for_nothing_and_says_why(make_run: Make, tmp_path: Path) -> None:
    run = load_run(checked(make_run(tmp_path, untimed=[REASON])), "place")
    assert (run.invalid, run.counted, run.reason) == (True, False, REASON)
    assert run.world == "local/modelled"


def test_a_run_whose_checks_passed_counts(make_run: Make, tmp_path: Path) -> None:
    run = load_run(checked(make_run(tmp_path)), "place")
    assert (run.invalid, run.counted, run.reason) == (False, True, "")


def test_a_run_without_such_checks_counts_whatever_its_times_are_worth(
    make_run: Make, tmp_path: Path
) -> None:
    run = load_run(make_run(tmp_path, untimed=["4 ranks x 1 thread share 2 cores"]), "place")
    assert (run.invalid, run.counted, run.world) == (False, True, "local")


@pytest.mark.parametrize("invalid", [False, True])
def test_the_report_leaves_invalid_runs_out_of_its_numbers_and_names_them(
    make_run: Make, tmp_path: Path, invalid: bool
) -> None:
    runs = tmp_path / "runs"
    for seed in range(2):
        checked(make_run(runs, seed=seed, train_s=90.0))
        checked(make_run(runs, "daso", seed, train_s=45.0))
    slow = checked(make_run(runs, "daso", 2, train_s=9000.0, untimed=[REASON] if invalid else []))
    page = report(runs, tmp_path / "report").read_text()
    arms = (tmp_path / "report" / "arms.csv").read_text()
    assert (REASON in page) is invalid
    assert (f'<code>{slow.name}</code></td><td class="text bad">invalid</td>' in page) is invalid
    daso = next(line for line in arms.splitlines() if "daso" in line)
    header = dict(zip(arms.splitlines()[0].split(","), daso.split(","), strict=False))
    assert header["runs"] == ("2" if invalid else "3")
