"""`daso-bench doctor`: what this machine can do, what is wrong with it, how to mend it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...strategies.errors import ConfigError, one_of, unknown
from ..launch.emulated.nodes import has_netem, impossible
from ..machine.environment import installed
from ..machine.facts import MachineFacts, process_facts, torch_facts
from ..machine.rules import GIB, Finding, gpus_present, launcher_error, machine_findings
from ..records.display import make_console, say

OK, FOUND = 0, 3
LAUNCHERS = ("simulated", "local", "slurm", "torchrun", "emulated")
SLURM_COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")
SHORT_S, TORCH_S = 2.0, 60.0
_STYLES = {"error": "red", "warning": "yellow"}
_TORCH = f"""
import json
from {torch_facts.__module__} import torch_facts
print()
print(json.dumps(torch_facts()))
"""
Row = dict[str, Any]


def doctor(words: Sequence[str], *, cwd: Path, as_json: bool = False) -> int:
    """Print what this machine can do and what is wrong with it; 3 if something is wrong, else 0.

    `words`: where and how runs are to start here: results_dir=..., launcher=... Raises ConfigError for
    anything else.
    """
    given = {"results_dir": "results", "launcher": ""}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign:
            raise ConfigError(f"{word}: must be KEY=VALUE; keys: {', '.join(given)}")
        if key not in given:
            raise unknown("doctor", key, given)
        given[key] = text
    if given["launcher"]:
        one_of("launcher", given["launcher"], LAUNCHERS)
    results_dir = Path(os.path.normpath(cwd / Path(given["results_dir"]).expanduser()))
    facts = machine_facts(results_dir, given["launcher"] or None)
    findings, rows = machine_findings(facts), abilities(facts)
    if as_json:
        report = {
            "schema_version": 1,
            "ok": not findings,
            "abilities": rows,
            "findings": [asdict(finding) for finding in findings],
            "facts": facts.as_row(),
        }
        print(json.dumps(report, indent=2))
    else:
        _print(make_console(), rows, findings)
    return FOUND if findings else OK


# ------------------------------------------------------------------ facts


def machine_facts(results_dir: Path, launcher: str | None = None) -> MachineFacts:
    """The facts of this process and of its machine.

    All programs are asked at the same time, each with a time limit: a batch system that is down must not
    stall the doctor.
    """
    with ThreadPoolExecutor(max_workers=4) as pool:
        torch = pool.submit(_ask, sys.executable, "-P", "-c", _TORCH, limit_s=TORCH_S)
        version = pool.submit(_ask, "sbatch", "--version")
        ping = pool.submit(_ask, "scontrol", "ping")
        emulation_error = pool.submit(impossible)
        facts = process_facts(results_dir)
        error, controller = emulation_error.result(), ping.result()
        torchrun = Path(sys.executable).parent / "torchrun"  # of this environment, before that of the PATH
        return MachineFacts(
            **replace(facts, torch=_facts_of_torch(torch.result())).as_row(),
            launcher=launcher,
            commands={name: shutil.which(name) for name in SLURM_COMMANDS},
            slurm={
                "version": version.result().text.strip() or None,
                "controller": "up"
                if " UP" in controller.text
                else controller.error or controller.text.strip(),
            },
            submitit=installed("submitit"),
            torchrun=str(torchrun) if torchrun.is_file() else shutil.which("torchrun"),
            emulation={"error": error, "netem": error is None and has_netem()},
        )


@dataclass(frozen=True)
class Answer:
    """What a program printed, or why it gave no answer."""

    text: str = ""
    error: str | None = None


def _ask(*command: str, limit_s: float | None = None) -> Answer:
    """Run a program for at most `limit_s` seconds, by default `SHORT_S`."""
    seconds, options = limit_s or SHORT_S, {"stdin": subprocess.DEVNULL, "capture_output": True}
    if shutil.which(command[0]) is None:
        return Answer(error=f"no {command[0]} here")
    try:
        done = subprocess.run(command, text=True, timeout=seconds, check=False, **options)
    except subprocess.TimeoutExpired:
        return Answer(error=f"no answer within {seconds:g} s")
    except OSError as error:
        return Answer(error=str(error))
    if done.returncode == 0:
        return Answer(done.stdout)
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return Answer(error=lines[-1].removeprefix("scontrol: "))


def _facts_of_torch(answer: Answer) -> dict[str, Any]:
    """`torch_facts()` of a process of its own, or only its `error`."""
    if answer.error is not None:
        return {"error": f"import torch: {answer.error}"}
    return json.loads(answer.text.splitlines()[-1])  # libraries may print while they load


# ------------------------------------------------------------------ what this machine can do


def abilities(facts: MachineFacts) -> list[Row]:
    """The machine's parts, then its launchers: `name`, `what`, and `works` (null for what is just a fact)."""
    memory, results = facts.memory, facts.folders["results"]
    commands = ", ".join(name for name, path in facts.commands.items() if path is not None)
    version = facts.slurm["version"] or "version unknown"
    room = results["error"] or f"{_gib(results.get('free_bytes', 0))} free"
    parts = {
        "cores": f"{facts.usable_cores} of {facts.cores_of_machine}",
        "memory": f"{_gib(memory['total_bytes'])}, {_gib(memory['available_bytes'])} free",
        "GPUs": _gpus(facts),
        "torch": _torch(facts),
        "daso-bench": _source(facts),
        "Slurm": f"{version}: {commands}" if commands else "no commands on the PATH",
        "results": f"{results['path']}: {room}",
    }
    backend = "NCCL" if (facts.torch or {}).get("devices") else "gloo"
    latency = "" if facts.emulation["netem"] else "; without latencies, which need netem in the kernel"
    able = {
        "simulated": "virtual time, any number of ranks",
        "local": f"real processes over {backend}; timings hold for up to {facts.usable_cores} ranks",
        "slurm": f"submitit {facts.submitit}, the controller is up",
        "torchrun": str(facts.torchrun),
        "emulated": f"nodes with slow links of their own on this machine, without root{latency}",
    }
    rows: list[Row] = [{"name": name, "works": None, "what": what} for name, what in parts.items()]
    for name in LAUNCHERS:
        error = launcher_error(facts, name)
        rows.append(
            {"name": f"launcher={name}", "works": error is None, "what": error[0] if error else able[name]}
        )
    return rows


def _gib(numbytes: int) -> str:
    return f"{numbytes / GIB:.1f} GiB"


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


# ------------------------------------------------------------------ what is printed


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print a block for each finding: what was seen, why it matters, what to do. Lines are not cut."""
    for finding in findings:
        say(console, "")
        head = f"{finding.severity}  {finding.topic}: {finding.what}"
        say(console, head, f"bold {_STYLES[finding.severity]}")
        say(console, f"  why: {finding.cause}", "dim")
        say(console, f"  fix: {finding.fix}")


def _print(console: Console, rows: Sequence[Row], findings: Sequence[Finding]) -> None:
    say(console, "This machine", "bold")
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1))
    table.add_column(width=1)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        sign = {True: "+", False: "-", None: ""}[row["works"]]
        no = "no: " if row["works"] is False else ""
        table.add_row(sign, row["name"], no + row["what"], style="dim" if no else "")
    console.print(table)
    show_findings(console, findings)
    say(console, "")
    errors = sum(finding.severity == "error" for finding in findings)
    counts = f"Errors: {errors}, warnings: {len(findings) - errors}."
    say(console, counts if findings else "Nothing is wrong.", "bold")
