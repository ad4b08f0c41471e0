"""The batch job: its batch step supervises one run, srun starts the ranks; a warning saves and requeues.

The job gets only the path of the run directory. Whatever started the job (a submission, a requeue by us or by
Slurm after a lost node, a preemption), it goes on from what is in the directory.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from ....strategies.errors import ConfigError, MachineError
from ....strategies.topology import Topology
from ...config.launchers import SlurmConfig
from ...config.load import load
from ...config.run_config import RunConfig
from ...records.json_lines import read_json
from ...records.run_directory import DONE, INTERRUPTED, SUPERVISOR_GONE, Outcome, RunDirectory
from ..attempt import run_attempt
from ..failures import Rank
from ..remote import RemoteProcess, RemoteRanks
from ..supervisor import Event
from . import queue
from .request import JobRequest, check_code, for_step, request_of
from .srun import Srun

ENTRY_FILE = "entry.json"  # names what the ranks do instead of training, with its arguments
WARNINGS = ("SIGTERM", "SIGUSR2")
RUNS = "runs.txt"  # of a submission: its runs, in the order of the array's elements
APPEAR_S = 120.0  # for a run directory made elsewhere to be seen on this node
# The attempt's status, why it ended, and what becomes of the job: "again": we requeue it; "waits": it is in
# the queue already; "over": it has ended.
Cause = tuple[str, str, Literal["again", "waits", "over"]]
KILLED_LATE_S = 1.0  # a job that is ended for its time limit has no more time left than this
SETTLE_S = 2.0  # until Slurm shows what becomes of a job that it ends


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The job around this process.

    `id`: as users name it, "12" or "12_3". `restarts`: requeues so far. `batch`: whether this is a batch
    script, which Slurm starts again after a requeue, and not a shell of salloc.
    """

    id: str
    name: str
    hosts: tuple[str, ...]
    restarts: int
    batch: bool = True

    @classmethod
    def around(cls) -> Self:
        """Raises ConfigError where this is no job's batch step or interactive shell."""
        from submitit.slurm.slurm import SlurmJobEnvironment  # takes a moment to load

        environ = os.environ
        if "SLURM_JOB_ID" not in environ or "SLURM_JOB_NODELIST" not in environ:
            raise ConfigError(
                "launcher.submit=false: needs an allocation around it (salloc, or an sbatch script); "
                "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set"
            )
        array = environ.get("SLURM_ARRAY_JOB_ID")
        job = environ["SLURM_JOB_ID"] if array is None else f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"
        return cls(
            id=job,
            name=environ.get("SLURM_JOB_NAME", ""),
            hosts=tuple(SlurmJobEnvironment().hostnames),
            restarts=int(environ.get("SLURM_RESTART_COUNT", 0)),
            batch=environ.get("ENVIRONMENT") == "BATCH",
        )


class JobFailedError(Exception):
    """The run ended without a result: the batch job must end with an error too."""


def main(folder: Path) -> int:
    """The command of the batch file: the run of this job or array element. Returns the exit code.

    `folder`, in the study's `.slurm`, has the list of the submission's runs, one run id a line.
    """
    try:
        runs = _appeared(folder / RUNS).read_text(encoding="utf-8").split()
        run_alone(folder.parent.parent / runs[int(os.environ.get("SLURM_ARRAY_TASK_ID", 0))])
    except JobFailedError as error:
        print(f"daso-bench: {error}", file=sys.stderr)
        return 1
    return 0


