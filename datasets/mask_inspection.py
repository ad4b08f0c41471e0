"""What can be seen of images and their masks before a run: all are decoded, whatever `check` says."""

from collections import Counter
from itertools import chain

import torch

from .augmentation import UNLABELLED
from .checking import in_threads
from .cityscapes import RULES, Cityscapes, blamed
from .data import SPLITS
from .dataset import Tell, silent
from .inspection import Inspection, absent, digest, same_images
from .pixels import BadImage, Header, header
from .tree import File


def inspect_cityscapes(dataset: Cityscapes, *, threads: int, tell: Tell = silent) -> Inspection:
    """Decode every image and mask of `dataset`. Raises FileNotFoundError as its `tree` does."""
    tree = dataset.tree()
    files = list(chain.from_iterable(tree.splits.values()))
    samples = dataset.masked_files([file.path for file in files])

    def look(number: int) -> tuple[File, str | tuple[Header, bytes, torch.Tensor]]:
        try:
            image, mask = samples.pair(number)
            about = header(f"{dataset.root}/{files[number].path}", RULES)
        except BadImage as error:
            return files[number], blamed(error, dataset.root, files[number].path)
        return files[number], (about, digest(image), mask.flatten().bincount(minlength=UNLABELLED + 1))

    bad, digests = list(tree.bad), dict[str, bytes]()
    pixels = dict[str, torch.Tensor]()
    sizes, modes, conversions = Counter[str](), Counter[str](), Counter[str]()
    for file, found in in_threads(look, range(len(files)), threads=threads, tell=tell):
        if isinstance(found, str):
            bad.append((file.path, found))
            continue
        about, digests[file.path], pixels[file.path] = found
        sizes[f"{about.width} x {about.height}"] += 1
        modes[about.mode] += 1
        conversions.update(about.conversions)
    usable = {name: [file for file in found if file.path in digests] for name, found in tree.splits.items()}
    splits = dataset.divide(usable)
    counts = {
        split: sum(
            (pixels[file.path] for file in splits[split]), torch.zeros(UNLABELLED + 1, dtype=torch.int64)
        )
        for split in SPLITS
    }
    duplicates, repeated = same_images(
        (split, "", file.path, digests[file.path]) for split in SPLITS for file in splits[split]
    )
    by_class = {split: counts[split][: dataset.classes].tolist() for split in SPLITS}
    return Inspection(
        name=dataset.name,
        class_names=list(tree.classes),
        counts=by_class,
        images={split: len(splits[split]) for split in SPLITS},
        unlabelled={split: int(counts[split][UNLABELLED]) for split in SPLITS},
        held_out=[split for split in SPLITS if split not in tree.splits],
        bad=bad,
        sizes=sizes,
        modes=modes,
        conversions=conversions,
        others=tree.others,
        duplicates=duplicates,
        repeated=repeated,
        warnings=[*tree.warnings, *absent(by_class, tree.classes, "pixel")],
    )
