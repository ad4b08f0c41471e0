"""Slurm's queue: one function for each query or order, by the commands of the batch system.

Every command runs without a shell and without the user's own formats and filters (SQUEUE_STATES,
SCANCEL_USER, ...), has 30 s, and is repeated twice if the controller does not answer. `sbatch` must not be
repeated (a job could go in twice) and is not called here.
"""

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ....strategies.errors import MachineError
from ...config.launchers import seconds_left

LIVE = ("queued", "running")
Status = Literal["queued", "running", "finished", "failed", "timed_out", "cancelled"]

TIMEOUT_S = 30
TRIES = 3
PAUSE_S = 3.0
_IDS_PER_CALL = 200  # far below the length a command line may have
_BETWEEN = "\x1f"  # between fields: no job name, reason or node list holds it
_FILTERS = re.compile(r"(SQUEUE|SINFO|SACCT|SACCTMGR|SCANCEL|SCONTROL)_|SLURM_TIME_FORMAT$")
_NO_ANSWER = re.compile(r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted")
_UNKNOWN_JOB = re.compile(r"Invalid job id specified")
_OVER = re.compile(r"Invalid job id specified|already completing or completed")


class SlurmError(MachineError):
    """A command of Slurm is missing, failed, or got no answer. `words`: what it wrote to stderr."""

    def __init__(self, command: Sequence[str], words: str) -> None:
        super().__init__(f"{command[0]}: {words}" if not words.startswith(command[0]) else words)
        self.words = words


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """One job or array element as squeue or sacct shows it.

    `id`: "123" or "123_4". `state`: Slurm's word. `time_left_s`: infinity without a limit, None if unknown.
    `nodes`: compressed list ("n[1-2]"), "" before the start.
    """

    id: str
    state: str
    name: str = ""
    reason: str = ""
    time_left_s: float | None = None
    nodes: str = ""

    @property
    def status(self) -> Status:
        """Our word for its state. A preempted job counts as failed: nobody cancelled it.

        An unknown state, of a newer Slurm, counts as running: the job may not have ended.
        """
        return self._words()[0]

    @property
    def cause(self) -> str | None:
        """The cause that its state names, or the state if it is unknown."""
        return self._words()[1]

    @property
    def live(self) -> bool:
        """Whether it waits or runs."""
        return self.status in LIVE

    def _words(self) -> tuple[Status, str | None]:
        return _WORDS.get(self.state.split(" by ")[0], ("running", self.state))  # "CANCELLED by 0"


# Base states and flags of Slurm 21.08 to 25.11 (man squeue, "JOB STATE CODES"; slurm/slurm.h).
_STATES: dict[tuple[Status, str | None], str] = {
    ("queued", None): "PENDING CONFIGURING POWER_UP_NODE",
    ("queued", "requeued"): "REQUEUED REQUEUE_FED EXPEDITING",
    ("queued", "held"): "REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    ("running", None): "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT UPDATE_DB",
    ("running", "suspended"): "SUSPENDED STOPPED",
    ("finished", None): "COMPLETED",
    ("failed", None): "FAILED",
    ("failed", "launch_failed"): "LAUNCH_FAILED RECONFIG_FAIL",
    ("failed", "boot_fail"): "BOOT_FAIL",
    ("failed", "node_fail"): "NODE_FAIL",
    ("failed", "out_of_memory"): "OUT_OF_MEMORY",
    ("failed", "preempted"): "PREEMPTED",
    ("timed_out", "time limit"): "TIMEOUT",
    ("timed_out", "deadline"): "DEADLINE",
    ("cancelled", None): "CANCELLED",
    ("cancelled", "revoked"): "REVOKED",
}
_WORDS = {state: words for words, states in _STATES.items() for state in states.split()}


def in_queue(ids: Collection[str] = (), *, name: str | None = None) -> dict[str, QueuedJob]:
    """The jobs that the controller knows, by id: the `ids`, or this user's jobs of this `name`.

    The id of an array means all its elements. The controller knows a finished job for some minutes more
    (MinJobAge), and the result has it, with its `state`. An unknown id is absent.
    """
    jobs: list[QueuedJob] = []
    if ids:
        for chunk in _chunks(ids):
            jobs += _squeue_ids(chunk)
    elif name is not None:
        jobs = _squeue(f"--name={name}", f"--user={os.getuid()}")
    return {job.id: job for job in jobs if not ids or {job.id, job.id.split("_")[0]} & set(ids)}


def job_of(id: str) -> QueuedJob | None:
    """One job as squeue shows it; None if it is unknown, or gone for some minutes."""
    return next((job for job in _squeue_ids([id]) if job.id == id), None)


def last_accounted(id: str) -> QueuedJob | None:
    """The last attempt of a job in accounting; None where there is no accounting or it does not know it."""
    if not shutil.which("sacct"):
        return None
    try:
        text = call(
            "sacct", "--noheader", "--parsable2", f"--delimiter={_BETWEEN}", "--allocations",
            f"--jobs={id}", "--format=JobID,State",
        )  # fmt: skip
    except SlurmError as error:
        if "accounting storage is disabled" in error.words:
            return None
        raise
    attempts = [QueuedJob(id=id, state=state) for element, state in _rows(text, 2) if element == id]
    return attempts[-1] if attempts else None


def cancel(ids: Collection[str]) -> None:
    """End these jobs; one that is over or unknown is not an error."""
    for chunk in _chunks(ids, whole_arrays=False):
        try:
            call("scancel", *chunk)
        except SlurmError as error:
            if [line for line in error.words.splitlines() if not _OVER.search(line)]:
                raise


def requeue(id: str) -> None:
    """Put a running job back into the queue. Raises SlurmError if it was submitted with --no-requeue."""
    try:
        call("scontrol", "requeue", id)
    except SlurmError as error:
        # An order that went in although its answer was lost is refused the second time.
        if "Job is pending execution" not in error.words:
            raise


def partition_of_nodes(partition: str | None = None) -> list[tuple[int, int]]:
    """The kinds of nodes of a partition (default: the cluster's default one); [] if it is unknown.

    Each as (cores, GPUs) of a node; cores as Slurm counts CPUs.
    """
    which = [] if partition is None else [f"--partition={partition}"]
    text = call("sinfo", "--noheader", "--exact", _format("%P", "%c", "%G"), *which)
    kinds = [
        (int(count[0]) if (count := re.match(r"\d+", cpus)) else 0, _gpus(gres))
        for name, cpus, gres in _rows(text, 3)
        if partition is not None or name.endswith("*")
    ]
    return list(dict.fromkeys(kinds))


def setting(name: str) -> int | None:
    """A number of Slurm's configuration, such as MaxArraySize; None if it is not there."""
    match = re.search(rf"^{name} *= *(\d+)", call("scontrol", "show", "config"), re.MULTILINE)
    return None if match is None else int(match[1])


def max_submit() -> int | None:
    """How many jobs of this user may wait and run: the smallest limit of the accounts and of the QOS.

    None where there is no limit, or sacctmgr has no answer.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    try:
        rows = _sacctmgr("assoc", "DefaultQOS,MaxSubmitJobs,GrpSubmitJobs", f"user={user}")
        chosen = {row[0] for row in rows if row[0]} or {"normal"}
        of_qos = _sacctmgr("qos", "Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs")
    except SlurmError:
        return None
    rows += [row for row in of_qos if row[0] in chosen]
    return min((int(field) for row in rows for field in row[1:] if field.isdecimal()), default=None)


def node_state(name: str) -> str | None:
    """Slurm's word for the state of a node ("idle", "allocated", "down*"); None if it is unknown."""
    return call("sinfo", "--noheader", "--Node", _format("%T"), f"--nodes={name}").split("\n")[0] or None


def call(*command: str) -> str:
    """What a command writes to stdout. Raises SlurmError if it is missing, fails, or takes over 30 s."""
    clean = {key: value for key, value in os.environ.items() if not _FILTERS.match(key)}
    for left in reversed(range(TRIES)):
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_S, check=False, env=clean, text=True,
                errors="replace", stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise SlurmError(command, "command not found; is this a machine with Slurm?") from None
        except OSError as error:
            raise SlurmError(command, f"cannot be started: {error}") from error
        except subprocess.TimeoutExpired:
            raise SlurmError(command, f"no answer within {TIMEOUT_S} s") from None
        if done.returncode == 0:
            return done.stdout
        error = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        if not (left and _NO_ANSWER.search(error)):
            raise SlurmError(command, error)
        time.sleep(PAUSE_S)
    raise AssertionError("unreachable")


def _format(*fields: str) -> str:
    return f"--format={_BETWEEN.join(fields)}"


def _rows(text: str, count: int) -> Iterator[list[str]]:
    """The lines of a table; a cluster's headline, which --clusters adds, is none."""
    for line in text.splitlines():
        row = [field.strip() for field in line.split(_BETWEEN)]
        if len(row) == count:
            yield row


def _chunks(ids: Collection[str], *, whole_arrays: bool = True) -> Iterator[list[str]]:
    """The ids in portions for one call each; elements are asked for by their array, which is one id."""
    unique = list(dict.fromkeys(id.split("_")[0] if whole_arrays else id for id in ids))
    for start in range(0, len(unique), _IDS_PER_CALL):
        yield unique[start : start + _IDS_PER_CALL]


def _squeue_ids(ids: Sequence[str]) -> list[QueuedJob]:
    try:
        return _squeue(f"--jobs={','.join(ids)}")
    except SlurmError as error:  # of a single id; of several, squeue leaves unknown ones out
        if not _UNKNOWN_JOB.search(error.words):
            raise
        return []


def _squeue(*which: str) -> list[QueuedJob]:
    text = call(
        "squeue", "--noheader", "--array", "--states=all", _format("%i", "%T", "%r", "%L", "%N", "%j"), *which
    )
    return [
        QueuedJob(
            id=id,
            name=name,
            state=state,
            reason="" if reason == "None" else reason,
            time_left_s=0.0 if left == "INVALID" else seconds_left(left),  # it is over its limit
            nodes=nodes,
        )
        for id, state, reason, left, nodes, name in _rows(text, 6)
    ]


def _gpus(gres: str) -> int:
    """GPUs in a Gres list: "gpu:a100:4(S:0-1),nvme:1" has 4."""
    total = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *rest = item.split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return total


def _sacctmgr(what: str, fields: str, *where: str) -> list[list[str]]:
    condition = ["where", *where] if where else []
    text = call("sacctmgr", "--noheader", "--parsable2", "show", what, *condition, f"format={fields}")
    return [line.split("|") for line in text.splitlines() if line]
