"""Which samples are set aside where a data set has no split of its own: as many of each class, drawn once."""

import hashlib
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
    files: Sequence[File], count: Callable[[int], int], seed: int, names: Sequence[str]
) -> dict[str, list[File]]:
    """The files of the splits called `names`, `count` of a class's number in each, and of `train`, the rest.

    All in the order of `files`. A class keeps at least one file in train. Of a class the files are drawn in
    the order of the BLAKE2b of `seed` and path: no order of listing matters, and a new file moves few others.
    """
    by_class: dict[int, list[File]] = defaultdict(list)
    for file in files:
        by_class[file.label].append(file)
    split_of: dict[str, str] = {}
    for members in by_class.values():
        drawn = sorted(members, key=lambda file: _place(file.path, seed))
        each = min(count(len(members)), (len(members) - 1) // max(1, len(names)))
        for number, name in enumerate(names):
            split_of |= {file.path: name for file in drawn[number * each : (number + 1) * each]}
    return {
        split: [file for file in files if split_of.get(file.path, "train") == split]
        for split in ("train", *names)
    }


def _place(path: str, seed: int) -> bytes:
    text = f"{seed}/held out/{path}".encode("utf-8", "surrogateescape")
    return hashlib.blake2b(text, digest_size=8).digest()
