"""Which of several troubles came first, and what is frozen and what merely busy."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.launch.failures import (
    Fault,
    Vitals,
    exception_fault,
    exit_fault,
    root_cause,
    stopped_or_stuck,
    vitals,
)


def raised(rank: int, seen: int, kind: str, message: str) -> Fault:
    report: dict[str, Any] = {"type": kind, "message": message, "call": "", "traceback": "", "exit_code": 1}
    return exception_fault(rank, seen, report)


def died(rank: int, seen: int, exit_code: int) -> Fault:
    return exit_fault(rank, seen, exit_code, "", finished=False)


BOOM = raised(2, 1, "RuntimeError", "boom")
COMPLAINT = raised(0, 0, "RuntimeError", "[pair.cc:534] Connection closed by peer [127.0.0.1]:1")


@pytest.mark.parametrize(
    ("faults", "rank"),
    [
        ([COMPLAINT, BOOM], 2),
        ([COMPLAINT, died(1, 1, -9)], 1),
        ([raised(0, 0, "ValueError", "unheard of"), died(1, 1, -11)], 1),
        ([BOOM, died(1, 2, -6)], 2),  # a helper thread aborts for want of a peer
        ([COMPLAINT, died(1, 2, -6)], 1),
        ([COMPLAINT, died(3, 1, 0)], 3),
        ([died(3, 0, 0), died(1, 1, -9)], 1),
        ([raised(0, 0, "ValueError", "same"), raised(1, 1, "ValueError", "same")], 0),
        ([COMPLAINT], 0),
        ([raised(0, 0, "DistNetworkError", "?"), raised(1, 1, "ValueError", "x")], 1),
        ([raised(0, 0, "BrokenPipeError", "[Errno 32] Broken pipe"), BOOM], 2),
    ],
)
def test_the_cause_is_found_among_its_consequences(faults: list[Fault], rank: int) -> None:
    assert root_cause(faults).rank == rank
    assert root_cause(faults[::-1]).rank == rank


def test_faults_are_told_in_words() -> None:
    assert BOOM.reason == "rank 2: RuntimeError: boom"
    assert died(1, 0, -11).reason == "rank 1: killed by SIGSEGV"
    assert died(1, 0, -9).reason.startswith("rank 1: killed by SIGKILL")
    assert exit_fault(1, 0, 3, "barrier", finished=True).reason == (
        "rank 1: ended after it had finished (exit code 3) (last in barrier)"
    )
    assert died(0, 0, -64).reason == f"rank 0: killed by {'SIGRTMAX'}"
    assert raised(0, 0, "KeyError", "").reason == "rank 0: KeyError"


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (Vitals("SS", 10), Vitals("TT", 10), "stopped"),
        (Vitals("SS", 10), Vitals("tT", 10), "stopped"),
        (Vitals("SS", 10), Vitals("SS", 11), "sleeps"),
        (Vitals("SS", 10), Vitals("SR", 10), None),  # waits for a core of an overloaded machine
        (Vitals("SS", 10), Vitals("DS", 10), None),  # waits for a slow file system
        (Vitals("SS", 10), Vitals("SS", 60), None),  # works in native code with Python's lock held
        (None, None, "silent"),
    ],
)
def test_frozen_is_told_from_busy(before: Vitals | None, now: Vitals | None, words: str | None) -> None:
    why = stopped_or_stuck(before, now, silent_ticks=400)
    assert (why is None) if words is None else (why is not None and words in why)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_vitals_are_those_of_all_threads(tmp_path: Path) -> None:
    for number, name, state in ((7, "python", "S"), (8, "odd) R (name", "R")):
        folder = tmp_path / "7" / "task" / str(number)
        folder.mkdir(parents=True)
        fields = " ".join(["0"] * 10 + ["30", "4"] + ["0"] * 20)
        (folder / "stat").write_text(f"{number} ({name}) {state} {fields}\n")
    found = vitals(7, tmp_path)
    assert found is not None
    assert (sorted(found.states), found.cpu_ticks) == (["R", "S"], 68)
    assert vitals(9, tmp_path) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_vitals_of_a_process_that_works_grow() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        before = vitals(busy.pid)
        while (now := vitals(busy.pid)) is not None and now.cpu_ticks < 30:
            pass
        assert before is not None
        assert now is not None
        assert stopped_or_stuck(before, now, silent_ticks=200) is None
        busy.kill()
    assert vitals(os.getpid()) is not None
