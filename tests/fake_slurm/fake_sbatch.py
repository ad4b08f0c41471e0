"""The fake `sbatch`: reads a batch file as Slurm does, refuses what Slurm refuses, and queues a job.

Texts and exit codes of refusals are those of Slurm 22.05.8, seen on a small cluster.
"""

import math
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import fake_jobs
from fake_options import Table
from fake_state import LIVE, Job, fail, folder, locked, minutes, user, version

# `man sbatch`, "INPUT ENVIRONMENT VARIABLES": they override the file and are overridden by the command line.
_VARIABLES = {
    "ACCOUNT": "account", "ARRAY_INX": "array", "CONSTRAINT": "constraint", "ERROR": "error",
    "EXCLUSIVE": "exclusive", "EXPORT": "export", "GPUS_PER_NODE": "gpus-per-node",
    "GPUS_PER_TASK": "gpus-per-task", "GRES": "gres", "INPUT": "input", "JOB_NAME": "job-name",
    "MEM_PER_NODE": "mem", "NO_REQUEUE": "no-requeue", "OPEN_MODE": "open-mode", "OUTPUT": "output",
    "PARTITION": "partition", "QOS": "qos", "REQUEUE": "requeue", "RESERVATION": "reservation",
    "SIGNAL": "signal", "TIMELIMIT": "time", "WAIT": "wait",
}  # fmt: skip
_COUNTS = ("cpus-per-task", "ntasks", "ntasks-per-node")
_FAILED = "error: Batch job submission failed: "
_POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


def main(arguments: list[str]) -> int:
    with locked() as state:
        table = Table("sbatch", version(state))
        given, rest = table.read(arguments, permute=False)
        if "version" in given:
            print(f"slurm {state['settings']['version']}.0")
            return 0
        script, name = _script(given, rest)
        from_file = table.read(_directives(script))[0]
        options = from_file | _from_environment() | given
        if "no-requeue" in given:
            options.pop("requeue", None)
        checked = _checked(options, state)
        indices = _indices(options.get("array"), state)
        _within_limits(len(indices or [None]), state)
        base = _enqueue(state, options, checked, indices, script, rest[1:], name)
    print(base if "parsable" in options else f"Submitted batch job {base}")
    sys.stdout.flush()
    fake_jobs.schedule()
    return 0


def _script(given: dict[str, str], rest: list[str]) -> tuple[str, str]:
    if "wrap" in given:
        if rest:
            fail("sbatch", "error: Script arguments not permitted with --wrap option")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given['wrap']}\n", "wrap"
    if rest:
        try:
            text = Path(rest[0]).read_text()
        except OSError:
            fail("sbatch", f"error: Unable to open file {rest[0]}")
        name = Path(rest[0]).name
    else:
        text, name = sys.stdin.read(), "sbatch"
    if not text:
        fail("sbatch", "error: Batch script is empty!")
    if not text.startswith("#!"):
        fail(
            "sbatch",
            "error: This does not look like a batch script.  The first",
            "error: line must start with #! followed by the path to an interpreter.",
            "error: For instance: #!/bin/sh",
        )
    return text, name


def _directives(script: str) -> list[str]:
    """The words of the #SBATCH lines before the first command."""
    words: list[str] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line[len("#SBATCH") :], comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return words


def _from_environment() -> dict[str, str]:
    found: dict[str, str] = {}
    for variable, option in _VARIABLES.items():
        value = os.environ.get(f"SBATCH_{variable}")
        if value is not None:
            found[option] = value
    return found


