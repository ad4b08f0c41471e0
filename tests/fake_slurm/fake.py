"""A Slurm for tests: `install` puts its commands into a folder, one Python script that goes by its name.

It is a queue and no more: a job waits until a test sets its state (`set_job`) or it is cancelled. Refusals
and texts are those of Slurm 22.05.8. What jobs do is tested in tests/cluster, on a real Slurm. Tests import
it as `from fake_slurm import fake`.
"""

import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

Job = dict[str, Any]
Cluster = Callable[..., dict[str, str]]  # a fixture that installs one: cluster(**settings)
SETTINGS: dict[str, Any] = {
    "cpus": 8,
    "gpus": 2,
    "down": [],  # nodes that are down
    "delay_s": 0.0,  # squeue knows a job only that long after sbatch has told its id
    "accounting": True,
    "max_array_size": 1001,
    "max_submit": None,
    "kill_wait_s": 30,
    "unreachable": 0,  # so many commands get no answer from the controller
}
LIVE = ("PENDING", "RUNNING", "COMPLETING")
STATE = "FAKE_SLURM_STATE"
_UNKNOWN_JOB = "Invalid job id specified"
# Variables of sbatch that are not named like their option.
_OPTIONS = {"timelimit": "time", "mem-per-node": "mem", "array-inx": "array"}


# ------------------------------------------------------------------ for tests


def install(folder: Path, without: tuple[str, ...] = (), **settings: Any) -> dict[str, str]:
    """Make a cluster in `folder`; what it returns is the environment (PATH, FAKE_SLURM_STATE) to run under.

    `settings`: see SETTINGS. `without`: commands that are not there ("sacct").
    """
    assert settings.keys() <= SETTINGS.keys(), settings
    bin, state = folder / "bin", folder / "state"
    bin.mkdir(parents=True)
    state.mkdir()
    start = {"settings": SETTINGS | settings, "next_id": 1, "jobs": {}}
    (state / "state.json").write_text(json.dumps(start))
    for name in COMMANDS.keys() - without:
        # The interpreter of the tests, whatever PATH the command is started under.
        text = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" {name} "$@"\n'
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    return {"PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}", STATE: str(state)}


def change(env: dict[str, str], **settings: Any) -> None:
    """Change settings of a cluster (`max_submit`, `unreachable`, ...)."""
    with locked(env) as state:
        state["settings"] |= settings


def set_job(env: dict[str, str], *keys: str, **fields: Any) -> None:
    """What becomes of jobs: `state`, `reason`, `nodes`, `left` (squeue's text)."""
    with locked(env) as state:
        for key in keys:
            state["jobs"][key] |= fields


def jobs(env: dict[str, str]) -> dict[str, Job]:
    """What the cluster remembers of every job; its key is "11" or, for an element of an array, "11_3"."""
    with locked(env) as state:
        return state["jobs"]


def calls(env: dict[str, str]) -> list[list[str]]:
    """Every command that was started, in order, with its arguments."""
    path = Path(env[STATE]) / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ------------------------------------------------------------------ the commands


@contextmanager
def locked(env: Any = os.environ) -> Iterator[dict[str, Any]]:
    """The whole state, written back at the end unless the block raises."""
    folder = Path(env[STATE])
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder / "state.json"
        state = json.loads(path.read_text())
        yield state
        path.write_text(json.dumps(state))


def fail(*lines: str) -> NoReturn:
    print(*lines, sep="\n", file=sys.stderr)
    raise SystemExit(1)


def say(text: str, fields: dict[str, Any]) -> None:
    """A row of squeue's or sinfo's --format."""
    print(re.sub("%([A-Za-z])", lambda match: str(fields[match[1]]), text))


