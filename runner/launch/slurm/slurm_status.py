"""Submitted runs: status from status.json and Slurm's queue, cancelling, and following runs to their end."""

import re
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from ....strategies.errors import ConfigError, MachineError
from ...records import display
from ...records.run_directory import DONE, SUPERVISOR_GONE, RunDirectory
from . import queue

LATE_S = 90.0  # how long a network file system may show an old status.json after its job is gone
ENDED = ("finished", "diverged", "failed", "timed_out", "cancelled")
POLL_S = 2.0
PROGRESS_EVERY_S = 15.0
_ENTRY = re.compile(r"^(?=\S+ \S+ supervisor [A-Z]+: )", re.MULTILINE)  # of the supervisor's log


def job_id(status: Mapping[str, Any]) -> str | None:
    """The batch job that a run was last given to, None for a run that no batch system knows."""
    return (status.get("job") or {}).get("id")


def jobs_of(statuses: Iterable[Mapping[str, Any]]) -> dict[str, queue.QueuedJob]:
    """The jobs of unfinished runs, as the controller knows them; {} if no Slurm answers."""
    ids = [
        id for status in statuses if (id := job_id(status)) is not None and status.get("status") not in DONE
    ]
    if not ids:
        return {}
    with suppress(MachineError):
        return queue.in_queue(ids)
    return {}


def with_queue(status: Mapping[str, Any], job: queue.QueuedJob | None) -> dict[str, Any]:
    """status.json with what the queue adds: `queue` = state, nodes, time left, reason for waiting.

    A run whose status.json shows no end and whose job is gone has failed, for the reason that accounting or
    the controller still knows.
    """
    combined, word = dict(status), str(status.get("status"))
    if job is None or not job.live:
        if word in queue.LIVE or status.get("reason") == SUPERVISOR_GONE:
            combined.update(_gone(status, job))
        return combined
    combined["queue"] = {
        "id": job.id,
        "state": job.state,
        "nodes": job.nodes,
        "time_left_s": job.time_left_s,
        "reason": job.reason,
    }
    reason = status.get("reason")
    if word in ("failed", "cancelled", "timed_out") and job.status == "queued":
        # Slurm has put it back into the queue by itself, and the last attempt could not know.
        combined.update(status="queued", reason=f"waits: {job.reason} ({reason})")
    elif word == "failed" and reason == SUPERVISOR_GONE:
        # Its lock is held on another machine, where this file system does not look.
        combined.update(status=job.status, reason=None)
    elif word == "queued" and job.reason:
        combined["reason"] = f"waits: {job.reason}" + (f" ({reason})" if reason else "")
    return combined


def _gone(status: Mapping[str, Any], job: queue.QueuedJob | None) -> dict[str, Any]:
    """The end of a run whose job has left the queue before the run recorded one."""
    id = job_id(status)
    attempts: Sequence[Mapping[str, Any]] = status.get("attempts") or ()
    here = bool(attempts) and attempts[-1].get("host") == socket.gethostname()
    if id is None or (status.get("status") == "running" and here):  # its lock shows that it runs
        return {}
    try:
        job = job or queue.job_of(id)
    except MachineError as error:  # no answer is no end; nor is a machine without Slurm
        return {"reason": f"job {id}: {error}"} if status.get("status") in queue.LIVE else {}
    if job is None:
        with suppress(MachineError):
            job = queue.last_accounted(id)
    if job is None:
        return {"status": "failed", "reason": f"job {id} is gone, and Slurm does not know how it ended"}
    if job.live:
        return {}
    return {
        "status": job.status if job.status in ("cancelled", "timed_out") else "failed",
        "reason": f"job {id} ended before the run recorded its end: {job.cause or job.state}",
    }


def is_last_word(status: Mapping[str, Any]) -> bool:
    """Whether the run itself has recorded its end."""
    return status["status"] not in queue.LIVE and status.get("reason") != SUPERVISOR_GONE


