"""A study is shown by what its models are judged by, under one name, and two metrics share nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
from sharing import Make, compared, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.data.metric import ACCURACY, MIOU, TOP5, metric_of


def study(make_run: Make, root: Path, metric: str, **more: Any) -> None:
    """Three runs each of two arms: at 0.78 and 0.70 in the end, a target of 0.75."""
    for seed in range(3):
        make_run(root, seed=seed, metric=metric, **more)
        make_run(root, "daso", seed=seed, accuracies=(0.5, 0.6, 0.65, 0.70), metric=metric, **more)


@pytest.fixture(scope="module")
def of_miou(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on a study of mIoU."""
    root = tmp_path_factory.mktemp("miou")
    study(make_run, root / "runs", "miou")
    return report(root / "runs", root / "out").parent


def test_a_segmentation_study_shows_miou_everywhere_and_accuracy_nowhere(of_miou: Path) -> None:
    page = (of_miou / "index.html").read_text()
    for text in (
        "Final mIoU</th>",
        "mIoU, points [CI]</th>",
        "mIoU 0.75",
        "arithmetic means of mIoU",
        "mIoU against training time",
        "mIoU against samples",
        "<td>0.7800</td>",
        "<td>−8.0 [−8.0, −8.0]</td>",
    ):
        assert text in page, text
    assert "ccuracy" not in page
    files = {file.name for file in of_miou.iterdir()}
    assert {"miou_time.svg", "miou_samples.pdf"} <= files
    assert not [name for name in files if name.startswith("accuracy")]
    figure = (of_miou / "miou_time.svg").read_text()
    assert "<!-- mIoU -->" in figure
    assert "<!-- target 0.75 -->" in figure


def test_its_tables_have_columns_of_miou_with_the_numbers(of_miou: Path) -> None:
    runs, arms, evaluations = (table(of_miou / f"{name}.csv") for name in ("runs", "arms", "evaluations"))
    assert [row["final_miou"] for row in runs] == ["0.78"] * 3 + ["0.7"] * 3
    assert [row["best_miou"] for row in runs] == ["0.78"] * 3 + ["0.7"] * 3
    assert [float(row["final_miou_mean"]) for row in arms] == [pytest.approx(0.78), pytest.approx(0.70)]
    assert [row["reached"] for row in runs] == ["True"] * 3 + ["False"] * 3
    assert [row["miou"] for row in evaluations[:4]] == ["0.6", "0.76", "0.74", "0.78"]
    assert evaluations[0]["pixel_accuracy"] == "0.9"
    for first, *_ in (runs, arms, evaluations):
        assert not [name for name in first if "accuracy" in name.replace("pixel_accuracy", "")]


def test_two_metrics_share_no_figure_and_no_column(make_run: Make, tmp_path: Path) -> None:
    for metric in ("accuracy", "miou"):
        make_run(tmp_path / "runs", metric=metric, study="one", target=None)
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    for number, key in enumerate(("accuracy", "miou"), 1):
        found = {file.name for file in (tmp_path / "out").glob(f"{number}_*_samples.svg")}
        assert found == {f"{number}_{key}_samples.svg"}
    assert page.count("mIoU against samples</h3>") == page.count("Accuracy against samples</h3>") == 1
    rows = table(tmp_path / "out" / "runs.csv")
    assert [(row["final_accuracy"], row["final_miou"]) for row in rows] == [("0.78", ""), ("", "0.78")]


@pytest.mark.parametrize(
    ("target_metric", "row", "summary", "expected"),
    [
        ("accuracy", {"accuracy": 0.5}, {}, ACCURACY),
        ("loss", {"accuracy": 0.5, "top5": 0.9}, {}, ACCURACY),
        ("top5", {"accuracy": 0.5, "top5": 0.9}, {}, TOP5),
        ("miou", {}, {}, MIOU),
        ("loss", {"miou": 0.5}, {}, MIOU),
        ("loss", {}, {"final_miou": 0.5}, MIOU),
        ("accuracy", {"miou": 0.5}, {}, MIOU),  # of a record without the task's metric
        ("loss", {}, {}, ACCURACY),
    ],
)
def test_which_metric_a_run_is_judged_by(
    target_metric: str, row: dict[str, float], summary: dict[str, float], expected: Any
) -> None:
    assert metric_of(target_metric, [row] if row else [], summary) == expected


def test_a_run_that_failed_early_is_judged_by_its_task(make_run: Make, tmp_path: Path) -> None:
    """It has recorded no evaluation, and its target is of a loss."""
    made = tmp_path
    for seed in range(2):
        made = make_run(tmp_path, seed=seed, metric="miou", train={"target_metric": "loss"})
    (made / "metrics.jsonl").write_text('{"kind": "start", "task": "segmentation"}\n')
    status = json.loads((made / "status.json").read_text())
    (made / "status.json").write_text(json.dumps(status | {"status": "failed"}))
    comparison = compared(tmp_path)
    assert comparison.metric == MIOU
    assert [run.judged_by for run in comparison.runs] == [MIOU, MIOU]
