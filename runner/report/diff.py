"""`daso-bench report --diff A B`: what changed in configuration, environment and numbers."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.display import make_console, say
from . import words
from .data.arms import Arm, common_settings, compare
from .data.examination import examined
from .data.load import Run, load_runs
from .data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean

MISSING = "not there"
Place = tuple[str, str, str, str, str, str]
"""Model, data, world, size, assumption and label: the arm that two sets of results have in common."""
Change = tuple[str, str, str]
"""A key, and its values in A and B."""
Number = tuple[str, str, str, str]
"""A name, its values in A and B, and B over A."""


def show_diff(folder_a: Path, folder_b: Path) -> int:
    """Print it; returns the exit code. Raises ConfigError where there is no run."""
    sets = [examined(load_runs(folder, "report --diff")) for folder in (folder_a, folder_b)]
    console = make_console()
    say(console, f"A: {folder_a}\nB: {folder_b}")
    _show(console, "environment", changes(*map(_environment, sets)))
    of_a, of_b = map(arms_of, sets)
    for place in of_a:  # studies may have other names
        if place in of_b:
            a, b = of_a[place], of_b[place]
            say(console, "")
            say(console, _title(place), "bold")
            say(console, f"  runs  {len(a.counted)}, {len(b.counted)}")
            _show(console, "  configuration", changes(common_settings(a.runs), common_settings(b.runs)))
            _show(console, "  numbers: A, B and B over A", numbers(a, b))
    for name, places, others in (("A", of_a, of_b), ("B", of_b, of_a)):
        for place in places:
            if place not in others:
                say(console, f"only in {name}: {_title(place)}")
    return 0


def changes(a: dict[str, str], b: dict[str, str]) -> list[Change]:
    """Every key whose value differs."""
    every = [(key, a.get(key, MISSING), b.get(key, MISSING)) for key in sorted({*a, *b})]
    return [(key, of_a, of_b) for key, of_a, of_b in every if of_a != of_b]


def arms_of(runs: Sequence[Run]) -> dict[Place, Arm]:
    """The arms of a set of results, each by what names it in another set."""
    arms: dict[Place, Arm] = {}
    for c in compare(runs):
        for arm in c.arms:
            arms.setdefault((c.model, c.dataset, c.world, c.size, c.assumption, arm.label), arm)
    return arms


def numbers(a: Arm, b: Arm) -> list[Number]:
    """The numbers of an arm that both sets have."""
    of_a, of_b = _values(a), _values(b)
    names = ("time of all work", "time to target", "samples per second", f"final {a.runs[0].judged_by.name}")
    bytes_names = (f"bytes {where}" for where in words.LINKS.values())
    say = (words.seconds, words.seconds, words.rate, words.share, words.size, words.size)
    return [
        (name, tell(x), tell(y), words.ratio(y / x) if x and y is not None else "")
        for name, tell, x, y in zip((*names, *bytes_names), say, of_a, of_b, strict=True)
    ]


def _values(arm: Arm) -> list[float | None]:
    """Means of an arm, of a single run its own number; no interval: nothing has compared the two sets."""
    if len(arm.counted) == 1:
        (run,) = arm.counted
        sizes = [run.payload_bytes(link) for link in words.LINKS]
        return [run.train_s, run.to_target_s, run.samples_per_s, run.final, *sizes]
    sizes = [bytes_mean(arm, link) for link in words.LINKS]
    return [train_mean(arm), target_mean(arm), rate_mean(arm), final_mean(arm), *sizes]


def _environment(runs: Sequence[Run]) -> dict[str, str]:
    """Each key with its one value, or all of them where runs differ."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in run.environment.items():
            if not isinstance(value, list | dict):
                values.setdefault(key, set()).add(str(value))
    return {
        key: "several: " * (len(of_key) > 1) + ", ".join(sorted(of_key)) for key, of_key in values.items()
    }


def _title(place: Place) -> str:
    model, dataset, world, size, assumption, label = place
    where = [f"{model} on {dataset}", words.world(world), size, assumption]
    return f"{label} ({', '.join(part for part in where if part)})"


def _show(console: Console, what: str, rows: Sequence[Change] | Sequence[Number]) -> None:
    if not rows:
        say(console, f"{what}: nothing changed")
        return
    say(console, what)
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in rows[0]:
        table.add_column(overflow="fold")
    for key, *cells in rows:
        table.add_row(Text(f"    {key}"), *map(Text, cells))
    console.print(table)
