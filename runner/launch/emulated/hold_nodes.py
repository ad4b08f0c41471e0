"""Starting and ending the process that holds the nodes."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple
from typing import Any

from ...machine.die_with_parent import LEFT_TO_THE_SUPERVISOR
from ..failures import signal_name
from .addresses import Shape

ANSWER_S, ANSWER_S_PER_NODE = 20.0, 1.0


class Holder:
    """A running holder. `answer`: see `holder`; one with "error" if there are no nodes.

    The kernel ends it with the thread that made it: make it in the main thread.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        # It ignores these signals once it can; until then a Ctrl-C must not end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_SUPERVISOR)
        try:
            # Unbuffered: the one line is written at once, and `select` sees all there is to read.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.holder", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            self.answer = self._ask(shapes)
        except BaseException:
            self.end()
            raise
        if "error" in self.answer:
            self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal_name(-code)}" if code < 0 else f"ended (exit code {code})"

    def end(self) -> None:
        """End it if it runs; what it held goes with the last rank inside. May be called again."""
        self._process.kill()  # it has nothing to tidy up
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _ask(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        limit_s = ANSWER_S + ANSWER_S_PER_NODE * len(shapes)
        until = time.monotonic() + limit_s
        line = json.dumps([astuple(shape) for shape in shapes]).encode() + b"\n"
        with suppress(BrokenPipeError):  # it has ended, and what it said of that is read below
            process.stdin.write(line)
        said = b""
        while not said.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return {"error": f"no answer within {limit_s:g} s", "cause": "other"}
            if not (more := os.read(process.stdout.fileno(), 65536)):
                lines = process.stderr.read().decode(errors="replace").strip().splitlines()
                return {"error": (lines or ["it ended without a word"])[-1], "cause": "other"}
            said += more
        return json.loads(said)
