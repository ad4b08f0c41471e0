"""Everything that can be seen of a data set's files before a run: all are decoded, whatever `check` says.

Two images are the same if they have the same pixels, however their files are compressed.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .augmentation import UNLABELLED
from .checking import in_threads
from .data import SPLITS, Data
from .dataset import Tell, silent
from .folder_dataset import FolderDataset
from .pixels import BadImage, Header, inspect
from .tree import File, Tree

_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What was seen. Sizes and modes count usable files as they are stored.

    counts: by split, the images of each class, or where each pixel has a label the pixels of each class;
    images: by split; unlabelled: by split, pixels without a class, None where images have the labels;
    duplicates: groups of the same image in more than one split, each entry (split, class, name), or of images
    with masks (split, "", name); repeated: further copies of an image in its own split.
    """

    name: str
    class_names: list[str]
    counts: dict[str, list[int]]
    images: dict[str, int]
    unlabelled: dict[str, int] | None = None
    held_out: list[str] = field(default_factory=list)
    bad: list[tuple[str, str]] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    conversions: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    duplicates: list[list[tuple[str, str, str]]] = field(default_factory=list)
    repeated: int = 0
    warnings: list[str] = field(default_factory=list)

    @property
    def found_something(self) -> bool:
        """Whether there is anything to mend or to know: bad files, duplicates across splits, warnings."""
        return bool(self.bad or self.duplicates or self.warnings)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "schema_version": 1,
            "name": self.name,
            "ok": not self.found_something,
            "classes": [
                {"name": name, **{split: self.counts[split][number] for split in self.counts}}
                for number, name in enumerate(self.class_names)
            ],
            "samples": self.images,
            **({} if self.unlabelled is None else {"unlabelled_pixels": self.unlabelled}),
            "held_out": self.held_out,
            "bad": [{"path": path, "reason": reason} for path, reason in self.bad],
            "sizes": dict(self.sizes.most_common()),
            "modes": dict(self.modes.most_common()),
            "conversions": dict(self.conversions.most_common()),
            "other_files": dict(self.others.most_common()),
            "duplicates_across_splits": [
                [{"split": split, "class": label, "name": name} for split, label, name in group]
                for group in self.duplicates
            ],
            "repeated_within_a_split": self.repeated,
            "warnings": self.warnings,
        }


def inspect_folder(dataset: FolderDataset, *, threads: int, tell: Tell = silent) -> Inspection:
    """Decode every file of `dataset`. Raises FileNotFoundError, ValueError as its `tree` does."""
    tree = dataset.tree()
    files = list(chain.from_iterable(tree.splits.values()))
    seen = _look_at(dataset, files, threads=threads, tell=tell)
    usable = {
        name: [file for file in files if file.path in seen.digests] for name, files in tree.splits.items()
    }
    splits = dataset.divide(usable)
    named = (
        (split, tree.classes[file.label], file.path, seen.digests[file.path])
        for split in SPLITS
        for file in splits[split]
    )
    duplicates, repeated = same_images(named)
    return Inspection(
        name=dataset.name,
        class_names=list(tree.classes),
        counts={split: _counts([file.label for file in splits[split]], tree) for split in SPLITS},
        images={split: len(splits[split]) for split in SPLITS},
        held_out=[split for split in SPLITS if split not in tree.splits],
        bad=[*tree.bad, *seen.bad],
        sizes=seen.sizes,
        modes=seen.modes,
        conversions=seen.conversions,
        others=tree.others,
        duplicates=duplicates,
        repeated=repeated,
        warnings=[
            *tree.warnings,
            *dataset.lacking(tree, usable, splits),
            *(f"the {split} split is empty" for split in SPLITS if not splits[split]),
        ],
    )


