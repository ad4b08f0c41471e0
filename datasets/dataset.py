"""The base class of data sets, with the manual of how to add one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from .data import Data

OWN_FOLDER = ".daso-bench"  # in a data set's folder: files that this project made of it

Tell = Callable[[int, int], None]
"""Is called with how many files are done and how many there are."""


def silent(done: int, total: int) -> None:
    """Tells nobody."""


def at_least(key: str, value: float, low: float) -> None:
    """Raises ValueError where `value` of dataset.`key` is below `low`, or no finite number."""
    if not value >= low:
        raise ValueError(f"dataset.{key}={value}: must be >= {low}")
    if not math.isfinite(value):
        raise ValueError(f"dataset.{key}={value}: must be finite")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """What is known of the samples before they are loaded; None where it is not known.

    shape: of an image, [C, H, W]; classes: how many; samples: of each split, how many.
    """

    shape: tuple[int, int, int] | None = None
    classes: int | None = None
    samples: Mapping[str, int] | None = None


class Dataset(ABC):
    """Labelled images in three splits, and the keys with which a run chooses them.

    A new data set is three files:

    1. `datasets/mine.py`: a frozen, keyword-only dataclass that is a subclass of this class. Its fields are
       the keys `dataset.KEY`, its `__post_init__` checks them: ValueError("dataset.KEY=VALUE: must be ...").
    2. `conf/dataset/mine.yaml`: `_target_`, and every key with its default; the first line is a comment
       that `daso-bench list datasets` shows.
    3. `tests/datasets/test_mine.py`.

    A data set outside of this repository works the same: `--config-dir DIR` finds DIR/dataset/mine.yaml, and
    `_target_` names a class on PYTHONPATH.

    Only `load` has to be written. It gives the same samples in the same order in every process: random
    numbers come from keys (`streams.stream_seed`), never from a global generator. One process calls `prepare`
    before any other calls `load`; `load` reads, and neither writes nor fetches. The splits are `data.Samples`
    (`data.Split` holds them in memory), of `data.Augmentable` where training images are changed at random.

    name: what reports call it, by default the name of its file; task: classification, or segmentation where
    each pixel has a label.
    """

    name: ClassVar[str] = ""
    task: ClassVar[str] = "classification"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.name or cls.__module__.rpartition(".")[2]

    @abstractmethod
    def load(self) -> Data:
        """The three splits. Raises FileNotFoundError where nothing is prepared, OSError, ValueError."""

    def prepare(self, tell: Tell = silent) -> None:  # noqa: B027 (there may be no files)
        """Get the files ready: look at them, unpack or fetch them; nothing where there are none.

        Several processes may call it at once (`preparation.locked`). Raises FileNotFoundError with the ways
        out, ConnectionError without a network, ValueError and OSError naming what is wrong.
        """

    def info(self) -> DatasetInfo:
        """What keys or prepared files tell of the samples; a run that does not fit is refused by it."""
        return DatasetInfo()

    def about(self) -> dict[str, Any] | None:
        """What `prepare` found, for people and records: see `manifest.Manifest`; None without such files."""
        return None

    def downloading(self) -> Self:
        """The same data set, whose `prepare` may fetch files."""
        return self

    def folder(self) -> str | None:
        """The key `root`: the folder of its files; None where it has none."""
        return None

    def beside(self) -> Path | None:
        """Path, less an ending, of files that are made of this data set; None where it has no folder."""
        folder = self.folder()
        return None if folder is None else Path(folder) / OWN_FOLDER / self.name

    def fingerprint(self) -> str:
        """Which samples these are: another one where keys or files differ."""
        return repr(self)