def cancel(run: RunDirectory) -> str:
    """Have `run` end for good; returns what was done. Raises ConfigError, MachineError."""
    status = run.status()
    id = job_id(status)
    over = is_last_word(status)
    if over and status["status"] not in DONE and id is not None:
        # Slurm may have put it back into the queue by itself.
        job = queue.job_of(id)
        over = job is None or not job.live
    if over:
        return f"is {status['status']} already"
    run.cancel_file.touch()
    if id is not None:
        queue.cancel([id])
    if run.state() == "running":
        return f"job {id} is asked to end" if id is not None else "is asked to end"
    with suppress(ConfigError), run.lock():
        run.update(status="cancelled", reason="by daso-bench cancel")
    return f"taken out of the queue (job {id})" if id is not None else "cancelled"


def watch(runs: Sequence[RunDirectory]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The status of each run with what the queue adds, look by look, until all have ended."""
    waiting = {run.path: run for run in runs}
    gone_s: dict[Path, float] = {}
    while waiting:
        jobs = jobs_of(run.status() for run in waiting.values())
        for path, run in list(waiting.items()):
            status = run.status()  # read after the queue: a job that is gone has written its last status
            combined = with_queue(status, jobs.get(job_id(status) or ""))
            if combined["status"] in ENDED and not is_last_word(status):
                # The job is gone, but the file system may still show an older status.json.
                if time.monotonic() - gone_s.setdefault(path, time.monotonic()) < LATE_S:
                    continue
            else:
                gone_s.pop(path, None)
            yield path, combined
            if combined["status"] in ENDED:
                del waiting[path]
        if waiting:
            time.sleep(POLL_S)


def follow(runs: Sequence[RunDirectory], console: Console) -> int:
    """Print the progress of `runs` until all have ended, for `launcher.wait=true`; returns the exit code.

    Ctrl-C leaves the jobs alone.
    """
    shown: dict[str, tuple[str, float]] = {}  # by run: its state, and when its progress was shown
    ended: dict[Path, Mapping[str, Any]] = {}
    try:
        for path, status in watch(runs):
            _show_change(console, path.name, status, shown)
            if status["status"] in ENDED:
                ended[path] = status
    except KeyboardInterrupt:
        display.say(console, "no longer followed; the jobs go on (daso-bench cancel DIR ends them)")
        return 130
    _print_ends(console, ended)
    words = {status["status"] for status in ended.values()}
    # In a sweep a diverged run is a result of its strategy.
    bad = {"failed", "timed_out", "cancelled"} | ({"diverged"} if len(ended) == 1 else set())
    return 1 if words & bad else 0


def _show_change(
    console: Console, name: str, status: Mapping[str, Any], shown: dict[str, tuple[str, float]]
) -> None:
    """Print each change of the state of a run, and its progress from time to time."""
    word, reason = str(status["status"]), str(status.get("reason") or "")
    state = f"{word}|{reason}|{len(status.get('attempts') or ())}"
    now = time.monotonic()
    before, shown_s = shown.get(name, ("", now))
    progress = display.numbers(status.get("progress") or {})
    due = word == "running" and progress and now - shown_s >= PROGRESS_EVERY_S
    if state == before and not due:
        return
    shown[name] = state, now
    nodes = (status.get("queue") or {}).get("nodes") or ""
    parts = [word, f"on {nodes}" if word == "running" and nodes else "", progress if due else "", reason]
    display.say(console, f"  {name}: {'  '.join(part for part in parts if part)}")


def _print_ends(console: Console, ended: Mapping[Path, Mapping[str, Any]]) -> None:
    from ...training.data_errors import can_go_on  # loads torch, which `daso-bench status` must not

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
    """The failing rank's traceback, from the supervisor's log of the run; "" if its reason is enough.

    `reason`: the run's; ranks that failed because of the first one have logged their errors too.
    """
    try:
        log = (path / "logs" / "supervisor.log").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    errors = [entry for entry in _ENTRY.split(log) if " supervisor ERROR: " in entry.partition("\n")[0]]
    of_reason = [entry for entry in errors if reason and f" supervisor ERROR: {reason}\n" in entry]
    (*_, chosen) = of_reason or errors or [""]
    return "\n".join(chosen.splitlines()[1:61]).strip()
