"""Console output of runs: a live line on a terminal, plain lines elsewhere, a table at the end.

Everything is fed by the supervisor's events and by status.json; names and paths are printed as they are,
never read as markup.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]

PLAIN_EVERY_S = 10.0
PLAIN_WIDTH = 160  # a log file has no width; at 80 the tables would break
# What models are judged by: the metric of the task, and one of the first two if the run asks for it.
HEADLINES = ("top5", "pixel_accuracy", "accuracy", "miou")
_MISSING = "-"
_STYLES = {"finished": "green", "running": "cyan", "queued": "dim", "diverged": "yellow"}


class _Console(Console):
    """`goes_on`: whether the program does more than print."""

    def __init__(self, *, goes_on: bool, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)
        self._goes_on = goes_on

    def on_broken_pipe(self) -> None:
        """While a BrokenPipeError is handled: rich would end the program with 1; `main` knows better."""
        if not self._goes_on:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def make_console(*, goes_on: bool = False) -> Console:
    """A console that prints text as it is, wide where there is no terminal.

    goes_on: a run must not end because its reader has gone (`daso-bench ... | head`); all else may.
    """
    console = _Console(goes_on=goes_on)
    return console if console.is_terminal else _Console(goes_on=goes_on, width=PLAIN_WIDTH)


@contextmanager
def progress(console: Console, title: str) -> Iterator[OnEvent]:
    """Show one run while it goes; gives the function to hand the supervisor's events to."""
    if not console.is_terminal:
        yield plain_lines(lambda line: say(console, line))
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[numbers]}", markup=False),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None, numbers="starting")

        def show(event: Event) -> None:
            if note := notice(event):
                bar.console.print(Text(note))
            if _is_progress(event):
                state = event["progress"]
                steps = {"total": state.get("steps"), "completed": state.get("step") or 0}
                bar.update(task, numbers=numbers(state), **steps)

        yield show


