"""The process of one rank: its log, its signals, and its link to the supervisor.

The link is a stream socket that carries one JSON object per line.
rank -> supervisor: `beat` (every 0.5 s: progress, steps, the collective it is in), `error`, `finish`.
supervisor -> rank: `interrupt`. Either end may die at any time: a rank without supervisor ends, and the
supervisor records the end of a rank.
"""

import faulthandler
import importlib
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NoReturn

from setproctitle import setproctitle, setthreadtitle

from ...strategies.errors import ConfigError, ExpectedEnd, MachineError
from ..machine.cores import keep_to, usable_cores
from ..machine.folders import NO_SPACE
from ..machine.signals import FORKSERVER_VARIABLE, SUPERVISOR_VARIABLE, die_with_parent
from .emulated.namespaces import NodeEntry, enter

BEAT_S = 0.5
FINISH_STATUSES = ("finished", "cancelled", "timed_out", "diverged")  # the worst of the ranks' is the run's
TRACEBACK_CHARACTERS = 20_000


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the ranks meet (without the port), and what the supervisor knows of their machines.

    `one_clock`: all ranks are on one machine, whose monotonic clock they share. `network`: who makes the
    links of `cluster.links`: none, kernel, or modelled (the ranks do it). `interface`: by which they reach
    each other; None: by the host's address. `unshaped_interface`: the same without shaping. `awake`: the
    processes that only keep cores awake. `known`: for environment.json (batch job, interface, nodes).
    """

    host: str = "127.0.0.1"
    one_clock: bool = True
    network: str = "none"
    interface: str | None = None
    unshaped_interface: str | None = None
    awake: tuple[int, ...] = ()
    known: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """What a rank gets from its starter; everything else it reads from the run directory.

    `port`: of the rendezvous at `meeting.host`; rank 0 serves it on the open socket `listener`, or opens it.
    `threads`: of this rank's torch operations. `entry`: "package.module:function", called with this task and
    the rank's `Link`. `node`: the emulated node that it lives on. `cores`: to bind it to; none: all.
    """

    run_dir: Path
    rank: int
    ranks: int
    port: int
    threads: int
    entry: str
    listener: socket.socket | None = None
    meeting: Meeting = Meeting()
    node: NodeEntry | None = None
    cores: tuple[int, ...] = ()

    def listener_fd(self) -> int | None:
        """The descriptor of `listener`, whose owner the caller becomes."""
        return None if self.listener is None else self.listener.detach()


class Link:
    """A rank's connection to its supervisor. All methods may be called from the rank's main thread, often.

    `call`: name of the collective the rank is in; if "", `on_device` returns that of its GPU. `steps`: steps
    made. All are plain attributes, read by the thread that sends the beats; a change of `steps` or of the
    progress is progress to the stall watch. That thread ends the process when the supervisor is gone.
    """

    def __init__(self, line: socket.socket, supervisor: int | None) -> None:
        """`line`: the stream to the supervisor. `supervisor`: descriptor that is readable once it is gone."""
        self.call = ""
        self.on_device: Callable[[], str] = lambda: ""
        self.steps = 0
        self._line = line
        self._supervisor = supervisor
        self._progress: dict[str, Any] = {}
        self._interrupt: str | None = None
        self._signals: list[str] = []
        self._sending = threading.Lock()  # two threads write to one line

    def start(self) -> None:
        """Start the thread that sends the beats and reads the supervisor's messages."""
        threading.Thread(target=self._live, name="link", daemon=True).start()

    def progress(self, **numbers: Any) -> None:
        """Keep the latest numbers (step, steps, epoch, loss, …); they travel with the next beat."""
        self._progress.update(numbers)

    def interrupted(self) -> str | None:
        """ "interrupt" once the supervisor or a signal asked this rank to stop, else None."""
        return self._interrupt

    def interrupt(self, number: int | None = None, _frame: object = None) -> None:
        """Ask this rank to stop. Also the signal handler: it only sets flags; the beats name the signal."""
        self._interrupt = "interrupt"
        if number is not None:
            self._signals.append(signal.Signals(number).name)

    def finish(self, status: str, summary: dict[str, Any] | None = None, reason: str | None = None) -> None:
        """Report the end of this rank's work, once, with one of `FINISH_STATUSES`."""
        assert status in FINISH_STATUSES, status
        self._send({**self._beat(), "kind": "finish", "status": status, "summary": summary, "reason": reason})

    def error(self, error: BaseException, text: str, exit_code: int) -> None:
        """Report the exception that ends this rank; `text` is its traceback, "" if the message is enough."""
        self._send(
            {
                **self._beat(),
                "kind": "error",
                "type": type(error).__name__,
                "message": str(error),
                "traceback": text[-TRACEBACK_CHARACTERS:],
                "exit_code": exit_code,
            }
        )

    def _beat(self) -> dict[str, Any]:
        return {
            "kind": "beat",
            "progress": dict(self._progress),
            "steps": self.steps,
            "call": self.call or self.on_device(),
            "signals": list(self._signals),
        }

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, default=_plain).encode() + b"\n"
        try:
            with self._sending:
                self._line.sendall(data)
        except OSError:  # the other end is closed: the supervisor is gone
            os._exit(1)

    def _live(self) -> None:
        watched = [self._line.fileno()] + ([] if self._supervisor is None else [self._supervisor])
        while True:
            readable, _, _ = select.select(watched, [], [], BEAT_S)
            if self._supervisor in readable:
                os._exit(1)
            if self._line.fileno() in readable and not self._receive():
                os._exit(1)
            # A supervisor that is stopped (Ctrl-Z) reads nothing: beats are dropped, not queued for ever.
            if select.select([], [self._line], [], 0)[1]:
                self._send(self._beat())

    def _receive(self) -> bool:
        """Obey the supervisor's messages; False if the supervisor is gone."""
        try:
            data = self._line.recv(4096)
        except OSError:
            return False
        if b"interrupt" in data:
            self.interrupt()
        if b"stacks" in data:
            faulthandler.dump_traceback(file=2, all_threads=True)
        return bool(data)


