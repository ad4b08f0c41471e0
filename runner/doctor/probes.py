"""Facts that only `daso-bench doctor` gathers: Slurm's commands and controller, namespaces, a port, torch.

All are asked at the same time, each with a time limit: a batch system that is down must not stall the doctor.
"""

import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError, one_of
from ..launch.emulated.nodes import has_netem, impossible
from ..launch.local import HOST
from ..machine.environment import installed
from ..machine.facts import MachineFacts, process_facts, torch_facts

LAUNCHERS = ("local", "emulated", "simulated", "slurm", "torchrun")
SLURM_COMMANDS = ("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")
SHORT_S, TORCH_S = 2.0, 60.0
# What libraries print while they load must not get into the JSON.
_TORCH = f"""\
import json, os
from typing import Any
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
{inspect.getsource(torch_facts)}
json.dump(torch_facts(), answer)
"""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user means to run here; None: not stated."""

    results_dir: Path
    launcher: str | None = None
    port: int | None = None
    threads: int | None = None
    ranks_of_nodes: tuple[int, ...] | None = None
    share_gpus: bool = False

    def __post_init__(self) -> None:
        if self.launcher is not None:
            one_of("launcher", self.launcher, LAUNCHERS)
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ConfigError(f"launcher.port={self.port}: must be null (a free one) or between 1 and 65535")

    @property
    def ranks_here(self) -> int | None:
        """How many ranks this host would have: all of them, or those of the largest node."""
        if self.ranks_of_nodes is None:
            return None
        return (
            max(self.ranks_of_nodes) if self.launcher in ("slurm", "torchrun") else sum(self.ranks_of_nodes)
        )


def machine_facts(wanted: Wanted) -> MachineFacts:
    """The facts of this process and of its machine."""
    torch = _TorchImport([sys.executable, "-P", "-c", _TORCH], TORCH_S)
    with ThreadPoolExecutor(max_workers=5) as pool:
        version = pool.submit(_run, "sbatch", "--version")
        ping = pool.submit(_run, "scontrol", "ping")
        job = pool.submit(_job_known, os.environ.get("SLURM_JOB_ID"))
        emulation = pool.submit(_emulation)
        facts = replace(process_facts(wanted.results_dir), torch=torch.result())
        return MachineFacts(
            **facts.as_row(),
            wanted={
                "launcher": wanted.launcher,
                "port": wanted.port,
                "threads": wanted.threads,
                "ranks_of_nodes": None if wanted.ranks_of_nodes is None else list(wanted.ranks_of_nodes),
                "ranks_here": wanted.ranks_here,
                "share_gpus": wanted.share_gpus,
                "results_dir": str(wanted.results_dir),
            },
            commands={name: shutil.which(name) for name in SLURM_COMMANDS},
            slurm={
                "version": _first_line(version.result()),
                "controller": _controller(ping.result()),
                "job_known": job.result(),
            },
            submitit=installed("submitit"),
            torchrun=_script("torchrun"),
            emulation=emulation.result(),
            port_error=None if wanted.port is None else port_error(wanted.port),
        )


def port_error(port: int) -> str | None:
    """Why this process cannot listen on `port`, None if it can."""
    try:
        with closing(socket.create_server((HOST, port))):
            return None
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)


class _TorchImport:
    """An import of torch in a process of its own, which runs while other programs are asked."""

    def __init__(self, command: list[str], limit_s: float) -> None:
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> dict[str, Any]:
        """`torch_facts()`, or only its `error`; and `seconds`, how long that took."""
        with self._process:
            try:
                out, err = self._process.communicate(timeout=self._limit_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                return {"error": f"import torch took more than {self._limit_s:g} s", "seconds": self._limit_s}
        seconds = time.monotonic() - self._began
        if self._process.returncode != 0:
            lines = err.strip().splitlines() or [f"exit code {self._process.returncode}"]
            return {"error": lines[-1], "seconds": seconds}
        return {**json.loads(out), "seconds": seconds}


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    """The command once it has ended; None if there is no such command, or it takes longer than SHORT_S."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SHORT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _first_line(done: subprocess.CompletedProcess[str] | None) -> str | None:
    lines = done.stdout.strip().splitlines() if done is not None and done.returncode == 0 else []
    return lines[0] if lines else None


def _controller(done: subprocess.CompletedProcess[str] | None) -> str:
    """`up`, or why Slurm's controller cannot be asked."""
    if done is None:
        return "no scontrol here" if shutil.which("scontrol") is None else f"no answer within {SHORT_S:g} s"
    if done.returncode == 0 and " UP" in done.stdout:
        return "up"
    lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1].removeprefix("scontrol: ")


def _job_known(job: str | None) -> bool | None:
    """Whether the job still exists in Slurm; None without a job, or if squeue does not answer."""
    done = None if job is None else _run("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    if done is None:
        return None
    if done.returncode == 0:
        return bool(done.stdout.strip())
    return False if "Invalid job id" in done.stderr else None


def _emulation() -> dict[str, Any]:
    """`error`: why no nodes can be emulated here, None if they can; `netem`: whether links have latencies."""
    error = impossible()
    return {"error": error, "netem": error is None and has_netem()}


def _script(name: str) -> str | None:
    """A command of this Python environment, or of the PATH."""
    path = Path(sys.executable).parent / name
    return str(path) if path.is_file() else shutil.which(name)
