"""One dataclass for each kind of row in metrics.jsonl and ranks/<r>.jsonl.

Units end names: `_s` seconds, `_bytes` bytes, `_per_s` per second; shares (`accuracy`, `miou`) run from
0 to 1, losses have no unit, other numbers are counts. A field without a default is in every row of its kind;
one with `ABSENT` is left out where it does not apply. What each field means: docs/records.md, which a test
compares with these classes.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Self

ABSENT: Any = None
Links = dict[str, int]  # "intra" inside nodes, "inter" between them
Seconds = dict[str, float]  # by part, segment or link


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """Fields of every row: attempt from 1, optimizer steps done, epoch from 0, global samples done."""

    kind: ClassVar[str]

    attempt: int
    step: int
    epoch: int
    samples: int

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> Self:
        """The row, checked strictly. Raises ValueError for an unknown or missing field."""
        names = {field.name for field in fields(cls)}
        required = {field.name for field in fields(cls) if field.default is MISSING}
        unknown, missing = row.keys() - names - {"kind"}, required - row.keys()
        if unknown or missing or row.get("kind") != cls.kind:
            lists = f"unknown {sorted(unknown)}, missing {sorted(missing)}"
            raise ValueError(f"row {row.get('kind')!r} as {cls.kind!r}: {lists}")
        return cls(**{name: value for name, value in row.items() if name in names})

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """The known fields of an unchecked row; missing ones are None."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        return cls(**known)


@dataclass(frozen=True, kw_only=True)
class StartRow(RecordRow):
    """The begin of an attempt."""

    kind = "start"

    resumed_from: str | None
    world: str
    ranks_of_nodes: list[int]
    parameters: int
    still_cached: float = ABSENT


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(RecordRow):
    """An evaluation, in metrics.jsonl. Which metrics it has depends on the run's task."""

    kind = "evaluation"

    index: int
    mode: str
    split: str
    accuracy: float = ABSENT
    top5: float = ABSENT
    miou: float = ABSENT
    pixel_accuracy: float = ABSENT
    correct: int = ABSENT
    count: int
    loss: float
    train_loss: float
    train_s: float
    wall_s: float
    eval_s: float
    make_model_s: float
    learning_rate: float
    samples_per_s: float | None
    reached: bool | None


@dataclass(frozen=True, kw_only=True)
class EpochRow(RecordRow):
    """The end of an epoch, as rank 0 in metrics.jsonl and every rank in its own file write it."""

    kind = "epoch"

    train_loss: float | None
    learning_rate: float
    strategy: dict[str, Any]
    reader: dict[str, Any] = ABSENT


@dataclass(frozen=True, kw_only=True)
class SummaryRow(RecordRow):
    """The last row of an attempt that was not killed."""

    kind = "summary"

    status: str
    train_s: float
    wall_s: float
    process_s: float
    startup_s: float
    segments_s: Seconds
    parts_s: Seconds
    target: float | None
    reached: bool | None
    to_target_train_s: float | None
    to_target_wall_s: float | None
    to_target_samples: int | None
    crossing_s: float | None
    final_accuracy: float | None = ABSENT
    best_accuracy: float | None = ABSENT
    final_top5: float | None = ABSENT
    best_top5: float | None = ABSENT
    final_miou: float | None = ABSENT
    best_miou: float | None = ABSENT
    final_pixel_accuracy: float | None = ABSENT
    best_pixel_accuracy: float | None = ABSENT
    samples_per_s: float | None
    payload_bytes: Links
    ring_bytes: Links
    blocked_s: Seconds | None
    calls: Links
    steps: int
    epochs: int
    evaluations: int
    checkpoints: int
    parameters: int
    copies_dropped: int
    collectives: dict[str, int]
    digests: dict[str, str] = ABSENT
    left_out_samples: int
    loss_scaling: dict[str, Any] = ABSENT
    gpu_memory: dict[str, list[int | None]] = ABSENT
    untimed: list[str] = ABSENT
    reader: dict[str, Any] = ABSENT
    run_queue_share: float | None = ABSENT
    labels: list[str]
    strategy: dict[str, Any]
    validity: dict[str, Any] = ABSENT


@dataclass(frozen=True, kw_only=True)
class TrainIntervalRow(RecordRow):
    """The training of one rank between two evaluations or checkpoints."""

    kind = "train_interval"

    index: int
    train_s: float
    parts_s: Seconds
    make_model_s: float
    segments_s: Seconds
    payload_bytes: Links


@dataclass(frozen=True, kw_only=True)
class SentRow(RecordRow):
    """What one rank had sent up to an evaluation: kind `evaluation` of its own file."""

    kind = "evaluation"

    index: int
    payload_bytes: Links


@dataclass(frozen=True, kw_only=True)
class SegmentsRow(RecordRow):
    """The times of one rank at the end of an attempt."""

    kind = "segments"

    segments_s: Seconds
    wall_s: float
    startup_s: float
    process_s: float
