"""How long a rank stood in the kernel's run queue while it trained: ready, and without a core. Linux only.

Source of the limit: docs/method.md, "Validity and guard".
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

QUEUE_LIMIT = 0.01  # seconds of all threads of a rank together, over seconds of training
IDLE_NS = 500_000


def in_each_second(share: float) -> str:
    """What `RunQueue.share` comes to in words: threads stand ready side by side, so it may exceed 1."""
    return f"{share:.3g} s in each second of training"


class RunQueue:
    """How long this process's threads stood ready to run and did not, while it trained.

    An idle core takes a while to wake up (some 5 us; on a virtual machine without other load 30 to 240 were
    seen on average), which the kernel counts as standing ready: a rank that mostly sleeps would never be
    valid. That is no queue. Of each thread's waiting, `IDLE_NS` for each time that it was given a core is
    left out; who shares a core with a program that computes waits for milliseconds. So this is a lower bound:
    shorter waits are not seen, nor are those of threads that ended before training paused.
    """

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._since: dict[str, Stood] | None = {}
        self._waited = 0
        self._before: tuple[int, int | None] = (0, 0)  # ns of training and in the queue, of earlier attempts

    @property
    def waited_ns(self) -> int | None:
        """Nanoseconds of all threads together; None where the system does not tell."""
        return None if self._since is None else self._waited

    def share(self, train_ns: int) -> float | None:
        """Seconds of all threads together over seconds of training; None where an attempt does not tell.

        Attempts that this one goes on from are included. Above 1 where several threads stood ready at once.
        `train_ns`: in this attempt.
        """
        trained, queued = self._so_far(train_ns)
        return None if queued is None else queued / max(1, trained)

    def state_dict(self, train_ns: int) -> dict[str, int | None]:
        """What a resumed run needs of this attempt, and of those before it."""
        trained, queued = self._so_far(train_ns)
        return {"train_ns": trained, "queued_ns": queued}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Go on from `state_dict`."""
        self._before = state["train_ns"] or 0, state["queued_ns"]

    def _so_far(self, train_ns: int) -> tuple[int, int | None]:
        trained, queued = self._before
        own = self.waited_ns
        return trained + train_ns, None if queued is None or own is None else queued + own

    def training(self, on: bool) -> None:
        """Training begins, or pauses."""
        if self._since is None:
            return
        now = self._read()
        if on or now is None:
            self._since = now
            return
        for task, stood in now.items():
            before = self._since.get(task, Stood(0, 0))
            woken = stood.times - before.times
            self._waited += max(0, stood.waited_ns - before.waited_ns - IDLE_NS * woken)
        self._since = now

    def _read(self) -> "dict[str, Stood] | None":
        """Of each thread the last two numbers of its schedstat."""
        found: dict[str, Stood] = {}
        try:
            for task in os.listdir(self._tasks):
                try:
                    _, waited, times = (self._tasks / task / "schedstat").read_text().split()
                except (FileNotFoundError, ProcessLookupError):  # the thread has ended
                    continue
                found[task] = Stood(int(waited), int(times))
        except (OSError, ValueError):
            return None
        return found or None


class Stood(NamedTuple):
    """How long a thread stood ready, and how often it was given a core, ever since it began."""

    waited_ns: int
    times: int
