"""The batch job: its batch step supervises one run, srun starts the ranks; a warning saves and requeues.

The job gets only the path of the run directory. Whatever started the job (a submission, a requeue by us or by
Slurm after a lost node, a preemption), it goes on from what is in the directory.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, Self

from ....strategies.errors import ConfigError, MachineError
from ...config.load import load
from ...config.run_config import RunConfig
from ...records.json_lines import read_json
from ...records.run_directory import DONE, INTERRUPTED, SUPERVISOR_GONE, Outcome, RunDirectory
from ..failures import Rank
from ..remote import WORKER, RemoteProcess, RemoteRanks
from ..supervisor import Event, run_attempt
from . import queue
from .request import check_code, for_step, request_of

ENTRY_FILE = "entry.json"  # names what the ranks do instead of training, with its arguments
WARNINGS = ("SIGTERM", "SIGUSR2")
RUNS = "runs.txt"  # of a submission: its runs, in the order of the array's elements
APPEAR_S = 120.0  # for a run directory made elsewhere to be seen on this node
# The attempt's status, why it ended, and what becomes of the job: "again": we requeue it; "waits": it is in
# the queue already; "over": it has ended.
Cause = tuple[str, str, Literal["again", "waits", "over"]]
KILLED_LATE_S = 1.0  # a job that is ended for its time limit has no more time left than this
STOP_S = 5.0
_FATE = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<word>.+)")
_EXIT = re.compile(r"Exited with exit code (\d+)")
_NODE = re.compile(r"srun: error: Node failure on (\S+)")
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

        if not {"SLURM_JOB_ID", "SLURM_JOB_NODELIST"} <= os.environ.keys():
            raise ConfigError(
                "launcher.submit=false: needs an allocation around it (salloc, or an sbatch script); "
                "SLURM_JOB_ID and SLURM_JOB_NODELIST are not set"
            )
        environ, array = os.environ, os.environ.get("SLURM_ARRAY_JOB_ID")
        job = environ["SLURM_JOB_ID"] if array is None else f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"
        return cls(
            id=job,
            name=environ.get("SLURM_JOB_NAME", ""),
            hosts=tuple(SlurmJobEnvironment().hostnames),
            restarts=int(environ.get("SLURM_RESTART_COUNT", 0)),
            batch=environ.get("ENVIRONMENT") == "BATCH",
        )


def main(folder: Path) -> int:
    """The command of the batch file: the run of this job or array element. Returns the exit code.

    `folder`, in the study's `.slurm`, has the list of the submission's runs, one run id a line.
    """
    try:
        runs = _appeared(folder / RUNS).read_text(encoding="utf-8").split()
        failure = run_alone(folder.parent.parent / runs[int(os.environ.get("SLURM_ARRAY_TASK_ID", 0))])
    except (ConfigError, MachineError) as error:
        failure = str(error)
    if failure is not None:
        print(f"daso-bench: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


def run_alone(run_dir: Path) -> str | None:
    """Go on with the run at `run_dir`, if that is this job's to do.

    Returns why the run failed, with the failing rank's traceback; None if it did not.
    Raises ConfigError, MachineError if it could not be started; status.json then says why.
    """
    _appeared(run_dir / "status.json")
    directory = RunDirectory.open(_appeared(run_dir / "config.yaml").parent)
    allocation = Allocation.around()
    if directory.cancel_file.exists() or directory.state() == "finished":
        print(f"{directory.run_id}: nothing to do ({directory.status()['status']})")
        return None
    attempts = len(directory.status()["attempts"])
    try:
        check_code(directory)
        config = load(directory.config)
        outcome = run_here(directory, config, allocation, entry=entry_of(directory))
    except (ConfigError, MachineError) as error:
        if len(directory.status()["attempts"]) == attempts:  # an attempt that began has recorded it
            with suppress(ConfigError, MachineError), directory.lock():
                directory.update(status="failed", reason=str(error))
        raise
    if outcome.exit_code and directory.status()["status"] != "queued":
        return f"{outcome.status}: {outcome.reason}\n{outcome.details}"
    return None


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
    nodes = len(config.cluster.ranks_of_nodes)
    if len(allocation.hosts) < nodes:
        raise ConfigError(
            f"cluster.nodes={nodes}: job {allocation.id} has {len(allocation.hosts)} nodes "
            f"({', '.join(allocation.hosts)}); submit with --nodes={nodes}"
        )
    ranks = SlurmRanks(directory, config, allocation, entry)
    stall_s, kill_wait_s = config.launcher.stall_s, None
    with suppress(MachineError):
        kill_wait_s = queue.setting("KillWait")
    patience_s = max(2.0, min(30.0, (kill_wait_s or 30) - 2.0))
    return run_attempt(directory, ranks, stall_s=stall_s, patience_s=patience_s, on_event=on_event)


class Srun:
    """srun as the `Starter` of ranks: its error lines are the only report of how a remote task ended.

    Its lines go to `log`. `node_failure`: the node that Slurm has given up, or None.
    """

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._command, self._environ, self._log = list(command), dict(environ), log
        self._process: subprocess.Popen[str] | None = None
        self._fates: dict[int, int] = {}
        self._lines: list[str] = []
        self.node_failure: str | None = None

    def begin(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise MachineError(f"srun cannot be started: {error}") from error
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def ended(self) -> str | None:
        if self._process is None or self._process.poll() is None:
            return None
        self._reader.join(1.0)
        return f"srun ended with exit code {self._process.returncode}: {self.words() or 'it wrote nothing'}"

    def words(self) -> str:
        return "; ".join(self._lines)

    def fate(self, rank: int) -> int | None:
        return self._fates.get(rank)

    def stop(self) -> None:
        """Wait for the step's end, which follows that of its tasks; else end it."""
        if self._process is None:
            return
        for end in (lambda: None, self._process.terminate, self._process.kill):
            end()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
                break
        self._reader.join(1.0)

    def _read(self, stream: IO[str]) -> None:
        with stream, self._log.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(self._command)}\n")
            for line in stream:
                with suppress(OSError):  # a full disk: the line is interpreted all the same
                    log.write(line)
                    log.flush()
                self._interpret(line.rstrip())

    def _interpret(self, line: str) -> None:
        if line:
            self._lines = [*self._lines[-5:], line]
        if (node := _NODE.search(line)) is not None:
            self.node_failure = node[1]
        if (match := _FATE.search(line)) is not None:
            for part in match["tasks"].split(","):
                first, _, last = part.partition("-")
                for task in range(int(first), int(last or first) + 1):
                    self._fates[task] = exit_code_of(match["word"])


