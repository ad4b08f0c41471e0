"""The run directory: paths, lock, status.json (written by the supervisor alone), data.json; how a run ended.

A run directory belongs to one run. It is made exclusively; the process that holds the lock runs it. The
kernel frees the lock of a process that dies, so a run that is "running" without its lock has lost its
supervisor.
"""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from ...strategies.errors import ConfigError, MachineError
from ..machine.folders import writing
from .json_lines import read_json, write_json
from .trees import dump_yaml

State = Literal["new", "queued", "running", "finished", "resumable"]

# Exit codes of every command, as `daso-bench --help` lists them.
OK = 0
FAILED = 1  # a run failed, diverged, timed out or was cancelled
WRONG_REQUEST = 2
MACHINE = 3  # this machine cannot do it
INTERRUPTED = 130  # as of a shell after SIGINT

STATUS_SCHEMA_VERSION = 1
SUPERVISOR_GONE = "supervisor gone"
DATA_FILE = "data.json"
DONE = ("finished", "diverged")  # results; repeating them would give the same again
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.05  # `state()` holds the lock for an instant to see whether it is free
_BEING_MADE_TRIES, _BEING_MADE_S = 50, 0.02


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, or one rank of it, or why a run was not started.

    `status`: finished, diverged, timed_out, cancelled or failed; of a run that was not started: skipped,
    refused, impossible or not started. `reason`: one line; None for a finished run. `summary`: the final
    numbers of the run, empty if there are none. `details`: the failing rank's traceback and its log.
    `raised`: an exception in a rank ended the run, not the death of a process or a signal. `run_status`: the
    status of the run where it differs from that of its last attempt ("queued": the run goes on later).
    `attempt`: what status.json keeps of the attempt in addition.
    """

    status: str
    reason: str | None = None
    exit_code: int = OK
    summary: dict[str, Any] = field(default_factory=dict)
    details: str = ""
    raised: bool = False
    run_status: str | None = None
    attempt: dict[str, Any] = field(default_factory=dict)

    @property
    def without_result(self) -> bool:
        """Whether the run gives no numbers. A diverged run does: diverging is a result of its strategy."""
        return self.status in ("failed", "timed_out", "cancelled")


class RunDirectory:
    """One run's folder. `path` is absolute; `run_id` its name, `study` the name of the folder above."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self.run_id = self.path.name
        self.study = self.path.parent.name
        self.config = self.path / "config.yaml"
        self.environment = self.path / "environment.json"
        self.status_file = self.path / "status.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.supervisor_log = self.path / "logs" / "supervisor.log"
        self.cancel_file = self.path / "cancel"  # made by `daso-bench cancel`, removed by `resume`

    def rank_records(self, rank: int) -> Path:
        return self.path / "ranks" / f"{rank}.jsonl"

    def rank_log(self, rank: int) -> Path:
        return self.path / "logs" / f"rank_{rank}.log"

    @classmethod
    def create(cls, config: Mapping[str, Any], root: Path) -> Self:
        """Make `root`/`study.name`/`run.id` with its config.yaml, status "queued".

        A folder left by a start that never got to its first attempt is taken over. Raises ConfigError if the
        run is being run, is finished, or waits to be resumed (the message names it), or if the folder cannot
        be made; MachineError if the disk is full.
        """
        study, run_id = _folder_name(config, "study", "name"), _folder_name(config, "run", "id")
        directory = cls(Path(root) / study / run_id)
        where = f"results_dir={root}"
        with writing(where):
            directory.path.parent.mkdir(parents=True, exist_ok=True)
            # One of two starts at once makes the folder; the lock and what the folder holds refuse the other.
            with suppress(FileExistsError):
                directory.path.mkdir()
        with directory.lock():
            directory._refuse_if_used()
            with writing(where):
                for name in ("ranks", "logs", "checkpoints"):
                    (directory.path / name).mkdir(exist_ok=True)
                directory.config.write_text(dump_yaml(config), "utf-8")
                write_json(directory.status_file, directory._queued())
        return directory

    def renew(self, config: Mapping[str, Any]) -> None:
        """Replace config.yaml by the same run's with other settings of its launcher (a longer limit)."""
        with self.lock(), writing(str(self.config)):
            temporary = self.config.with_suffix(".new")
            temporary.write_text(dump_yaml(config), "utf-8")
            temporary.replace(self.config)

    def refuse(self, reason: str) -> None:
        """Keep why no attempt could begin; changes nothing where one has, or where somebody has the run."""
        with suppress(ConfigError, MachineError), self.lock():
            status = self._read()
            if status["status"] == "queued" and not status["attempts"] and not status.get("job"):
                self.update(reason=reason)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The existing run directory at `path`. Raises ConfigError if there is none."""
        directory = cls(path)
        if not directory.config.is_file():
            raise ConfigError(f"{path}: is no run directory (no config.yaml in it)")
        return directory

    def status(self) -> dict[str, Any]:
        """status.json as it is; a run whose supervisor died shows "failed", reason "supervisor gone".

        Raises ConfigError if the file is missing or damaged.
        """
        status = self._read()
        if status["status"] == "running" and not self._locked():
            status = self._read()  # it may have ended between the two looks
            if status["status"] == "running":
                status.update(status="failed", reason=SUPERVISOR_GONE)
        return status

    def state(self) -> State:
        """What may be done with this run: "new" was never set up, "resumable" has begun and may go on."""
        if self._locked():
            return "running"
        if not self.status_file.exists():
            return "new"
        status = self._read()["status"]
        if status == "queued":
            return "queued"
        return "finished" if status in DONE else "resumable"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this run. Raises ConfigError naming who has it, MachineError where files cannot be locked."""
        with writing(str(self.path)):
            descriptor = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _lock(descriptor):
                holder = os.pread(descriptor, 1000, 0).decode() or "another process"
                raise ConfigError(f"run {self.run_id} is being run by {holder}: {self.path}")
            with writing(str(self.path)):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
            yield
        finally:
            os.close(descriptor)  # also unlocks

    def update(self, **fields: Any) -> dict[str, Any]:
        """Replace fields of status.json, atomically. Raises MachineError if it cannot be written."""
        status = {**self._read(), **fields}
        with writing(str(self.path)):
            write_json(self.status_file, status)
        return status

    def begin_attempt(
        self, *, place: Mapping[str, Any] | None = None, gone: str = SUPERVISOR_GONE, **fields: Any
    ) -> int:
        """Note that a new attempt runs from now on; returns its number, 1 for the first.

        `place`: where it runs, kept with the attempt; `fields`: of the run. The lock must be held. An attempt
        that a dead supervisor left open is closed as failed, for the reason `gone`.
        """
        attempts = self._read()["attempts"]
        for attempt in attempts:
            if attempt["status"] == "running":
                attempt.update(status="failed", reason=gone)
        new = {
            "number": len(attempts) + 1,
            "status": "running",
            "reason": None,
            "started_unix": time.time(),
            "ended_unix": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **(place or {}),
        }
        self.update(status="running", reason=None, attempts=[*attempts, new], **fields)
        return len(attempts) + 1

    def end_attempt(
        self,
        status: str,
        reason: str | None,
        *,
        run_status: str | None = None,
        attempt: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Close the last attempt, with more to be kept of it, and give the run its status.

        That is `run_status`, by default the attempt's.
        """
        attempts = self._read()["attempts"]
        attempts[-1].update(status=status, reason=reason, ended_unix=time.time(), **(attempt or {}))
        self.update(status=run_status or status, reason=reason, attempts=attempts, **fields)

    def _queued(self) -> dict[str, Any]:
        return {
            "schema_version": STATUS_SCHEMA_VERSION,
            "run_id": self.run_id,
            "study": self.study,
            "status": "queued",
            "reached": None,
            "timing": {"valid": True, "reasons": []},
            "reason": None,
            "labels": [],
            "attempts": [],
            "progress": {},
            "summary": None,
        }

    def _read(self) -> dict[str, Any]:
        for _ in range(_BEING_MADE_TRIES):  # another start, who holds the lock, is just setting it up
            if self.status_file.exists() or not self._locked():
                break
            time.sleep(_BEING_MADE_S)
        try:
            status = read_json(self.status_file)
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: is no run directory (no status.json in it)") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.status_file}: cannot be read: {error}") from error
        if not isinstance(status, dict) or "status" not in status or "attempts" not in status:
            raise ConfigError(f"{self.status_file}: holds no status of a run")
        return status

    def _refuse_if_used(self) -> None:
        if self.status_file.exists():
            status = self._read()
            if status["status"] in DONE:
                raise ConfigError(
                    f"run {self.run_id} is {status['status']} already: {self.path} "
                    "(run.repeat=1 makes a deliberate second run)"
                )
            if status["attempts"]:
                raise ConfigError(
                    f"run {self.run_id} was begun and is not finished; "
                    f"to go on: daso-bench resume {self.path}"
                )
        elif self.metrics.exists():
            raise ConfigError(f"{self.path}: holds records but no status.json; move it away")

    def _locked(self) -> bool:
        try:
            with open(self.path / ".lock", "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # no such file, or no locks here: then `lock` has refused to run anything
        return False


def _lock(descriptor: int) -> bool:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise MachineError(f"results_dir: files cannot be locked here ({error.strerror})") from error
        else:
            return True
    return False


def _folder_name(config: Mapping[str, Any], group: str, key: str) -> str:
    name = str(config[group][key])
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ConfigError(f"{group}.{key}={name}: must be the name of a folder, without /")
    return name


def of_attempt(stem: str, attempt: int) -> str:
    """The name of a file that each attempt writes anew: the first one's has no number."""
    return f"{stem}.json" if attempt == 1 else f"{stem}_{attempt}.json"


def write_data_file(run_dir: Path, facts: Mapping[str, Any], *, begun: bool) -> None:
    """Write data.json of a run that is about to start: which files its samples are.

    `facts`: with `files`, a digest of names, labels, sizes and content. `begun`: the run has been started
    before. Raises ConfigError if such a run would go on with other files.
    """
    if begun:
        check_same_data(run_dir, facts.get("files", ""))
    write_json(run_dir / DATA_FILE, {"schema_version": 1, **facts})


def check_same_data(run_dir: Path, files: str) -> None:
    """Raise ConfigError if the run in `run_dir` was started with other files of its data set.

    `files`: the digest of the present ones, "" where none can change. A run without data.json may have any.
    """
    try:
        before = read_json(run_dir / DATA_FILE).get("files", "")
    except FileNotFoundError:
        return
    if before and files != before:
        raise ConfigError(
            f"{run_dir / DATA_FILE}: the run was started with other files of the data set (digest {before}, "
            f"now {files or 'none'}); bring those back, or start anew with run.repeat=1"
        )
