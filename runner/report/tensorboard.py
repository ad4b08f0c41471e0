"""Records as TensorBoard event files, of finished runs and of those that go on: `daso-bench tensorboard`.

Only what lies in the run directories is read, by a process of its own: no clock of a run notices it. Each
number stands there twice: over training samples, and over milliseconds of training time (T_train).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError, MachineError
from ..records.json_lines import Row, read_json, read_records, surviving
from . import words
from .data.load import find_runs

POLL_S = 2.0
GOING_ON = ("queued", "running")
NUMBERS = (
    *("accuracy", "top5", "miou", "pixel_accuracy"),  # as far as the run's task has them
    *("loss", "train_loss", "learning_rate", "samples_per_s"),
)
_NAME = "events.out.tfevents.*"


def tensorboard(directory: Path, output: Path, *, follow: bool, tell: Callable[[str], None]) -> None:
    """Write `output`/<run>/ for every run at or below `directory`; with `follow` until all have ended.

    Raises:
        ConfigError: no run is there.
        MachineError: the package tensorboard is missing.
    """
    Writer = summary_writer()
    runs = {path: _Events(path, output / _place(path, directory), Writer) for path in find_runs(directory)}
    if not runs:
        raise ConfigError(f"tensorboard {directory}: no run directory in it (a folder with status.json)")
    while True:
        for events in runs.values():
            events.update()
        if not follow or not any(_goes_on(path) for path in runs):
            break
        time.sleep(POLL_S)
        for path in find_runs(directory):  # a sweep makes them as it comes to them
            if path not in runs:
                runs[path] = _Events(path, output / _place(path, directory), Writer)
    for events in runs.values():
        events.update()  # what came between the last look and the end
        events.close()
    written = sum(events.written for events in runs.values())
    counts = f"{words.count(len(runs), 'run')}, {words.count(written, 'row')}"
    tell(f"{counts}: tensorboard --logdir {output}")


def summary_writer() -> Any:
    """PyTorch's SummaryWriter. Raises MachineError without the package tensorboard."""
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise MachineError(
            "tensorboard: the package tensorboard is not installed; pip install 'daso-bench[tensorboard]'"
        ) from error
    return SummaryWriter


class _Events:
    """The event file of one run, and which of its rows are in it."""

    def __init__(self, run: Path, folder: Path, writer: Any) -> None:
        self._run, self._folder, self._make = run, folder, writer
        self._writer: Any = None
        self._rows: list[tuple[Any, ...]] = []

    @property
    def written(self) -> int:
        """Rows in the file."""
        return len(self._rows)

    def update(self) -> None:
        """Add what is new. If a later attempt replaced what is in the file, begin it anew."""
        kept = [row for row in _rows(self._run) if _placed(row)]
        known = [_identity(row) for row in kept]
        writer = self._writer
        if writer is None or known[: len(self._rows)] != self._rows:
            writer = self._begin()
        for row in kept[len(self._rows) :]:
            for tag, value, step in scalars(row):
                writer.add_scalar(tag, value, step, walltime=self._started + row["train_s"])
        self._rows = known
        writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _begin(self) -> Any:
        self.close()
        for file in self._folder.glob(_NAME):
            file.unlink()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._started = _started(self._run)
        self._writer = self._make(log_dir=str(self._folder))
        self._rows = []
        return self._writer


def scalars(row: Row) -> Iterator[tuple[str, float, int]]:
    """Tag, value and step of each number of an evaluation; NaN and infinity are values, null is none."""
    for name in NUMBERS:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{name}/over samples", float(value), int(row["samples"])
            yield f"{name}/over training ms", float(value), round(1000 * row["train_s"])


def _rows(run: Path) -> Sequence[Row]:
    try:
        rows = read_records(run / "metrics.jsonl").rows
    except FileNotFoundError:
        return []
    return [row for row in surviving(rows) if row.get("kind") == "evaluation"]


def _placed(row: Row) -> bool:
    places = (row.get("samples"), row.get("train_s"))
    return all(isinstance(place, int | float) and math.isfinite(place) for place in places)


def _identity(row: Row) -> tuple[Any, ...]:
    return row.get("attempt"), row.get("index"), row.get("step")


def _started(run: Path) -> float:
    """Unix seconds of the first attempt's start, 0 if nobody knows: TensorBoard's axes of wall time."""
    attempts = _status(run).get("attempts") or [{}]
    return float(attempts[0].get("started_unix") or 0.0)


def _goes_on(run: Path) -> bool:
    return _status(run).get("status") in GOING_ON


def _status(run: Path) -> dict[str, Any]:
    try:
        status = read_json(run / "status.json")
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _place(run: Path, directory: Path) -> Path:
    """Where below the output: its path below `directory`, a run that is `directory` itself by its name."""
    return run.relative_to(directory) if run != directory else Path(run.absolute().name)