def exit_code_of(word: str) -> int:
    """The exit code in srun's words for the end of a task: "Killed" is -9, "Exited with exit code 3" is 3."""
    exited = _EXIT.search(word)
    if exited is not None:
        return int(exited[1])
    if word.startswith("Out Of Memory"):  # Slurm's own word for the kernel's SIGKILL
        return -signal.SIGKILL
    for number in signal.valid_signals():
        name = signal.strsignal(number)
        if name is not None and word.startswith(name):
            return -int(number)
    return 1


class SlurmRanks(RemoteRanks):
    """The tasks of an srun in our allocation; distinguishes time limits, preemption and lost nodes."""

    def __init__(
        self, directory: RunDirectory, config: RunConfig, allocation: Allocation, entry: str | None = None
    ) -> None:
        request = request_of(config)
        self._slurm, self._allocation = request.launcher, allocation
        self._started: list[Rank] = []
        self._at_start: list[str] = []
        attempts = len(directory.status()["attempts"])
        key = f"slurm-{allocation.id}-{allocation.restarts}-{attempts}"
        words = request.srun()
        words.insert(1, f"--nodelist={','.join(allocation.hosts[: request.nodes])}")
        words += [sys.executable, "-u", "-m", WORKER, str(directory.path), "--key", key]
        words += [] if entry is None else ["--entry", entry]
        self._srun = Srun(words, for_step(os.environ), directory.path / "logs" / "srun.log")
        known = {"job": allocation.id, "restarts": allocation.restarts}
        super().__init__(directory, config, self._srun, key=key, known=known)

    def about(self) -> dict[str, Any]:
        status = self.directory.status()
        again = bool(status["attempts"]) and status["attempts"][-1].get("job") == self._allocation.id
        job = {"id": self._allocation.id, "name": self._allocation.name}
        return {
            "gone": "the job was requeued by Slurm (lost node, or by hand)" if again else SUPERVISOR_GONE,
            "place": {"job": self._allocation.id, "nodes": list(self._allocation.hosts)},
            "job": {**(status.get("job") or {}), **job},
        }

    def start(self, started: list[Rank]) -> dict[str, Any]:
        self._started = started
        try:
            return super().start(started)
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
        if now == "waits":
            return replace(outcome, run_status="queued")
        if now == "over" or not self._allocation.batch:  # a shell in an allocation cannot begin again
            return outcome
        attempts = self.directory.status()["attempts"]
        mine = [attempt for attempt in attempts if attempt.get("job") == self._allocation.id]
        done = sum(bool(attempt.get("requeued")) for attempt in mine)
        if done >= self._slurm.max_requeues:
            return replace(outcome, reason=f"{reason}, after {done} requeues (launcher.max_requeues)")
        return replace(outcome, run_status="queued", attempt={"requeued": True})

    def recorded(self, outcome: Outcome) -> None:
        if not outcome.attempt.get("requeued"):
            return
        try:
            queue.requeue(self._allocation.id)
        except MachineError as error:
            if (job := _job_of(self._allocation.id)) is not None and job.status == "queued":
                return  # Slurm was faster
            status = self.directory.status()
            reason = f"{status['reason']}; cannot be requeued: {error}"
            self.directory.update(status=status["attempts"][-1]["status"], reason=reason)

    def _cause(self, outcome: Outcome, interrupts: list[str]) -> Cause | None:
        """How Slurm caused the end of this attempt; None if it did not."""
        signals = [*interrupts, *self._at_start, *(name for rank in self._started for name in rank.signals)]
        if set(signals) & set(WARNINGS):
            return self._signalled(signals)
        node = self._lost_node() if outcome.status == "failed" else None
        if node is None:
            return None
        state = None
        with suppress(MachineError):
            state = queue.node_state(node)
        shown = "" if state is None else f" (Slurm's state: {state})"
        return "failed", f"node_fail: all ranks on {node} fell silent at once{shown}", "again"

    def _signalled(self, signals: list[str]) -> Cause:
        name = "SIGTERM" if "SIGTERM" in signals else "SIGUSR2"
        job = _job_of(self._allocation.id, SETTLE_S if name == "SIGTERM" else 0.0)
        status, cause = ("running", None) if job is None else (job.status, job.cause)
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
        # Slurm looks at its warnings once a minute: one may come that much earlier than was asked for.
        # SIGTERM comes at the limit itself, unless a warning came before it.
        near_s = self._slurm.notice_s + 70 if "SIGUSR2" in signals else KILLED_LATE_S
        if left_s is not None and left_s <= near_s:
            return "timed_out", f"time limit of {self._slurm.limit_min} min (launcher.timeout_min)", "again"
        left = "" if left_s is None else f", {left_s / 60:.0f} min before the limit"
        return "cancelled", f"preempted, or asked to stop by {name}{left}", "again"

    def _lost_node(self) -> str | None:
        """The one host all of whose ranks were lost for an unknown reason, if other hosts have ranks left."""
        if self._srun.node_failure is not None:
            return self._srun.node_failure
        hosts, alive = set[str](), set[str]()
        for rank in self._started:
            assert isinstance(rank.process, RemoteProcess)
            hosts.add(rank.host or "")
            alive |= set() if rank.process.lost or rank.silent else {rank.host or ""}
        return (hosts - alive).pop() if alive and len(hosts - alive) == 1 else None


def _job_of(id: str, settle_s: float = 0.0) -> queue.QueuedJob | None:
    """The job in the queue; while it runs, for `settle_s`, until Slurm shows what becomes of it.

    It does (requeued, cancelled, preempted) once the job's steps have ended on all nodes. The batch step,
    which is this process, may still run.
    """
    deadline = time.monotonic() + settle_s
    with suppress(MachineError):
        while True:
            job = queue.job_of(id)
            if job is None or job.status != "running" or time.monotonic() >= deadline:
                return job
            time.sleep(0.3)
    return None


def _appeared(path: Path) -> Path:
    """`path` once it is seen here: network file systems show late what was written elsewhere."""
    deadline = time.monotonic() + APPEAR_S
    while not path.is_file():
        if time.monotonic() >= deadline:
            raise MachineError(
                f"{path}: not visible on this node; results_dir must be on a file system that all nodes share"
            )
        with suppress(OSError):
            os.listdir(path.parent)  # makes a network file system look again
        time.sleep(0.5)
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
