"""The rows of metrics.jsonl and ranks/<r>.jsonl that a report reads field by field.

Units end names: `_s` seconds, `_bytes` bytes; other numbers are counts. The fields of all kinds of rows and
what they mean: docs/records.md, which a test compares with the rows that a run writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

Seconds = dict[str, float]  # by part or segment


@dataclass(frozen=True, kw_only=True)
class RecordRow:
    """Fields of every row: attempt from 1, optimizer steps done, epoch from 0, global samples done."""

    kind: ClassVar[str]

    attempt: int
    step: int
    epoch: int
    samples: int

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """The known fields of an unchecked row; missing ones are None."""
        known: dict[str, Any] = {field.name: row.get(field.name) for field in fields(cls)}
        return cls(**known)


@dataclass(frozen=True, kw_only=True)
class StartRow(RecordRow):
    """The begin of an attempt. `still_cached`: only where training reads files.

    `task`: of the data set. `may_differ`: of the strategy's class. `loader_workers`: of this
    rank, chosen where the configuration says auto.
    """

    kind = "start"

    resumed_from: str | None
    world: str
    ranks_of_nodes: list[int]
    parameters: int
    task: str
    may_differ: list[str]
    loader_workers: int
    still_cached: float | None


@dataclass(frozen=True, kw_only=True)
class TrainIntervalRow(RecordRow):
    """The training of one rank between two evaluations or checkpoints.

    `payload_bytes`: by link, "intra" inside nodes, "inter" between them.
    """

    kind = "train_interval"

    index: int
    train_s: float
    parts_s: Seconds
    make_model_s: float
    segments_s: Seconds
    payload_bytes: dict[str, int]
