"""What the fake Slurm remembers: one JSON file behind a lock, so that commands may run at the same time.

A job is a dictionary; its key is "11" or, for an element of an array, "11_3".
"""

import fcntl
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

Job = dict[str, Any]

DEFAULTS: dict[str, Any] = {
    "version": "23.11",
    "nodes": 4,
    "cpus": 8,
    "gpus": 2,
    "hold": False,  # every job waits until `release`
    "delay_s": 0.0,  # squeue and scontrol know a job only that long after sbatch has told its id
    "accounting": True,
    "max_array_size": 1001,
    "max_submit": None,
    "kill_wait_s": 2,
    "min_job_age_s": 300.0,
    "unreachable": 0,  # so many commands get no answer from the controller
    "accounts": None,  # the accounts that exist; None: any
    "down": [],  # nodes that are down
}
LIVE = ("PENDING", "RUNNING")


def folder() -> Path:
    return Path(os.environ["FAKE_SLURM_STATE"])


@contextmanager
def locked() -> Iterator[dict[str, Any]]:
    """The whole state, written back at the end unless the block raises."""
    with open(folder() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = folder() / "state.json"
        before = path.read_text()
        state = json.loads(before)
        yield state
        after = json.dumps(state)
        if after != before:
            temporary = path.with_suffix(".tmp")
            temporary.write_text(after)
            temporary.replace(path)


def peek() -> dict[str, Any]:
    with locked() as state:
        return state


def version(state: dict[str, Any]) -> tuple[int, int]:
    major, minor = state["settings"]["version"].split(".")[:2]
    return int(major), int(minor)


def user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def fail(command: str, *lines: str, code: int = 1) -> NoReturn:
    for line in lines:
        print(f"{command}: {line}" if command else line, file=sys.stderr)
    raise SystemExit(code)


def visible(state: dict[str, Any]) -> list[Job]:
    """The jobs that the controller tells of: not the newest (`delay_s`), not those over for long."""
    settings, now = state["settings"], time.time()
    return [
        job
        for job in state["jobs"].values()
        if now - job["submitted"] >= settings["delay_s"]
        and (job["end"] is None or job["state"] in LIVE or now - job["end"] < settings["min_job_age_s"])
    ]


def compressed(names: list[str]) -> str:
    """`n[1-2,4]`: as Slurm writes it."""
    numbers = [int(name[1:]) for name in names]
    if len(names) < 2:
        return "".join(names)
    return f"n[{ranges(numbers)}]"


def ranges(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def expanded(text: str) -> list[str]:
    """A list of names with at most one bracket each, which is all that the fake itself writes."""
    names: list[str] = []
    for prefix, group, plain in re.findall(r"([^\[\],]+)\[([^\]]*)\]|([^\[\],]+)", text):
        if plain:
            names.append(plain)
        for item in group.split(",") if group else []:
            low, _, high = item.partition("-")
            width = len(low)
            names += [f"{prefix}{number:0{width}}" for number in range(int(low), int(high or low) + 1)]
    return names


def minutes(text: str) -> float | None:
    """A time limit in minutes, None if Slurm refuses it; 0 and UNLIMITED are no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return float("inf")
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        return None
    days, *rest = (int(part) if part is not None else None for part in match.groups())
    parts = [part for part in rest if part is not None]
    if days is not None:
        hours, mins, secs = (*parts, 0, 0)[:3]
        return days * 1440 + hours * 60 + mins + -(-secs // 60)
    if len(parts) == 3:
        return parts[0] * 60 + parts[1] + -(-parts[2] // 60)
    return parts[0] + -(-(parts[1] if len(parts) == 2 else 0) // 60)


def clock(seconds: float) -> str:
    """Slurm's duration: 1:23, 12:30:00, 2-03:04:05."""
    days, rest = divmod(int(seconds), 86400)
    hours, rest = divmod(rest, 3600)
    if days:
        return f"{days}-{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def long_clock(seconds: float) -> str:
    """The form of `scontrol show job`: 00:01:23."""
    days, rest = divmod(int(seconds), 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def stamp(when: float | None) -> str:
    return "Unknown" if when is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(when))
