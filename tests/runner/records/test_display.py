"""What people see: plain lines at a bearable rate, tables that show what is known and nothing made up."""

import io
import os
from typing import Any

import pytest
from rich.console import Console

from daso_bench.runner.records import display
from daso_bench.runner.records.display import (
    duration,
    numbers,
    one_line,
    plain_lines,
    run_table,
    runs_table,
    states_table,
)


def event(step: int, epoch: int = 0, **more: Any) -> dict[str, Any]:
    state = {"step": step, "steps": 100, "epoch": epoch, "epochs": 4, **more}
    return {"kind": "progress", "rank": 0, "progress": state, "call": ""}


def rendered(thing: Any, *, terminal: bool = False, width: int = 160) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, markup=False, highlight=False)
    console.print(thing)
    return stream.getvalue()


STATUS: dict[str, Any] = {
    "status": "finished",
    "reason": None,
    "labels": ["no asynchronous phase"],
    "timing": {"valid": False, "reasons": ["4 ranks x 1 thread share 2 cores"]},
    "attempts": [{}, {}],
    "progress": {"step": 216, "steps": 216},
    "summary": {
        "final_accuracy": 0.9567,
        "best_accuracy": 0.9611,
        "target": 0.95,
        "to_target_train_s": 75.2,
        "train_s": 125.0,
        "samples_per_s": 1234.5,
        "payload_bytes": {"intra": 3 * 2**20, "inter": 512},
        "labels": ["no asynchronous phase"],
    },
}


def test_one_line_per_epoch_and_one_every_ten_seconds() -> None:
    now, lines = [0.0], list[str]()
    show = plain_lines(lines.append, lambda: now[0])
    for now[0], step, epoch in [(0, 1, 0), (9.9, 20, 0), (10, 21, 0), (11, 30, 1), (12, 31, 1), (21, 40, 1)]:
        show(event(step, epoch))
    assert [line.split("step ")[1].split("/")[0] for line in lines] == ["1", "21", "30", "40"]
    assert lines[1] == "  epoch 1/4  step 21/100  left 37.6 s"


def test_trouble_and_interrupts_are_told_at_once() -> None:
    lines: list[str] = []
    show = plain_lines(lines.append)
    show({"kind": "trouble", "rank": 1, "reason": "rank 1: SIGKILL in all_reduce"})
    show({"kind": "interrupt", "signal": "SIGINT", "wait_s": 8.0})
    assert lines == [
        "  trouble: rank 1: SIGKILL in all_reduce; ending the run",
        "  SIGINT: asking the ranks to stop, up to 8 s (once more: kill them)",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.2 s"), (59.94, "59.9 s"), (60, "1 min 00 s"), (125, "2 min 05 s"), (7620, "2 h 07 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_summary_of_a_run_has_every_number() -> None:
    text = rendered(run_table(STATUS))
    for part in [
        "finished",
        "95.67 %",
        "96.11 %",
        "time to 95.00 %      1 min 15 s",
        "2 min 05 s",
        "1,234",
        "512 bytes",
        "3.1 MB",
        "timing not valid: 4 ranks x 1 thread share 2 cores",
    ]:
        assert part in text
    assert text.count("no asynchronous phase") == 1


def test_the_table_of_a_sweep_has_a_line_per_run_and_says_once_what_all_have_in_common() -> None:
    other = {**STATUS, "labels": [], "summary": {**STATUS["summary"], "labels": []}}
    failed = {"status": "failed", "reason": "x", "summary": None, "labels": [], "timing": {"valid": True}}
    first, second = rendered(runs_table([("daso-[b]-s0", STATUS), ("ddp-s0", failed)])).splitlines()[1:]
    assert first.split()[:2] == ["daso-[b]-s0", "finished"]
    assert "no asynchronous phase; timing not valid" in first
    assert second.split() == ["ddp-s0", "failed", "-", "-", "-", "-", "-", "-"]
    text = rendered(runs_table([("a", STATUS), ("b", other)]))
    assert text.count("timing not valid") == 1
    assert "all runs: timing not valid: 4 ranks x 1 thread share 2 cores" in text


def test_a_run_is_shown_by_the_metric_of_its_task_and_a_failed_one_by_its_reason() -> None:
    summary = {key: value for key, value in STATUS["summary"].items() if "accuracy" not in key}
    pixels = {**STATUS, "summary": {**summary, "final_miou": 0.9123, "best_miou": 0.9234}}
    assert one_line(STATUS) == "finished  accuracy 95.67 %  to target 1 min 15 s  train 2 min 05 s"
    assert one_line(pixels) == "finished  miou 91.23 %  to target 1 min 15 s  train 2 min 05 s"
    assert one_line({"status": "failed", "reason": "rank 1: SIGKILL"}) == "failed  rank 1: SIGKILL"
    assert "accuracy" not in rendered(run_table(pixels))
    for table in (runs_table, states_table):
        assert "accuracy / miou" in rendered(table([("a", pixels), ("b", STATUS)]))
    assert numbers({"step": 3, "steps": 9, "miou": 0.25}) == "step 3/9  miou 25.00 %"


def test_the_status_table_shows_state_attempt_progress_accuracy_and_reason() -> None:
    running = {"status": "running", "attempts": [{}], "progress": {"step": 3, "steps": 9, "accuracy": 0.25}}
    failed = {"status": "failed", "reason": "supervisor gone", "attempts": [], "progress": {}}
    rows = rendered(states_table([("a", STATUS), ("b", running), ("c", failed)])).splitlines()[1:]
    assert rows[0].split() == ["a", "finished", "2", "216/216", "95.67", "%"]
    assert rows[1].split() == ["b", "running", "1", "3/9", "25.00", "%"]
    assert rows[2].split() == ["c", "failed", "0", "-", "-", "supervisor", "gone"]


def test_a_path_is_one_piece_to_copy() -> None:
    stream = io.StringIO()
    path = "/very/long" * 30 + "/[bold]run"
    display.say(Console(file=stream, width=40, markup=False), path)
    assert stream.getvalue() == path + "\n"


def test_the_live_line_takes_every_event_and_shows_the_numbers() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=140, force_terminal=True, markup=False, highlight=False)
    with display.progress(console, "ddp-[x]-s0") as on_event:
        on_event({"kind": "start", "ranks": 4})
        on_event(event(50, 1, loss=0.5, samples_per_s=100.0))
        on_event({"kind": "trouble", "rank": 1, "reason": "rank 1 [gone]"})
    text = stream.getvalue()
    assert "ddp-[x]-s0" in text
    assert "epoch 2/4  step 50/100  100 samples/s  loss 0.5000" in text
    assert "trouble: rank 1 [gone]" in text


def test_a_reader_that_has_gone_ends_no_run() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        console = display._Console(goes_on=True, file=stream, width=80)
        console.print("the first line")
        os.close(reader)
        for _ in range(3):
            console.print("nobody reads this")
        print("nor this", file=stream, flush=True)
