"""What the models of a run are judged by: one metric, under one name on all of the page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A share that is better the higher.

    key: in evaluation rows, CSV columns and the names of figures; name: inside a sentence; title: at its
    beginning; beside: further fields of its evaluation rows.
    """

    key: str
    name: str
    title: str
    beside: tuple[str, ...] = ()

    def of(self, row: Mapping[str, Any]) -> float:
        """Its value in an evaluation's row; NaN where there is no finite one."""
        value = row.get(self.key)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


ACCURACY = Metric(key="accuracy", name="accuracy", title="Accuracy", beside=("correct",))
MIOU = Metric(key="miou", name="mIoU", title="mIoU", beside=("pixel_accuracy",))
TOP5 = Metric(key="top5", name="top-5 accuracy", title="Top-5 accuracy", beside=("accuracy", "correct"))
PIXELS = Metric(key="pixel_accuracy", name="pixel accuracy", title="Pixel accuracy", beside=("miou",))
METRICS = {metric.key: metric for metric in (ACCURACY, MIOU, TOP5, PIXELS)}


def metric_of(
    target_metric: str, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, task: str = ""
) -> Metric:
    """The metric of a target; where that is of another kind (a loss) or not known, the one that is recorded.

    rows: evaluations; summary: of the whole run. Where nothing is recorded, that of `task`.
    """
    if target_metric in METRICS and target_metric != ACCURACY.key:
        return METRICS[target_metric]
    last = rows[-1] if rows else {}
    if ACCURACY.key in last:
        return ACCURACY
    recorded = MIOU.key in last or f"final_{MIOU.key}" in summary
    return MIOU if recorded or task == "segmentation" else ACCURACY


def target_words(key: str, target: float) -> str:
    """A target as it is read: `mIoU 0.85`."""
    return f"{METRICS[key].name if key in METRICS else key} {target:g}"
