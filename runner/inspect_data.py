"""`daso-bench inspect`: what is in a data set, every bad file with its reason, and what is there twice."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..datasets.folder_dataset import FolderDataset, threads
from ..datasets.inspection import Inspection, inspect_data, inspect_folder
from ..strategies.errors import ConfigError, MachineError
from .display import make_console, say
from .exit_codes import MACHINE, OK
from .prepare import chosen, files_bar

_CLASSES, _SIZES, _GROUPS = 50, 10, 20  # shown to people; --json has all


def inspect(words: Sequence[str], *, config_dir: Path | None, cwd: Path, as_json: bool = False) -> int:
    """Look at the data set that `words` choose and print what was seen; 3 if something was found, else 0.

    Raises ConfigError where there is no such data set, MachineError where its files cannot be read.
    """
    dataset = chosen(words, config_dir=config_dir, cwd=cwd, command="inspect")
    console = make_console()
    try:
        with files_bar(make_console(stderr=True), "looking at images") as tell:
            found = (
                inspect_folder(dataset, threads=threads(), tell=tell)
                if isinstance(dataset, FolderDataset)
                else inspect_data(dataset.load(), tell=tell)
            )
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise MachineError(str(error)) from error
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        show(console, found)
    return MACHINE if found.found_something else OK


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
    table.add_column("class", overflow="fold")
    for split in found.counts:
        table.add_column(split, justify="right")
    for number, name in enumerate(found.class_names[:_CLASSES]):
        counts = [counts[number] for counts in found.counts.values()]
        table.add_row(Text(name), *(Text(str(count), style="" if count else "yellow") for count in counts))
    totals = [str(sum(counts)) for counts in found.counts.values()]
    table.add_row(*(Text(word, style="bold") for word in ("all", *totals)))
    return table


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
        say(console, "  " + " = ".join(f"{split} {name} ({label})" for split, label, name in group))
    if len(found.duplicates) > _GROUPS:
        say(console, f"  ... and {len(found.duplicates) - _GROUPS} more (--json has all)")


def _most(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(_SIZES))
    return shown + (f", and {len(counts) - _SIZES} more" if len(counts) > _SIZES else "")