def _checked(options: dict[str, str], state: dict[str, Any]) -> dict[str, Any]:
    """What the options ask for, as numbers."""

    def number(option: str, otherwise: int | None = None) -> int | None:
        if option not in options:
            return otherwise
        if not re.fullmatch(r"[1-9]\d*", options[option]):
            fail("sbatch", f'error: Invalid numeric value "{options[option]}" for --{option}.')
        return int(options[option])

    counts = {option: number(option) for option in _COUNTS}
    limit = minutes(options["time"]) if "time" in options else math.inf
    if limit is None or options.get("time") == "":
        fail("sbatch", "error: Invalid --time specification", code=255)
    nodes = re.fullmatch(r"(\d+)(-\d+)?", options.get("nodes", "1"))
    if nodes is None:
        fail(
            "sbatch",
            f'error: "{options["nodes"]}" is not a valid node count',
            "error: invalid node count `-N'",
        )
    if int(nodes[1]) == 0:
        fail("sbatch", _FAILED + "Node count specification invalid")
    partition = options.get("partition", "main")
    if partition not in ("main", "gpu"):
        fail(
            "sbatch",
            f"error: invalid partition specified: {partition}",
            _FAILED + "Invalid partition name specified",
        )
    gpus = int(options.get("gpus-per-node", 0))
    if gpus > state["settings"]["gpus"]:
        fail("sbatch", _FAILED + "Requested node configuration is not available")
    accounts = state["settings"]["accounts"]
    if accounts is not None and options.get("account", accounts[0]) not in accounts:
        fail("sbatch", _FAILED + "Invalid account or account/partition combination specified")
    return {
        "limit_min": limit,
        "nodes": int(nodes[1]),
        "ntasks": counts["ntasks"],
        "ntasks_per_node": counts["ntasks-per-node"],
        "cpus_per_task": counts["cpus-per-task"],
        "gpus_per_node": gpus,
        "partition": partition,
    }


def _indices(text: str | None, state: dict[str, Any]) -> list[int] | None:
    if text is None:
        return None
    body, _, throttle = text.partition("%")
    found: list[int] = []
    match = re.fullmatch(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*", body)
    if match and re.fullmatch(r"\d*", throttle):
        for item in body.split(","):
            span, _, step = item.partition(":")
            low, _, high = span.partition("-")
            found += range(int(low), int(high or low) + 1, int(step or 1))
    if not found or max(found) >= state["settings"]["max_array_size"]:
        fail("sbatch", _FAILED + "Invalid job array specification")
    return sorted(set(found))


def _within_limits(more: int, state: dict[str, Any]) -> None:
    limit = state["settings"]["max_submit"]
    live = sum(job["state"] in LIVE for job in state["jobs"].values())
    if limit is not None and live + more > limit:
        fail("sbatch", "error: QOSMaxSubmitJobPerUserLimit", _FAILED + _POLICY)


def _enqueue(
    state: dict[str, Any], options: dict[str, str], checked: dict[str, Any], indices: list[int] | None,
    script: str, arguments: list[str], name: str,
) -> int:  # fmt: skip
    base = state["next_id"]
    state["next_id"] += 1
    home = folder() / "jobs" / str(base)
    home.mkdir(parents=True)
    (home / "script").write_text(script)
    (home / "environment").write_text("\0".join(f"{key}={value}" for key, value in os.environ.items()))
    throttle = (options.get("array") or "").partition("%")[2]
    job: Job = {
        "base": base, "id": None if indices else base, "index": None, "name": options.get("job-name", name),
        "user": user(), "uid": os.getuid(), "state": "PENDING", "reason": "None", "exit": "0:0", "nodes": [],
        "submitted": time.time(), "start": None, "end": None, "restarts": 0,
        "requeue": "no-requeue" not in options, "options": options, "checked": checked,
        "throttle": int(throttle) if throttle else None, "arguments": arguments,
        "cwd": str(Path(options.get("chdir") or os.getcwd()).resolve()), "attempts": [],
        "batch": None, "wish": None, "held": "hold" in options,
    }  # fmt: skip
    for index in indices or [None]:
        key = str(base) if index is None else f"{base}_{index}"
        state["jobs"][key] = job | {"key": key, "index": index, "indices": indices, "attempts": []}
    return base
