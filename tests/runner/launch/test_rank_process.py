"""The rank's end of the line: what it sends, what it hears, and when it leaves."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from daso_bench.runner.launch import rank_process
from daso_bench.runner.launch.rank_process import Link

Pair = tuple[Link, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    ours.settimeout(3)
    with ours, theirs:
        yield Link(theirs, None), ours


def read(line: socket.socket) -> list[dict[str, Any]]:
    data = b""
    while not data.endswith(b"\n"):
        data += line.recv(1 << 16)
    return [json.loads(part) for part in data.splitlines()]


def test_the_end_of_a_rank_carries_its_last_progress_and_numbers_of_other_libraries(pair: Pair) -> None:
    link, line = pair
    link.progress(step=1, loss=np.float32(0.5))
    link.progress(step=2)
    link.call = "broadcast"
    link.steps = 2
    link.finish("diverged", {"count": np.int64(3)}, "loss is NaN")
    (message,) = read(line)
    assert message == {
        "kind": "finish", "progress": {"step": 2, "loss": 0.5}, "steps": 2, "call": "broadcast",
        "signals": [], "status": "diverged", "summary": {"count": 3}, "reason": "loss is NaN",
    }  # fmt: skip
    link.error(KeyError("x"), "start" + "-" * 100_000 + "end", 1)
    (message,) = read(line)
    assert (message["type"], message["message"], message["exit_code"]) == ("KeyError", "'x'", 1)
    assert len(message["traceback"]) == rank_process.TRACEBACK_CHARACTERS
    assert message["traceback"].endswith("end")


def child(body: str) -> tuple[subprocess.Popen[str], socket.socket]:
    """A process with a live link that then does `body`; it has no forkserver and no run."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    code = (
        "import signal, socket, sys, time\nfrom daso_bench.runner.launch.rank_process import Link\n"
        f"link = Link(socket.socket(fileno={theirs.fileno()}), None)\n"
        "signal.signal(signal.SIGUSR2, link.interrupt)\nlink.start()\n" + body
    )
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True
        )
    return process, ours


UNTIL_ASKED = (
    "link.progress(step=7)\nwhile not link.interrupted(): time.sleep(0.01)\nprint(link.interrupted())"
)


@pytest.mark.parametrize(("how", "beats"), [("message", 4), ("signal", 1)])
def test_a_rank_hears_that_it_shall_stop(how: str, beats: int) -> None:
    process, line = child(UNTIL_ASKED)
    with process, line:
        begin, heard = time.monotonic(), 0
        while heard < beats:  # two a second
            heard += len(read(line))
        assert 0.3 * (beats - 1) < time.monotonic() - begin < 5
        if how == "message":
            line.send(b"interrupt\n")
        else:
            process.send_signal(signal.SIGUSR2)
        assert process.wait(5) == 0
        assert process.communicate()[0] == "interrupt\n"


def test_a_supervisor_that_does_not_read_holds_no_rank_up() -> None:
    """Full line: beats are dropped and the rank still hears; only its report waits."""
    process, line = child(
        "import daso_bench.runner.launch.rank_process as m\nm.BEAT_S = 0.001\n"
        "link.progress(text='x' * 5_000)\n"
        "time.sleep(0.8)\nprint('full', flush=True)\nwhile not link.interrupted(): time.sleep(0.01)\n"
        "print('heard', flush=True)\nlink.finish('finished', {'text': 'x' * 2_000_000})\nprint('sent')"
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "full\n"
        line.send(b"interrupt\n")
        assert select.select([process.stdout], [], [], 5)[0] != []
        assert process.stdout.readline() == "heard\n"
        assert select.select([process.stdout], [], [], 0.5)[0] == []
        line.close()
        assert process.wait(5) == 1
        assert process.stdout.read() == ""


def test_without_a_known_parent_the_forkserver_guard_leaves() -> None:
    code = "from daso_bench.runner.machine.signals import die_with_parent\ndie_with_parent({})"
    for parent, left in ((os.getpid(), False), (1 << 22, True)):
        process = subprocess.run(
            [sys.executable, "-c", code.format(parent) + "; print('here')"], capture_output=True, text=True
        )
        assert (process.stdout == "") == left
        assert process.returncode == int(left)
