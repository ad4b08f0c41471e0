"""What lies in a folder of image files, before any file is opened: the same on every file system.

Names that begin with a dot (`.ipynb_checkpoints`, `._x.jpg`, `.DS_Store`) and what Windows leaves behind are
not looked at. Files are in natural order (2.jpg before 10.jpg), classes in the order of their letters' codes,
as torchvision numbers them. A link to a folder is followed, unless it leads back to where it lies.
"""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .pixels import SUFFIXES

CLUTTER = frozenset(("thumbs.db", "desktop.ini", "__macosx", "lost+found"))
NAMED = 20  # classes in a sentence


@dataclass(frozen=True, slots=True)
class File:
    """An image file: its path below the root with `/`, its class's number, bytes, and time of change."""

    path: str
    label: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The files of a data set by split, as far as it has splits of its own, and the names of its classes.

    bad: (path, reason) of what has no place in the layout; others: files that are no images by their name,
    by suffix; warnings: sentences.
    """

    classes: tuple[str, ...]
    splits: dict[str, list[File]]
    bad: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is not looked at."""
    return name.startswith(".") or name.lower() in CLUTTER


def is_image(name: str) -> bool:
    """Whether a file of that name is meant to be an image."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def natural(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts numbers in names by their value; equal on all machines, whatever form accents are stored in."""
    parts = re.split(r"([0-9]+)", unicodedata.normalize("NFC", text))
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts], text


def folders_in(folder: str) -> list[str]:
    """Names of the folders that are looked at, by their letters' codes."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not is_hidden(entry.name) and _is_folder(entry))


def class_name(folder: str) -> str:
    """The class that a folder's name stands for: one spelling for accents, however they are stored."""
    return unicodedata.normalize("NFC", folder)


def listed_classes(names: Sequence[str]) -> str:
    """Classes by name, for a sentence; the first of them if they are many."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"class{'es' * (len(names) > 1)} {', '.join(map(repr, names[:NAMED]))}{more}"


def images_below(root: str, below: str, label: int, others: Counter[str]) -> list[File]:
    """The image files at any depth below `root`/`below`, in natural order; `others` counts the rest."""
    found = []
    for path, stat in _walk(root, below, ()):
        if is_image(path):
            found.append(File(path, label, stat.st_size, stat.st_mtime_ns))
        else:
            others[os.path.splitext(path)[1].lower() or "no suffix"] += 1
    return sorted(found, key=lambda file: natural(file.path))


def loose_images(root: str, below: str) -> list[str]:
    """Image files that lie directly in `root`/`below`, and so in no class's folder."""
    with os.scandir(os.path.join(root, below)) as entries:
        names = [e.name for e in entries if not is_hidden(e.name) and is_image(e.name) and not _is_folder(e)]
    return sorted((f"{below}/{name}" if below else name for name in names), key=natural)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to where nobody may look: opening it will say so
        return False


def _walk(root: str, below: str, trail: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, os.stat_result]]:
    folder = os.path.join(root, below)
    here = os.stat(folder)
    if (here.st_dev, here.st_ino) in trail:
        return  # a link back to a folder that it lies in
    with os.scandir(folder) as listed:
        entries = [entry for entry in listed if not is_hidden(entry.name)]
    for entry in entries:
        path = f"{below}/{entry.name}"
        if _is_folder(entry):
            yield from _walk(root, path, (*trail, (here.st_dev, here.st_ino)))
        else:
            # A link that leads nowhere, or a pipe, is listed: opening it will say so, with its name.
            yield path, entry.stat(follow_symlinks=os.path.exists(entry.path))
