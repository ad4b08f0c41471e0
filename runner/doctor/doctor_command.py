"""`daso-bench doctor`: what this machine can do, what is wrong, how to mend it."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError, unknown
from ..config.cluster import ClusterConfig
from ..machine.health.findings import Finding, troubles
from ..machine.health.one_process import machine_findings
from ..records.display import make_console, say
from .abilities import Ability, abilities
from .probes import Wanted, machine_facts

OK, FOUND = 0, 3
_SIGNS = {"error": ("✗", "X", "red"), "warning": ("!", "!", "yellow"), "note": ("·", "-", "cyan")}


def doctor(words: Sequence[str], *, cwd: Path, as_json: bool = False) -> int:
    """Print what this machine can do and what is wrong with it; 3 if an error or a warning was found, else 0.

    `words`: what is meant to run here, as for a run: results_dir, launcher, launcher.port,
    launcher.threads_per_rank, launcher.share_gpus, cluster.nodes, cluster.ranks_per_node.
    Raises ConfigError for anything else.
    """
    facts = machine_facts(wanted(words, cwd))
    findings = machine_findings(facts)
    can = abilities(facts)
    if as_json:
        print(json.dumps(as_dict(facts, can, findings), indent=2))
    else:
        _print(make_console(), can, findings)
    return FOUND if troubles(findings) else OK


def as_dict(facts: Any, can: Sequence[Ability], findings: Sequence[Finding]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "schema_version": 1,
        "ok": not troubles(findings),
        "abilities": [ability.as_dict() for ability in can],
        "findings": [finding.as_dict() for finding in findings],
        "facts": facts,
    }


def wanted(words: Sequence[str], cwd: Path) -> Wanted:
    """What the words of a command line say about a run here. Raises ConfigError."""
    readers: dict[str, Callable[[str, str], Any]] = {
        "results_dir": lambda key, text: Path(os.path.normpath(cwd / Path(text).expanduser())),
        "launcher": lambda key, text: text,
        "launcher.port": _whole,
        "launcher.threads_per_rank": lambda key, text: None if text == "auto" else _whole(key, text),
        "launcher.share_gpus": _yes,
        "cluster.nodes": _whole,
        "cluster.ranks_per_node": _several,
    }
    given: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign:
            raise ConfigError(f"{word}: must be KEY=VALUE; keys: {', '.join(readers)}")
        if key not in readers:
            raise unknown("doctor", key, readers)
        given[key] = readers[key](key, text)
    cluster = {key.partition(".")[2]: value for key, value in given.items() if key.startswith("cluster.")}
    return Wanted(
        results_dir=given.get("results_dir", cwd / "results"),
        launcher=given.get("launcher"),
        port=given.get("launcher.port"),
        threads=given.get("launcher.threads_per_rank"),
        ranks_of_nodes=ClusterConfig(**cluster).ranks_of_nodes if cluster else None,
        share_gpus=given.get("launcher.share_gpus", False),
    )


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A block for each finding: what was seen, why it matters, what to do. Nothing is cut."""
    for finding in findings:
        sign, plain, style = _SIGNS[finding.severity]
        say(console, "")
        head = Text(
            f"{plain if console.options.ascii_only else sign} {finding.severity}", style=f"bold {style}"
        )
        console.print(head + Text(f"  {finding.topic}: {finding.what}"), soft_wrap=True)
        say(console, f"  why: {finding.cause}", "dim")
        console.print(Text("  fix: ", style="green") + Text(finding.fix), soft_wrap=True)


def _print(console: Console, can: Sequence[Ability], findings: Sequence[Finding]) -> None:
    say(console, "This machine", "bold")
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for ability in can:
        sign = {True: Text("+", style="green"), False: Text("-", style="dim"), None: Text("")}[ability.works]
        what = f"no: {ability.what}" if ability.works is False else ability.what
        table.add_row(sign, ability.name, Text(what, style="dim" if ability.works is False else ""))
    console.print(table)
    show_findings(console, findings)
    say(console, "")
    say(console, _conclusion(findings), "bold")


def _conclusion(findings: Sequence[Finding]) -> str:
    counts = {name: sum(finding.severity == name for finding in findings) for name in _SIGNS}
    told = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
    if not told:
        return "Nothing is wrong."
    return ", ".join(told) + ("" if troubles(findings) else ": nothing that has to be mended") + "."


def _whole(key: str, text: str) -> int | None:
    if key == "launcher.port" and text in ("null", "None"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{key}={text}: must be a whole number from 1 on")
    return int(text)


def _several(key: str, text: str) -> tuple[int, ...]:
    numbers = [_whole(key, part.strip()) for part in text.strip("[]").split(",")]
    return tuple(number for number in numbers if number is not None)


def _yes(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{key}={text}: must be true or false")
    return text.lower() == "true"
