"""Time that the threads of a rank wait in the kernel's run queue while it trains. Linux only.

Source of the limit: docs/method.md, "Validity and guard".
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

QUEUE_LIMIT = 0.01  # seconds of all threads of a rank together, over seconds of training
IDLE_NS = 500_000


def in_each_second(share: float) -> str:
    """`RunQueue.share` in words. It may exceed 1: several threads can wait at the same time."""
    return f"{share:.3g} s in each second of training"


class RunQueue:
    """The time for which this process's threads were ready to run and had no core, while it trained.

    An idle core takes a while to wake up (about 5 us; 30 to 240 us on average on a virtual machine without
    other load), and the kernel counts that as waiting. It is no queue, and would make every rank that mostly
    sleeps invalid. So `IDLE_NS` is subtracted for each time that a thread was given a core; a thread that
    shares its core with a program that computes waits for milliseconds. The result is a lower bound: shorter
    waits are not seen, nor are those of threads that ended before training paused.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._since: dict[str, ThreadCounts] | None = {}
        self._waited = 0
        self._before: tuple[int, int | None] = (0, 0)  # ns of training and in the queue, of earlier attempts

    @property
    def waited_ns(self) -> int | None:
        """Nanoseconds of all threads together; None where the system does not count them."""
        return None if self._since is None else self._waited

    def share(self, train_ns: int) -> float | None:
        """Seconds of all threads together over seconds of training; None if an attempt has no counts.

        Earlier attempts of a resumed run are included. `train_ns`: of training in this attempt.
        """
        trained, queued = self._so_far(train_ns)
        return None if queued is None else queued / max(1, trained)

    def state_dict(self, train_ns: int) -> dict[str, int | None]:
        """Training and waiting of this attempt and of those before it."""
        trained, queued = self._so_far(train_ns)
        return {"train_ns": trained, "queued_ns": queued}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Continue from `state_dict`."""
        self._before = state["train_ns"] or 0, state["queued_ns"]

    def _so_far(self, train_ns: int) -> tuple[int, int | None]:
        trained, queued = self._before
        waited = self.waited_ns
        return trained + train_ns, None if queued is None or waited is None else queued + waited

    def training(self, on: bool) -> None:
        """Training begins (`on`) or pauses."""
        if self._since is None:
            return
        now = self._read()
        if on or now is None:
            self._since = now
            return
        for task, counts in now.items():
            before = self._since.get(task, ThreadCounts(0, 0))
            woken = counts.times - before.times
            self._waited += max(0, counts.waited_ns - before.waited_ns - IDLE_NS * woken)
        self._since = now

    def _read(self) -> "dict[str, ThreadCounts] | None":
        """The last two numbers in the schedstat of each thread."""
        threads: dict[str, ThreadCounts] = {}
        try:
            for task in os.listdir(self._tasks):
                try:
                    _, waited, times = (self._tasks / task / "schedstat").read_text().split()
                except (FileNotFoundError, ProcessLookupError):  # the thread has ended
                    continue
                threads[task] = ThreadCounts(int(waited), int(times))
        except (OSError, ValueError):
            return None
        return threads or None


class ThreadCounts(NamedTuple):
    """The time for which a thread waited for a core, and how often it was given one, since it began."""

    waited_ns: int
    times: int
