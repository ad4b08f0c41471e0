"""`daso-bench check`: runs the checks on strategies, shows a table of results, returns an exit code."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..machine.cores import usable_cores
from ..records import display
from .candidates import RANKS, candidates
from .checks import Candidate, CheckResult, RanksOfNodes
from .kit import LAYERS, run

OK, FAILED, WRONG_REQUEST = 0, 1, 2
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

    0: all checks passed; 1: a check failed; 2: nothing could be checked, every strategy refused.

    Raises:
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
        _show_failures(console, candidate, results)
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
    """See `check`."""
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


def _show_failures(console: Console, candidate: Candidate, findings: Sequence[CheckResult]) -> None:
    """Show each failure in full, below the property that the check tries."""
    failed = [finding for finding in findings if finding.status == "FAILED"]
    for layer, name in dict.fromkeys((finding.layer, finding.check) for finding in failed):
        says = next(check.says for check in LAYERS[layer](candidate) if check.name == name)
        display.say(console, f"{name}: {' '.join(says.split())}", "red")
        for finding in failed:
            if (finding.layer, finding.check) == (layer, name):
                display.say(console, f"  {','.join(map(str, finding.ranks))}: {finding.text}")