def run_alone(run_dir: Path) -> None:
    """Go on with the run at `run_dir`, if that is this job's to do.

    Raises JobFailedError if the run failed, with the failing rank's traceback.
    """
    _appeared(run_dir / "status.json")
    directory = RunDirectory.open(_appeared(run_dir / "config.yaml").parent)
    allocation = Allocation.around()
    if directory.cancel_file.exists() or directory.state() == "finished":
        print(f"{directory.run_id}: nothing to do ({directory.status()['status']})")
        return
    _refuse_if_other(directory, allocation)
    attempts = len(directory.status()["attempts"])
    try:
        check_code(directory)
        config = load(directory.config)
        outcome = run_here(directory, config, allocation, entry=entry_of(directory))
    except (ConfigError, MachineError) as error:
        _note_refusal(directory, error, attempts)
        raise JobFailedError(str(error)) from None
    if outcome.exit_code and directory.status()["status"] != "queued":
        raise JobFailedError(f"{outcome.status}: {outcome.reason}\n{outcome.details}")


def entry_of(directory: RunDirectory) -> str | None:
    """What the ranks of this directory do, as "package.module:function"; None: they train."""
    file = directory.path / ENTRY_FILE
    return read_json(file)["entry"] if file.is_file() else None


def run_here(
    directory: RunDirectory,
    config: RunConfig,
    allocation: Allocation,
    on_event: Callable[[Event], None] | None = None,
    entry: str | None = None,
) -> Outcome:
    """Run `directory` on the nodes of `allocation`; this process supervises. `entry`: what a rank does."""
    launcher = config.launcher
    assert isinstance(launcher, SlurmConfig)
    topology = Topology.of(config.cluster.ranks_of_nodes)
    if len(allocation.hosts) < topology.nodes:
        raise ConfigError(
            f"cluster.nodes={topology.nodes}: job {allocation.id} has {len(allocation.hosts)} nodes "
            f"({', '.join(allocation.hosts)}); submit with --nodes={topology.nodes}"
        )
    kinds = config.cluster.device.kind
    ranks = SlurmRanks(directory, topology, request_of(config), allocation, entry, kinds)
    kill_wait_s = 30
    with suppress(MachineError):
        kill_wait_s = queue.limits().kill_wait_s or kill_wait_s
    patience_s = max(2.0, min(30.0, kill_wait_s - 2.0))
    return run_attempt(directory, ranks, stall_s=launcher.stall_s, patience_s=patience_s, on_event=on_event)


