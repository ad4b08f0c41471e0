"""Usable cores, cores that ranks have for their own (`launcher.pin`), and time in the kernel's run queue."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from real_runs import finished
from runs import config, simulated

from daso_bench.runner.communication.traffic import CountedCommunicator
from daso_bench.runner.launch import local
from daso_bench.runner.launch.remote import cores_of
from daso_bench.runner.machine import cores as module
from daso_bench.runner.machine.cores import (
    Room,
    RunQueue,
    apart,
    apart_here,
    keep_to,
    timing_reasons,
    usable_cores,
)
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.training.callbacks import RunQueueTime
from daso_bench.strategies.errors import MachineError


def room(cores: list[int], wanted: int, usable: int | None = None) -> Room:
    return Room(cores=cores, usable=len(cores) if usable is None else usable, wanted=wanted)


@pytest.mark.parametrize(
    ("rooms", "expected"),
    [
        ([room([4, 5, 6, 7], 1)] * 4, [(4,), (5,), (6,), (7,)]),
        ([room([0, 1, 2, 3, 4], 2)] * 2, [(0, 1), (2, 3)]),
        # Slurm has bound each to cores of its own, more than it wants: it keeps to them.
        ([room([6, 7], 1), room([2, 3], 1)], [(6,), (2,)]),
        # Who has the least choice chooses first.
        ([room([0, 1, 2], 2), room([0], 1)], [(1, 2), (0,)]),
        ([room([], 0)], [()]),
    ],
)
def test_ranks_get_cores_that_no_other_rank_has(rooms: list[Room], expected: list[tuple[int, ...]]):
    assert apart(rooms) == expected


@pytest.mark.parametrize(
    ("rooms", "message"),
    [
        ([room([0, 1], 1)] * 3, "3 ranks want 3 cores of their own, 2 are usable"),
        ([room([0, 1], 3)], "1 rank wants 3 cores of their own, 2 are usable"),
        # A container's quota: time on two of eight cores.
        ([room(list(range(8)), 1, usable=2)] * 3, "3 ranks want 3 cores of their own, 2 are usable"),
        ([room([0, 1], 2), room([1, 2], 2)], "2 ranks want 4 cores of their own, 3 are usable"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_the_way_out(rooms: list[Room], message: str):
    with pytest.raises(MachineError) as refused:
        apart(rooms)
    assert str(refused.value).startswith(f"launcher.pin=true: {message}")
    assert "launcher.threads_per_rank" in str(refused.value)
    assert str(refused.value).endswith("or launcher.pin=false")


def test_loader_workers_have_cores_beside_the_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "affinity", lambda: list(range(6)))
    monkeypatch.setattr(module, "usable_cores", lambda: 6)
    launcher = {"pin": True, "threads_per_rank": 2, "loader_workers": 1}
    local.LocalLauncher().refuse(config(ranks=[2], launcher=launcher))
    with pytest.raises(MachineError, match="3 ranks want 9 cores of their own, 6 are usable"):
        local.LocalLauncher().refuse(config(ranks=[3], launcher=launcher))
    local.LocalLauncher().refuse(config(ranks=[3], launcher={**launcher, "pin": False}))
    assert apart_here(2, 3) == [(0, 1, 2), (3, 4, 5)]


def test_machines_are_divided_one_by_one():
    hellos = [{"boot": boot, "host": f"n{boot}", "cores": [0, 1], "usable": 2} for boot in "abab"]
    assert cores_of(hellos, [1] * 4) == [(0,), (0,), (1,), (1,)]
    with pytest.raises(MachineError, match="2 ranks want 4 cores of their own, 2 are usable on na;"):
        cores_of(hellos, [2] * 4)


THREAD_BEFORE = """
import os, threading
from daso_bench.runner.machine.cores import keep_to
go, found = threading.Event(), []
earlier = threading.Thread(target=lambda: (go.wait(), found.append(os.sched_getaffinity(0))))
earlier.start()
one = min(os.sched_getaffinity(0))
keep_to([one])
go.set()
earlier.join()
assert found == [{one}] and os.sched_getaffinity(0) == {one}, found
"""


def test_threads_that_are_there_already_keep_to_the_cores_too():
    done = subprocess.run([sys.executable, "-c", THREAD_BEFORE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_core_that_is_not_there_is_refused():
    with pytest.raises(MachineError, match=r"^launcher\.pin=true: cores \[999999\]: .*pin=false$"):
        keep_to([999999])


def test_the_record_has_each_ranks_own_cores(tmp_path: Path):
    """A process a core, in which nothing runs beside its threads."""
    allowed = sorted(os.sched_getaffinity(0))
    ranks = min(2, len(allowed))
    directory, _ = finished(
        config("hsgd", ranks=[ranks], results=tmp_path, epochs=1, launcher={"pin": True}), pin=True
    )
    environment = read_json(directory.environment)
    assert environment["cores"] == usable_cores(), "what the machine has, not a rank"
    assert [row["cores"] for row in environment["ranks"]] == [[core] for core in allowed[:ranks]]
    assert {row["interop_threads"] for row in environment["ranks"]} == {1}


# ------------------------------------------------------------------ usable cores


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "reasons"),
    [
        (2, 1, 2, []),
        (4, 1, 2, ["4 ranks x 1 thread share 2 cores"]),
        (2, 2, 1, ["2 ranks x 2 threads share 1 core"]),
        (1, 4, 2, ["1 rank x 4 threads shares 2 cores"]),
    ],
)
def test_a_timing_on_shared_cores_is_not_valid(
    ranks: int, threads: int, cores: int, reasons: list[str]
) -> None:
    assert timing_reasons(ranks, threads, cores) == reasons


def test_usable_cores_are_those_of_the_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from daso_bench.runner.machine.cores import usable_cores; print(usable_cores())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "1\n"
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_a_containers_quota_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "membership").write_text("1:cpu:/x\n0::/outer/inner\n")
    inner = tmp_path / "root" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    quota = module._cpu_quota(tmp_path / "root", tmp_path / "membership")
    assert quota == 1.5
    assert module._cpu_quota(tmp_path / "root", tmp_path / "none") is None
    monkeypatch.setattr(module, "_cpu_quota", lambda root, membership: quota)
    monkeypatch.setattr(module, "affinity", lambda: list(range(64)))
    assert usable_cores() == 2


# ------------------------------------------------------------------ the run queue

MS = 1_000_000


def threads(folder: Path, **waited_ms: int) -> Path:
    """A folder as /proc/self/task: each thread has run 5 s and waited for so many milliseconds."""
    for thread in list(folder.glob("*")):
        (thread / "schedstat").unlink()
        thread.rmdir()
    for name, waited in waited_ms.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "schedstat").write_text(f"5000000000 {waited * MS} 0\n")
    return folder


def test_the_run_queue_counts_what_threads_waited_while_they_trained(tmp_path: Path):
    queue = RunQueue(threads(tmp_path, t1=500, t2=900))
    assert queue.waited_ns == 0
    queue.training(True)
    threads(tmp_path, t1=700, t3=40)  # t2 has ended, t3 has begun
    queue.training(False)
    assert queue.waited_ns == (200 + 40) * MS
    threads(tmp_path, t1=5000, t3=5000)  # not in training
    queue.training(True)
    threads(tmp_path, t1=5001, t3=5002)
    queue.training(False)
    assert queue.waited_ns == (240 + 3) * MS


def test_waking_an_idle_core_is_no_queue(tmp_path: Path):
    """Of 18 ms in 20 times, half a millisecond each is waking up."""
    queue = RunQueue(threads(tmp_path, t1=0))
    queue.training(True)
    (tmp_path / "t1" / "schedstat").write_text(f"5000000000 {18 * MS} 20\n")
    queue.training(False)
    assert queue.waited_ns == 8 * MS
    queue.training(True)
    (tmp_path / "t1" / "schedstat").write_text(f"5000000000 {19 * MS} 120\n")
    queue.training(False)
    assert queue.waited_ns == 8 * MS, "a thread that wakes quickly excuses no other"


def waited(folder: Path, waited_ms: int, before: dict[str, int | None] | None = None) -> RunQueue:
    """The queue of an attempt whose only thread waited for so long."""
    queue = RunQueue(threads(folder, t1=0))
    if before is not None:
        queue.load_state_dict(before)
    queue.training(True)
    threads(folder, t1=waited_ms)
    queue.training(False)
    return queue


def test_the_share_is_of_all_attempts(tmp_path: Path):
    first = waited(tmp_path, 30)
    assert first.share(1000 * MS) == pytest.approx(0.03)
    second = waited(tmp_path, 10, first.state_dict(1000 * MS))
    assert second.share(3000 * MS) == pytest.approx(0.01)
    third = waited(tmp_path, 0, second.state_dict(3000 * MS))
    assert third.share(4000 * MS) == pytest.approx(0.005)


def test_an_attempt_without_counts_makes_the_share_unknown(tmp_path: Path):
    assert RunQueue().share(0) == 0
    silent = RunQueue(tmp_path / "nothing")
    silent.training(True)
    assert silent.share(MS) is None
    after = waited(tmp_path, 10, silent.state_dict(MS))
    assert after.share(1000 * MS) is None


@pytest.mark.parametrize(
    ("of_others", "worst"), [([0.004, 0.02], 0.02), ([0.004, 0.0], 0.01), ([0.004, -1.0], None)]
)
def test_the_worst_rank_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_others: list[float], worst: float | None
):
    rows = torch.tensor([[value] for value in of_others], dtype=torch.float64)
    comm = SimpleNamespace(gather=lambda mine: torch.cat([mine[None], rows]))
    callback = RunQueueTime(waited(tmp_path, 10), cast(CountedCommunicator, comm))
    assert callback.on_end(1000 * MS, finished=True) == {"run_queue_share": worst}


def test_virtual_ranks_record_no_share():
    cfg = config(ranks=[2])
    assert "run_queue_share" not in simulated(cfg).results[0].summary
