"""The base class of data sets, with the manual of how to add one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from .data import Data

OWN_FOLDER = ".daso-bench"  # in the folder of a data set: files that this project made from it

Tell = Callable[[int, int], None]
"""Reports progress: called with the number of files done and the number of all files."""


def silent(done: int, total: int) -> None:
    """Reports nothing."""


def at_least(key: str, value: float, low: float) -> None:
    """Raise ValueError if `value` of dataset.`key` is below `low`, or not finite."""
    if not value >= low:
        raise ValueError(f"dataset.{key}={value}: must be >= {low}")
    if not math.isfinite(value):
        raise ValueError(f"dataset.{key}={value}: must be finite")


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """Facts about the samples before they are loaded; None: unknown.

    shape: of an image, [C, H, W]; classes: their number; samples: the number of each split.
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
    numbers come from keys (`stream_seeds.py`), never from a global generator. One process calls `prepare`
    before any other calls `load`; `load` reads, and neither writes nor fetches. The splits are `data.Samples`
    (`data.Split` holds them in memory), of `data.Augmentable` where training images are changed at random.

    name: the name in reports, by default that of the module; task: classification, or segmentation if each
    pixel has a label.
    """

    name: ClassVar[str] = ""
    task: ClassVar[str] = "classification"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.name = cls.name or cls.__module__.rpartition(".")[2]

    @abstractmethod
    def load(self) -> Data:
        """The three splits. Raises FileNotFoundError if nothing is prepared, OSError, ValueError."""

    def prepare(self, tell: Tell = silent) -> None:  # noqa: B027 (there may be no files)
        """Check the files, and fetch or unpack them if necessary; does nothing if there are none.

        Several processes may call it at once (`atomic_files.locked`). Raises FileNotFoundError with the ways
        out, ConnectionError without a network, ValueError and OSError that name the problem.
        """

    def info(self) -> DatasetInfo:
        """Facts about the samples, from keys or prepared files; runs that do not fit are refused by them."""
        return DatasetInfo()

    def expected_info(self) -> DatasetInfo:
        """As `info`; of the whole data set where its files are not prepared. For plans, never for a run."""
        return self.info()

    def about(self) -> dict[str, Any] | None:
        """The result of `prepare` for people and records, see `verification.Manifest`; None without files."""
        return None

    def downloading(self) -> Self:
        """The same data set, whose `prepare` may fetch files."""
        return self

    def folder(self) -> str | None:
        """The folder of its files (the key `root`); None if it has none."""
        return None

    def beside(self) -> Path | None:
        """Path, without a suffix, of files that are made from this data set; None if it has no folder."""
        folder = self.folder()
        return None if folder is None else Path(folder) / OWN_FOLDER / self.name

    def fingerprint(self) -> str:
        """Identifies the samples: differs where keys or files differ."""
        return repr(self)