def options_of(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Long options by name, "" for one without a value, and the other words."""
    options = [word[2:].partition("=") for word in words if word.startswith("--")]
    return {name: value for name, _, value in options}, [word for word in words if word[:2] != "--"]


def sbatch(words: list[str]) -> None:
    given, files = options_of(words)
    script = Path(files[0]).read_text() if files else sys.stdin.read()
    lines = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    from_file, _ = options_of([word for line in lines for word in shlex.split(line, comments=True)])
    variables = {
        name[len("SBATCH_") :].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("SBATCH_")
    }
    options = from_file | {_OPTIONS.get(name, name): value for name, value in variables.items()} | given
    with locked() as state:
        settings = state["settings"]
        failed = "sbatch: error: Batch job submission failed: "
        if options.get("account", "root") != "root":
            fail(f"{failed}Invalid account or account/partition combination specified")
        spans = re.findall(r"(\d+)(?:-(\d+))?", options.get("array", "").partition("%")[0])
        indices = [index for low, high in spans for index in range(int(low), int(high or low) + 1)]
        if indices and max(indices) >= settings["max_array_size"]:
            fail(f"{failed}Invalid job array specification")
        live = sum(job["state"] in LIVE for job in state["jobs"].values())
        if settings["max_submit"] is not None and live + len(indices or [None]) > settings["max_submit"]:
            policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
            fail("sbatch: error: QOSMaxSubmitJobPerUserLimit", f"{failed}{policy}")
        base = state["next_id"]
        state["next_id"] += 1
        job: Job = {
            "base": str(base), "name": options.get("job-name", "sbatch"), "state": "PENDING",
            "reason": "Priority", "nodes": "", "left": "UNLIMITED", "submitted": time.time(),
            "options": options, "script": script, "environment": dict(os.environ),
        }  # fmt: skip
        for key in [f"{base}_{index}" for index in indices] or [str(base)]:
            state["jobs"][key] = job | {"key": key}
    print(base if "parsable" in options else f"Submitted batch job {base}")


def _matching(state: dict[str, Any], ids: str) -> list[Job]:
    wanted = ids.split(",")
    return [job for job in state["jobs"].values() if {job["key"], job["base"]} & set(wanted)]


def squeue(words: list[str]) -> None:
    options, _ = options_of(words)
    with locked() as state:
        settings, ids = state["settings"], options.get("jobs", "")
        known = [
            job
            for job in (_matching(state, ids) if ids else state["jobs"].values())
            if time.time() - job["submitted"] >= settings["delay_s"]
        ]
    # Only a single id is asked of the controller by itself; of several, unknown ones are left out.
    if ids and "," not in ids and not known:
        fail(f"slurm_load_jobs error: {_UNKNOWN_JOB}")
    states = options.get("states", os.environ.get("SQUEUE_STATES"))
    for job in known:
        if options.get("name", job["name"]) == job["name"] and (states == "all" or job["state"] in LIVE):
            letters = {"i": "key", "T": "state", "r": "reason", "L": "left", "N": "nodes", "j": "name"}
            say(options["format"], {letter: job[name] for letter, name in letters.items()})


def scancel(words: list[str]) -> None:
    with locked() as state:
        for job in _matching(state, ",".join(words)):  # one that is over or unknown is no error
            if job["state"] in LIVE:
                job |= {"state": "CANCELLED", "reason": "None"}


def scontrol(words: list[str]) -> None:
    with locked() as state:
        settings = state["settings"]
        if words == ["show", "config"]:
            print(f"KillWait                = {settings['kill_wait_s']} sec")
            print(f"MaxArraySize            = {settings['max_array_size']}")
        elif words[0] == "requeue":
            found = _matching(state, words[1]) or fail(f"{_UNKNOWN_JOB} for job {words[1]}")
            if "no-requeue" in found[0]["options"]:
                fail(f"Requested operation is presently disabled for job {words[1]}")
            if found[0]["state"] == "PENDING":
                fail(f"Job is pending execution for job {words[1]}")
            found[0] |= {"state": "PENDING", "nodes": ""}


def sinfo(words: list[str]) -> None:
    options, _ = options_of(words)
    with locked() as state:
        settings = state["settings"]
    for partition in ("main*", "gpu"):
        if options.get("partition", partition.rstrip("*")) == partition.rstrip("*"):
            fields = {"P": partition, "c": settings["cpus"], "G": f"gpu:{settings['gpus']}"}
            fields["T"] = "down*" if options.get("nodes") in settings["down"] else "idle"
            say(options["format"], fields)


def sacct(words: list[str]) -> None:
    options, _ = options_of(words)
    with locked() as state:
        if not state["settings"]["accounting"]:
            fail("Slurm accounting storage is disabled")
        for job in _matching(state, options["jobs"]):
            text = f"CANCELLED by {os.getuid()}" if job["state"] == "CANCELLED" else job["state"]
            print(options["delimiter"].join((job["key"], text)))


def sacctmgr(words: list[str]) -> None:
    with locked() as state:
        settings = state["settings"]
    if not settings["accounting"]:
        fail("You are not running a supported accounting_storage plugin")
    if "qos" in words and settings["max_submit"] is not None:
        print(f"normal|{settings['max_submit']}||")


def srun(words: list[str]) -> None:
    fail("srun: error: the fake starts no steps")  # submitit wants to see one


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    command.__name__: command for command in (sbatch, squeue, scancel, scontrol, sinfo, sacct, sacctmgr, srun)
}


def main(name: str, words: list[str]) -> None:
    with locked() as state:
        settings = state["settings"]
        with open(Path(os.environ[STATE]) / "calls.jsonl", "a") as file:
            file.write(json.dumps([name, *words]) + "\n")
        silent = settings["unreachable"] > 0 and name in ("squeue", "scontrol", "sinfo", "sbatch")
        settings["unreachable"] -= silent
    if words == ["--version"]:
        print("slurm 22.05.8")
    elif silent:
        fail("Unable to contact slurm controller (connect failure)")
    else:
        COMMANDS[name](words)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
