"""Tasks: what is counted, the smoothed loss; and what does not fit to a data set's task is refused."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from runs import Blobs, config, evaluations  # pyright: ignore[reportMissingImports] (on the path by conftest.py)
from torch import Tensor
from torch.nn import functional

from daso_bench.datasets.digits import Digits
from daso_bench.datasets.shapes import Shapes
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP, SmallFCN
from daso_bench.runner.config import load
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.config.tasks import TASKS, Classification
from daso_bench.runner.report.data.metric import METRICS as REPORTED
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.strategies.errors import ConfigError

TASK = Classification(classes=7)


def outputs(*rows: list[float]) -> Tensor:
    return torch.tensor(rows)


def test_the_label_counts_among_the_first_five_by_hand():
    """Outputs 7, 6, …, 1 for classes 0, 1, …, 6: labels 0 to 4 are among the first five, 0 alone is right."""
    falling = outputs(*[[7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]] * 7)
    counts = TASK.count(falling, torch.arange(7))
    assert counts.dtype == torch.int64
    assert counts.tolist() == [1, 5]
    assert TASK.numbers(counts, 7) == {"accuracy": 1 / 7, "correct": 1, "count": 7, "top5": 5 / 7}


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite_are_wrong_for_both_counts(wrong: float):
    one = outputs([9.0, 0, 0, 0, 0, 0, 0], [9.0, wrong, 0, 0, 0, 0, 0])
    assert TASK.count(one, torch.tensor([0, 0])).tolist() == [1, 1]


def test_counts_agree_with_torch_topk():
    generator = torch.Generator().manual_seed(0)
    some, labels = torch.randn(200, 20, generator=generator), torch.randint(20, (200,), generator=generator)
    among = (some.topk(5).indices == labels[:, None]).any(1)
    right = some.argmax(1) == labels
    assert Classification(classes=20).count(some, labels).tolist() == [int(right.sum()), int(among.sum())]


@pytest.mark.parametrize("classes", [2, 5])
def test_up_to_five_classes_have_no_top5(classes: int):
    task = Classification(classes=classes)
    assert task.nothing().tolist() == [0]
    counts = task.count(torch.eye(classes), torch.zeros(classes, dtype=torch.int64))
    assert task.numbers(counts, classes) == {"accuracy": 1 / classes, "correct": 1, "count": classes}


def test_of_no_sample_shares_are_nan():
    found = TASK.numbers(TASK.nothing(), 0)
    assert (found["correct"], found["count"]) == (0, 0)
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["top5"])


def test_label_smoothing_is_part_of_the_criterion_and_not_of_the_evaluation():
    """ε = 0.3 of two classes: 0.85 of the label, 0.15 of the other."""
    task, some = Classification(classes=2, label_smoothing=0.3), outputs([1.0, 3.0]).double()
    logs = functional.log_softmax(some, 1)[0]
    label = torch.tensor([1])
    assert task.criterion()(some, label).item() == pytest.approx(-(0.85 * logs[1] + 0.15 * logs[0]).item())
    assert task.loss_sum(some, label).item() == pytest.approx(-logs[1].item())


PIXELS: dict[str, Any] = {"dataset": Shapes(), "model": SmallFCN(), "target_metric": "miou"}


def loaded(asked: RunConfig, **train: Any) -> RunConfig:
    """`asked` as composed with these keys of `train`."""
    tree = asked.tree
    tree["run"].pop("id")
    tree["train"].update(train)
    return load.from_composed(tree, Path("/nowhere"))


def test_the_target_is_of_the_tasks_own_metric_unless_another_is_asked_for():
    digits, shapes = config(dataset=Digits()), config(**PIXELS)
    assert loaded(digits, target_metric="auto").train.target_metric == "accuracy"
    assert loaded(shapes, target_metric="auto").train.target_metric == "miou"
    assert loaded(shapes, target_metric="loss").train.target_metric == "loss"
    assert loaded(shapes, target_metric="pixel_accuracy").train.target_metric == "pixel_accuracy"
    assert loaded(digits, target_metric="top5", target=0.99).train.target == 0.99


@dataclass(frozen=True, kw_only=True)
class Dreams(Blobs):
    """A data set for a task that nobody knows."""

    task: ClassVar[str] = "dreaming"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"target_metric": "miou"},
            r"^train\.target_metric=miou: the data set is for classification, which has accuracy, top5, loss"
            r"; train\.target_metric=auto takes accuracy$",
        ),
        ({**PIXELS, "target_metric": "accuracy"}, "for segmentation, which has miou, pixel_accuracy, loss;"),
        ({"target_metric": "f1"}, r"^train\.target_metric=f1: unknown; known: accuracy, top5, loss$"),
        ({**PIXELS, "target_metric": "pixel"}, r"'pixel_accuracy'\?\); known: miou, pixel_accuracy, loss$"),
        ({"target_metric": "top5", "dataset": Synthetic(classes=5)}, "5 classes, which are all among the"),
        ({"label_smoothing": -0.1}, r"^train\.label_smoothing=-0\.1: must be >= 0 and < 1$"),
        ({**PIXELS, "label_smoothing": 0.1}, r"^train\.label_smoothing=0\.1: is for classif.*; set it to 0$"),
        (
            {**PIXELS, "model": MLP()},
            r"^model=mlp: is for classification, the data set for segmentation; `daso-bench list models` .*"
            r'\(a class of your own says task = "segmentation"\)$',
        ),
        ({"model": SmallFCN()}, r"^model=small_fcn: is for segmentation, the data set for classification"),
        ({"dataset": Dreams()}, r"^dataset\.task=dreaming: unknown; known: classification, segmentation$"),
    ],
)
def test_what_does_not_fit_to_the_task_is_refused(asked: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        config(**asked)


def test_the_page_on_tasks_lists_each_tasks_metrics_as_they_are() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")
    rows = {cells[1].strip(): cells[4] for line in page.splitlines() if len(cells := line.split("|")) == 6}
    for kind in TASKS.values():
        assert tuple(re.findall(r"`(\w+)`", rows[kind.name])) == kind.metrics
        assert not set(kind.metrics) - {*REPORTED, "loss"}, "a report names each"


@pytest.mark.parametrize(
    ("keys", "own", "asked"),
    [
        ({"dataset": Digits()}, "accuracy", "top5"),
        (
            {**PIXELS, "dataset": Shapes(samples=32, validation_samples=8, test_samples=8)},
            *("miou", "pixel_accuracy"),
        ),
    ],
)
def test_a_summary_has_the_share_that_the_target_is_of_and_the_tasks_own(
    keys: dict[str, Any], own: str, asked: str
):
    for metric in (asked, "loss"):
        asking = config(epochs=1, **{**keys, "target_metric": metric})
        played = simulate(asking, asking.dataset.load())
        summary = played.results[0].summary
        last = evaluations(played)[-1]
        told = {key for key in summary if key.startswith(("final_", "best_"))}
        wanted = {own, asked} if metric == asked else {own}
        assert told == {f"{word}_{name}" for word in ("final", "best") for name in wanted}
        for name in wanted:
            assert summary[f"final_{name}"] == last[name] is not None
