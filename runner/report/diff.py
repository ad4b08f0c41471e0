"""`daso-bench report --diff A B`: what changed between two sets of results, in configuration, environment and
numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..records.display import make_console, say
from . import words
from .data.arms import Arm, common_settings, compare
from .data.load import Run, load_runs
from .data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from .statistics.welch import Times, welch
from .words import LINKS

MISSING = "not there"
SEVERAL = "several"
Place = tuple[str, str, str, str, str, str]
"""Model, data, world, size, assumption and label: the arm that two sets of results have in common."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value that differs between the two sets."""

    key: str
    a: str
    b: str


@dataclass(frozen=True, kw_only=True)
class Number:
    """One number of an arm. `ratio`: b over a, with an interval where there are three runs of both."""

    name: str
    a: str
    b: str
    ratio: str


@dataclass(frozen=True, kw_only=True)
class ArmDiff:
    """An arm that both sets have."""

    place: Place
    runs: tuple[int, int]
    configuration: list[Change]
    numbers: list[Number]


@dataclass(frozen=True, kw_only=True)
class Diff:
    """All that changed. `only`: places of arms that one set alone has."""

    arms: list[ArmDiff]
    environment: list[Change]
    only: tuple[list[Place], list[Place]]


def show_diff(a: Path, b: Path) -> int:
    """Print it; returns the exit code. Raises ConfigError where there is no run."""
    difference = diff(*(load_runs(folder, "report --diff") for folder in (a, b)))
    console = make_console()
    say(console, f"A: {a}\nB: {b}")
    _show_changes(console, "environment", difference.environment)
    for arm in difference.arms:
        say(console, "")
        say(console, _title(arm.place), "bold")
        say(console, f"  runs  {arm.runs[0]}, {arm.runs[1]}")
        _show_changes(console, "configuration", arm.configuration)
        _show_numbers(console, arm.numbers)
    for name, places in zip("AB", difference.only, strict=True):
        for place in places:
            say(console, f"only in {name}: {_title(place)}")
    return 0


def diff(a: Sequence[Run], b: Sequence[Run]) -> Diff:
    """What changed from the runs `a` to the runs `b`; studies may have other names."""
    of_a, of_b = _arms(a), _arms(b)
    both = [place for place in of_a if place in of_b]
    return Diff(
        arms=[_arm_diff(place, of_a[place], of_b[place]) for place in both],
        environment=_changes(_environment(a), _environment(b)),
        only=([p for p in of_a if p not in of_b], [p for p in of_b if p not in of_a]),
    )


def _arms(runs: Sequence[Run]) -> dict[Place, Arm]:
    arms: dict[Place, Arm] = {}
    for c in compare(runs):
        for arm in c.arms:
            arms.setdefault((c.model, c.dataset, c.world, c.size, c.assumption, arm.label), arm)
    return arms


def _arm_diff(place: Place, a: Arm, b: Arm) -> ArmDiff:
    return ArmDiff(
        place=place,
        runs=(len(a.counted), len(b.counted)),
        configuration=_changes(common_settings(a.runs), common_settings(b.runs)),
        numbers=[
            _number("time of all work", a, b, train_mean, words.seconds, lambda run: run.train_s),
            _number("time to target", a, b, target_mean, words.seconds, _crossed),
            _number("samples per second", a, b, rate_mean, words.rate, lambda run: run.samples_per_s),
            _number(f"final {a.runs[0].judged_by.name}", a, b, final_mean, words.share, _final, timed=False),
            *(_number(f"bytes {LINKS[link]}", a, b, *_bytes(link), timed=False) for link in LINKS),
        ],
    )


def _number(
    name: str,
    a: Arm,
    b: Arm,
    mean: Callable[[Arm], float | None],
    say: Callable[[float | None], str],
    of_run: Callable[[Run], float | None],
    *,
    timed: bool = True,
) -> Number:
    """Means of the arms; of an arm with one run what it has, for which there is no mean."""
    of_a, of_b = (mean(arm) if len(arm.counted) > 1 else _single(arm, of_run) for arm in (a, b))
    ratio = ""
    if of_a and of_b is not None:
        ratio = words.ratio(of_b / of_a)
    if timed and of_a is not None and of_b is not None:
        values = [tuple(v for run in arm.counted if (v := of_run(run))) for arm in (b, a)]
        estimate = welch(Times(values[0]), Times(values[1])) if all(values) else None
        ratio = words.interval(estimate) if estimate is not None else ratio
    return Number(name=name, a=say(of_a), b=say(of_b), ratio=ratio)


def _single(arm: Arm, of_run: Callable[[Run], float | None]) -> float | None:
    return of_run(arm.counted[0]) if arm.counted else None


def _final(run: Run) -> float | None:
    return run.final


def _bytes(
    link: str,
) -> tuple[Callable[[Arm], float | None], Callable[[float | None], str], Callable[[Run], float | None]]:
    return lambda arm: bytes_mean(arm, link), words.size, lambda run: run.payload_bytes(link)


def _crossed(run: Run) -> float | None:
    return run.crossing.scored_s if run.crossing else None


def _environment(runs: Sequence[Run]) -> dict[str, str]:
    """Each key with its one value, or `several` where runs differ."""
    keys = sorted(
        {key for run in runs for key, value in run.environment.items() if not isinstance(value, list | dict)}
    )
    values_of: dict[str, str] = {}
    for key in keys:
        values = {str(run.environment[key]) for run in runs if key in run.environment}
        values_of[key] = values.pop() if len(values) == 1 else f"{SEVERAL}: {', '.join(sorted(values))}"
    return values_of


def _changes(a: dict[str, str], b: dict[str, str]) -> list[Change]:
    return [
        Change(key=key, a=a.get(key, MISSING), b=b.get(key, MISSING))
        for key in sorted({*a, *b})
        if a.get(key, MISSING) != b.get(key, MISSING)
    ]


def _title(place: Place) -> str:
    model, dataset, world, size, assumption, label = place
    where = [f"{model} on {dataset}", words.world(world), size, assumption]
    return f"{label} ({', '.join(part for part in where if part)})"


def _show_changes(console: Console, what: str, changes: Sequence[Change]) -> None:
    if not changes:
        say(console, f"  {what}: nothing changed" if what == "configuration" else f"{what}: nothing changed")
        return
    say(console, f"  {what}" if what == "configuration" else what)
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")
    for change in changes:
        table.add_row(Text(f"    {change.key}"), Text(change.a), Text(f"-> {change.b}"))
    console.print(table)


def _show_numbers(console: Console, numbers: Sequence[Number]) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for header in ("  number", "A", "B", "B over A"):
        table.add_column(header, overflow="fold")
    for number in numbers:
        table.add_row(Text(f"    {number.name}"), Text(number.a), Text(number.b), Text(number.ratio))
    console.print(table)
