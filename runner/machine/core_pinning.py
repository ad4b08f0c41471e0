"""`launcher.pin`: assigns cores to the ranks of a run, and binds a process to them."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...strategies.errors import MachineError
from .environment import affinity, usable_cores


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
