"""`daso-bench doctor`: what this machine can do, what is wrong with it, how to mend it."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError, unknown
from ..config.cluster import ClusterConfig
from ..machine.facts import MachineFacts
from ..machine.rules import GIB, Finding, gpus_present, machine_findings, troubles
from ..records.display import make_console, say
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
    able = abilities(facts)
    if as_json:
        print(json.dumps(as_dict(facts, able, findings), indent=2))
    else:
        _print(make_console(), able, findings)
    return FOUND if troubles(findings) else OK


def as_dict(facts: MachineFacts, able: Sequence["Ability"], findings: Sequence[Finding]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "schema_version": 1,
        "ok": not troubles(findings),
        "abilities": [ability.as_dict() for ability in able],
        "findings": [finding.as_dict() for finding in findings],
        "facts": facts.as_row(),
    }


def wanted(words: Sequence[str], cwd: Path) -> Wanted:
    """The planned run that the `words` of a command line describe. Raises ConfigError."""
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


# ------------------------------------------------------------------ what this machine can do


@dataclass(frozen=True)
class Ability:
    """Something that works here, does not (`works` is False, `what` says why), or is just a fact (None)."""

    name: str
    works: bool | None
    what: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def abilities(facts: MachineFacts) -> list[Ability]:
    """The machine's parts, then its launchers."""
    return [
        Ability("cores", None, _cores(facts)),
        Ability("memory", None, _memory(facts)),
        Ability("GPUs", None, _gpus(facts)),
        Ability("torch", None, _torch(facts)),
        Ability("daso-bench", None, _source(facts)),
        Ability("Slurm", None, _slurm(facts)),
        Ability("results", None, _results(facts)),
        *launchers(facts),
    ]


def launchers(facts: MachineFacts) -> list[Ability]:
    """Which launchers can work here, and why not."""
    torch = facts.torch or {}
    torch_error = torch.get("error") if facts.versions["torch"] else "torch is not installed"
    backend = "NCCL" if torch.get("devices") else "gloo"
    cores = facts.usable_cores
    local = f"real processes over {backend}; timings hold for up to {cores} rank{'s' * (cores != 1)}"
    emulation = facts.emulation
    latency = "" if emulation["netem"] else "; without latencies, which need netem in the kernel"
    return [
        _launcher("simulated", torch_error, "virtual time, any number of ranks"),
        _launcher("local", torch_error, local),
        _launcher(
            "slurm", torch_error or _no_slurm(facts), f"submitit {facts.submitit}, the controller is up"
        ),
        _launcher(
            "torchrun",
            torch_error or (None if facts.torchrun else "no command torchrun"),
            str(facts.torchrun),
        ),
        _launcher(
            "emulated",
            torch_error or emulation["error"],
            f"nodes with slow links of their own on this machine, without root{latency}",
        ),
    ]


def _launcher(name: str, error: str | None, what: str) -> Ability:
    return Ability(f"launcher={name}", error is None, error or what)


def _no_slurm(facts: MachineFacts) -> str | None:
    if facts.commands["sbatch"] is None:
        return "no sbatch on the PATH"
    if facts.submitit is None:
        return "submitit is not installed"
    return None if facts.slurm["controller"] == "up" else f"controller: {facts.slurm['controller']}"


def _cores(facts: MachineFacts) -> str:
    usable, bound, total = facts.usable_cores, len(facts.cores), facts.cores_of_machine
    if bound < total:
        return f"{usable} of {total} (the process is bound to {bound})"
    return f"{usable}" if usable == total else f"{usable} of {total} (a control group's quota)"


def _memory(facts: MachineFacts) -> str:
    memory = facts.memory
    return f"{memory['total_bytes'] / GIB:.1f} GiB, {memory['available_bytes'] / GIB:.1f} GiB free"


def _gpus(facts: MachineFacts) -> str:
    torch = facts.torch or {}
    if not torch.get("devices"):
        present = gpus_present(facts)
        return "none" if present is None else f"none that torch can use; {present}"
    each = zip(torch["names"], torch["memory_bytes"], strict=True)
    return ", ".join(f"{name} ({size / GIB:.0f} GiB)" for name, size in each)


def _torch(facts: MachineFacts) -> str:
    torch = facts.torch or {}
    if torch.get("error"):
        return torch["error"]
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "CPU"
    python, backends = facts.versions["python"], ", ".join(torch["backends"])
    return f"{torch['version']} ({build}), {backends or 'no backend'}; Python {python}"


def _source(facts: MachineFacts) -> str:
    versions = facts.versions
    where = f"{versions['daso_bench'] or 'not installed'} in {facts.package}"
    if versions["commit"] is None:
        return where
    return f"{where}, commit {versions['commit'][:10]}" + (" with changes" if versions["dirty"] else "")


def _slurm(facts: MachineFacts) -> str:
    commands = [name for name, path in facts.commands.items() if path is not None]
    if not commands:
        return "no commands on the PATH"
    job = facts.variables.get("SLURM_JOB_ID")
    inside = f", inside job {job}" if job and facts.slurm["job_known"] else ""
    return f"{facts.slurm['version'] or 'version unknown'}: {', '.join(commands)}{inside}"


def _results(facts: MachineFacts) -> str:
    folder = facts.folders["results"]
    if folder["error"]:
        return f"{folder['path']}: {folder['error']}"
    return f"{folder['path']}, {folder['free_bytes'] / GIB:.1f} GiB free"


# ------------------------------------------------------------------ what is printed


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print a block for each finding: what was seen, why it matters, what to do. Lines are not cut."""
    for finding in findings:
        sign, plain, style = _SIGNS[finding.severity]
        say(console, "")
        head = Text(
            f"{plain if console.options.ascii_only else sign} {finding.severity}", style=f"bold {style}"
        )
        console.print(head + Text(f"  {finding.topic}: {finding.what}"), soft_wrap=True)
        say(console, f"  why: {finding.cause}", "dim")
        console.print(Text("  fix: ", style="green") + Text(finding.fix), soft_wrap=True)


def _print(console: Console, able: Sequence[Ability], findings: Sequence[Finding]) -> None:
    say(console, "This machine", "bold")
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for ability in able:
        sign = {True: Text("+", style="green"), False: Text("-", style="dim"), None: Text("")}[ability.works]
        what = f"no: {ability.what}" if ability.works is False else ability.what
        table.add_row(sign, ability.name, Text(what, style="dim" if ability.works is False else ""))
    console.print(table)
    show_findings(console, findings)
    say(console, "")
    say(console, _conclusion(findings), "bold")


def _conclusion(findings: Sequence[Finding]) -> str:
    counts = {name: sum(finding.severity == name for finding in findings) for name in _SIGNS}
    parts = [f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items() if count]
    if not parts:
        return "Nothing is wrong."
    return ", ".join(parts) + ("" if troubles(findings) else ": nothing that has to be mended") + "."