class SlurmRanks(RemoteRanks):
    """The tasks of an srun in our allocation; distinguishes time limits, preemption and lost nodes."""

    def __init__(
        self,
        directory: RunDirectory,
        topology: Topology,
        request: JobRequest,
        allocation: Allocation,
        entry: str | None = None,
        kinds: Sequence[str] = (),
    ) -> None:
        self._slurm, self._allocation = request.launcher, allocation
        self._started: list[Rank] = []
        self._at_start: list[str] = []
        attempts = len(directory.status()["attempts"])
        key = f"slurm-{allocation.id}-{allocation.restarts}-{attempts}"
        worker = "daso_bench.runner.launch.worker"
        command = [sys.executable, "-u", "-m", worker, str(directory.path), "--key", key]
        command += [] if entry is None else ["--entry", entry]
        words, environ, hosts = request.srun(), for_step(os.environ), allocation.hosts[: topology.nodes]
        if request.ragged:
            host_file = directory.path / "logs" / "hosts.txt"
            host_file.write_text(request.host_file(hosts))
            environ["SLURM_HOSTFILE"] = str(host_file)
        else:
            words.insert(1, f"--nodelist={','.join(hosts)}")
        self._srun = Srun([*words, *command], environ, directory.path / "logs" / "srun.log")
        known = {"job": allocation.id, "restarts": allocation.restarts}
        super().__init__(directory, topology, self._srun, request.launcher, key=key, kinds=kinds, known=known)

    def about(self) -> dict[str, Any]:
        attempts = self.directory.status()["attempts"]
        gone = SUPERVISOR_GONE
        if attempts and attempts[-1].get("job") == self._allocation.id:
            gone = _why_restarted(self._allocation)
        job = {"id": self._allocation.id, "name": self._allocation.name}
        return {
            "gone": gone,
            "place": {"job": self._allocation.id, "nodes": list(self._allocation.hosts)},
            "job": {**(self.directory.status().get("job") or {}), **job},
        }

    def start(self, started: list[Rank], attempt: int) -> dict[str, Any]:
        self._started = started
        try:
            return super().start(started, attempt)
        except MachineError as error:
            # A warning ends a task while Python starts: it has no signal handler yet.
            deaths = {self._srun.fate(rank) for rank in range(self.topology.ranks)}
            self._at_start = [name for name in WARNINGS if -signal.Signals[name] in deaths]
            if self._at_start:
                raise KeyboardInterrupt from None
            given = os.environ.get("SLURM_NTASKS")
            if given is None or int(given) >= self.topology.ranks:
                raise
            shape = list(self.topology.ranks_of_nodes)
            raise MachineError(
                f"{error}\nthe run asks for {self.topology.ranks} ranks (cluster.ranks_per_node={shape}), "
                f"job {self._allocation.id} has {given} tasks: submit with --nodes={len(shape)} "
                f"--ntasks-per-node={max(shape)}"
            ) from None

    def conclude(self, outcome: Outcome, interrupts: list[str]) -> Outcome:
        if outcome.status in DONE:
            return outcome
        if self.directory.cancel_file.exists():
            return replace(outcome, status="cancelled", reason="by daso-bench cancel", exit_code=INTERRUPTED)
        cause = None if outcome.raised else self._cause(outcome, interrupts)
        if cause is None:
            return outcome
        status, reason, now = cause
        outcome = replace(outcome, status=status, reason=reason, exit_code=outcome.exit_code or 1)
        if now == "over":
            return outcome
        if now == "waits":
            return replace(outcome, run_status="queued")
        if not self._allocation.batch:  # a shell in an allocation cannot begin again
            return outcome
        attempts = self.directory.status()["attempts"]
        mine = [attempt for attempt in attempts if attempt.get("job") == self._allocation.id]
        done = sum(bool(attempt.get("requeued")) for attempt in mine)
        if done >= self._slurm.max_requeues:
            spent = f"after {done} requeues (launcher.max_requeues)"
            return replace(outcome, reason=f"{reason}, {spent}")
        return replace(outcome, run_status="queued", attempt={"requeued": True})

    def recorded(self, outcome: Outcome) -> None:
        if outcome.attempt.get("requeued"):
            self._requeue()

    def _cause(self, outcome: Outcome, interrupts: list[str]) -> Cause | None:
        """How Slurm caused the end of this attempt; None if it did not."""
        signals = [*interrupts, *self._at_start, *(name for rank in self._started for name in rank.signals)]
        if set(signals) & set(WARNINGS):
            return self._signalled(signals)
        node = self._lost_node() if outcome.status == "failed" else None
        if node is not None:
            return (
                "failed",
                f"node_fail: all ranks on {node} fell silent at once{_state_of(node)}",
                "again",
            )
        return None

    def _signalled(self, signals: list[str]) -> Cause:
        name = "SIGTERM" if "SIGTERM" in signals else "SIGUSR2"
        job = _settled(self._allocation.id) if name == "SIGTERM" else _shown(self._allocation.id)
        status, cause = ("running", None) if job is None else queue.words(job.state)
        left_s = job.time_left_s if job is not None else None
        # While a job completes, and it does so until we are gone, its state hides what comes after; but one
        # that goes back into the queue has its full time again already.
        completes = job is not None and job.state == "COMPLETING"
        full_s = 60 * self._slurm.limit_min
        anew = completes and self._slurm.submit and left_s is not None and left_s >= full_s
        if status == "queued" or anew:
            return "cancelled", f"requeued by Slurm ({name})", "waits"
        if status == "cancelled" or (completes and left_s is not None and left_s > KILLED_LATE_S):
            return "cancelled", "by scancel", "over"
        if status == "timed_out" or cause == "preempted":
            return ("timed_out" if status == "timed_out" else "cancelled"), str(cause), "again"
        limit = self._slurm.limit_min
        # Slurm looks at its warnings once a minute: one may come that much earlier than was asked for.
        # SIGTERM comes at the limit itself, unless a warning came before it.
        near_s = self._slurm.notice_s + 70 if "SIGUSR2" in signals else KILLED_LATE_S
        if left_s is not None and left_s <= near_s:
            return "timed_out", f"time limit of {limit} min (launcher.timeout_min)", "again"
        left = "" if left_s is None else f", {left_s / 60:.0f} min before the limit"
        return "cancelled", f"preempted, or asked to stop by {name}{left}", "again"

    def _lost_node(self) -> str | None:
        """The one host all of whose ranks were lost for an unknown reason, if other hosts have ranks left."""
        if self._srun.node_failure is not None:
            return self._srun.node_failure
        fates: dict[str, list[bool]] = {}
        for rank in self._started:
            process = rank.process
            assert isinstance(process, RemoteProcess)
            fates.setdefault(rank.host or "", []).append(process.lost or rank.silent)
        lost = [host for host, fate in fates.items() if all(fate)]
        return lost[0] if len(lost) == 1 and len(fates) > 1 else None

    def _requeue(self) -> None:
        try:
            queue.requeue(self._allocation.id)
        except MachineError as error:
            if (job := _shown(self._allocation.id)) is not None and queue.words(job.state).status == "queued":
                return  # Slurm was faster
            status = self.directory.status()
            reason = f"{status['reason']}; cannot be requeued: {error}"
            self.directory.update(status=status["attempts"][-1]["status"], reason=reason)


