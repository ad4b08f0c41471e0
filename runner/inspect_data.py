"""`daso-bench inspect`: what is in a data set, every bad file with its reason, and what is there twice."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..datasets.cityscapes import Cityscapes
from ..datasets.folder_dataset import FolderDataset
from ..datasets.inspection import Inspection, inspect_data, inspect_folder
from ..datasets.mask_inspection import inspect_cityscapes
from ..datasets.prepared_folder import threads
from ..datasets.shapes import Shapes
from ..datasets.synthetic import Synthetic
from ..strategies.errors import ConfigError
from .bad_data import data_told
from .display import make_console, say
from .exit_codes import MACHINE, OK
from .prepare import Tell, chosen, files_bar

_MOST_MADE = 100_000  # images of a set that is computed
_CLASSES, _SIZES, _GROUPS = 50, 10, 20  # shown to people; --json has all


def inspect(words: Sequence[str], *, config_dir: Path | None, cwd: Path, as_json: bool = False) -> int:
    """Look at the data set that `words` choose and print what was seen; 3 if something was found, else 0.

    Raises ConfigError where there is no such data set or it is damaged, MachineError where it cannot be read.
    """
    dataset = chosen(words, config_dir=config_dir, cwd=cwd, command="inspect")
    console = make_console()
    with data_told(dataset), files_bar(make_console(stderr=True), "looking at images") as tell:
        found = _inspected(dataset, tell)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        show(console, found)
    return MACHINE if found.found_something else OK


def _inspected(dataset: Any, tell: Tell) -> Inspection:
    if isinstance(dataset, FolderDataset):
        return inspect_folder(dataset, threads=threads(), tell=tell)
    if isinstance(dataset, Cityscapes):
        return inspect_cityscapes(dataset, threads=threads(), tell=tell)
    if isinstance(dataset, Synthetic | Shapes):
        _refuse_so_many(dataset)
    return inspect_data(dataset.load(), tell=tell)


def _refuse_so_many(dataset: Synthetic | Shapes) -> None:
    """Raises ConfigError for more made images than are worth making just to look at them."""
    total = dataset.samples + dataset.validation_samples + dataset.test_samples
    if total > _MOST_MADE:
        raise ConfigError(
            f"dataset.samples={dataset.samples}: inspect would make all {total} images, and none has a file "
            f"that could be bad; it looks at {_MOST_MADE} made ones at most: take fewer with "
            "dataset.samples, dataset.validation_samples and dataset.test_samples"
        )


def show(console: Console, found: Inspection) -> None:
    """For people: the classes by split, what the files are, what is wrong with them."""
    say(console, found.name, "bold")
    console.print(_classes(found))
    if len(found.class_names) > _CLASSES:
        say(console, f"... and {len(found.class_names) - _CLASSES} more classes (--json has all)", "dim")
    if found.held_out:
        say(console, f"held out of train: {', '.join(found.held_out)}")
    for what, counts in (
        ("sizes", found.sizes),
        ("modes", found.modes),
        ("converted", found.conversions),
        ("no images by their names", found.others),
    ):
        if counts:
            say(console, f"{what}: {_most(counts)}")
    for text in found.warnings:
        say(console, f"warning: {text}", "yellow")
    _show_bad(console, found)
    _show_duplicates(console, found)
    if not found.found_something:
        say(console, "Nothing is wrong.", "bold")


def _classes(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("class" if found.unlabelled is None else "pixels of class", overflow="fold")
    for split in found.counts:
        table.add_column(split, justify="right")
    for number, name in enumerate(found.class_names[:_CLASSES]):
        counts = [counts[number] for counts in found.counts.values()]
        table.add_row(Text(name), *(Text(str(count), style="" if count else "yellow") for count in counts))
    for name, totals in _totals(found).items():
        table.add_row(*(Text(word, style="bold") for word in (name, *(str(total) for total in totals))))
    return table


def _totals(found: Inspection) -> dict[str, list[int]]:
    """The rows below the classes: all images, and the pixels where each has a label."""
    images = list(found.images.values())
    if found.unlabelled is None:
        return {"all": images}
    labelled = [sum(counts) for counts in found.counts.values()]
    unlabelled = list(found.unlabelled.values())
    return {"all labelled pixels": labelled, "unlabelled pixels": unlabelled, "images": images}


def _show_bad(console: Console, found: Inspection) -> None:
    if found.bad:
        say(console, f"bad files: {len(found.bad)}", "red")
    for path, reason in found.bad:
        say(console, f"  {path}: {reason}")


def _show_duplicates(console: Console, found: Inspection) -> None:
    if found.repeated:
        say(console, f"further copies of an image in its own split: {found.repeated}")
    if not found.duplicates:
        return
    say(console, f"the same image in more than one split: {len(found.duplicates)}", "red")
    for group in found.duplicates[:_GROUPS]:
        say(
            console,
            "  "
            + " = ".join(f"{split} {name}" + f" ({label})" * bool(label) for split, label, name in group),
        )
    if len(found.duplicates) > _GROUPS:
        say(console, f"  ... and {len(found.duplicates) - _GROUPS} more (--json has all)")


def _most(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(_SIZES))
    return shown + (f", and {len(counts) - _SIZES} more" if len(counts) > _SIZES else "")
