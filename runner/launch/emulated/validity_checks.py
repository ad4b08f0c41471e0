"""Validity checks: whether a run measures its modelled or emulated links and devices, or this machine's load.

The checks and the source of their limits: docs/emulation.md, "What makes it valid". Out of bounds is invalid:
recorded, shown, no numbers for a report. The checks never look at the result.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ....strategies.errors import MachineError
from ....strategies.topology import WORLD
from ...communication.link_costs import ClusterNetwork
from ...communication.torch_communicator import TorchCommunicator
from ...config.cluster import ClusterConfig
from ...machine.cores import QUEUE_LIMIT, RunQueue, computed_s, in_each_second
from ...training.batch_order import BatchOrder
from ...training.callbacks import Callback
from ...training.slow_device import Padding
from ..rank_process import Meeting

FLOOR_LIMIT = 0.05  # of the modelled time of a sum of all gradients
LINK_LIMIT = 0.05  # of α + bytes/rate, either way
OTHERS_LIMIT = 0.1  # of the time of all cores
OVERRUN_LIMIT = 0.01  # of steps
ROOM = 0.8  # of a padded step may be real computing, all ranks at once; beyond, jitter alone overruns
FLOOR_TIMES, LINK_TIMES, LAYER_TIMES = 30, 5, 20
STEP_TIMES = 3  # of a real device's step; only sets the length of a pause
FLOOR_BYTES = 2**18  # what moving more than that costs is the links' check
LONGEST_PAUSE_S = 0.1  # a rank has long gone to sleep by then
ALIKE = 1.02  # sizes this close are one

log = logging.getLogger(__name__)


def off_reason(size: int, asked_s: float, achieved_s: float, *, floor_s: float, sum_s: float) -> str | None:
    """Why the time of sums of `size` bytes over all ranks is out of bounds, None if it is not.

    A short one, below 20 floors, cannot be distinguished from what any sum takes here. It may be off by
    as much as the floor itself: by a part of `sum_s`, the time asked for a sum of all gradients.
    """
    allowed_s = LINK_LIMIT * asked_s if asked_s >= 20 * floor_s else FLOOR_LIMIT * sum_s
    if abs(achieved_s - asked_s) <= allowed_s:
        return None
    return (
        f"a sum of {size} bytes takes {achieved_s * 1e3:.3g} ms over these links, {asked_s * 1e3:.3g} ms "
        f"were asked for ({achieved_s / asked_s - 1:+.0%}, at most {LINK_LIMIT:.0%})"
    )


class ValidityChecks(Callback):
    """One rank's checks; all ranks call each method together and get the same reasons.

    queue: the rank's; another callback reports when the rank trains, and keeps earlier attempts' counts.
    refuse: whether a run that fails its checks at the start is refused.
    """

    def __init__(
        self,
        cluster: ClusterConfig,
        comm: TorchCommunicator,
        meeting: Meeting,
        queue: RunQueue,
        *,
        refuse: bool,
    ) -> None:
        self._cluster, self._comm, self._meeting, self._refuse = cluster, comm, meeting, refuse
        links = cluster.links.or_free()
        # gloo sums in a ring, whatever the modelled network would do.
        links = replace(links, algorithm="ring") if meeting.network == "kernel" else links
        self._network = ClusterNetwork(links, comm.topology)
        self._padding: Padding | None = None
        self._pause_s = LONGEST_PAUSE_S
        self._floor_s = self._sum_s = 0.0
        self._links: list[dict[str, Any]] = []
        self._reasons: list[str] = []
        self._measured: dict[str, Any] = {"network": meeting.network}
        self._queue, self._cores = queue, Cores(meeting.awake)
        self._before: Mapping[str, Any] = {}  # the counts of the attempts that this one goes on from

    def on_prepared(self, replica: Any, batch_order: BatchOrder) -> None:
        """Measure the layers, the floor and the links, after the undone step and before training.

        Raises MachineError with the nearest that this machine can do, where the run is to be refused.
        """
        self._padding = replica.padding
        samples = batch_order.first_sizes()[self._comm.rank]
        step_s = self._step(replica, samples)
        self._pause_s = min(step_s, LONGEST_PAUSE_S)
        if self._links_are_shaped():
            element = replica.parameters.empty().element_size()
            whole = max(1, replica.numel) * element
            self._check_floor(whole)
            self._check_links({whole, *self._comm.traffic.sizes("inter")})
        if self._reasons and self._refuse:
            raise MachineError(
                f"this machine cannot emulate the run: {'; '.join(self._reasons)}. Other work on its cores "
                "makes it late, too. In virtual time it can be had with launcher=simulated; "
                "launcher.on_invalid=record runs it all the same, with no numbers for reports"
            )
        for reason in self._reasons:
            log.warning("not valid: %s", reason)

    def on_train_start(self) -> None:
        self._cores.training(True)

    def on_pause(self) -> None:
        self._cores.training(False)

    def on_end(self, train_ns: int, *, finished: bool) -> dict[str, Any]:
        """`validity`: valid, reasons, and all that was measured.

        Attempts that this one goes on from count, as far as their checkpoint knew.
        """
        if finished and self._links_are_shaped():
            self._check_links(self._comm.traffic.sizes("inter"))
        counted = self.state_dict(train_ns)
        queue, cores_s = self._queue.share(train_ns), counted["cores_s"]
        overruns = counted["overruns"] / max(1, counted["steps"])
        known = [-1.0 if number is None else number for number in (queue, overruns, cores_s)]
        shares = self._gather([*known, counted["own_s"]])
        queues, overrun = [row[0] for row in shares], [row[1] for row in shares]
        self._measured["run_queue_share"] = None if min(queues) < 0 else queues
        self._measured["overrun_share"] = overrun
        self._judge_others(shares[0][2], sum(row[3] for row in shares), counted["room_s"])
        if max(queues) > QUEUE_LIMIT:
            self._reasons.append(
                f"threads of rank {queues.index(max(queues))} stood ready without a core for "
                f"{in_each_second(max(queues))}, all together (at most {QUEUE_LIMIT:g} s); keep the machine "
                "free, or take fewer ranks"
            )
        if max(overrun) > OVERRUN_LIMIT:
            self._reasons.append(
                f"on rank {overrun.index(max(overrun))} real computing took longer than the emulated device "
                f"in {max(overrun):.1%} of steps (at most {OVERRUN_LIMIT:.0%}); take a slower device "
                "(cluster.device.samples_per_second)"
            )
        reasons = list(dict.fromkeys([*counted["reasons"], *self._reasons]))
        return {"validity": {"valid": not reasons, "reasons": reasons, **self._measured}}

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        """What a resumed run's verdict needs: counts of this attempt and those before it, None if unknown.

        `steps`, `overruns`: of the padding. `cores_s`, `own_s`, `room_s`: what ran on all cores, this
        process's part of it, and what could have run.
        """
        padding, cores = self._padding, self._cores
        counted: dict[str, Any] = {
            "steps": 0 if padding is None else padding.steps,
            "overruns": 0 if padding is None else padding.overruns,
            "cores_s": cores.all_s,
            "own_s": cores.own_s,
            "room_s": cores.wall_s * (os.cpu_count() or 1),
            "reasons": list(self._reasons),
        }
        for name, before in self._before.items():
            later = counted[name]
            counted[name] = None if before is None or later is None else before + later
        return counted

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = state

    def _judge_others(self, all_s: float, own_s: float, room_s: float) -> None:
        """Whether other programs used the cores while the ranks trained."""
        share = (all_s - own_s) / room_s if all_s >= 0 and room_s else None
        self._measured["others_share"] = share
        if share is not None and share > OTHERS_LIMIT:
            self._reasons.append(
                f"other programs had {share:.0%} of the cores' time while it trained (at most "
                f"{OTHERS_LIMIT:.0%}); keep the machine free"
            )

    def _step(self, replica: Any, samples: int) -> float:
        """Seconds of this rank's step; checks that real computing fits into it."""
        padding = replica.padding
        if padding is None:
            with replica.untouched():
                self._comm.barrier(WORLD)  # ranks may share weights: none steps before all have kept theirs
                took = replica.time_steps(samples, STEP_TIMES)
                self._comm.barrier(WORLD)
            self._comm.barrier(WORLD)
            return median(took)
        self._comm.barrier(WORLD)  # so that all are busy at once, as in training
        replica.measure_layers(samples, LAYER_TIMES)
        real_s = padding.measured_s
        padded_s = padding.expected_s(samples)
        rows = self._gather([real_s, padded_s])
        self._measured["backward_of_rank_0"] = list(padding.backward)
        self._measured["real_step_s"] = [row[0] for row in rows]
        self._measured["padded_step_s"] = [row[1] for row in rows]
        worst = max(row[0] / row[1] if row[1] else 1.0 for row in rows)
        if worst > ROOM:
            real, padded = max(rows, key=lambda row: row[0] / row[1] if row[1] else 1.0)
            given = self._cluster.device.samples_per_second
            way = "fewer ranks, a slower device or a smaller model"
            if given is not None:
                way = f"cluster.device.samples_per_second={_below(given * ROOM / worst)}, or fewer ranks"
            self._reasons.append(
                f"a step's real computing takes {real * 1e3:.3g} ms with all ranks at work, the emulated "
                f"device {padded * 1e3:.3g} ms (real computing at most {ROOM:.0%} of it); take {way}"
            )
        return padded_s

    def _links_are_shaped(self) -> bool:
        inter = self._cluster.links.inter
        return self._comm.topology.nodes > 1 and (
            inter.rate_gbit not in (None, math.inf) or inter.latency_us > 0
        )

    def _check_floor(self, whole: int) -> None:
        tensor = torch.zeros(max(1, min(whole, FLOOR_BYTES) // 4), device=self._comm.device)
        took: list[float] = []
        with self._comm.unshaped(self._meeting.unshaped_interface) as sum_over_all:
            for _ in range(3):
                sum_over_all(tensor)
            for _ in range(FLOOR_TIMES):
                time.sleep(self._pause_s)
                took.append(_seconds(lambda: sum_over_all(tensor)))
        floor = max(row[0] for row in self._gather([median(took)]))
        asked = self._asked_s(whole)
        self._floor_s, self._sum_s = floor, asked
        self._measured |= {"floor_s": floor, "sum_s": asked, "floor_share": floor / asked if asked else None}
        if floor > FLOOR_LIMIT * asked:
            way = "a slower link, a larger model or fewer ranks"
            rate = self._cluster.links.inter.rate_gbit
            if rate is not None and rate < math.inf and asked:
                slower = _below(rate * asked * FLOOR_LIMIT / floor)
                way = f"cluster.links.inter.rate_gbit={slower}, a larger model or fewer ranks"
            self._reasons.append(
                f"among ranks that have just woken any sum takes {floor * 1e3:.3g} ms on this machine, that "
                f"of all gradients {asked * 1e3:.3g} ms on these links (the first at most {FLOOR_LIMIT:.0%} "
                f"of the second); take {way}"
            )

    def _check_links(self, sizes: set[int]) -> None:
        """Sums of these sizes over all ranks, as far as none like them has been checked."""
        checked = [link["bytes"] for link in self._links]
        for size in sorted(self._of_everyone(sizes)):
            if size < 4 or any(size / ALIKE <= seen <= size * ALIKE for seen in checked):
                continue
            checked.append(size)
            tensor = torch.zeros(size // 4, device=self._comm.device)
            asked_s = self._asked_s(size)
            took: list[float] = []
            self._comm.all_reduce(tensor, WORLD).wait()  # a connection's first message of a size is slower
            for _ in range(LINK_TIMES):
                time.sleep(self._pause_s)
                took.append(_seconds(lambda tensor=tensor: self._comm.all_reduce(tensor, WORLD).wait()))
            # The rank that comes last waits for no other: its time is that of the links alone.
            achieved_s = median(min(times) for times in zip(*self._gather(took), strict=True))
            self._links.append({"bytes": size, "asked_s": asked_s, "achieved_s": achieved_s})
            reason = off_reason(size, asked_s, achieved_s, floor_s=self._floor_s, sum_s=self._sum_s)
            if reason is not None:
                self._reasons.append(reason)
        self._measured["links"] = self._links

    def _asked_s(self, size: int) -> float:
        """Seconds of a sum of so many bytes over all ranks on the links that were asked for."""
        topology, everyone = self._comm.topology, self._comm.members(WORLD)
        return self._network.cost(topology, "all_reduce", everyone, size).duration_ns / 1e9

    def _of_everyone(self, sizes: set[int]) -> set[int]:
        """The sizes that any rank sends: a node's leader sends what others do not."""
        most = int(max(row[0] for row in self._gather([len(sizes)])))
        if not most:
            return set()
        rows = self._gather([*sorted(sizes), *[0] * (most - len(sizes))])
        return {int(size) for row in rows for size in row if size}

    def _gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """All ranks' numbers [k], in rank order."""
        return self._comm.gather(torch.tensor(numbers, dtype=torch.float64)).tolist()


class Cores:
    """What ran on this machine's cores while this process trained: all, and this process. Linux only.

    Programs that only keep cores awake (`awake`, by number) count as nobody.
    """

    def __init__(self, awake: tuple[int, ...] = (), proc: Path = Path("/proc")) -> None:
        self.all_s: float | None = 0.0
        self.own_s = self.wall_s = 0.0
        self._awake, self._proc = awake, proc
        self._since = (0.0, 0.0, 0.0)

    def training(self, on: bool) -> None:
        everything = self._read()
        if everything is None or self.all_s is None:
            self.all_s = None
            return
        now = everything, time.process_time(), time.monotonic()
        if not on:
            self.all_s += now[0] - self._since[0]
            self.own_s += now[1] - self._since[1]
            self.wall_s += now[2] - self._since[2]
        self._since = now

    def _read(self) -> float | None:
        """Seconds that programs have run, user and system; what interrupts take (packets) is apart."""
        try:
            _, user, nice, system, *_ = (self._proc / "stat").read_text().split(maxsplit=4)
            ran = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
            return ran - computed_s(self._awake, self._proc)
        except (OSError, ValueError):
            return None


def _seconds(call: Callable[[], None]) -> float:
    began = time.monotonic_ns()
    call()
    return (time.monotonic_ns() - began) / 1e9


def _below(value: float) -> str:
    """A round number of two digits, at most `value`."""
    digit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{int(value / digit) * digit:g}"
