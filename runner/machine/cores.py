"""Cores: assigned to the ranks of a run (`launcher.pin`), and kept awake while an emulated cluster trains.

`python -m daso_bench.runner.machine.cores PARENT` spins in class SCHED_IDLE until the process PARENT ends.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...strategies.errors import MachineError
from .environment import affinity, usable_cores
from .signals import LEFT_TO_THE_SUPERVISOR, die_with_parent


@dataclass(frozen=True, kw_only=True)
class Room:
    """The cores that a rank may use, and how many it wants.

    `usable`: time on them, in cores (less than their number under a container's quota). `wanted`: its threads
    and loader workers. `host`: for the error message.
    """

    cores: Collection[int]
    usable: int
    wanted: int
    host: str = "this machine"


def apart(rooms: Sequence[Room]) -> list[tuple[int, ...]]:
    """Disjoint cores for the ranks of one machine, as many as each wants.

    A batch system may have bound ranks already: each gets some of the cores it was given. The rank with the
    fewest cores to choose from is served first. Raises MachineError if they do not fit.
    """
    for room in rooms:
        sharing = [entry for entry in rooms if set(entry.cores) == set(room.cores)]
        if sum(entry.wanted for entry in sharing) > min(room.usable, len(set(room.cores))):
            raise _too_few(sharing)
    taken: set[int] = set()
    cores: dict[int, tuple[int, ...]] = {}
    for rank in sorted(range(len(rooms)), key=lambda rank: len(set(rooms[rank].cores))):
        room = rooms[rank]
        free = sorted(set(room.cores) - taken)
        if len(free) < room.wanted:
            raise _too_few(rooms)
        cores[rank] = tuple(free[: room.wanted])
        taken.update(cores[rank])
    return [cores[rank] for rank in range(len(rooms))]


def apart_here(ranks: int, wanted: int) -> list[tuple[int, ...]]:
    """`apart` for ranks that this process starts."""
    return apart([Room(cores=affinity(), usable=usable_cores(), wanted=wanted)] * ranks)


def keep_to(cores: Collection[int]) -> None:
    """Bind all threads of this process, and what it starts later, to these cores.

    Raises MachineError where the system cannot do that, or refuses it.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise MachineError("launcher.pin=true: this system binds no process to cores; launcher.pin=false")
    try:
        # Thread by thread: threads that exist already (of a library that was loaded) inherit nothing.
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
    except OSError as error:
        raise MachineError(
            f"launcher.pin=true: cores {sorted(cores)}: {error.strerror}; launcher.pin=false"
        ) from error


def _too_few(rooms: Sequence[Room]) -> MachineError:
    usable = len({core for room in rooms for core in room.cores})
    if len({frozenset(room.cores) for room in rooms}) == 1:
        usable = min(usable, max(room.usable for room in rooms))
    wanted = sum(room.wanted for room in rooms)
    who = "1 rank wants" if len(rooms) == 1 else f"{len(rooms)} ranks want"
    return MachineError(
        f"launcher.pin=true: {who} {wanted} cores of their own, {usable} are usable on {rooms[0].host}; "
        "fewer ranks (cluster.ranks_per_node), threads (launcher.threads_per_rank) or loader workers "
        "(launcher.loader_workers), or launcher.pin=false"
    )


class Awake:
    """One spinning process per usable core until `end`; none where the system has no class SCHED_IDLE.

    Ranks that mostly sleep leave cores idle, and a core that has gone to sleep is late for its next work: 30
    to 240 us on average in a virtual machine, and the queues of the links are served by the same cores. Sums
    of 4 MiB at 0.4 Gbit/s were 2 to 9 % late on an idle machine, 0.4 to 4.6 % where each core was kept awake.
    Any other process that wants the core has it at once.

    The kernel ends the processes with the thread that started them: start them in the main thread. `pids`:
    for the check that counts what other programs compute.
    """

    def __init__(self) -> None:
        wanted = usable_cores() if hasattr(os, "SCHED_IDLE") else 0
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(os.getpid())], stdin=subprocess.DEVNULL
            )
            for _ in range(wanted)
        ]
        self.pids = tuple(process.pid for process in self._processes)

    def end(self) -> None:
        """End the processes. May be called again."""
        for process in self._processes:
            process.kill()
            process.wait()


def computed_s(pids: tuple[int, ...], proc: Path = Path("/proc")) -> float:
    """Processor seconds of these processes so far; one that has ended counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:13])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


def _spin(parent: int) -> None:
    """Use a core that nobody else wants until the process `parent` ends. Linux only."""
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


if __name__ == "__main__" and sys.platform == "linux":
    _spin(int(sys.argv[1]))
