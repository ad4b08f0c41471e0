"""The manifest of a prepared folder: one file that all ranks read, with splits, labels and bad files.

A NumPy archive: for each split the paths as one text with their ends, and the labels; `about` is JSON. Its
parts have checksums (CRC-32, of the zip format), so that damage is noticed.
"""

import json
import os
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .data import SPLITS
from .preparation import BadFile, replacing
from .tree import File

FORMAT = 1  # a file of another format is made again
# Errors of zipfile and NumPy for a damaged archive. RuntimeError: an entry looks encrypted, or of a later
# version; OSError: an offset lies before the start.
_DAMAGE = (ValueError, KeyError, EOFError, RuntimeError, OSError, zipfile.BadZipFile)


class Paths(Sequence[str]):
    """Paths stored as one text: a million of them are two arrays, which forked processes share."""

    def __init__(self, text: np.ndarray, ends: np.ndarray) -> None:
        self._text, self._ends = text, ends

    @classmethod
    def of(cls, paths: Iterable[str]) -> "Paths":
        """From `paths` as the file system spells them."""
        encoded = [os.fsencode(path) for path in paths]
        ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        """The path number `index` (not a slice); IndexError out of range."""
        if not 0 <= index < len(self._ends):
            raise IndexError(f"path {index}: there are {len(self._ends)}")
        start = int(self._ends[index - 1]) if index else 0
        return os.fsdecode(self._text[start : int(self._ends[index])].tobytes())

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The text uint8 [bytes] and, int64 [M], where each path ends in it."""
        return self._text, self._ends


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The usable files of each split, with their labels, and `about`, facts for people and records.

    about: class_names, samples of each split, held_out (splits drawn from train), bad ([path, reason] of
    files left out), conversions (number of files for each rule of `pixels`), others (files that are no
    images, by suffix), warnings, check, tree (digest of the files that were listed), and files (digest of
    names, labels and sizes of those that are used).
    """

    paths: dict[str, Paths]
    labels: dict[str, Tensor]
    about: dict[str, Any]

    @classmethod
    def of(cls, splits: dict[str, list[File]], about: dict[str, Any]) -> "Manifest":
        """From the files of each split."""
        return cls(
            paths={name: Paths.of(file.path for file in files) for name, files in splits.items()},
            labels={
                name: torch.tensor([file.label for file in files], dtype=torch.int64)
                for name, files in splits.items()
            },
            about={
                "format": FORMAT,
                **about,
                "samples": {name: len(files) for name, files in splits.items()},
            },
        )

    def write(self, path: Path) -> None:
        """Write it atomically: readers see the old one or all of the new one."""
        arrays: dict[str, Any] = {"about": np.frombuffer(json.dumps(self.about).encode(), dtype=np.uint8)}
        for name in SPLITS:
            text, ends = self.paths[name].arrays()
            arrays |= {
                f"{name}_text": text,
                f"{name}_ends": ends,
                f"{name}_labels": self.labels[name].numpy(),
            }
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Raises FileNotFoundError if there is none, BadFile naming the file if it is damaged."""
        with _opened(path) as file:
            return cls(
                paths={name: Paths(file[f"{name}_text"], file[f"{name}_ends"]) for name in SPLITS},
                labels={name: torch.from_numpy(file[f"{name}_labels"]) for name in SPLITS},
                about=_about(file),
            )


def read_about(path: Path) -> dict[str, Any]:
    """`about` of a manifest, without its lists; raises as `Manifest.read`."""
    with _opened(path) as file:
        return _about(file)


class _opened:
    """Opens a NumPy archive; errors of damage name the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Any:
        self._handle = open(self._path, "rb")
        try:
            self._file = np.load(self._handle, allow_pickle=False)
        except _DAMAGE as error:
            self._handle.close()
            raise self._damaged(error) from error
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._file.close()
        self._handle.close()
        if isinstance(error, _DAMAGE):
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> BadFile:
        return BadFile(f"{self._path}: damaged ({error}); delete it and prepare the data set again")


def _about(file: Any) -> dict[str, Any]:
    about = json.loads(file["about"].tobytes())
    if about.get("format") != FORMAT:
        raise ValueError(f"format {about.get('format')}, this version reads {FORMAT}")
    return about
