"""Which task a run has: its data set says so; and what does not fit to it is refused."""

from typing import Any

from ....datasets.dataset import Dataset
from ....strategies.errors import ConfigError, unknown
from .classification import TOP, Classification
from .segmentation import Segmentation
from .task import Task

TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Segmentation)}
METRICS = tuple(dict.fromkeys(metric for kind in TASKS.values() for metric in kind.metrics))


def kind_of(task: str, where: str) -> type[Task]:
    """The kind of task called `task`, which a part of the group `where` is for. Raises ConfigError."""
    if task not in TASKS:
        raise unknown(f"{where}.task", str(task), TASKS)
    return TASKS[task]


def task_of(dataset: Dataset, classes: int, *, label_smoothing: float, target_metric: str) -> Task:
    """The task of a run on `dataset`, which has so many classes. Raises ConfigError as `check` does."""
    task = kind_of(dataset.task, "dataset")(classes=classes, label_smoothing=label_smoothing)
    _check_top5(target_metric, classes)
    return task


def check(dataset: Dataset, model: Any, *, label_smoothing: float, target_metric: str) -> None:
    """Refuse a metric, a smoothing or a model that the data set's task does not have: ConfigError.

    model: None where none is trained.
    """
    kind = kind_of(dataset.task, "dataset")
    if target_metric not in METRICS:
        raise unknown("train.target_metric", target_metric, kind.metrics)
    if target_metric not in kind.metrics:
        raise ConfigError(
            f"train.target_metric={target_metric}: the data set is for {kind.name}, which has "
            f"{', '.join(kind.metrics)}; train.target_metric=auto takes {kind.metrics[0]}"
        )
    if label_smoothing and not kind.smooths:
        raise ConfigError(
            f"train.label_smoothing={label_smoothing}: is for classification, the data set for {kind.name}; "
            "set it to 0"
        )
    model_kind = kind if model is None else kind_of(getattr(model, "task", Classification.name), "model")
    if model_kind is not kind:
        raise ConfigError(
            f"model={getattr(model, 'name', type(model).__name__)}: is for {model_kind.name}, "
            f"the data set for {kind.name}; `daso-bench list models` says what each is for (a class of your "
            f'own says task = "{kind.name}")'
        )
    classes = dataset.info().classes
    if classes is not None:
        _check_top5(target_metric, classes)


def _check_top5(target_metric: str, classes: int) -> None:
    if target_metric == "top5" and classes <= TOP:
        raise ConfigError(
            f"train.target_metric=top5: the data set has {classes} classes, which are all among the first "
            f"{TOP}; take accuracy"
        )
