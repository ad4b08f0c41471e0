"""`daso-bench report --diff A B`: what changed in configuration, environment and numbers."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.display import make_console, say, size
from . import words
from .data.arms import Arm, common_settings, compare
from .data.examination import examined
from .data.load import Run, load_runs
from .data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean

MISSING = "not there"


def show_diff(folder_a: Path, folder_b: Path) -> int:
    """Print it; returns the exit code. Raises ConfigError where there is no run."""
    sets = [examined(load_runs(folder, "report --diff")) for folder in (folder_a, folder_b)]
    console = make_console()
    say(console, f"A: {folder_a}\nB: {folder_b}")
    _show(console, "environment", changes(*map(_environment, sets)))
    of_a, of_b = map(arms_of, sets)
    for title, a in of_a.items():
        if b := of_b.get(title):
            say(console, "")
            say(console, title, "bold")
            say(console, f"  runs  {len(a.counted)}, {len(b.counted)}")
            _show(console, "  configuration", changes(common_settings(a.runs), common_settings(b.runs)))
            _show(console, "  numbers: A, B and B over A", numbers(a, b))
    for name, titles, others in (("A", of_a, of_b), ("B", of_b, of_a)):
        for title in titles:
            if title not in others:
                say(console, f"only in {name}: {title}")
    return 0


def changes(a: Mapping[str, str], b: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Every key whose value differs, with its values in A and B."""
    every = [(key, a.get(key, MISSING), b.get(key, MISSING)) for key in sorted({*a, *b})]
    return [(key, of_a, of_b) for key, of_a, of_b in every if of_a != of_b]


def arms_of(runs: Iterable[Run]) -> dict[str, Arm]:
    """The arms of a set of results by title: all that names an arm but its study, which may differ."""
    arms: dict[str, Arm] = {}
    for c in compare(runs):
        parts = (f"{c.model} on {c.dataset}", words.world(c.world), c.size, c.assumption)
        place = ", ".join(filter(None, parts))
        for arm in c.arms:
            arms.setdefault(f"{arm.label} ({place})", arm)
    return arms


def numbers(a: Arm, b: Arm) -> list[tuple[str, str, str, str]]:
    """The numbers of an arm that both sets have: name, value in A and B, and B over A."""
    return [
        (name, _cell(name, x), _cell(name, y), words.number(y / x, 3) if x and y is not None else "")
        for (name, x), y in zip(_values(a).items(), _values(b).values(), strict=True)
    ]


def _values(arm: Arm) -> dict[str, float | None]:
    """Means of an arm, of a single run its own number; no interval: nothing has compared the two sets."""
    (run,) = arm.counted if len(arm.counted) == 1 else (None,)
    return {
        "time of all work": run.train_s if run else train_mean(arm),
        "time to target": run.to_target_s if run else target_mean(arm),
        "samples per second": run.samples_per_s if run else rate_mean(arm),
        f"final {arm.runs[0].judged_by.name}": run.final if run else final_mean(arm),
        "bytes inside nodes": run.payload_bytes("intra") if run else bytes_mean(arm, "intra"),
        "bytes between nodes": run.payload_bytes("inter") if run else bytes_mean(arm, "inter"),
    }


def _cell(name: str, value: float | None) -> str:
    if name.startswith("time"):
        return words.seconds(value)
    if name.startswith("bytes") and value is not None:
        return size(value)
    return words.number(value, 4 if name.startswith("final") else None)


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


def _show(console: Console, what: str, rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        say(console, f"{what}: nothing changed")
        return
    say(console, what)
    table = Table.grid(padding=(0, 2))
    for key, *cells in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in (f"    {key}", *cells)))
    console.print(table)
