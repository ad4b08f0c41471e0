"""The rows of metrics.jsonl and ranks/<r>.jsonl: the fields of each kind, for those who write and who read.

Units end names: `_s` seconds, `_bytes` bytes; other numbers are counts. What each field means:
docs/records.md, which a test compares with the rows that a run writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

Seconds = Mapping[str, float]  # by part or segment
OfLinks = Mapping[str, int]  # by class of link: "intra" inside nodes, "inter" between them


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """Fields of every row: attempt from 1, optimizer steps done, epoch from 0, global samples done.

    `merged`: fields whose entries are fields of the row themselves. `optional`: fields that a row lacks where
    they are None.
    """

    kind: ClassVar[str]
    merged: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()

    attempt: int
    step: int
    epoch: int
    samples: int

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """The known fields of an unchecked row; missing ones are None."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        return cls(**known)

    def as_row(self) -> dict[str, Any]:
        """The row as it is written."""
        row: dict[str, Any] = {"kind": self.kind}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in self.merged:
                row |= value
            elif value is not None or name not in self.optional:
                row[name] = value
        return row


@dataclass(frozen=True, kw_only=True)
class StartRow(RecordRow):
    """The begin of an attempt. `still_cached`: only where training reads files.

    `task`: of the data set. `may_differ`: of the strategy's class. `loader_workers`: of this
    rank, chosen where the configuration says auto.
    """

    kind = "start"
    optional = ("still_cached",)

    resumed_from: str | None
    world: str
    ranks_of_nodes: list[int]
    parameters: int
    task: str
    may_differ: list[str]
    loader_workers: int
    still_cached: float | None


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(RecordRow):
    """One evaluation of the run's model. `metrics`: its metrics, their counts and the loss, by name."""

    kind = "evaluation"
    merged = ("metrics",)

    index: int
    split: str
    metrics: Mapping[str, Any]
    train_loss: float
    learning_rate: float
    reached: bool | None
    mode: str
    train_s: float
    wall_s: float
    eval_s: float
    make_model_s: float
    samples_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class RankEvaluationRow(RecordRow):
    """What one rank had sent by an evaluation; in its own file, where `EvaluationRow` is of the run."""

    kind = "evaluation"

    index: int
    payload_bytes: OfLinks


@dataclass(frozen=True, kw_only=True)
class EpochRow(RecordRow):
    """The end of an epoch. `strategy`: see `Strategy.record`; `reader`: only where a reader reads."""

    kind = "epoch"
    optional = ("reader",)

    learning_rate: float
    train_loss: float | None
    strategy: Mapping[str, Any]
    reader: Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class TrainIntervalRow(RecordRow):
    """The training of one rank between two evaluations or checkpoints."""

    kind = "train_interval"

    index: int
    train_s: float
    parts_s: Seconds
    make_model_s: float
    segments_s: Seconds
    payload_bytes: OfLinks


@dataclass(frozen=True, kw_only=True)
class SegmentsRow(RecordRow):
    """Where the time of one rank went in an attempt that has ended."""

    kind = "segments"

    segments_s: Seconds
    wall_s: float
    process_s: float
    startup_s: float


@dataclass(frozen=True, kw_only=True)
class SummaryRow(SegmentsRow):
    """The whole run at the end of an attempt.

    `final_and_best`: `final_NAME` and `best_NAME` of what the model is judged by. `of_callbacks`: fields of
    the callbacks (`run_queue_share`, `validity`).
    """

    kind = "summary"
    merged = ("final_and_best", "of_callbacks")
    optional = ("digests", "reader", "loss_scaling", "gpu_memory", "untimed")

    status: str
    target: float | None
    reached: bool | None
    to_target_train_s: float | None
    to_target_wall_s: float | None
    to_target_samples: float | None
    crossing_s: float | None
    final_and_best: Mapping[str, float | None]
    train_s: float
    samples_per_s: float | None
    parts_s: Seconds
    calls: OfLinks
    payload_bytes: OfLinks
    ring_bytes: OfLinks
    blocked_s: Seconds | None
    steps: int
    communication_share: float | None
    communication_share_to_target: float | None
    classes: int
    epochs: int
    evaluations: int
    checkpoints: int
    copies_dropped: int
    parameters: int
    left_out_samples: int
    labels: list[str]
    strategy: Mapping[str, Any]
    collectives: Mapping[str, int]
    digests: Mapping[str, str | None] | None
    reader: Mapping[str, Any] | None
    loss_scaling: Mapping[str, Any] | None
    gpu_memory: Mapping[str, Any] | None
    untimed: list[str] | None
    of_callbacks: Mapping[str, Any]

    def as_summary(self) -> dict[str, Any]:
        """The row without its kind and its place in the run."""
        place = ("kind", *(field.name for field in fields(RecordRow)))
        return {name: value for name, value in self.as_row().items() if name not in place}
