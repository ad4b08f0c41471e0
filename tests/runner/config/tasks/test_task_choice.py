"""The data set says what a run's task is; what does not fit is refused before any process starts."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from runs import Blobs, config  # pyright: ignore[reportMissingImports] (on the path by conftest.py)

from daso_bench.datasets.digits import Digits
from daso_bench.datasets.shapes import Shapes
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.models.small_fcn import SmallFCN
from daso_bench.runner.config import load
from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.schema import RunConfig
from daso_bench.runner.config.tasks.classification import Classification
from daso_bench.runner.config.tasks.segmentation import Segmentation
from daso_bench.runner.config.tasks.task_choice import TASKS
from daso_bench.runner.report.data.metric import METRICS as REPORTED
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.studies import sweep
from daso_bench.strategies.errors import ConfigError

PIXELS: dict[str, Any] = {"dataset": Shapes(), "model": SmallFCN(), "target_metric": "miou"}


def loaded(asked: RunConfig, **train: Any) -> RunConfig:
    """`asked` as composed with these keys of `train`."""
    tree = load.to_plain(asked)
    tree["run"].pop("id")
    tree["train"].update(train)
    return load.from_composed(tree, Path("/nowhere"))


def test_a_data_set_that_says_nothing_is_for_classification():
    assert config(label_smoothing=0.1).task(4) == Classification(classes=4, label_smoothing=0.1)
    assert config(**PIXELS).task(5) == Segmentation(classes=5)


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
        (
            {**PIXELS, "target_metric": "accuracy"},
            r"^train\.target_metric=accuracy: the data set is for segmentation, which has miou, "
            r"pixel_accuracy, loss; train\.target_metric=auto takes miou$",
        ),
        ({"target_metric": "f1"}, r"^train\.target_metric=f1: unknown; known: accuracy, top5, loss$"),
        (
            {**PIXELS, "target_metric": "pixel"},
            r"did you mean 'pixel_accuracy'\?\); known: miou, pixel_accuracy, loss$",
        ),
        ({**PIXELS, "target": 1.1}, r"^train\.target=1\.1: must be above 0 and at most 1"),
        ({"target_metric": "top5", "target": 0.0}, r"^train\.target=0\.0: must be above 0 and at most 1"),
        (
            {"target_metric": "top5", "dataset": Synthetic(classes=5)},
            r"^train\.target_metric=top5: the data set has 5 classes, which are all among the first 5",
        ),
        ({"label_smoothing": 1.0}, r"^train\.label_smoothing=1\.0: must be >= 0 and < 1$"),
        ({"label_smoothing": -0.1}, r"^train\.label_smoothing=-0\.1: must be >= 0 and < 1$"),
        (
            {**PIXELS, "label_smoothing": 0.1},
            r"^train\.label_smoothing=0\.1: is for classification, the data set for segmentation; "
            r"set it to 0$",
        ),
        (
            {**PIXELS, "model": MLP()},
            r"^model=mlp: is for classification, the data set for segmentation; `daso-bench list models` .*"
            r'\(a class of your own says task = "segmentation"\)$',
        ),
        ({"model": SmallFCN()}, r"^model=small_fcn: is for segmentation, the data set for classification"),
        ({"dataset": Dreams()}, r"^dataset\.task=dreaming: unknown; known: classification, segmentation$"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(asked: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        config(**asked)


def test_too_few_classes_for_top5_are_refused_once_they_are_known():
    asked = config(dataset=Blobs(), target_metric="top5")
    with pytest.raises(ConfigError, match=r"^train\.target_metric=top5: the data set has 4 classes"):
        asked.task(4)
    assert asked.task(6).classes == 6


@pytest.mark.parametrize("model", ["small_cnn", "hrnet_ocr_sized"])
def test_clocks_alone_take_any_model_for_nothing_is_learnt(model: str):
    words = ["launcher=simulated", "launcher.timing_only=true", "dataset=shapes", f"model={model}"]
    (request,) = sweep.requests(compose([*words, "cluster=ethernet_10g"], sweep=False), Path.cwd())
    assert request.error is None
    assert request.config is not None
    assert request.config.task(5) == Segmentation(classes=5)


def test_the_page_on_tasks_lists_each_tasks_metrics_as_they_are() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tasks.md").read_text(encoding="utf-8")
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
    for metric in (asked, own, "loss"):
        asking = config(epochs=1, **{**keys, "target_metric": metric})
        played = simulate(asking, asking.dataset.load())
        summary = played.results[0].summary
        (*_, last) = [row for row in played.metrics.rows if row["kind"] == "evaluation"]
        told = {key for key in summary if key.startswith(("final_", "best_"))}
        wanted = {own, asked} if metric == asked else {own}
        assert told == {f"{word}_{name}" for word in ("final", "best") for name in wanted}
        for name in wanted:
            assert summary[f"final_{name}"] == last[name] is not None
