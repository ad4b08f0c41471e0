"""Launching: ranks, ports, threads, and what a run leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process_entries import make
from real_runs import alive, members

from daso_bench.runner.launch import local, supervisor
from daso_bench.runner.launch.local import launch
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.errors import MachineError

HERE = Path(__file__).parents[1]
LIMIT_S = 10.0
SETTINGS: dict[str, Any] = {"threads": 1, "port": None, "stall_s": 60.0}
Events = list[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _forkserver_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test's time limit is not for the import of torch."""
    directory = make(tmp_path_factory.mktemp("first"), steps=0)
    launch(directory, ranks=1, entry="process_entries:works", **SETTINGS)


def run(directory: RunDirectory, entry: str, ranks: int = 2, **settings: Any) -> tuple[Outcome, Events]:
    """Launch, hold the time limit, and see that no process and no lock is left."""
    events: Events = []
    extra: Callable[[dict[str, Any], Events], None] = settings.pop("on_event", lambda event, events: None)

    def on_event(event: dict[str, Any]) -> None:
        events.append(event)
        extra(event, events)

    settings = {"entry": f"process_entries:{entry}", "on_event": on_event, **SETTINGS, **settings}
    begin = time.monotonic()
    outcome = launch(directory, ranks=ranks, **settings)
    assert time.monotonic() - begin < LIMIT_S
    for pid in events[0]["pids"]:
        assert not alive(pid)
    with directory.lock():
        pass
    return outcome, events


def failed(directory: RunDirectory, outcome: Outcome, exit_code: int = 1) -> str:
    """The reason of a failed run, which status.json, its attempt and the outcome all tell alike."""
    status = directory.status()
    assert (outcome.status, outcome.exit_code) == ("failed", exit_code)
    assert (status["status"], status["reason"]) == ("failed", outcome.reason)
    assert [(a["status"], a["reason"]) for a in status["attempts"]] == [("failed", outcome.reason)]
    assert directory.state() == "resumable"
    assert outcome.reason is not None
    return outcome.reason


def test_ranks_get_what_they_need_and_leave_their_summary(tmp_path: Path) -> None:
    directory = make(tmp_path)
    outcome, events = run(directory, "works", ranks=3)
    assert (outcome.status, outcome.reason, outcome.exit_code) == ("finished", None, 0)
    seen = [json.loads((directory.path / f"seen_{rank}.json").read_text()) for rank in range(3)]
    assert [row["rank"] for row in seen] == [0, 1, 2]
    assert [row["listens"] for row in seen] == [True, False, False]
    assert {(row["ranks"], row["port"], row["threads"]) for row in seen} == {(3, events[0]["port"], 1)}
    status = directory.status()
    assert (status["status"], status["reached"], status["labels"]) == ("finished", True, ["text"])
    assert status["progress"] == {"step": 5, "steps": 5, "epoch": 0, "epochs": 1, "samples": 40}
    assert '"loss": "NaN"' in directory.status_file.read_text()
    assert "rank 1 speaks" in directory.rank_log(1).read_text()
    assert "rank 0" not in directory.rank_log(1).read_text()
    assert directory.state() == "finished"


@pytest.mark.parametrize("bad", [0, 2])
def test_an_exception_in_any_rank_fails_the_run_with_its_traceback_and_it_may_go_on(
    tmp_path: Path, bad: int
) -> None:
    """The other ranks complain of their lost connections 0.2 s before."""
    directory = make(tmp_path, bad=bad, how="raise", others="complain")
    outcome, events = run(directory, "fails", ranks=3)
    assert failed(directory, outcome) == f"rank {bad}: RuntimeError: boom (last in all_reduce/gradients)"
    assert "second line" in outcome.details
    assert "in _fail" in outcome.details
    assert str(directory.rank_log(bad)) in outcome.details
    assert "RuntimeError: boom" in directory.supervisor_log.read_text()
    assert [event["kind"] for event in events if event["kind"] != "progress"] == ["start", "trouble", "end"]
    run(directory, "works", ranks=3)
    assert [attempt["status"] for attempt in directory.status()["attempts"]] == ["failed", "finished"]
    log = directory.rank_log(bad).read_text()
    assert log.index("RuntimeError: boom") < log.index(f"rank {bad} speaks")


