"""A cluster as its users meet it: the console command, Slurm's commands, and what a run's folder tells."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daso_bench

BENCH = Path(sys.executable).parent / "daso-bench"
DEV_CLUSTER = Path(daso_bench.__file__).parent / "scripts" / "slurm" / "dev_cluster"
USER = Path(__file__).parent / "user"  # a user's own models and their configuration

SLURM = ("launcher=slurm", "launcher.gpus_per_rank=0", "launcher.cpus_per_rank=1", "launcher.snapshot=true")
LONG_S = 600.0  # nothing here takes so long, unless it hangs
POLL_S = 0.3
ENDED = ("finished", "diverged", "failed", "timed_out", "cancelled")
STARTING = 3  # runs whose processes load torch at the same time; with more, they look frozen on two cores


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    text: str  # stdout and stderr, as they came


@dataclass
class Command:
    """A command that runs."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def done(self, within_s: float = LONG_S) -> Done:
        """Wait for its end."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no end within {within_s} s: {self.log.read_text()}") from None
        return Done(code, self.log.read_text(errors="replace"))


@dataclass
class Site:
    """Where runs go and how commands are given. Each study lies in a results folder of its own."""

    folder: Path
    path: str | None = None  # the search path of the commands, None: our own
    _starting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(STARTING))
    _numbers: threading.Lock = field(default_factory=threading.Lock)
    _commands: int = 0

    def begin(self, *words: str, pause_s: float = 0.0, **variables: str) -> Command:
        """`daso-bench WORDS`. `pause_s`: of each training step of the model `paced`."""
        return self.begin_other(str(BENCH), *words, pause_s=pause_s, **variables)

    def begin_other(self, *command: str, pause_s: float = 0.0, **variables: str) -> Command:
        """Any command; what it says goes to a file."""
        with self._numbers:
            self._commands += 1
            log = self.folder / f"command_{self._commands}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**self.environ(pause_s), **variables},
                cwd=self.folder,
            )
        return Command(process, log)

    def bench(self, *words: str, pause_s: float = 0.0, **variables: str) -> Done:
        """As `begin`, to the end."""
        return self.begin(*words, pause_s=pause_s, **variables).done()

    def environ(self, pause_s: float) -> dict[str, str]:
        found = {
            **os.environ,
            "PYTHONPATH": str(USER),
            "DASO_BENCH_TEST_PAUSE_S": str(pause_s),
            "OMP_NUM_THREADS": "1",  # of a command that looks at the configuration
        }
        found.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the copy of the code again
        return found if self.path is None else {**found, "PATH": self.path}

    def without(self, command: str) -> "Site":
        """The same site for somebody who lacks `command` of Slurm's."""
        bin = self.folder / f"no_{command}"
        bin.mkdir()
        for file in Path(shutil.which(command) or "").parent.iterdir():
            if file.name != command:
                (bin / file.name).symlink_to(file)
        folders = os.environ["PATH"].split(os.pathsep)
        path = os.pathsep.join([str(bin), *(f for f in folders if not (Path(f) / command).exists())])
        assert shutil.which("squeue", path=path)
        assert not shutil.which(command, path=path)
        return Site(self.folder, path, self._starting, self._numbers, self._commands + 1000)

    @contextmanager
    def start(self):
        """One of the few places for runs that start; free again at the end of the block."""
        with self._starting:
            yield

    def give_up(self) -> None:
        """Take what still waits or runs out of the queue."""
        for file in self.folder.glob("**/.slurm/*/runs.txt"):
            subprocess.run(["scancel", f"--name={file.parent.name}"], check=False)


def slurm(*words: str) -> str:
    """What one of Slurm's commands says."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def dev_cluster(*words: str) -> str:
    """`scripts/slurm/dev_cluster WORDS` for the cluster that SLURM_CONF names."""
    folder = Path(os.environ["SLURM_CONF"]).parent
    return slurm(sys.executable, str(DEV_CLUSTER), words[0], "--folder", str(folder), *words[1:])


def status_of(run: Path) -> dict[str, Any]:
    """status.json as it is, {} before there is one."""
    with suppress(FileNotFoundError):
        return json.loads((run / "status.json").read_text())
    return {}


def step_of(run: Path) -> int:
    """The last step that the present attempt has told of, 0 before."""
    status = status_of(run)
    if status.get("status") != "running":
        return 0
    return (status.get("progress") or {}).get("step") or 0


def job_of(run: Path) -> str:
    return status_of(run)["job"]["id"]


def runs_in(results: Path) -> list[Path]:
    """All run directories of one results folder."""
    return sorted(file.parent for file in results.glob("*/*/config.yaml"))


def run_in(results: Path) -> Path:
    (found,) = runs_in(results)
    return found


def until(true: Callable[[], Any], what: str, within_s: float = LONG_S) -> Any:
    """Wait for something; returns what `true` returned."""
    deadline = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(POLL_S)
    return found


def trains(run: Path, step: int = 1, attempts: int = 1) -> None:
    """Wait until an attempt, the `attempts`-th or later, has done so many steps."""

    def there() -> bool:
        status = status_of(run)
        if status.get("status") in ENDED and not _waits(run):
            raise AssertionError(f"{run.name} ended before step {step}: {status}")
        return len(status.get("attempts", ())) >= attempts and step_of(run) >= step

    until(there, f"{run.name} is at step {step} of attempt {attempts}: {status_of(run)}")


def ended(run: Path, *, well: bool = True) -> dict[str, Any]:
    """Wait for the end of the run; returns its status.json."""

    def over() -> bool:
        word = status_of(run).get("status")
        return word == "finished" or (word in ENDED and (not well or not _waits(run)))

    until(over, f"{run.name} has ended: {status_of(run)}")
    return status_of(run)


def _waits(run: Path) -> bool:
    """Whether Slurm still has the run's job in its queue."""
    job = (status_of(run).get("job") or {}).get("id")
    if job is None:
        return False
    words = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    return bool(subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip())


def pids(run: Path) -> list[int]:
    """The process ids of the ranks of the last attempt that got so far, in rank order."""
    lines = (run / "logs" / "supervisor.log").read_text().splitlines()
    started = [line for line in lines if "'kind': 'start'" in line][-1]
    return json.loads(started.partition("'pids': ")[2].partition("]")[0] + "]")


def table(text: str) -> list[dict[str, str]]:
    """The rows of the table that `daso-bench status` prints."""
    lines = text.splitlines()
    heads = lines[0].split()
    starts = [lines[0].index(head) for head in heads]
    ends = [*starts[1:], None]
    rows: list[dict[str, str]] = []
    for line in lines[1:-1]:
        cells = zip(heads, starts, ends, strict=True)
        right = {head: line[start:end].strip() for head, start, end in cells}
        if right["run"]:
            rows.append(right)
        elif rows:  # a cell that was folded
            for head, piece in right.items():
                rows[-1][head] += piece
    return rows


def queue_of(results: Path) -> list[dict[str, str]]:
    """All jobs that Slurm knows of the studies in a results folder, ended ones too."""
    jobs: list[dict[str, str]] = []
    for file in results.glob("*/.slurm/*/runs.txt"):
        words = ("squeue", "--noheader", "--array", "--states=all", "--format=%i %T")
        for line in slurm(*words, f"--name={file.parent.name}").splitlines():
            id, state = line.split()
            jobs.append({"id": id, "state": state})
    return jobs
