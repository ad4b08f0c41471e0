"""Follows submitted runs to their end, for `launcher.wait=true`, and reads a failed run's traceback."""

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...records import display
from ...records.run_directory import RunDirectory
from ...training.data_errors import can_go_on
from . import slurm_status

POLL_S = 2.0
PROGRESS_EVERY_S = 15.0
_ENTRY = re.compile(r"^(?=\S+ \S+ supervisor [A-Z]+: )", re.MULTILINE)  # of the supervisor's log


def follow(runs: Sequence[RunDirectory], console: Console) -> int:
    """Tell how `runs` go until all have ended; the exit code is theirs. Ctrl-C leaves the jobs alone."""
    seen = _Seen(console)
    waiting = {run.path: run for run in runs}
    ended: dict[Path, Mapping[str, Any]] = {}
    gone_s: dict[Path, float] = {}
    try:
        while waiting:
            jobs = slurm_status.jobs_of(run.status() for run in waiting.values())
            for path, run in list(waiting.items()):
                status = run.status()  # later than the queue: a job that is gone has had its last word
                combined = slurm_status.with_queue(status, jobs.get(slurm_status.job_id(status) or ""))
                if combined["status"] in slurm_status.ENDED and not slurm_status.is_last_word(status):
                    # The job is gone, but the file system may still show an older status.json.
                    if time.monotonic() - gone_s.setdefault(path, time.monotonic()) < slurm_status.LATE_S:
                        continue
                else:
                    gone_s.pop(path, None)
                seen(path.name, combined)
                if combined["status"] in slurm_status.ENDED:
                    ended[path] = combined
                    del waiting[path]
            if waiting:
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        display.say(console, "no longer followed; the jobs go on (daso-bench cancel DIR ends them)")
        return 130
    _tell(console, ended)
    words = {status["status"] for status in ended.values()}
    return (
        1 if words & {"failed", "timed_out", "cancelled"} or (len(ended) == 1 and "diverged" in words) else 0
    )


class _Seen:
    """Says what is new of a run: a change of its state, and how far it is now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, str] = {}
        self._said_s: dict[str, float] = {}

    def __call__(self, name: str, status: Mapping[str, Any]) -> None:
        word, reason = str(status["status"]), str(status.get("reason") or "")
        state = f"{word}|{reason}|{len(status.get('attempts') or ())}"
        now = time.monotonic()
        progress = display.numbers(status.get("progress") or {})
        due = word == "running" and progress and now - self._said_s.get(name, now) >= PROGRESS_EVERY_S
        if state == self._last.get(name) and not due:
            self._said_s.setdefault(name, now)
            return
        self._last[name], self._said_s[name] = state, now
        nodes = (status.get("queue") or {}).get("nodes") or ""
        parts = [word, f"on {nodes}" if word == "running" and nodes else "", progress if due else "", reason]
        display.say(self._console, f"  {name}: {'  '.join(part for part in parts if part)}")


def _tell(console: Console, ended: Mapping[Path, Mapping[str, Any]]) -> None:
    if len(ended) == 1:
        ((path, status),) = ended.items()
        console.print(display.run_table(status))
        display.say(console, f"run directory: {path}")
    elif ended:
        console.print(display.runs_table([(path.name, status) for path, status in ended.items()]))
    for path, status in ended.items():
        if status["status"] in ("failed", "timed_out", "cancelled"):
            if len(ended) > 1:
                display.say(console, f"{path.name}: {status['status']}: {status.get('reason')}", "red")
            text = last_words(path, status.get("reason")) if status["status"] == "failed" else ""
            if text:
                display.say(console, text, "dim")
            if can_go_on(status.get("reason")):
                display.say(console, f"go on with: daso-bench resume {shlex.quote(str(path))}")


def last_words(path: Path, reason: str | None = None) -> str:
    """The failing rank's traceback, from the supervisor's log of the run; "" if its reason says all.

    `reason`: the run's; the ranks that failed because of the first one have logged their troubles as well.
    """
    try:
        log = (path / "logs" / "supervisor.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    errors = [entry for entry in _ENTRY.split(log) if " supervisor ERROR: " in entry.partition("\n")[0]]
    of_reason = [entry for entry in errors if reason and f" supervisor ERROR: {reason}\n" in entry]
    (*_, chosen) = of_reason or errors or [""]
    return "\n".join(chosen.splitlines()[1:61]).strip()