@pytest.mark.parametrize(
    ("how", "words", "exit_code"),
    [
        ("config", "ConfigError: strategy.sync_every=0: must be >= 1", 2),
        ("machine", "MachineError: no such device", 3),
        ("disk", "No space left on device", 3),
        ("sys.exit", "SystemExit: 0", 1),
        ("os._exit", "ended without finishing (exit code 0)", 1),
        ("return", "ended without finishing (exit code 0)", 1),
        ("abort", "killed by SIGABRT", 1),
    ],
)
def test_every_way_of_leaving_early_is_seen(tmp_path: Path, how: str, words: str, exit_code: int) -> None:
    directory = make(tmp_path, bad=1, how=how)
    outcome, _ = run(directory, "fails")
    reason = failed(directory, outcome, exit_code)
    assert reason.startswith("rank 1: ")
    assert words in reason


def test_a_stopped_rank_is_found_frozen_and_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SILENCE_S", 1.0)
    directory = make(tmp_path, bad=1, how="wait")
    sent: list[int] = []

    def stop(event: dict[str, Any], events: Events) -> None:
        if event["kind"] == "progress" and event["rank"] == 1 and not sent:
            sent.append(1)
            os.kill(events[0]["pids"][1], signal.SIGSTOP)

    outcome, _ = run(directory, "fails", on_event=stop)
    assert re.match(r"rank 1: frozen: no heartbeat for \d+ s, it is stopped", failed(directory, outcome))


def test_a_run_without_progress_is_given_up_and_shows_the_stacks(tmp_path: Path) -> None:
    directory = make(tmp_path, bad=1, how="wait")
    outcome, _ = run(directory, "fails", stall_s=1.5)
    assert failed(directory, outcome) == "no progress for 1.5 s; ranks 0, 1 last in all_reduce/gradients"
    assert "wait_for_ever" in directory.rank_log(0).read_text()


def test_an_error_in_the_display_ends_the_run_and_its_ranks(tmp_path: Path) -> None:
    directory = make(tmp_path, steps=100)
    pids: list[int] = []

    def on_event(event: dict[str, Any]) -> None:
        pids.extend(event.get("pids", []))
        if event["kind"] == "progress":
            raise BrokenPipeError("no reader")

    with pytest.raises(BrokenPipeError):
        launch(directory, ranks=2, entry="process_entries:works", on_event=on_event, **SETTINGS)
    assert directory.status()["reason"] == "supervisor: BrokenPipeError: no reader"
    assert not any(alive(pid) for pid in pids)


def test_a_taken_port_is_named_and_costs_nothing(tmp_path: Path) -> None:
    directory = make(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MachineError, match=rf"launcher\.port={port}: .*in use.*launcher\.port=null"):
            run(directory, "works", port=port)
    assert directory.state() == "queued"
    outcome, events = run(directory, "works", port=port)  # free again: the user's port is respected
    assert outcome.status == "finished"
    assert events[0]["port"] == port


def test_one_forkserver_serves_a_sweep_and_the_script_is_not_run_again(tmp_path: Path) -> None:
    from multiprocessing import forkserver

    main = sys.modules["__main__"]
    run(make(tmp_path, "one"), "works")
    server = forkserver._forkserver._forkserver_pid  # pyright: ignore
    run(make(tmp_path, "two"), "works")
    assert forkserver._forkserver._forkserver_pid == server  # pyright: ignore
    assert sys.modules["__main__"] is main
    assert local.SUPERVISOR_VARIABLE not in os.environ


