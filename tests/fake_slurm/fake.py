"""A Slurm for tests: `install` puts its commands into a folder, one Python script that goes by its name.

Batch scripts are processes of this machine, with the variables, exit codes, file names and refusals of
Slurm. Nodes are names (n1, n2, ...); there are no time limits, no preemption and no srun: tests/cluster has
those, on a real Slurm. Texts come from Slurm 22.05.8; what other versions do differently is encoded where it
happens, with its source. Tests import it as `from fake_slurm import fake`.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fake_jobs
import fake_queries
import fake_sbatch
from fake_state import DEFAULTS, fail, locked, peek

COMMANDS = {
    "srun": lambda _: fail("srun", "error: the fake starts no steps"),  # submitit wants to see one
    "sbatch": fake_sbatch.main,
    "squeue": fake_queries.squeue,
    "sacct": fake_queries.sacct,
    "scancel": fake_queries.scancel,
    "scontrol": fake_queries.scontrol,
    "sinfo": fake_queries.sinfo,
    "sacctmgr": fake_queries.sacctmgr,
}
Cluster = Callable[..., dict[str, str]]  # a fixture that installs one: cluster(version, **settings)
VERSIONS = ("21.08", "22.05", "23.11", "24.11", "25.11")


def install(
    folder: Path, version: str = "23.11", without: tuple[str, ...] = (), **settings: Any
) -> dict[str, str]:
    """Make a cluster in `folder`; what it returns is the environment (PATH, FAKE_SLURM_STATE) to run under.

    `settings`: see DEFAULTS in fake_state.py. `without`: commands that are not there ("sacct").
    """
    unknown = settings.keys() - DEFAULTS.keys()
    if unknown:
        raise ValueError(f"unknown settings: {sorted(unknown)}; known: {sorted(DEFAULTS)}")
    bin, state = folder / "bin", folder / "state"
    bin.mkdir(parents=True)
    (state / "jobs").mkdir(parents=True)
    start = {"settings": DEFAULTS | {"version": version} | settings, "next_id": 1, "jobs": {}}
    (state / "state.json").write_text(json.dumps(start))
    for name in COMMANDS:
        if name not in without:
            # The interpreter of the tests, whatever PATH the command is started under.
            text = f'#!/bin/sh\nexec "{sys.executable}" -I -S "{Path(__file__).resolve()}" --as {name} "$@"\n'
            (bin / name).write_text(text)
            (bin / name).chmod(0o755)
    path = f"{bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"PATH": path, "FAKE_SLURM_STATE": str(state)}


@contextlib.contextmanager
def _at(env: dict[str, str]) -> Any:
    """The state functions read FAKE_SLURM_STATE; here for the time of a call."""
    before = os.environ.get("FAKE_SLURM_STATE")
    os.environ["FAKE_SLURM_STATE"] = env["FAKE_SLURM_STATE"]
    try:
        yield
    finally:
        if before is None:
            del os.environ["FAKE_SLURM_STATE"]
        else:
            os.environ["FAKE_SLURM_STATE"] = before


def change(env: dict[str, str], **settings: Any) -> None:
    """Change settings of a cluster that runs (`max_submit`, `unreachable`, ...)."""
    with _at(env):
        with locked() as state:
            state["settings"] |= settings
        fake_jobs.schedule()


def release(env: dict[str, str]) -> None:
    """Let the jobs of a cluster start that was made with `hold=True`."""
    change(env, hold=False)


def jobs(env: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What the cluster remembers of every job: options, attempts."""
    with _at(env):
        return peek()["jobs"]


def calls(env: dict[str, str]) -> list[list[str]]:
    """Every command that was started, in order, with its arguments."""
    path = Path(env["FAKE_SLURM_STATE"]) / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def script(env: dict[str, str], base: int | str) -> str:
    """The batch file that was submitted."""
    return (Path(env["FAKE_SLURM_STATE"]) / "jobs" / str(base) / "script").read_text()


def wait(env: dict[str, str], *states: str, timeout_s: float = 90.0) -> dict[str, dict[str, Any]]:
    """Wait until every job is in one of `states` (default: over); returns `jobs`."""
    over = states or ("COMPLETED", "FAILED", "CANCELLED")
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        found = jobs(env)
        if found and all(job["state"] in over for job in found.values()):
            return found
        time.sleep(0.05)
    raise TimeoutError({key: (job["state"], job["reason"]) for key, job in jobs(env).items()})


def stop(env: dict[str, str], timeout_s: float = 10.0) -> None:
    """End everything that still runs; a fixture calls it, so that no test leaves processes behind."""
    with _at(env):
        with locked() as state:
            state["settings"] |= {"hold": True, "kill_wait_s": 0}
        for key in peek()["jobs"]:
            fake_jobs.wish(key, "CANCELLED")
            fake_jobs.send(key, signal.SIGKILL)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and any(job["state"] == "RUNNING" for job in jobs(env).values()):
        time.sleep(0.05)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--run"]:
        return fake_jobs.run(arguments[1])
    name, rest = arguments[1], arguments[2:]
    with open(Path(os.environ["FAKE_SLURM_STATE"]) / "calls.jsonl", "a") as file:
        file.write(json.dumps([name, *rest]) + "\n")
    if name not in ("sacct", "srun", "sacctmgr") and "--version" not in rest:
        fake_queries.unreachable(name)
    return COMMANDS[name](rest)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
