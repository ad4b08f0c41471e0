"""Programs that keep the cores of an emulated cluster's machine from falling asleep.

Ranks that mostly sleep leave cores idle, and a core that has gone to sleep is late for all that it should do
next: 30 to 240 us on average in a virtual machine, and the queues of the links are served by the same cores.
Sums of 4 MiB at 0.4 Gbit/s were 2 to 9 % late on an idle machine, 0.4 to 4.6 % where each core was kept
awake. The programs spin in the class SCHED_IDLE: any other process that wants the core has it at once.
"""

import os
import subprocess
import sys
from pathlib import Path

from ...machine.environment import usable_cores


class Awake:
    """One spinning program per usable core, from making it to `end`; none where there is no such class.

    The kernel ends them with the thread that made them: make it in the main thread. `pids` says who they are,
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
        """End them. May be called again."""
        for process in self._processes:
            process.kill()
            process.wait()


def computed_s(pids: tuple[int, ...], proc: Path = Path("/proc")) -> float:
    """Seconds that these programs have run so far; one that is gone counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        ticks += sum(int(field) for field in stat.rpartition(")")[2].split()[11:13])  # user, system
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    from ...machine.die_with_parent import LEFT_TO_THE_SUPERVISOR, die_with_parent

    if sys.platform == "linux":
        import signal

        for number in LEFT_TO_THE_SUPERVISOR:
            signal.signal(number, signal.SIG_IGN)
        die_with_parent(int(sys.argv[1]))
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            pass