class Supervised:
    """A supervisor in a session of its own, as a terminal would start it."""

    def __init__(self, root: Path, run_id: str, entry: str, ranks: int = 2, **more: object) -> None:
        command = [sys.executable, str(HERE / "supervise.py"), str(root), run_id, f"process_entries:{entry}"]
        path = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"
        self.process = subprocess.Popen(
            [*command, str(ranks), json.dumps(more)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=root,
            # A number of threads of the user's own, which must not reach the ranks.
            env=os.environ | {"PYTHONPATH": path.rstrip(":"), "OMP_NUM_THREADS": "2"},
        )
        self.directory = RunDirectory(root / "study" / run_id)

    def event(self, kind: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if json.loads(line)["kind"] == kind:
                return json.loads(line)
        raise AssertionError(f"no event {kind}")

    def ends(self, limit_s: float = LIMIT_S) -> int:
        """The exit code, once no process of the session is left, within the limit."""
        end = time.monotonic() + limit_s
        code = self.process.wait(limit_s)
        while members(self.process.pid) and time.monotonic() < end:
            time.sleep(0.05)
        assert members(self.process.pid) == set()
        return code


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []
    # A file in the user's folder that would break every process which imported it for the library's.
    (tmp_path / "selectors.py").write_text("raise SystemExit('the wrong selectors')")

    def start(*arguments: Any, **settings: Any) -> Supervised:
        made.append(Supervised(tmp_path, *arguments, **settings))
        return made[-1]

    yield start
    for each in made:
        for pid in members(each.process.pid):
            os.kill(pid, signal.SIGKILL)
        each.process.communicate()


def test_an_interrupt_stops_the_ranks_in_good_order(supervised: Callable[..., Supervised]) -> None:
    one = supervised("run", "stops_when_asked")
    one.event("progress")
    os.killpg(one.process.pid, signal.SIGTERM)  # as the terminal does: to all of them
    assert one.ends() == 130
    status = one.directory.status()
    assert (status["status"], status["reason"]) == ("cancelled", "interrupted by SIGTERM")
    assert one.directory.state() == "resumable"


def test_ranks_that_do_not_stop_are_killed(supervised: Callable[..., Supervised]) -> None:
    one = supervised("run", "ignores_requests", patience_s=0.7)
    one.event("progress")
    one.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert one.ends() == 130
    assert time.monotonic() - begin > 0.7
    assert one.directory.status()["reason"] == (
        "interrupted by SIGINT; ranks 0, 1 did not stop in good order"
    )


def test_a_second_interrupt_kills_at_once(supervised: Callable[..., Supervised]) -> None:
    one = supervised("run", "ignores_requests")
    one.event("progress")
    os.killpg(one.process.pid, signal.SIGINT)
    one.event("interrupt")
    os.killpg(one.process.pid, signal.SIGINT)
    assert one.ends() == 130
    assert one.directory.status()["status"] == "cancelled"


def test_an_interrupt_while_the_forkserver_loads_does_not_wait_for_it(
    supervised: Callable[..., Supervised],
) -> None:
    one = supervised("run", "works", preload=["slow_preload"])
    while len(members(one.process.pid)) < 3:  # supervisor, resource tracker, forkserver
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(one.process.pid, signal.SIGINT)
    assert one.ends(3) == 130
    assert one.directory.status()["reason"] == "interrupted by SIGINT at its start"
    _, errors = one.process.communicate()
    assert errors == ""


def test_a_killed_supervisor_leaves_no_process_not_even_a_stopped_one(
    supervised: Callable[..., Supervised],
) -> None:
    one = supervised("run", "ignores_requests", ranks=3)
    pids = one.event("start")["pids"]
    one.event("progress")
    for pid in pids[1:]:
        os.kill(pid, signal.SIGSTOP)
    one.process.kill()
    assert one.ends() == -signal.SIGKILL
    assert one.directory.state() == "resumable"
    status = one.directory.status()
    assert (status["status"], status["reason"]) == ("failed", "supervisor gone")


def test_runs_at_once_share_no_port_and_the_same_one_is_refused(
    supervised: Callable[..., Supervised],
) -> None:
    runs = [supervised(name, "works") for name in ("one", "two", "three", "three")]
    assert sorted(run.ends(30) for run in runs) == [0, 0, 0, 2]
    outputs = [run.process.communicate() for run in runs]
    ports = [json.loads(output.splitlines()[0])["port"] for output, _ in outputs if output]
    assert len(set(ports)) == len(ports) == 3
    (refusal,) = [errors for _, errors in outputs if errors]
    assert re.fullmatch(r"run three is being run by pid \d+ on .*\n", refusal)
    assert {run.directory.state() for run in runs} == {"finished"}
    assert json.loads((runs[0].directory.path / "seen_0.json").read_text())["variable"] == "1"
