"""`daso-bench check`: the strategies that its words name, the checks on them, a table, an exit code."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.base import Strategy
from ...strategies.errors import ConfigError
from ..config import groups
from ..config.compose import compose_one
from ..config.overrides import key_of
from ..config.typed import locate_target, plain, typed
from ..machine.cores import usable_cores
from ..records import display
from ..records.run_directory import FAILED, OK, WRONG_REQUEST
from .checks import Candidate, CheckResult, RanksOfNodes
from .kit import LAYERS, run

BUILTIN = "daso_bench.strategies."
ALL = "all"
RANKS: tuple[RanksOfNodes, ...] = ((1, 1), (2, 2), (2, 1))
# Their periods are shortened to fit several into the trial run and to cut the last one short, unless the user
# names the key.
LONG_PERIODS = ("local_sgd", "post_local_sgd", "ednncomm", "diloco", "slowmo")
SHORT = {"sync_every": 4}
JOBS = 2
WIDEST_NAME = 40
_STYLES = {"ok": "green", "refuses": "yellow", "FAILED": "bold red"}


def check(
    words: Sequence[str],
    *,
    ranks: Sequence[RanksOfNodes] = RANKS,
    config_dir: Path | None = None,
    jobs: int | None = None,
) -> int:
    """Try the strategies that `words` name (see `candidates`) on `ranks`; returns the exit code.

    0: all checks passed; 1: a check failed; 2: nothing could be checked, every strategy refused. Raises
    ConfigError: the request itself is wrong.
    """
    torch.set_num_threads(1)
    console, began = display.make_console(), time.perf_counter()
    asked = candidates(words, config_dir)
    overrides = {candidate.name: words for candidate, words in asked}

    def show(candidate: Candidate, results: list[CheckResult]) -> None:
        title = " ".join([f"strategy={candidate.name}", *overrides[candidate.name]])
        display.say(console, title, "bold")
        console.print(table(results))
        _show_failures(console, results)
        display.say(console, summary(candidate.name, results), "bold")

    count = min(JOBS, usable_cores()) if jobs is None else jobs
    findings = run([candidate for candidate, _ in asked], ranks, jobs=count, show=show)
    if len(asked) > 1:
        took = display.duration(time.perf_counter() - began)
        failed = sorted({finding.strategy for finding in findings if finding.status == "FAILED"})
        verdict = f"FAILED: {', '.join(failed)}" if failed else "all hold"
        display.say(console, f"{len(asked)} strategies in {took}: {verdict}", "bold")
    return exit_code(findings)


def exit_code(findings: Sequence[CheckResult]) -> int:
    statuses = {finding.status for finding in findings}
    if "FAILED" in statuses:
        return FAILED
    return OK if "ok" in statuses else WRONG_REQUEST


def table(findings: Sequence[CheckResult]) -> Table:
    """A line per check and result, with its sets of ranks; equal refusals share a line."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    shown.add_column("layer", no_wrap=True)
    shown.add_column("check", overflow="fold", max_width=WIDEST_NAME)
    shown.add_column("ranks", max_width=WIDEST_NAME)
    shown.add_column("result", overflow="fold", ratio=1)
    shown.add_column("s", justify="right")
    last = ""
    for layer in LAYERS:
        for same in _gathered([finding for finding in findings if finding.layer == layer]):
            first = same[0]
            result = Text(first.status, style=_STYLES[first.status])
            if first.text:
                result.append(f": {first.text}", style="" if first.status == "FAILED" else "dim")
            checks = list(dict.fromkeys(finding.check for finding in same))
            name = checks[0] if len(checks) == 1 else f"{len(checks)} checks"
            sets = dict.fromkeys(",".join(map(str, finding.ranks)) for finding in same)
            seconds = sum(finding.seconds for finding in same)
            shown.add_row(layer if layer != last else "", name, " ".join(sets), result, f"{seconds:.1f}")
            last = layer
    return shown


