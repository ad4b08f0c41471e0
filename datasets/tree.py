"""The files in a folder of images, before any is opened, and the samples that are held out of train.

Both are the same on every file system. Names that begin with a dot (`.ipynb_checkpoints`, `._x.jpg`,
`.DS_Store`) and files that Windows leaves behind are ignored. Files are in natural order (2.jpg before
10.jpg), classes in the order of their code points, as torchvision numbers them. A link to a folder is
followed, unless it leads back to a folder that it lies in.
"""

import hashlib
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .pixels import SUFFIXES
from .stream_seeds import stream_seed

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
    """Sort key: numbers in names by their value. Does not depend on how accents are stored."""
    parts = re.split(r"([0-9]+)", unicodedata.normalize("NFC", text))
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in parts], text


def folders_in(folder: str) -> list[str]:
    """Names of the folders that are not ignored, in the order of their code points."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not is_hidden(entry.name) and _is_folder(entry))


def class_name(folder: str) -> str:
    """The class of a folder's name: the same however accents are stored (NFC)."""
    return unicodedata.normalize("NFC", folder)


def listed_classes(names: Sequence[str]) -> str:
    """Names of classes for a message, the first `NAMED` of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"class{'es' * (len(names) > 1)} {', '.join(map(repr, names[:NAMED]))}{more}"


def images_below(root: str, below: str, label: int, others: Counter[str]) -> list[File]:
    """The image files at any depth below `root`/`below`, in natural order; `others` counts the rest."""
    files = []
    for path, stat in _walk(root, below, ()):
        if is_image(path):
            files.append(File(path, label, stat.st_size, stat.st_mtime_ns))
        else:
            others[os.path.splitext(path)[1].lower() or "no suffix"] += 1
    return sorted(files, key=lambda file: natural(file.path))


def loose_images(root: str, below: str) -> list[str]:
    """Image files that lie directly in `root`/`below`, not in the folder of a class."""
    with os.scandir(os.path.join(root, below)) as entries:
        names = [e.name for e in entries if not is_hidden(e.name) and is_image(e.name) and not _is_folder(e)]
    return sorted((f"{below}/{name}" if below else name for name in names), key=natural)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or without permission: opening it will fail with its name
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
            # A broken link, or a pipe, is listed: opening it will fail with its name.
            yield path, entry.stat(follow_symlinks=os.path.exists(entry.path))


# ------------------------------------------------------------------ held out of train


SPLIT_SEED = 0  # of data sets without a key for it; another value would be another data set


def split_by_class(labels: Tensor, held_out_per_class: int, name: str) -> tuple[Tensor, Tensor]:
    """Indices int64, ascending, of (the rest, the held-out samples): the same number of each class.

    labels: int64 [M]; name: of the data set, which decides the draw.
    """
    generator = torch.Generator().manual_seed(stream_seed(SPLIT_SEED, name, "validation"))
    order = torch.randperm(len(labels), generator=generator)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        held_out[order[labels[order] == label][:held_out_per_class]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def share_of_class(share: float) -> Callable[[int], int]:
    """From the samples of a class to the number of its `share`, rounded, at least 1 of 3 or more."""
    return lambda samples: max(round(share * samples), 1) if samples >= 3 else 0


def hold_out(
    files: Sequence[File],
    count: Callable[[int], int],
    *,
    seed: int,
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
        # Files with equal names in the draw, such as two spellings, are ordered by their paths.
        drawn = sorted(members, key=lambda file: (place_in_draw(drawn_as(file.path), seed), file.path))
        each = min(count(len(members)), (len(members) - 1) // max(1, len(names)))
        for number, name in enumerate(names):
            split_of |= {file.path: name for file in drawn[number * each : (number + 1) * each]}
    return {
        split: [file for file in files if split_of.get(file.path, "train") == split]
        for split in ("train", *names)
    }


def place_in_draw(name: str, seed: int) -> bytes:
    """Sort key by which names are drawn: BLAKE2b of `seed` and the name, with accents in one form (NFC)."""
    text = f"{seed}/held out/{unicodedata.normalize('NFC', name)}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).digest()
