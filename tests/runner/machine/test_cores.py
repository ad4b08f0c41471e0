"""`launcher.pin`: which cores ranks get for their own, and that they keep to them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import config

from daso_bench.runner.config import load
from daso_bench.runner.config.launchers import LAUNCHERS
from daso_bench.runner.launch import local
from daso_bench.runner.launch.remote import cores_of
from daso_bench.runner.machine import cores as module
from daso_bench.runner.machine.cores import Room, apart, apart_here, keep_to
from daso_bench.runner.machine.environment import usable_cores
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError


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
def test_ranks_get_cores_of_those_they_may_use_and_no_other_ranks(
    rooms: list[Room], expected: list[tuple[int, ...]]
):
    assert apart(rooms) == expected


@pytest.mark.parametrize(
    ("rooms", "said"),
    [
        ([room([0, 1], 1)] * 3, "3 ranks want 3 cores of their own, 2 are usable"),
        ([room([0, 1], 3)], "1 rank wants 3 cores of their own, 2 are usable"),
        # A container's quota: time on two of eight cores.
        ([room(list(range(8)), 1, usable=2)] * 3, "3 ranks want 3 cores of their own, 2 are usable"),
        ([room([0, 1], 2), room([1, 2], 2)], "2 ranks want 4 cores of their own, 3 are usable"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_the_way_out(rooms: list[Room], said: str):
    with pytest.raises(MachineError) as refused:
        apart(rooms)
    assert str(refused.value).startswith(f"launcher.pin=true: {said}")
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


@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_it_is_off_unless_asked_for_and_then_part_of_the_run(tmp_path: Path, name: str):
    kind = LAUNCHERS[name]
    assert kind(name=name).pin is False
    if name == "simulated":
        with pytest.raises(ConfigError, match=r"^launcher\.pin=true: virtual ranks have no cores"):
            kind(name=name, pin=True)
        return
    assert kind(name=name, pin=True).pin
    plain, off, on = (config(launcher=keys) for keys in ({}, {"pin": False}, {"pin": True}))
    assert plain.run_id == off.run_id != on.run_id


@pytest.mark.parametrize("many", [True, False])
def test_the_record_has_each_ranks_own_cores(tmp_path: Path, many: bool):
    """A process a core, and one process of all cores; in which nothing runs beside its threads."""
    allowed = sorted(os.sched_getaffinity(0))
    ranks = min(2, len(allowed)) if many else 1
    threads = 1 if many else len(allowed)
    cfg = config("hsgd", ranks=[ranks], results=tmp_path, epochs=1, launcher={"pin": True})
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    outcome = local.launch(directory, ranks=ranks, threads=threads, port=None, stall_s=60, pin=True)
    assert outcome.status == "finished", outcome.details
    rows = read_json(directory.environment)["ranks"]
    assert read_json(directory.environment)["cores"] == usable_cores(), "what the machine has, not a rank"
    assert [row["cores"] for row in rows] == ([[core] for core in allowed[:ranks]] if many else [allowed])
    assert {row["interop_threads"] for row in rows} == {1}


def test_a_run_whose_ranks_do_not_fit_has_not_begun(tmp_path: Path):
    cfg = config(ranks=[999], results=tmp_path, global_batch_size=999)
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    with pytest.raises(MachineError, match="999 ranks want 999 cores"):
        local.launch(directory, ranks=999, threads=1, port=None, stall_s=60, pin=True)
    assert directory.status()["attempts"] == []
