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
from typing import Literal, NamedTuple

from ....strategies.errors import MachineError
from ...config.slurm_time_limit import seconds_left

LIVE = ("queued", "running")
Status = Literal["queued", "running", "finished", "failed", "timed_out", "cancelled"]

TIMEOUT_S = 30
TRIES = 3
PAUSE_S = 3.0
_IDS_PER_CALL = 200  # far below the length a command line may have
_BETWEEN = "\x1f"  # between fields: no job name, reason or node list holds it
_FILTERS = re.compile(r"(SQUEUE|SINFO|SACCT|SACCTMGR|SCANCEL|SCONTROL)_|SLURM_TIME_FORMAT$")
_NO_ANSWER = re.compile(r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted")
_UNKNOWN_JOB = re.compile(r"Invalid job id specified|Job \S+ not found")
_OVER = re.compile(r"Invalid job id specified|already completing or completed")


class SlurmError(MachineError):
    """A command of Slurm is missing, failed, or got no answer. `words`: what it wrote to stderr."""

    def __init__(self, command: Sequence[str], words: str) -> None:
        super().__init__(f"{command[0]}: {words}" if not words.startswith(command[0]) else words)
        self.command = tuple(command)
        self.words = words


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """One job or array element as a command of Slurm shows it; None: that command does not show it.

    `id`: "123" or "123_4". `state`: Slurm's word (`words` translates it). `time_left_s`: infinity without a
    limit. `nodes`: compressed list ("n[1-2]"), "" before the start.
    """

    id: str
    name: str
    state: str
    reason: str
    time_left_s: float | None
    nodes: str

    @property
    def live(self) -> bool:
        """Whether it waits or runs."""
        return words(self.state).status in LIVE


class Words(NamedTuple):
    """Our status for a state of Slurm and, where the state names one, its cause."""

    status: Status
    cause: str | None


@dataclass(frozen=True, kw_only=True)
class NodeKind:
    """`count` nodes that are alike: cores (as Slurm counts CPUs) and GPUs per node."""

    count: int
    cpus: int
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the site allows, None where unknown. `max_array_size`: the largest index is one less."""

    max_array_size: int | None
    max_submit: int | None
    kill_wait_s: int | None


# Base states and flags of Slurm 21.08 to 25.11 (man squeue, "JOB STATE CODES"; slurm/slurm.h).
_WORDS: dict[str, Words] = {
    "PENDING": Words("queued", None),
    "CONFIGURING": Words("queued", None),
    "POWER_UP_NODE": Words("queued", None),
    "REQUEUED": Words("queued", "requeued"),
    "REQUEUE_FED": Words("queued", "requeued"),
    "EXPEDITING": Words("queued", "requeued"),
    "REQUEUE_HOLD": Words("queued", "held"),
    "RESV_DEL_HOLD": Words("queued", "held"),
    "SPECIAL_EXIT": Words("queued", "held"),
    "RUNNING": Words("running", None),
    "COMPLETING": Words("running", None),
    "RESIZING": Words("running", None),
    "SIGNALING": Words("running", None),
    "STAGE_OUT": Words("running", None),
    "UPDATE_DB": Words("running", None),
    "SUSPENDED": Words("running", "suspended"),
    "STOPPED": Words("running", "suspended"),
    "COMPLETED": Words("finished", None),
    "FAILED": Words("failed", None),
    "LAUNCH_FAILED": Words("failed", "launch_failed"),
    "RECONFIG_FAIL": Words("failed", "launch_failed"),
    "BOOT_FAIL": Words("failed", "boot_fail"),
    "NODE_FAIL": Words("failed", "node_fail"),
    "OUT_OF_MEMORY": Words("failed", "out_of_memory"),
    "PREEMPTED": Words("failed", "preempted"),
    "TIMEOUT": Words("timed_out", "time limit"),
    "DEADLINE": Words("timed_out", "deadline"),
    "CANCELLED": Words("cancelled", None),
    "REVOKED": Words("cancelled", "revoked"),
}


def words(state: str) -> Words:
    """Our word for Slurm's `state`, with "+" (cut short), "*" or "by 0" behind it or not.

    A preempted job counts as failed with the cause "preempted": nobody cancelled it. An unknown state, of a
    newer Slurm, counts as running, with the state as cause: the job may not have ended.
    """
    name = state.split(" by ")[0].strip().rstrip("*")
    if name.endswith("+"):
        fitting = {key for key in _WORDS if key.startswith(name[:-1])} if len(name) > 4 else set[str]()
        name = fitting.pop() if len(fitting) == 1 else name[:-1]
    if name not in _WORDS:
        return Words("running", state)
    return _WORDS[name]


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
    return {job.id: job for job in jobs if not ids or _asked(job.id, ids)}


def shown(id: str) -> QueuedJob | None:
    """One job as `scontrol show job` shows it; None if it is unknown."""
    try:
        text = call("scontrol", "--oneliner", "show", "job", id)
    except SlurmError as error:
        if _UNKNOWN_JOB.search(error.words):
            return None
        raise
    jobs = [job for line in text.splitlines() if "JobId=" in line and (job := _of_scontrol(line, id))]
    # Elements that still wait share one record, which names none of them.
    exact = [job for line, job in zip(text.splitlines(), jobs, strict=False) if _is_element(line, id)]
    return (exact or jobs or [None])[0]


def accounted(ids: Collection[str]) -> dict[str, list[QueuedJob]]:
    """Every attempt of each job in accounting, the first one first; {} where there is no accounting."""
    if not shutil.which("sacct"):
        return {}
    rows: list[tuple[str, QueuedJob]] = []
    for chunk in _chunks(ids):
        try:
            rows += _sacct(chunk)
        except SlurmError as error:
            if "accounting storage is disabled" in error.words:
                return {}
            raise
    attempts: dict[str, list[QueuedJob]] = {}
    for _, job in sorted(rows, key=lambda row: row[0]):
        # Elements that wait share one record, "11_[4-9]": no attempt of any of them yet.
        if _asked(job.id, ids) and "[" not in job.id:
            attempts.setdefault(job.id, []).append(job)
    return attempts


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


def partition_of_nodes(partition: str | None = None) -> list[NodeKind]:
    """The nodes of a partition (default: the cluster's default one), kind by kind; [] if it is unknown."""
    which = [] if partition is None else [f"--partition={partition}"]
    text = call("sinfo", "--noheader", "--exact", _format("%P", "%D", "%c", "%G"), *which)
    counts: dict[tuple[int, int], int] = {}
    for name, count, cpus, gres in _rows(text, 4):
        if partition is not None or name.endswith("*"):
            kind = (_number(cpus), _gpus(gres))
            counts[kind] = counts.get(kind, 0) + _number(count)
    return [NodeKind(count=count, cpus=cpus, gpus=gpus) for (cpus, gpus), count in counts.items()]


def limits() -> Limits:
    """What the site allows this user; `max_submit` is the smallest limit of the accounts and of the QOS."""
    config = _config()
    return Limits(
        max_array_size=_first_number(config.get("MaxArraySize", "")),
        max_submit=_max_submit(),
        kill_wait_s=_first_number(config.get("KillWait", "")),
    )


def node_states(names: Collection[str]) -> dict[str, str]:
    """Node -> Slurm's word for its state ("idle", "allocated", "down*"); an unknown node is absent."""
    if not names:
        return {}
    text = call("sinfo", "--noheader", "--Node", _format("%N", "%T"), f"--nodes={','.join(names)}")
    return {name: state for name, state in _rows(text, 2) if name in names}


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


def _base(id: str) -> str:
    return id.split("_")[0]


def _asked(id: str, ids: Collection[str]) -> bool:
    return id in ids or _base(id) in ids


def _chunks(ids: Collection[str], *, whole_arrays: bool = True) -> Iterator[list[str]]:
    """The ids in portions for one call each; elements are asked for by their array, which is one id."""
    unique = list(dict.fromkeys(_base(id) if whole_arrays else id for id in ids))
    for start in range(0, len(unique), _IDS_PER_CALL):
        yield unique[start : start + _IDS_PER_CALL]


def _squeue_ids(ids: Sequence[str]) -> list[QueuedJob]:
    try:
        return _squeue(f"--jobs={','.join(ids)}")
    except SlurmError as error:
        if not _UNKNOWN_JOB.search(error.words):
            raise
    return [] if len(ids) == 1 else [job for id in ids for job in _squeue_ids([id])]


def _squeue(*which: str) -> list[QueuedJob]:
    text = call(
        "squeue", "--noheader", "--array", "--states=all", _format("%i", "%T", "%r", "%L", "%N", "%j"), *which
    )
    return [
        QueuedJob(
            id=id,
            name=name,
            state=state,
            reason=_said(reason),
            time_left_s=seconds_left(left),
            nodes=nodes,
        )
        for id, state, reason, left, nodes, name in _rows(text, 6)
    ]


def _of_scontrol(line: str, id: str) -> QueuedJob:
    """The record of a job from its one line of key=value; its name may hold anything up to UserId."""
    name, _, rest = line.partition(" JobName=")[2].partition(" UserId=")
    fields = dict(re.findall(r"(?:^|\s)([A-Za-z:/]+)=(\S*)", rest))
    limit, ran = seconds_left(fields.get("TimeLimit", "")), seconds_left(fields.get("RunTime", ""))
    return QueuedJob(
        id=id,
        name=name,
        state=fields.get("JobState", ""),
        reason=_said(fields.get("Reason", "")),
        time_left_s=None if limit is None else limit - (ran or 0),
        nodes=_said(fields.get("NodeList", "")),
    )


def _is_element(line: str, id: str) -> bool:
    return "_" not in id or f" ArrayTaskId={id.split('_')[1]} " in line


def _sacct(ids: Sequence[str]) -> Iterator[tuple[str, QueuedJob]]:
    """(start, job) of every record: ISO times, so that text order is time order; "Unknown" sorts last."""
    text = call(
        "sacct", "--noheader", "--parsable2", f"--delimiter={_BETWEEN}", "--allocations", "--duplicates",
        f"--jobs={','.join(ids)}", "--format=JobID,State,Reason,NodeList,Start,JobName",
    )  # fmt: skip
    for id, state, reason, nodes, start, name in _rows(text, 6):
        nodes = "" if nodes == "None assigned" else nodes
        yield (
            start,
            QueuedJob(id=id, name=name, state=state, reason=_said(reason), time_left_s=None, nodes=nodes),
        )


def _said(text: str) -> str:
    return "" if text in ("None", "(null)", "N/A") else text


def _config() -> dict[str, str]:
    pairs = (line.partition("=") for line in call("scontrol", "show", "config").splitlines())
    return {key.strip(): value.strip() for key, sign, value in pairs if sign}


def _first_number(text: str) -> int | None:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def _number(text: str) -> int:
    number = _first_number(text)
    return 0 if number is None else number


def _gpus(gres: str) -> int:
    """GPUs in a Gres list: "gpu:a100:4(S:0-1),nvme:1" has 4."""
    total = 0
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, *rest = item.split(":")
        if kind == "gpu":
            total += int(rest[-1]) if rest and rest[-1].isdecimal() else 1
    return total


def _max_submit() -> int | None:
    """The smallest limit of waiting and running jobs; None where sacctmgr has no answer or no limit."""
    user = pwd.getpwuid(os.getuid()).pw_name
    try:
        rows = _sacctmgr("assoc", "DefaultQOS,MaxSubmitJobs,GrpSubmitJobs", f"user={user}")
        chosen = {row[0] for row in rows if row[0]} or {"normal"}
        rows += [
            row
            for row in _sacctmgr("qos", "Name,MaxSubmitJobsPerUser,MaxSubmitJobsPerAccount,GrpSubmitJobs")
            if row[0] in chosen
        ]
    except SlurmError:
        return None
    return min((int(field) for row in rows for field in row[1:] if field.isdecimal()), default=None)


def _sacctmgr(what: str, fields: str, *where: str) -> list[list[str]]:
    condition = ["where", *where] if where else []
    text = call("sacctmgr", "--noheader", "--parsable2", "show", what, *condition, f"format={fields}")
    return [line.split("|") for line in text.splitlines() if line]