def plain_lines(tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> OnEvent:
    """Tells one line per epoch, and one at least every `PLAIN_EVERY_S` seconds with news."""
    began: float | None = None
    shown_s, shown_epoch = 0.0, None

    def show(event: Event) -> None:
        nonlocal began, shown_s, shown_epoch
        if note := notice(event):
            tell(f"  {note}")
        if not _is_progress(event) or event["progress"].get("step") is None:
            return
        state, now = event["progress"], clock()
        began = now if began is None else began
        if state.get("epoch") == shown_epoch and now - shown_s < PLAIN_EVERY_S:
            return
        shown_epoch, shown_s = state.get("epoch"), now
        left_s = time_left_s(now - began, state)
        tell(f"  {numbers(state)}" + (f"  left {duration(left_s)}" if left_s is not None else ""))

    return show


def notice(event: Event) -> str | None:
    """The sentence for an event that is not progress, or None."""
    if event.get("kind") == "trouble":
        return f"trouble: {event.get('reason')}; ending the run"
    if event.get("kind") == "interrupt":
        return (
            f"{event.get('signal')}: asking the ranks to stop, up to {event.get('wait_s'):g} s "
            "(once more: kill them)"
        )
    return None


def numbers(state: Mapping[str, Any]) -> str:
    """Epoch, step, samples/s, loss, accuracy (or mIoU) and phase of a progress event, as far as known."""
    parts = []
    if state.get("epoch") is not None:
        parts.append(
            f"epoch {min(state['epoch'] + 1, state.get('epochs') or state['epoch'] + 1)}"
            f"/{state.get('epochs', '?')}"
        )
    if state.get("step") is not None:
        parts.append(f"step {state['step']}/{state.get('steps', '?')}")
    if _number(state.get("samples_per_s")) is not None:
        parts.append(f"{rate(state['samples_per_s'])} samples/s")
    if _number(state.get("loss")) is not None:
        parts.append(f"loss {float(state['loss']):.4f}")
    headline = _headline(state)
    if _number(state.get(headline)) is not None:
        parts.append(f"{headline} {percent(state[headline])}")
    if state.get("phase"):
        parts.append(str(state["phase"]))
    return "  ".join(parts)


def time_left_s(elapsed_s: float, state: Mapping[str, Any]) -> float | None:
    """Seconds left at the pace so far; None before there is a pace."""
    step, steps = _number(state.get("step")), _number(state.get("steps"))
    if not step or not steps or elapsed_s <= 0:
        return None
    return max(0.0, elapsed_s * (steps - step) / step)


def run_table(status: Mapping[str, Any]) -> Table:
    """The summary of one run, a line per number. `status`: its status.json."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    summary = status.get("summary") or {}
    figures, headline, target = _figures(status), _headline(_finals(status)), summary.get("target")
    is_share = isinstance(target, int | float) and 0 < target <= 1
    rows = [
        ("status", str(status.get("status"))),
        ("reason", str(status.get("reason") or _MISSING)),
        (f"final {headline}", figures["judged"]),
        (f"best {headline}", _with(percent, summary.get(f"best_{headline}"))),
        (f"time to {_with(percent, target) if is_share else target}", figures["to target"]),
        ("training time", figures["train"]),
        ("samples/s", figures["samples/s"]),
        ("bytes between nodes", figures["inter"]),
        ("bytes inside nodes", figures["intra"]),
        *(("note", note) for note in _notes(status)),
    ]
    for key, value in rows:
        if value != _MISSING:
            table.add_row(key, Text(value, style=_STYLES.get(value, "")))
    return table


def one_line(status: Mapping[str, Any]) -> str:
    """The end of one run of a sweep in a line: status, the known numbers, reason."""
    figures, headline = _figures(status), _headline(_finals(status))
    labelled = {headline: figures["judged"], "to target": figures["to target"], "train": figures["train"]}
    shown = [f"{label} {figure}" for label, figure in labelled.items() if figure != _MISSING]
    return "  ".join([str(status.get("status")), *shown, str(status.get("reason") or "")]).rstrip()


def runs_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The summaries of several runs, one line each: (run id, its status.json)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("status")
    keys = ("judged", "to target", "train", "samples/s", "inter", "intra")
    for header in (_headlines(rows), *keys[1:]):
        table.add_column(header, justify="right")
    table.add_column("notes", overflow="fold")
    notes_of = [_notes(status) for _, status in rows]
    common = [note for note in notes_of[0] if all(note in notes for notes in notes_of)] if rows[1:] else []
    if common:
        table.caption, table.caption_justify = Text(f"all runs: {'; '.join(common)}"), "left"
    for (name, status), notes in zip(rows, notes_of, strict=True):
        figures = _figures(status)
        word = str(status.get("status"))
        table.add_row(
            Text(name),
            Text(word, style=_STYLES.get(word, "red")),
            *(figures[key] for key in keys),
            Text("; ".join(note for note in notes if note not in common)),
        )
    return table


def states_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """The status of each run, for `daso-bench status`. `rows`: (run, its status.json)."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for header in ("attempt", "progress", _headlines(rows)):
        table.add_column(header, justify="right")
    queued = any(status.get("queue") or status.get("job") for _, status in rows)
    for header in ("job", "nodes", "left") if queued else ():
        table.add_column(header)
    table.add_column("reason", overflow="fold")
    for name, status in rows:
        state, word = status.get("progress") or {}, str(status.get("status"))
        done = f"{state['step']}/{state.get('steps', '?')}" if state.get("step") is not None else _MISSING
        judged = _figures(status)["judged"]
        if judged == _MISSING:
            judged = _with(percent, state.get(_headline(state)))
        table.add_row(
            Text(name),
            Text(word, style=_STYLES.get(word, "red")),
            str(len(status.get("attempts") or ())),
            done,
            judged,
            *(_place(status) if queued else ()),
            Text(str(status.get("reason") or "")),
        )
    return table


def _place(status: Mapping[str, Any]) -> tuple[str, str, str]:
    """The run's job, its nodes, and the time left to it, as far as the queue shows them."""
    queue = status.get("queue") or {}
    attempts = status.get("attempts") or ({},)
    nodes = queue.get("nodes") or ",".join(attempts[-1].get("nodes") or ())
    left_s = _number(queue.get("time_left_s")) if status.get("status") in ("queued", "running") else None
    left = duration(left_s) if left_s is not None and math.isfinite(left_s) else ""
    return str((status.get("job") or {}).get("id", "")), nodes, left


def say(console: Console, text: str, style: str = "") -> None:
    """Print `text` as it is, unbroken: a path or a command stays one piece to copy."""
    console.print(Text(text, style=style), soft_wrap=True)


def duration(seconds: float) -> str:
    """12.3 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes in powers of 1000 with their unit, as in reports."""
    return decimal(int(count))


def rate(value: float) -> str:
    """Samples per second, three significant digits or whole."""
    return f"{float(value):,.0f}" if float(value) >= 100 else f"{float(value):.3g}"


def percent(share: float) -> str:
    """0.9567 as 95.67 %; a dash for NaN."""
    return _MISSING if math.isnan(share) else f"{100 * float(share):.2f} %"


def _figures(status: Mapping[str, Any]) -> dict[str, str]:
    summary, finals = status.get("summary") or {}, _finals(status)
    payload = summary.get("payload_bytes") or {}
    to_target = _with(duration, summary.get("to_target_train_s"))
    if summary.get("target") is not None and to_target == _MISSING:
        to_target = "not reached"
    return {
        "judged": _with(percent, finals.get(_headline(finals))),
        "to target": to_target,
        "train": _with(duration, summary.get("train_s")),
        "samples/s": _with(rate, summary.get("samples_per_s")),
        "inter": _with(size, payload.get("inter")),
        "intra": _with(size, payload.get("intra")),
    }


def _headline(numbers: Mapping[str, Any]) -> str:
    """The metric that models are judged by: the one that `numbers` has."""
    return next((name for name in HEADLINES if name in numbers), "accuracy")


def _headlines(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The header of the column with what the runs' models are judged by; a new run has no number yet."""
    of_runs = ({**(status.get("progress") or {}), **_finals(status)} for _, status in rows)
    present = {_headline(numbers) for numbers in of_runs if not numbers.keys().isdisjoint(HEADLINES)}
    return " / ".join(name for name in HEADLINES if name in present) or "accuracy"


def _finals(status: Mapping[str, Any]) -> dict[str, Any]:
    """The summary's final numbers by the metric's name."""
    summary = status.get("summary") or {}
    return {key.removeprefix("final_"): value for key, value in summary.items() if key.startswith("final_")}


def _notes(status: Mapping[str, Any]) -> list[str]:
    """The run's labels, and why its timing is not valid."""
    labels = [*(status.get("labels") or ()), *((status.get("summary") or {}).get("labels") or ())]
    notes = [str(label) for label in dict.fromkeys(labels)]
    timing = status.get("timing") or {}
    if not timing.get("valid", True):
        reasons = timing.get("reasons") or ["no reason given"]
        notes += [f"timing not valid: {reason}" for reason in reasons]
    return notes


def _with(show: Callable[[float], str], value: Any) -> str:
    return _MISSING if _number(value) is None else show(float(value))


def _number(value: Any) -> float | None:
    """A number, also one that JSON holds as text ("NaN"); None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_progress(event: Event) -> bool:
    return event.get("kind") == "progress" and event.get("rank") == 0