def inspect_data(data: Data, *, tell: Tell = silent) -> Inspection:
    """Look at every image of a data set that has no files of its own for them."""
    names = [str(number) for number in range(data.classes)]
    counts = {split: [0] * data.classes for split in SPLITS}
    images = {split: len(data.split(split)) for split in SPLITS}
    masked = dict.fromkeys(SPLITS, 0)
    named: list[tuple[str, str, str, bytes]] = []
    total = sum(images.values())
    for split in SPLITS:
        samples = data.split(split)
        for indices in torch.arange(len(samples)).split(_BATCH):
            pixels, labels = samples.batch(indices)
            known = labels[labels != UNLABELLED] if labels.dim() > 1 else labels
            masked[split] += labels.numel() if labels.dim() > 1 else 0
            added = known.bincount(minlength=data.classes).tolist()
            counts[split] = [a + b for a, b in zip(counts[split], added, strict=True)]
            for place, index in enumerate(indices.tolist()):
                label = names[int(labels[place])] if labels.dim() == 1 else ""
                named.append((split, label, f"number {index}", digest(pixels[place])))
            tell(len(named), total)
    duplicates, repeated = same_images(iter(named))
    channels, height, width = data.shape
    return Inspection(
        name=data.name,
        class_names=names,
        counts=counts,
        images=images,
        unlabelled={split: masked[split] - sum(counts[split]) for split in SPLITS}
        if any(masked.values())
        else None,
        sizes=Counter({f"{width} x {height}": total}),
        modes=Counter({f"{channels} channel{'s' * (channels != 1)}": total}),
        duplicates=duplicates,
        repeated=repeated,
        warnings=absent(counts, names, "pixel" if any(masked.values()) else "image"),
    )


def absent(counts: dict[str, list[int]], names: Sequence[str], what: str) -> list[str]:
    """Warnings of classes that have no `what` in a split."""
    return [
        f"{split}: no {what} of class {names[number]!r}"
        for split in SPLITS
        for number, count in enumerate(counts[split])
        if not count
    ]


@dataclass(frozen=True, kw_only=True)
class _Seen:
    bad: list[tuple[str, str]] = field(default_factory=list)
    digests: dict[str, bytes] = field(default_factory=dict)
    sizes: Counter[str] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    conversions: Counter[str] = field(default_factory=Counter)


def _look_at(dataset: FolderDataset, files: list[File], *, threads: int, tell: Tell) -> _Seen:
    root, rules, seen = Path(dataset.root), dataset.rules, _Seen()

    def look(file: File) -> tuple[File, str | tuple[Header, bytes]]:
        try:
            header, pixels = inspect(str(root / file.path), rules)
        except BadImage as error:
            return file, error.reason
        return file, (header, digest(pixels))

    for file, found in in_threads(look, files, threads=threads, tell=tell):
        if isinstance(found, str):
            seen.bad.append((file.path, found))
            continue
        header, seen.digests[file.path] = found
        seen.sizes[f"{header.width} x {header.height}"] += 1
        seen.modes[header.mode] += 1
        seen.conversions.update(header.conversions)
    return seen


def digest(pixels: Tensor) -> bytes:
    """Of an image's pixels and size."""
    seen = hashlib.blake2b(str(list(pixels.shape)).encode(), digest_size=16)
    seen.update(pixels.contiguous().numpy().tobytes())
    return seen.digest()


def same_images(
    named: Iterator[tuple[str, str, str, bytes]],
) -> tuple[list[list[tuple[str, str, str]]], int]:
    """Groups that span splits, and how many images beyond the first of a digest their own split has."""
    groups: dict[bytes, list[tuple[str, str, str]]] = {}
    for split, label, name, digest in named:
        groups.setdefault(digest, []).append((split, label, name))
    several = [group for group in groups.values() if len(group) > 1]
    repeated = sum(len(group) - len({split for split, _, _ in group}) for group in several)
    return [group for group in several if len({split for split, _, _ in group}) > 1], repeated


def _counts(labels: list[int], tree: Tree) -> list[int]:
    counted = Counter(labels)
    return [counted[number] for number in range(len(tree.classes))]
