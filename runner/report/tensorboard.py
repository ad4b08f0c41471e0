"""Records as TensorBoard event files, of finished runs and of those that go on: `daso-bench tensorboard`.

Only what lies in the run directories is read, by a process of its own: no clock of a run notices it. Each
number stands there twice: over training samples, and over milliseconds of training time (T_train).
"""

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError, MachineError
from ..records.json_lines import Row, surviving
from . import words
from .data.load import find_runs, is_placed, mapping_of, rows_of

POLL_S = 2.0
GOING_ON = ("queued", "running")
NUMBERS = (
    *("accuracy", "top5", "miou", "pixel_accuracy"),  # as far as the run's task has them
    *("loss", "train_loss", "learning_rate", "samples_per_s"),
)


def tensorboard(directory: Path, output: Path, *, follow: bool, tell: Callable[[str], None]) -> None:
    """Write `output`/<run>/ for every run at or below `directory`; with `follow` until all have ended.

    Raises:
        ConfigError: no run is there.
        MachineError: the package tensorboard is missing.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise MachineError(
            "tensorboard: the package tensorboard is not installed; pip install 'daso-bench[tensorboard]'"
        ) from error
    events: dict[Path, _Events] = {}
    while True:
        for path in find_runs(directory):  # a sweep makes them one after another
            if path not in events:
                # A run that is `directory` itself lies below the output by its name.
                place = path.relative_to(directory) if path != directory else Path(path.absolute().name)
                events[path] = _Events(path, output / place, SummaryWriter)
        if not events:
            raise ConfigError(f"tensorboard {directory}: no run directory in it (a folder with status.json)")
        # Asked before the rows are read: what a run wrote before its end is read below.
        going_on = follow and any(_status(path).get("status") in GOING_ON for path in events)
        for of_run in events.values():
            of_run.update()
        if not going_on:
            break
        time.sleep(POLL_S)
    for of_run in events.values():
        of_run.writer.close()
    counts = [words.count(len(events), "run"), words.count(sum(len(e.rows) for e in events.values()), "row")]
    tell(f"{', '.join(counts)}: tensorboard --logdir {output}")


class _Events:
    """The event file of one run, and the rows that are in it."""

    def __init__(self, run: Path, folder: Path, make_writer: Callable[..., Any]) -> None:
        self._run, self._folder, self._make_writer = run, folder, make_writer
        self.rows: list[Row] = []
        self.writer: Any = None

    def update(self) -> None:
        """Add what is new. If a later attempt replaced what is in the file, begin it anew."""
        attempts = _status(self._run).get("attempts") or [{}]
        started_unix = float(attempts[0].get("started_unix") or 0.0)
        records = surviving(rows_of(self._run / "metrics.jsonl", "", []))
        rows = [row for row in records if row.get("kind") == "evaluation" and is_placed(row)]
        if self.writer is None or rows[: len(self.rows)] != self.rows:
            if self.writer:
                self.writer.close()
            for file in self._folder.glob("events.out.tfevents.*"):
                file.unlink()
            self.writer, self.rows = self._make_writer(log_dir=str(self._folder)), []
        for row in rows[len(self.rows) :]:
            steps = {"samples": int(row["samples"]), "training ms": round(1000 * row["train_s"])}
            for name, (axis, step) in product(NUMBERS, steps.items()):
                if isinstance(row.get(name), int | float):  # NaN and infinity are values, null is none
                    tag, unix_s = f"{name}/over {axis}", started_unix + row["train_s"]
                    self.writer.add_scalar(tag, float(row[name]), step, walltime=unix_s)
        self.rows = rows
        self.writer.flush()


def _status(run: Path) -> dict[str, Any]:
    return mapping_of(run / "status.json", "", [])
