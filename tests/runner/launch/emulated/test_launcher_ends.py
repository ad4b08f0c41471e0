"""Runs of `launcher=emulated` that end before their time: what is left of them, and how they go on."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from launched import emulated, supervised, wait_for_checkpoint
from real_runs import alive, finished, history, launch, members, same_model
from runs import config

from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.training import checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
GONE_S = 10.0
CYCLING = {"warmup_epochs": 2, "cooldown_epochs": 2}
# Steps of 20 ms, a checkpoint after each fourth: whoever sees one is in the middle of 60.
LONG: dict[str, Any] = {
    "device": {"samples_per_second": 400.0, "jitter": "gaussian", "jitter_cv": 0.1},
    "epochs": 10,
    "checkpoint_every_samples": 64,
}


def holders() -> set[int]:
    """The processes that hold nodes for this one."""
    found: set[int] = set()
    for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        with suppress(OSError):
            if b"emulated.namespaces" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(int(child))
    return found


def networks() -> tuple[set[str], list[str], set[str]]:
    """This machine's links, its mounted namespaces, and those that `ip netns` has named."""
    mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - nsfs " in line]
    folder = Path("/run/netns")
    named = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    return {name for _, name in socket.if_nameindex()}, mounted, named


def all_gone(pids: Callable[[], set[int]]) -> None:
    """Wait until `pids` finds none. No process, so no namespace: these have no name and no mount."""
    until = time.monotonic() + GONE_S
    while pids() and time.monotonic() < until:
        time.sleep(0.05)
    assert pids() == set()


@contextmanager
def nothing_left() -> Iterator[set[int]]:
    """The body adds the processes that are to be gone after it."""
    before, pids = networks(), set[int]()
    assert not holders()
    yield pids
    assert pids
    all_gone(lambda: {pid for pid in pids if alive(pid)})
    assert not holders()
    assert networks() == before


class Look:
    """Notes the processes of a run at its start, and does something once when it has made some steps."""

    def __init__(self, pids: set[int], act: Any = None) -> None:
        self._pids, self._act = pids, act
        self.acted_s: float | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "start":
            assert len(holders()) == 1
            self._pids |= {*event["pids"], *holders()}
        steps = event["progress"].get("step") if event["kind"] == "progress" else None
        if steps and self._act is not None and self.acted_s is None:
            self.acted_s = time.monotonic()
            self._act()


def test_a_run_whose_nodes_lose_their_links_fails_soon_with_the_reason_and_leaves_nothing(tmp_path: Path):
    with nothing_left() as pids:

        def kill_holder() -> None:
            (holder,) = holders()
            os.kill(holder, signal.SIGKILL)

        look = Look(pids, kill_holder)
        directory, outcome = launch(emulated(results=tmp_path, **LONG), on_event=look)
        assert look.acted_s is not None
        assert time.monotonic() - look.acted_s < 15
        assert (outcome.status, outcome.exit_code) == ("failed", 1)
        said = "the emulated nodes have no links: the process that held them was killed by SIGKILL"
        assert (outcome.reason or "").startswith(said)
        assert directory.status()["reason"] == outcome.reason
        assert directory.state() == "resumable"


def test_nothing_is_left_of_a_run_whose_supervisor_is_killed(tmp_path: Path):
    before = networks()
    cfg = emulated(results=tmp_path, **LONG)
    directory = RunDirectory.create(cfg.tree, tmp_path)
    with supervised(directory) as process:
        wait_for_checkpoint(directory)
        assert len(members(process.pid)) >= 5  # with its forkserver, its holder and two ranks
        assert networks() == before
        for pid in members(process.pid):
            if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():  # or a rank, which is its child
                os.kill(pid, signal.SIGSTOP)  # what is stopped only the kernel can end
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
        all_gone(lambda: members(process.pid))
    assert networks() == before
    assert directory.status()["reason"] == "supervisor gone"
    assert directory.state() == "resumable"


def test_a_run_that_was_interrupted_twice_goes_on_bit_for_bit_where_its_jitter_stood(tmp_path: Path):
    cfg = emulated("daso", keys=CYCLING, results=tmp_path, **LONG)
    directory: RunDirectory | None = None
    stood: list[int] = []
    for _ in range(2):
        with nothing_left() as pids:
            look = Look(pids, lambda: os.kill(os.getpid(), signal.SIGINT))
            directory, outcome = launch(cfg, directory, on_event=look)
        assert (outcome.status, outcome.exit_code) == ("cancelled", 130), outcome.details
        # Each step draws one number, checks and undone steps none; after the second both attempts' steps did.
        for drawn, steps in drawn_and_steps(directory):
            assert drawn == steps
            stood.append(steps)
    assert 0 < stood[0] < stood[2] < 60

    assert directory is not None
    finished(cfg, directory)
    whole = config("daso", keys=CYCLING, ranks=[1, 1], epochs=10, results=tmp_path / "unbroken")
    unbroken, _ = finished(whole)
    assert len(history(directory)) == 10
    assert history(directory) == history(unbroken)
    assert same_model(directory, unbroken)


def drawn_and_steps(directory: RunDirectory) -> list[tuple[int, int]]:
    """Of each rank, from the newest checkpoint: numbers drawn from its device, and steps made."""
    path, damage = checkpoint.newest_valid(directory.checkpoints)
    assert path is not None, damage
    states = [checkpoint.read(path / checkpoint.rank_file(rank)) for rank in (0, 1)]
    return [(int(state["rng"]["device"]), state["progress"]["step"]) for state in states]
