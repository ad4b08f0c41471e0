"""srun as the `Starter` of ranks: its error lines are the only report of how a remote task ended."""

import itertools
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ....strategies.errors import MachineError

STOP_S = 5.0
_FATE = re.compile(r"srun: error: (?P<host>\S+): tasks? (?P<tasks>[\d,\-]+): (?P<word>.+)")
_EXIT = re.compile(r"Exited with exit code (\d+)")
_NODE = re.compile(r"srun: error: Node failure on (\S+)")
_KEPT = 20


class Srun:
    """One srun. Its lines go to `log`; `node_failure`: the node that Slurm has given up, or None."""

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
        return "; ".join(self._lines[-6:])

    def fate(self, rank: int) -> int | None:
        return self._fates.get(rank)

    def stop(self) -> None:
        """Wait for the step's end, which follows that of its tasks; else end it."""
        if self._process is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(number)
            deadline = time.monotonic() + STOP_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if self._process.poll() is not None:
                break
        self._reader.join(1.0)

    def _read(self, stream: IO[str]) -> None:
        with stream, self._log.open("a", encoding="utf-8") as log:
            for line in itertools.chain([f"$ {' '.join(self._command)}\n"], stream):
                with suppress(OSError):  # a full disk: the line is interpreted all the same
                    log.write(line)
                    log.flush()
                if not line.startswith("$ "):
                    self._interpret(line.rstrip())

    def _interpret(self, line: str) -> None:
        if line:
            self._lines = [*self._lines[-_KEPT:], line]
        node = _NODE.search(line)
        if node is not None:
            self.node_failure = node[1]
        match = _FATE.search(line)
        if match is not None:
            code = exit_code_of(match["word"])
            self._fates.update((task, code) for task in _numbers(match["tasks"]))


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


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
