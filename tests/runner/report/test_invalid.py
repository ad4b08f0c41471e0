"""A run that says of itself that it measured the machine gives no numbers, and is named with the reason."""

import json
from pathlib import Path

import pytest
from sharing import Make, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.load import load_run

REASON = "threads of rank 1 stood ready without a core for 0.07 s in each second of training, all together"


def checked(path: Path) -> Path:
    """The run as one on a modelled network: its summary has what its checks found."""
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if row["kind"] == "summary":
            row["validity"] = {"network": "modelled"}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("modelled", "untimed", "expected"),
    [
        (True, [REASON], (True, False, REASON, "local/modelled")),
        (True, [], (False, True, "", "local/modelled")),
        (False, ["4 ranks x 1 thread share 2 cores"], (False, True, "", "local")),
    ],
    ids=["failed checks", "passed checks", "no checks"],
)
def test_a_run_counts_unless_its_own_checks_failed(
    make_run: Make, tmp_path: Path, modelled: bool, untimed: list[str], expected: tuple[object, ...]
) -> None:
    path = make_run(tmp_path, untimed=untimed)
    run = load_run(checked(path) if modelled else path, "place")
    assert (run.invalid, run.counted, run.reason, run.world) == expected


@pytest.mark.usefixtures("undrawn")
def test_the_report_leaves_invalid_runs_out_of_its_numbers_and_names_them(
    make_run: Make, tmp_path: Path
) -> None:
    for seed in range(2):
        checked(make_run(tmp_path / "runs", "daso", seed, train_s=45.0))
    slow = checked(make_run(tmp_path / "runs", "daso", 2, train_s=9000.0, untimed=[REASON]))
    page = report(tmp_path / "runs", tmp_path / "report").read_text()
    assert REASON in page
    assert f"{slow.name}: invalid, it counts for nothing" in page
    (arm,) = table(tmp_path / "report" / "arms.csv")
    assert (arm["runs"], arm["runs_not_counted"]) == ("2", "1")
