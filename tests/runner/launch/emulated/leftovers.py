"""What could be left of nodes and of runs: processes, links, mounted and named namespaces."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from real_runs import alive

GONE_S = 10.0


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


def living(pids: set[int]) -> set[int]:
    """Those of `pids` that have not ended."""
    return {pid for pid in pids if alive(pid)}