def _plain(value: Any) -> Any:
    """A NumPy scalar or a tensor of one element as a number, anything else as text."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return str(value)  # an error here would end the thread of the beats, and with it the run


def run_rank_process(task: RankTask, line: socket.socket) -> NoReturn:
    """Run a rank's process, which the forkserver made, from start to end; `line`: to the supervisor."""
    parent = parent_process()
    run_task(task, Link(line, parent.sentinel if parent is not None else None))


def run_task(task: RankTask, link: Link) -> NoReturn:
    """Set this process up, call the task's entry, report its end by `link`.

    It ends with `os._exit`, so that no destructor can hang. Exit codes: 0 the entry returned, 1 it raised,
    2 it raised ConfigError, 3 MachineError or a full disk.
    """
    code = 0
    try:
        _set_up_process(task)
        if task.cores:
            known = {**task.meeting.known, "cores": usable_cores()}  # of the machine, not of this rank
            task = replace(task, meeting=replace(task.meeting, known=known))
            keep_to(task.cores)  # before any thread, and what is computed: they inherit it
        if task.node is not None:
            enter(task.node)  # before any thread: only a process of one can change its user namespace
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, link.interrupt)
        link.start()
        module, _, function = task.entry.partition(":")
        getattr(importlib.import_module(module), function)(task, link)
    except BaseException as error:  # also SystemExit: a rank that leaves early must be seen
        text = traceback.format_exc()
        print(text, file=sys.stderr)
        code = 1
        if isinstance(error, ConfigError):
            code = 2
        elif isinstance(error, MachineError) or (isinstance(error, OSError) and error.errno in NO_SPACE):
            code = 3
        expected = isinstance(error, (ConfigError, MachineError, ExpectedEnd))  # the log has the traceback
        link.error(error, "" if expected else text, code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _set_up_process(task: RankTask) -> None:
    forkserver = os.environ.pop(FORKSERVER_VARIABLE, None)
    os.environ.pop(SUPERVISOR_VARIABLE, None)
    if forkserver is not None:
        die_with_parent(int(forkserver))
    # torch took one thread from the forkserver's environment; the worker sets its own count. What is loaded
    # or started later (NumPy's libraries, child processes) reads these.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(task.threads)
    _log_to(task.run_dir / "logs" / f"rank_{task.rank}.log")
    setproctitle(f"daso-bench {task.run_dir.name} rank {task.rank}")
    # The title also became the kernel's short name of the process, and Slurm (proctrack/linuxproc) finds no
    # process again whose short name has a space: its signals would never arrive.
    setthreadtitle(f"daso-bench:{task.rank}")
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s rank {task.rank} %(levelname)s %(name)s: %(message)s"
    )


def _log_to(path: Path) -> None:
    """Send all this process prints, C++ included, to `path`; SIGUSR1 adds the stacks of all threads."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.enable(file=2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