def _shown(id: str) -> queue.QueuedJob | None:
    with suppress(MachineError):
        return queue.shown(id)
    return None


def _settled(id: str) -> queue.QueuedJob | None:
    """The job once Slurm shows what becomes of it: requeued, cancelled, preempted.

    That is once the job's steps have ended on all nodes; the batch step (this process) may still run.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        job = _shown(id)
        if job is None or queue.words(job.state).status != "running" or time.monotonic() >= deadline:
            return job
        time.sleep(0.3)


def _state_of(node: str) -> str:
    with suppress(MachineError):
        state = queue.node_states([node]).get(node)
        return f" (Slurm's state: {state})" if state else ""
    return ""


def _why_restarted(allocation: Allocation) -> str:
    """Why this job runs again although its last supervisor recorded no outcome."""
    with suppress(MachineError):
        before = queue.accounted([allocation.id]).get(allocation.id, [])[:-1]
        cause = queue.words(before[-1].state).cause if before else None
        if cause is not None:
            return f"{cause}; the job was requeued by Slurm"
    return "the job was requeued by Slurm (lost node, or by hand)"


def _refuse_if_other(directory: RunDirectory, allocation: Allocation) -> None:
    """Leave a run to the job it was submitted with last, as long as that one lives."""
    given = (directory.status().get("job") or {}).get("id")
    if given is None or given == allocation.id:
        return
    job = _shown(given)
    if job is not None and job.live:
        print(f"{directory.run_id}: is job {given}'s; nothing to do")
        sys.exit(0)


def _note_refusal(directory: RunDirectory, error: Exception, attempts: int) -> None:
    """Write into status.json why the job did not run; an attempt that began has recorded it."""
    if len(directory.status()["attempts"]) == attempts:
        with suppress(ConfigError, MachineError), directory.lock():
            directory.update(status="failed", reason=str(error))


def _appeared(path: Path) -> Path:
    """`path` once it is seen here: network file systems show late what was written elsewhere."""
    deadline = time.monotonic() + APPEAR_S
    while not path.is_file():
        if time.monotonic() >= deadline:
            raise JobFailedError(
                f"{path}: not visible on this node; results_dir must be on a file system that all nodes share"
            )
        with suppress(OSError):
            os.listdir(path.parent)  # makes a network file system look again
        time.sleep(0.5)
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
