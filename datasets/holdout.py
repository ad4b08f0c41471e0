"""Which samples are set aside where a data set has no split of its own: as many of each class, drawn once."""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .sampler import stream_seed
from .tree import File

SPLIT_SEED = 0  # of data sets that are always the same; frozen: another value is another data set


def split_by_class(labels: Tensor, held_out_per_class: int, name: str) -> tuple[Tensor, Tensor]:
    """Indices int64, ascending, of (the rest, the held-out samples), as many of each class, drawn once.

    labels: int64 [M]; name: of the data set, whose draw is its own.
    """
    generator = torch.Generator().manual_seed(stream_seed(SPLIT_SEED, name, "validation"))
    order = torch.randperm(len(labels), generator=generator)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        held_out[order[labels[order] == label][:held_out_per_class]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def share_of_class(share: float) -> Callable[[int], int]:
    """How many of a class's samples make `share`, rounded: at least 1 of a class of 3 or more."""
    return lambda samples: max(round(share * samples), 1) if samples >= 3 else 0


def hold_out(
    files: Sequence[File],
    count: Callable[[int], int],
    *,
    seed: int,
    names: Sequence[str],
    drawn_as: Callable[[str], str],
) -> dict[str, list[File]]:
    """The files of the splits called `names`, `count` of a class's number in each, and of `train`, the rest.

    All in the order of `files`. A class keeps at least one file in train. Of a class the files are drawn in
    the order of `place_in_draw` of what `drawn_as` makes of their paths, which names class and file and not
    where the data set lies: no order of listing matters, and a new file moves few others.
    """
    by_class: dict[int, list[File]] = defaultdict(list)
    for file in files:
        by_class[file.label].append(file)
    split_of: dict[str, str] = {}
    for members in by_class.values():
        # Files drawn under one name, such as two spellings of it, are told apart by their paths.
        drawn = sorted(members, key=lambda file: (place_in_draw(drawn_as(file.path), seed), file.path))
        each = min(count(len(members)), (len(members) - 1) // max(1, len(names)))
        for number, name in enumerate(names):
            split_of |= {file.path: name for file in drawn[number * each : (number + 1) * each]}
    return {
        split: [file for file in files if split_of.get(file.path, "train") == split]
        for split in ("train", *names)
    }


def place_in_draw(name: str, seed: int) -> bytes:
    """What names are sorted by to draw the first of them: BLAKE2b of `seed` and the name.

    An accent is one letter, however the file system stores it (NFC).
    """
    text = f"{seed}/held out/{unicodedata.normalize('NFC', name)}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).digest()
