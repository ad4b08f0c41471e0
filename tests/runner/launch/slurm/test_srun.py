"""What srun says of its tasks, line by line, and its own end."""

import os
import signal
import time
from pathlib import Path

import pytest

from daso_bench.runner.launch.slurm import job as module
from daso_bench.runner.launch.slurm.job import Srun
from daso_bench.strategies.errors import MachineError


def after(text: str, folder: Path, code: int = 0) -> Srun:
    """An srun that has written `text` and ended."""
    (folder / "said").write_text(text)
    srun = Srun(["sh", "-c", f"cat {folder / 'said'} >&2; exit {code}"], os.environ, folder / "srun.log")
    srun.begin()
    srun.stop()
    return srun


@pytest.mark.parametrize(
    ("line", "fates"),
    [
        ("srun: error: n2: task 3: Killed", {3: -9}),
        ("srun: error: n2: tasks 2-3: Exited with exit code 3", {2: 3, 3: 3}),
        ("srun: error: gpu-01.site.de: tasks 0,2-3: Terminated", {0: -15, 2: -15, 3: -15}),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)", {0: -11}),
        ("srun: error: n1: task 1: User defined signal 2", {1: -12}),
        ("srun: error: n1: task 1: Out Of Memory", {1: -9}),
        ("srun: error: n1: task 1: something new", {1: 1}),
        ("srun: error: Unable to create step for job 7: Job/step already completing or completed", {}),
        ("n2: task 3: Killed", {}),  # a rank's own output is no word of srun's
        ("", {}),
    ],
)
def test_the_fate_of_each_task_is_read_from_its_line(
    line: str, fates: dict[int, int], tmp_path: Path
) -> None:
    srun = after(f"{line}\n", tmp_path)
    assert {rank: srun.fate(rank) for rank in range(4)} == {rank: fates.get(rank) for rank in range(4)}
    assert srun.node_failure is None


def test_lines_of_several_nodes_are_all_heeded_and_kept(tmp_path: Path) -> None:
    text = (
        "slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=7.0\n"
        "srun: error: n1: task 0: Out Of Memory\n"
        "srun: error: n2: tasks 2-3: Exited with exit code 3\n"
        "srun: error: Node failure on n3\n"
    )
    srun = after(text, tmp_path, 137)
    assert [srun.fate(rank) for rank in range(4)] == [-9, None, 3, 3]
    assert srun.node_failure == "n3"
    command, _, rest = (tmp_path / "srun.log").read_text().partition("\n")
    assert command.startswith("$ sh -c cat")
    assert rest == text


def test_a_running_srun_has_not_ended_and_is_stopped_by_force_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_S", 0.3)
    srun = Srun(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"],
        os.environ,
        tmp_path / "srun.log",
    )
    srun.begin()
    deadline = time.monotonic() + 10
    log = tmp_path / "srun.log"
    while not (log.exists() and "ready\n" in log.read_text().splitlines(keepends=True)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert srun.ended() is None
    began = time.monotonic()
    srun.stop()
    assert time.monotonic() - began < 5
    assert srun.ended() == f"srun ended with exit code {-signal.SIGKILL}: ready"


def test_the_end_of_srun_is_told_with_its_last_words(tmp_path: Path) -> None:
    many = "".join(f"line {number}\n" for number in range(9))
    last = "; ".join(f"line {number}" for number in range(3, 9))
    assert after(many, tmp_path, 4).ended() == f"srun ended with exit code 4: {last}"
    assert after("", tmp_path, 1).ended() == "srun ended with exit code 1: it wrote nothing"
    odd = Srun(["printf", r"\377\nsrun: error: n1: task 0: Killed\n"], os.environ, tmp_path / "srun.log")
    odd.begin()
    odd.stop()
    assert odd.fate(0) == -9, "words that are no text do no harm"
    never = Srun([str(tmp_path / "nosuch")], os.environ, tmp_path / "never.log")
    never.stop()
    assert never.ended() is None
    with pytest.raises(MachineError, match=r"srun cannot be started: .*nosuch"):
        never.begin()
