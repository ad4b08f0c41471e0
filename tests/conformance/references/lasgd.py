"""LASGD's reference: who launches which round when, in virtual time."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from identities import keeps_mean, keeps_still, weighs_ranks
from numpy_models import Array
from numpy_optimizers import ADAMW, DECAYED
from proof import EVERY, Case, Identity, Mixing, brief, step_times
from world import NoReference, World


class Worker:
    """One rank.

    `kept` is its vector as of the launch of the round in flight: θ, behind it the optimizer's state where
    that travels. `since` counts steps since the last launch, `staleness` those since the snapshot.
    """

    def __init__(self, world: World, rank: int, sync_every: int, optimizer_state: str) -> None:
        self.world, self.rank = world, rank
        self.sync_every, self.state_travels = sync_every, optimizer_state == "average"
        self.steps = self.samples = self.since = self.staleness = 0
        self.kept: Array | None = None

    def step(self) -> None:
        """One local step."""
        world, rank = self.world, self.rank
        x, t = world.setting.piece(rank, self.steps)
        _, gradient, world.buffers[rank] = world.setting.model.descend(
            world.theta[rank], world.buffers[rank], x, t
        )
        world.step_of(rank, gradient)
        self.samples += len(x)
        self.steps += 1
        self.since += 1
        self.staleness += 1

    @property
    def wants_round(self) -> bool:
        """Whether it launches now."""
        return self.kept is None and self.since >= self.sync_every

    def launch(self) -> Array:
        """Hand in a copy: what is summed over workers."""
        self.kept = self._vector()
        self.since = self.staleness = 0
        return self.kept

    def apply(self, handed: Sequence[Array]) -> None:
        """Take in the mean of what all handed in; what was learnt since is kept."""
        assert self.kept is not None
        m, own, whole = self.world.theta.shape[1], self._vector(), np.mean(handed, axis=0)
        if self.staleness == 0:
            new = whole.copy()
        else:
            new = own + (whole - self.kept)
            # Second moments may not become negative: all but θ stays between what it is and the mean.
            low, high = np.minimum(own, whole), np.maximum(own, whole)
            new[m:] = np.clip(new, low, high)[m:]
        self.world.theta[self.rank] = new[:m]
        if self.state_travels:
            optimizer = self.world.optimizers[self.rank]
            optimizer.moments = [moment.copy() for moment in new[m:].reshape(-1, m)]
        self.kept = None

    def _vector(self) -> Array:
        moments = self.world.optimizers[self.rank].moments if self.state_travels else []
        return np.concatenate([self.world.theta[self.rank], *moments])


def lasgd(
    world: World, *, sync_every: int = 1, optimizer_state: str = "keep", **keys: Any
) -> Iterator[Sequence[int] | None]:
    """θ_i ← θ_i + (mean(s) - s_i) when a round is complete, which nobody waits for."""
    workers = [Worker(world, rank, sync_every, optimizer_state) for rank in range(world.ranks)]
    if len(workers) == 1:
        # No rounds: it steps until it has had the samples of the whole schedule.
        while workers[0].samples < world.nominal_budget:
            workers[0].step()
            yield
        return
    if world.setting.rate is not None:
        raise NoReference("no reference for asynchronous runs with a schedule")
    yield from _polled(workers)
    world.theta[:] = world.theta.mean(0)


def _polled(workers: list[Worker]) -> Iterator[Sequence[int]]:
    """Rounds complete `round_time` after their last launch; workers look at the ends of their steps.

    The run ends with the first round whose samples are those of the whole schedule.
    """
    world = workers[0].world
    setting = world.setting
    if setting.step_time is None or not setting.round_time:
        raise NoReference("no reference for asynchronous rounds without times")
    budget = world.nominal_budget
    time, rounds = setting.step_time, [Round(len(workers))]
    place_in = [0] * len(workers)  # the round that each worker is in or launches next

    def took(worker: Worker) -> float:
        return time(worker.rank, len(setting.piece(worker.rank, worker.steps)[0]))

    queue = [(took(worker), place) for place, worker in enumerate(workers)]
    heapq.heapify(queue)
    while queue:
        now, place = heapq.heappop(queue)
        worker = workers[place]
        worker.step()
        if worker.kept is not None:
            here = rounds[place_in[place]]
            if here.end <= now:
                worker.apply([here.handed[other] for other in range(len(workers))])
                place_in[place] += 1
                if here.samples >= budget:
                    yield [worker.rank]
                    continue
        if worker.wants_round:
            if len(rounds) == place_in[place]:
                rounds.append(Round(len(workers)))
            here = rounds[place_in[place]]
            here.handed[place] = worker.launch()
            here.samples += worker.samples
            if here.complete:
                here.end = now + setting.round_time
        yield [worker.rank]
        heapq.heappush(queue, (now + took(worker), place))


@dataclass
class Round:
    """What has been handed in by which worker, the samples behind it, and when all have the sum."""

    workers: int
    handed: dict[int, Array] = field(default_factory=dict)
    samples: int = 0
    end: float = math.inf

    @property
    def complete(self) -> bool:
        """Whether all have launched it."""
        return len(self.handed) == self.workers


MOMENTA = {"sync_every": 3, "optimizer_state": "average"}
UNEVEN_PACE = step_times(1000, 1700, 2300)

CASES = (
    Case(step_ns=UNEVEN_PACE, round_ns=2900),
    Case(step_ns=UNEVEN_PACE, round_ns=1900, ranks=((2, 1),), recipe=ADAMW),
    Case(step_ns=UNEVEN_PACE, round_ns=1900, ranks=((2, 1),), dtype="float32", odd="float64"),
    Case(step_ns=UNEVEN_PACE, round_ns=1900, ranks=((2, 1),), odd="float32", recipe=DECAYED),
    Case(step_ns=step_times(1000, 1000, 1000, 2000), round_ns=1000, ranks=((2, 2),)),
    Case(step_ns=step_times(1000, 1700, 2300, 4100), round_ns=2900, ranks=((2, 2),), clip_norm=0.2),
    Case(keys={"sync_every": 4}, step_ns=UNEVEN_PACE, round_ns=2900, ranks=((2, 1),)),
    brief(keys=MOMENTA, step_ns=UNEVEN_PACE, round_ns=1900, ranks=((2, 1),)),
    brief(keys=MOMENTA, step_ns=UNEVEN_PACE, round_ns=1900, ranks=((1, 1),), recipe=ADAMW),
)
IDENTITIES = (Identity(right=None, ranks=((1,),), samples="same", recipes=EVERY, bitwise=True),)
MIXING = (
    Mixing(keeps_still, {"sync_every": 3}, ((2, 2),)),
    Mixing(keeps_mean, {"sync_every": 3}, ((2, 2), (2, 1))),
    Mixing(weighs_ranks, {"sync_every": 3}, ((3, 1),)),
)
VARIANTS = (
    {"sync_every": 3},
    {"sync_every": 2, "optimizer_state": "average"},
)
