"""Ctrl-C is never lost: not in an import that drops the exception, not while helpers are started."""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from daso_bench.runner.cli import main as cli
from daso_bench.runner.cli.main import main
from daso_bench.runner.machine.signals import Interrupts, interrupt_remembered, raise_if_interrupted
from daso_bench.runner.records.run_directory import INTERRUPTED, OK


def swallowed(_arguments: Sequence[str]) -> int:
    """As the C code of an import may do."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return OK
    return OK


def passed_on(_arguments: Sequence[str]) -> int:
    raise KeyboardInterrupt


def mistaken(_arguments: Sequence[str]) -> int:
    """As NumPy's import does, once it has been interrupted."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise ImportError("cannot load module more than once per process") from None
    return OK


@pytest.mark.parametrize("part", [passed_on, swallowed, mistaken])
def test_an_interrupt_ends_the_program_also_where_an_import_dropped_it(
    part: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run", part)
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "daso-bench: interrupted\n"


def test_an_error_without_an_interrupt_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_arguments: Sequence[str]) -> int:
        raise ImportError("no such module")

    monkeypatch.setattr(cli, "run", broken)
    with pytest.raises(ImportError, match="no such module"):
        main([])


def test_what_was_remembered_is_of_one_program_and_the_handler_is_put_back() -> None:
    with interrupt_remembered(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        raise_if_interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupt_remembered():
        raise_if_interrupted()
        with Interrupts() as counted:
            signal.raise_signal(signal.SIGINT)
        assert counted.names == ["SIGINT"]
        raise_if_interrupted()


def test_other_threads_and_other_handlers_are_left_alone() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_remembered():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def elsewhere() -> None:
        with interrupt_remembered():
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()


WARM = """
import signal
from multiprocessing import forkserver, resource_tracker
from daso_bench.runner.launch import local

def started():
    resource_tracker.ensure_running()  # as the real one does; it unblocks what was blocked
    print(sorted(number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])))

forkserver.ensure_running = started
local.warm()
print(sorted(number.name for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""


def test_the_forkserver_starts_with_the_signals_blocked_that_are_its_supervisors() -> None:
    """Else Ctrl-C in its first tenth of a second ends it with a traceback."""
    told = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines() == ["['SIGHUP', 'SIGINT', 'SIGTERM']", "[]"]
