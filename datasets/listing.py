"""Lists the files of a folder of images, before any is opened, and draws the samples held out of train.

Both are the same on every file system. Names that begin with a dot (`.ipynb_checkpoints`, `._x.jpg`,
`.DS_Store`) and files that Windows leaves behind are ignored. Files are in natural order (2.jpg before
10.jpg), classes in the order of their code points, as torchvision numbers them. Links to folders are
followed.
"""

import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .pixels import SUFFIXES

CLUTTER = frozenset(("thumbs.db", "desktop.ini", "__macosx", "lost+found"))
NAMED = 20  # classes in a message


@dataclass(frozen=True, slots=True)
class File:
    """An image file: path below the root with `/`, number of its class, bytes, and time of change."""

    path: str
    label: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The files of a data set by split, for the splits that its folders have, and the names of its classes.

    bad: (path, reason) of files that do not fit the layout; others: number of files without the suffix of an
    image, by suffix; warnings: sentences.
    """

    classes: tuple[str, ...]
    splits: dict[str, list[File]]
    bad: list[tuple[str, str]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def is_hidden(name: str) -> bool:
    """Whether a file or folder of that name is ignored."""
    return name.startswith(".") or name.lower() in CLUTTER


def is_image(name: str) -> bool:
    """Whether a file of that name has the suffix of an image."""
    return os.path.splitext(name)[1].lower() in SUFFIXES


def natural(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key: numbers in names by their value."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts], text


def folders_in(folder: str) -> list[str]:
    """Names of the folders that are not ignored, in the order of their code points."""
    return sorted(
        name
        for name in os.listdir(folder)
        if not is_hidden(name) and os.path.isdir(os.path.join(folder, name))
    )


def listed_classes(names: Sequence[str]) -> str:
    """Names of classes for a message, the first `NAMED` of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"class{'es' * (len(names) > 1)} {', '.join(map(repr, names[:NAMED]))}{more}"


def images_below(root: str, below: str, label: int, others: Counter[str]) -> list[File]:
    """The image files at any depth below `root`/`below`, in natural order; `others` counts the rest."""
    files = []
    for folder, folders, names in os.walk(os.path.join(root, below), followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        for name in names:
            if is_image(name) and not is_hidden(name):
                place = os.path.join(folder, name)
                # A broken link is listed: opening it will fail with its name.
                stat = os.stat(place) if os.path.exists(place) else os.lstat(place)
                files.append(File(os.path.relpath(place, root), label, stat.st_size, stat.st_mtime_ns))
            elif not is_hidden(name):
                others[os.path.splitext(name)[1].lower() or "no suffix"] += 1
    return sorted(files, key=lambda file: natural(file.path))


def loose_images(root: str, below: str) -> list[tuple[str, str]]:
    """(path, reason) of image files that lie directly in `root`/`below`, not in the folder of a class."""
    folder = os.path.join(root, below)
    names = [
        name
        for name in os.listdir(folder)
        if is_image(name) and not is_hidden(name) and not os.path.isdir(os.path.join(folder, name))
    ]
    paths = sorted((f"{below}/{name}" if below else name for name in names), key=natural)
    return [(path, "lies in no class's folder") for path in paths]


# ------------------------------------------------------------------ held out of train


def hold_out(
    files: Sequence[File],
    count: Callable[[int], int],
    *,
    names: Sequence[str],
    drawn_as: Callable[[str], str],
) -> dict[str, list[File]]:
    """The files of the splits `names` and of `train`, the rest, all in the order of `files`.

    Each of `names` gets `count` files of a class; at least one stays in train. The files of a class are drawn
    in the order of `place_in_draw` of `drawn_as(path)`, which names class and file but not the place of the
    data set: the order of listing does not matter, and a new file moves few others.
    """
    by_class: dict[int, list[File]] = defaultdict(list)
    for file in files:
        by_class[file.label].append(file)
    split_of: dict[str, str] = {}
    for members in by_class.values():
        # Files with equal names in the draw are ordered by their paths.
        drawn = sorted(members, key=lambda file: (place_in_draw(drawn_as(file.path)), file.path))
        each = min(count(len(members)), (len(members) - 1) // max(1, len(names)))
        for number, name in enumerate(names):
            split_of |= {file.path: name for file in drawn[number * each : (number + 1) * each]}
    return {
        split: [file for file in files if split_of.get(file.path, "train") == split]
        for split in ("train", *names)
    }


def place_in_draw(name: str) -> bytes:
    """Sort key by which names are drawn; another key would be another data set."""
    text = f"0/held out/{name}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).digest()
