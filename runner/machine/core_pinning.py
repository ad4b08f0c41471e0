"""Cores of their own for the ranks of a run (`launcher.pin`): which they get, and how they keep to them."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...strategies.errors import MachineError
from .environment import affinity, usable_cores


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a rank may use and what it wants: cores, time on them in cores (a container's quota may be less),
    and threads with the processes that make its batches. `host`: for the message where they do not fit."""

    cores: Collection[int]
    usable: int
    wanted: int
    host: str = "this machine"


def apart(rooms: Sequence[Room]) -> list[tuple[int, ...]]:
    """Cores of each rank of one machine, as many as it wants and none of them another rank's.

    A batch system may have bound ranks already: each keeps to the cores that it has been given. Who has the
    least choice chooses first.

    Raises MachineError if they do not fit.
    """
    for room in rooms:
        mates = [other for other in rooms if set(other.cores) == set(room.cores)]
        if sum(mate.wanted for mate in mates) > min(room.usable, len(set(room.cores))):
            raise _too_few(mates)
    taken: set[int] = set()
    found: dict[int, tuple[int, ...]] = {}
    for rank in sorted(range(len(rooms)), key=lambda rank: len(set(rooms[rank].cores))):
        room = rooms[rank]
        free = sorted(set(room.cores) - taken)
        if len(free) < room.wanted:
            raise _too_few(rooms)
        found[rank] = tuple(free[: room.wanted])
        taken.update(found[rank])
    return [found[rank] for rank in range(len(rooms))]


def apart_here(ranks: int, wanted: int) -> list[tuple[int, ...]]:
    """`apart` for ranks that are all started by this process."""
    return apart([Room(cores=affinity(), usable=usable_cores(), wanted=wanted)] * ranks)


def keep_to(cores: Collection[int]) -> None:
    """From now on all threads of this process, and what it starts, run on these cores alone.

    Raises MachineError where the system has no such thing, or refuses it.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise MachineError("launcher.pin=true: this system binds no process to cores; launcher.pin=false")
    try:
        # One by one: threads that are there already (of a library that was loaded) inherit nothing.
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
    except OSError as error:
        raise MachineError(
            f"launcher.pin=true: cores {sorted(cores)}: {error.strerror}; launcher.pin=false"
        ) from error


def _too_few(rooms: Sequence[Room]) -> MachineError:
    cores = len({core for room in rooms for core in room.cores})
    usable = min(cores, max(room.usable for room in rooms)) if len({*map(_own, rooms)}) == 1 else cores
    wanted = sum(room.wanted for room in rooms)
    who = "1 rank wants" if len(rooms) == 1 else f"{len(rooms)} ranks want"
    return MachineError(
        f"launcher.pin=true: {who} {wanted} cores of their own, {usable} are usable on {rooms[0].host}; "
        "fewer ranks (cluster.ranks_per_node), threads (launcher.threads_per_rank) or loader workers "
        "(launcher.loader_workers), or launcher.pin=false"
    )


def _own(room: Room) -> tuple[int, ...]:
    return tuple(sorted(set(room.cores)))