def _gathered(findings: Sequence[CheckResult]) -> list[list[CheckResult]]:
    """Results that share a line: of one check with the same result, or refused with the same message."""
    lines: dict[tuple[str, ...], list[CheckResult]] = {}
    for finding in findings:
        refused = finding.status == "refuses"
        key = (finding.text,) if refused else (finding.check, finding.status, finding.text)
        lines.setdefault(key, []).append(finding)
    return sorted(lines.values(), key=lambda line: line[0].status == "refuses")


def summary(name: str, findings: Sequence[CheckResult]) -> str:
    """`ddp: 42 ok, 3 refused, 0 FAILED`."""
    count = {s: sum(f.status == s for f in findings) for s in ("ok", "refuses", "FAILED")}
    counts = f"{name}: {count['ok']} ok, {count['refuses']} refused, {count['FAILED']} FAILED"
    return counts if count["ok"] or count["FAILED"] else f"{counts}; nothing could be tried"


def _show_failures(console: Console, findings: Sequence[CheckResult]) -> None:
    """Show each failure in full, below the property that the check tries."""
    failed = [finding for finding in findings if finding.status == "FAILED"]
    for layer, name in dict.fromkeys((finding.layer, finding.check) for finding in failed):
        says = LAYERS[layer][name].__doc__ or ""
        display.say(console, f"{name}: {' '.join(says.split())}", "red")
        for finding in failed:
            if (finding.layer, finding.check) == (layer, name):
                display.say(console, f"  {','.join(map(str, finding.ranks))}: {finding.text}")


# ------------------------------------------------------------------ the words of the command line


def candidates(words: Sequence[str], config_dir: Path | None = None) -> list[tuple[Candidate, list[str]]]:
    """The strategies that `words` name (see `asked`), each with the overrides of its keys.

    Raises ConfigError: an unknown strategy or key, or a word about anything else.
    """
    names, overrides = asked(words, config_dir)
    return [_candidate(name, overrides, config_dir) for name in names]


def asked(words: Sequence[str], config_dir: Path | None = None) -> tuple[list[str], list[str]]:
    """Names of strategies, and overrides of keys for each of them.

    `strategy=NAME`, `strategy=A,B`, or `strategy=all` with those of `config_dir`; without it all built-in.
    Raises ConfigError: a word about anything else.
    """
    overrides: list[str] = []
    names: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key == "strategy" and value:
            names += [name.strip() for name in value.split(",")]
        elif key_of(word).startswith("strategy.") and value:
            overrides.append(word)
        else:
            raise ConfigError(
                f"{word}: check takes strategy=NAME and strategy.KEY=VALUE; the run it tries is its own"
            )
    folders = [config_dir] if config_dir and ALL in names else []
    if not names or ALL in names:
        names = list(groups.entries("strategy", folders))
    return list(dict.fromkeys(names)), overrides


def _candidate(name: str, overrides: Sequence[str], config_dir: Path | None) -> tuple[Candidate, list[str]]:
    composed = compose_one([f"strategy={name}", *overrides], config_dir=config_dir)
    keys = plain(composed.strategy, "strategy")
    kind = locate_target(keys, "strategy")
    if not issubclass(kind, Strategy):
        raise ConfigError(f"strategy={name}: {kind.__name__} is not a subclass of {BUILTIN}base.Strategy")
    builtin = kind.__module__.removeprefix(BUILTIN) if kind.__module__.startswith(BUILTIN) else None
    named = "strategy.sync_every" in map(key_of, overrides)
    small = {} if named or builtin not in LONG_PERIODS else SHORT
    words = [*overrides, *(f"strategy.{key}={value}" for key, value in small.items())]
    return Candidate(name, kind, typed(kind.Config, {**keys, **small}, "strategy"), builtin), words


def ranks_of(text: str) -> RanksOfNodes:
    """`2,1` as (2, 1): ranks of each node. Raises ConfigError: not whole numbers >= 1 separated by commas."""
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--ranks {text}: must be ranks of each node, whole numbers >= 1 as in 2,1")
    return tuple(int(part) for part in parts)
