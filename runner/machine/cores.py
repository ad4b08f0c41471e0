"""Cores: how many are usable, whether ranks fit on them, which ranks get which, and who waits for one.

`python -m daso_bench.runner.machine.cores PARENT` spins in class SCHED_IDLE until the process PARENT ends.
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...strategies.errors import MachineError
from .signals import LEFT_TO_THE_SUPERVISOR, die_with_parent

QUEUE_LIMIT = 0.01  # seconds of all threads of a rank together, over seconds of training
IDLE_NS = 500_000


def affinity() -> list[int]:
    """The cores this process may be scheduled on, in order."""
    return sorted(os.sched_getaffinity(0))


def usable_cores() -> int:
    """The number of cores that this process may use: its affinity, cut to a container's CPU quota."""
    cores = len(affinity())
    quota = _cpu_quota(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cpu_quota(root: Path, membership: Path) -> float | None:
    """The smallest quota (cores) on the way from our control group to the root (cgroup v2), None if none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    group = next((line[3:].lstrip("/") for line in lines if line.startswith("0::")), None)
    if group is None:
        return None
    quotas: list[float] = []
    for folder in [root / group, *(root / group).parents]:
        if not folder.is_relative_to(root):
            break
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def threads_per_rank(setting: int | Literal["auto"], ranks: int, workers: int = 0) -> int:
    """Threads of each of `ranks` ranks on this host: the setting, or usable cores // ranks (at least 1).

    `workers`: loader workers of each rank; `auto` leaves a core to each.
    """
    if setting == "auto":
        return max(1, usable_cores() // ranks - workers)
    return setting


def timing_reasons(ranks: int, threads: int, cores: int, workers: int = 0) -> list[str]:
    """Why timing is invalid: `ranks` x (`threads` + `workers`) do not fit on `cores`; [] if they do."""
    if ranks * (threads + workers) <= cores:
        return []
    who = f"{ranks} rank{'s' * (ranks != 1)} x {threads} thread{'s' * (threads != 1)}"
    if workers:
        who += f" and {workers} loader worker{'s' * (workers != 1)}"
    verb = "share" if ranks != 1 else "shares"
    return [f"{who} {verb} {cores} core{'s' * (cores != 1)}"]


# ------------------------------------------------------------------ cores of their own for ranks


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
        usable = min(room.usable, len(set(room.cores)))
        if sum(entry.wanted for entry in sharing) > usable:
            raise _too_few(sharing, usable)
    taken: set[int] = set()
    cores: dict[int, tuple[int, ...]] = {}
    for rank in sorted(range(len(rooms)), key=lambda rank: len(set(rooms[rank].cores))):
        room = rooms[rank]
        free = sorted(set(room.cores) - taken)
        if len(free) < room.wanted:
            raise _too_few(rooms, len({core for room in rooms for core in room.cores}))
        cores[rank] = tuple(free[: room.wanted])
        taken.update(cores[rank])
    return [cores[rank] for rank in range(len(rooms))]


def apart_here(ranks: int, wanted: int) -> list[tuple[int, ...]]:
    """`apart` for ranks that this process starts."""
    return apart([Room(cores=affinity(), usable=usable_cores(), wanted=wanted)] * ranks)


def keep_to(cores: Collection[int]) -> None:
    """Bind all threads of this process, and what it starts later, to these cores.

    Raises MachineError where the system refuses it.
    """
    try:
        # Thread by thread: threads that exist already (of a library that was loaded) inherit nothing.
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
    except OSError as error:
        raise MachineError(
            f"launcher.pin=true: cores {sorted(cores)}: {error.strerror}; launcher.pin=false"
        ) from error


def _too_few(rooms: Sequence[Room], usable: int) -> MachineError:
    wanted = sum(room.wanted for room in rooms)
    who = "1 rank wants" if len(rooms) == 1 else f"{len(rooms)} ranks want"
    return MachineError(
        f"launcher.pin=true: {who} {wanted} cores of their own, {usable} are usable on {rooms[0].host}; "
        "fewer ranks (cluster.ranks_per_node), threads (launcher.threads_per_rank) or loader workers "
        "(launcher.loader_workers), or launcher.pin=false"
    )


# ------------------------------------------------------------------ cores kept awake


def keep_awake() -> list[subprocess.Popen[bytes]]:
    """Start one spinning process per usable core.

    A core that has gone to sleep is late for its next work, and the same cores serve the queues of the links
    (docs/emulation.md). Any other process that wants the core has it at once.

    The kernel ends the processes with the thread that started them: start them in the main thread.
    """
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
    return [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(usable_cores())]


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
    """Use a core that nobody else wants until the process `parent` ends."""
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


# ------------------------------------------------------------------ time in the run queue


def in_each_second(share: float) -> str:
    """`RunQueue.share` in words. It may exceed 1: several threads can wait at the same time."""
    return f"{share:.3g} s in each second of training"


class RunQueue:
    """The time for which this process's threads were ready to run and had no core, while it trained.

    docs/method.md, "Validity and guard", has the limit. The kernel also counts the time in which
    an idle core wakes up (docs/emulation.md), so `IDLE_NS` is subtracted for each time that a thread was
    given a core. The result is a lower bound: shorter waits are not seen, nor are those of threads that ended
    before training paused.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        # By thread: ns that it has waited for a core, and how often it was given one, since it began.
        self._since: dict[str, tuple[int, int]] = {}
        self.waited_ns: int | None = 0  # of all threads together; None where the system does not count them
        self._before: tuple[int, int | None] = (0, 0)  # ns of training and in the queue, of earlier attempts

    def share(self, train_ns: int) -> float | None:
        """Seconds of all threads together over seconds of training; None if an attempt has no counts.

        Earlier attempts of a resumed run are included. `train_ns`: of training in this attempt.
        """
        state = self.state_dict(train_ns)
        queued = state["queued_ns"]
        return None if queued is None else queued / max(1, state["train_ns"] or 0)

    def state_dict(self, train_ns: int) -> dict[str, int | None]:
        """Training and waiting of this attempt and of those before it."""
        trained, queued = self._before
        together = None if queued is None or self.waited_ns is None else queued + self.waited_ns
        return {"train_ns": trained + train_ns, "queued_ns": together}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        self._before = state["train_ns"] or 0, state["queued_ns"]

    def training(self, on: bool) -> None:
        now = self._read()
        if not now or self.waited_ns is None:
            self.waited_ns = None
            return
        if not on:
            for thread, (waited, times) in now.items():
                waited_before, times_before = self._since.get(thread, (0, 0))
                self.waited_ns += max(0, waited - waited_before - IDLE_NS * (times - times_before))
        self._since = now

    def _read(self) -> dict[str, tuple[int, int]]:
        """The last two numbers in the schedstat of each thread; none where the system does not give them."""
        threads: dict[str, tuple[int, int]] = {}
        try:
            for thread in os.listdir(self._tasks):
                try:
                    _, waited, times = (self._tasks / thread / "schedstat").read_text().split()
                except (FileNotFoundError, ProcessLookupError):  # the thread has ended
                    continue
                threads[thread] = int(waited), int(times)
        except (OSError, ValueError):
            return {}
        return threads


if __name__ == "__main__":
    _spin(int(sys.argv[1]))
