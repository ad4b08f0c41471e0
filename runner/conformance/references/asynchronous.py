"""LASGD's reference: who launches which round when, in virtual time or after fixed numbers of steps."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..twins import Array
from .world import NoReference, World, mean


@dataclass(frozen=True)
class Rule:
    """The keys that say when rounds begin and what becomes of their means."""

    sync_every: int
    apply_rule: str
    elastic_alpha: float | None
    optimizer_state: str


class Worker:
    """One rank, or the ranks of a node that share their gradients."""

    def __init__(self, world: World, ranks: Sequence[int], rule: Rule) -> None:
        self.world, self.ranks, self.rule = world, list(ranks), rule
        self.steps = self.samples = 0
        self.since = 0  # local steps since the last launch (overwrite: since the last application)
        self.staleness = 0  # local steps since the snapshot
        self.snapshot: Array | None = None

    def step(self) -> None:
        """One local step of all its ranks, with their mean gradient."""
        world = self.world
        gradients, sizes = [], []
        for rank in self.ranks:
            x, t = world.setting.piece(rank, self.steps)
            _, gradient, world.buffers[rank] = world.setting.twin.descend(
                world.theta[rank], world.buffers[rank], x, t
            )
            gradients.append(len(x) * gradient)
            sizes.append(len(x))
        common = sum(gradients) / sum(sizes)
        for rank in self.ranks:
            world.optimizers[rank].step(world.theta[rank], common, world.lr)
        self.steps += 1
        self.samples += sum(sizes)
        self.since += 1
        self.staleness += 1

    @property
    def wants_round(self) -> bool:
        """Whether it launches now."""
        return self.snapshot is None and self.since >= self.rule.sync_every

    def launch(self) -> None:
        """Hand in a copy of θ."""
        self.snapshot = self.world.theta[self.ranks[0]].copy()
        self.since = self.staleness = 0

    def apply(self, whole: Array) -> None:
        """Take in the mean of all snapshots; what was learnt since is kept, but with `overwrite`."""
        theta, snapshot = self.world.theta[self.ranks[0]], self.snapshot
        assert snapshot is not None
        if self.rule.apply_rule == "overwrite":
            new = whole
            self.since = 0
        elif self.rule.apply_rule == "elastic":
            assert self.rule.elastic_alpha is not None
            new = theta + self.rule.elastic_alpha * (whole - theta)
        else:
            new = whole if self.staleness == 0 else theta + (whole - snapshot)
        self.world.theta[self.ranks] = new
        self.snapshot = None
        if self.rule.optimizer_state == "reset":
            for rank in self.ranks:
                self.world.optimizers[rank].reset()


def lasgd(
    world: World,
    *,
    mode: str = "async",
    sync_every: int = 1,
    delay_steps: int | None = None,
    apply_rule: str = "delta",
    elastic_alpha: float | None = None,
    max_staleness_steps: int | None = None,
    unit: str = "rank",
    buffers: str = "none",
    optimizer_state: str = "keep",
    transport_dtype: str | None = None,
    warmup_samples: int = 0,
    finish_rule: str = "samples",
    **keys: Any,
) -> Iterator[Sequence[int] | None]:
    """θ_i ← θ_i + (mean(s) - s_i) whenever a round is complete; the run ends when its samples suffice."""
    if (buffers, transport_dtype, warmup_samples, finish_rule) != ("none", None, 0, "samples"):
        raise NoReference("no reference for lasgd with buffers, 16-bit transport, a warm-up or another end")
    if optimizer_state == "average" or world.setting.rate is not None:
        raise NoReference("no reference for lasgd with averaged momenta or a schedule")
    rule = Rule(sync_every, apply_rule, elastic_alpha, optimizer_state)
    groups = world.nodes if unit == "node" else [[rank] for rank in range(world.ranks)]
    workers = [Worker(world, ranks, rule) for ranks in groups]
    setting = world.setting
    budget = setting.epochs * setting.steps_per_epoch * int(world.full_batch.sum())
    if mode == "fixed_delay":
        assert delay_steps is not None
        yield from _fixed(workers, delay_steps, budget)
    else:
        yield from _polled(workers, max_staleness_steps, budget)
    world.theta[:] = mean(world.theta[[worker.ranks[0] for worker in workers]])


def _fixed(workers: list[Worker], delay: int, budget: int) -> Iterator[None]:
    """Every round is applied exactly `delay` local steps after its launch; then, maybe, the next begins."""
    in_round = 0
    while True:
        for worker in workers:
            worker.step()
        if workers[0].snapshot is not None and workers[0].staleness == delay:
            _apply_all(workers)
            if in_round >= budget:
                yield
                return
        if workers[0].wants_round:
            in_round = sum(worker.samples for worker in workers)
            for worker in workers:
                worker.launch()
            if delay == 0:
                _apply_all(workers)
                if in_round >= budget:
                    yield
                    return
        yield


def _apply_all(workers: list[Worker]) -> None:
    snapshots = [worker.snapshot for worker in workers]
    whole = sum(s for s in snapshots if s is not None) / len(workers)
    for worker in workers:
        worker.apply(whole)


def _polled(workers: list[Worker], most: int | None, budget: int) -> Iterator[Sequence[int]]:
    """Rounds complete `round_time` after their last launch; workers look at the ends of their steps."""
    setting = workers[0].world.setting
    if setting.step_time is None or setting.round_time is None:
        raise NoReference("no reference for asynchronous rounds without times")
    time, rounds = setting.step_time, [Round()]
    place_in = [0] * len(workers)  # the round that each worker is in or launches next
    waiting: set[int] = set()  # workers that have done a step and stand still until their round is complete

    def took(worker: Worker) -> float:
        sizes = [len(setting.piece(rank, worker.steps)[0]) for rank in worker.ranks]
        return max(time(rank, size) for rank, size in zip(worker.ranks, sizes, strict=True))

    queue = [(took(worker), place) for place, worker in enumerate(workers)]
    heapq.heapify(queue)
    while queue:
        now, place = heapq.heappop(queue)
        worker = workers[place]
        if place not in waiting:
            worker.step()
        waiting.discard(place)
        if worker.snapshot is not None:
            here = rounds[place_in[place]]
            if here.end <= now:
                worker.apply(sum(here.snapshots) / len(workers))
                place_in[place] += 1
                if here.samples >= budget:
                    yield worker.ranks
                    continue
            elif most is not None and worker.staleness >= most:
                waiting.add(place)
                if here.end < math.inf:
                    heapq.heappush(queue, (here.end, place))
                continue
        if worker.wants_round:
            worker.launch()
            if len(rounds) == place_in[place]:
                rounds.append(Round())
            here = rounds[place_in[place]]
            assert worker.snapshot is not None
            here.snapshots.append(worker.snapshot)
            here.samples += worker.samples
            if len(here.snapshots) == len(workers):
                here.end = now + setting.round_time
                for other in waiting:
                    if place_in[other] == place_in[place]:
                        heapq.heappush(queue, (here.end, other))
        yield worker.ranks
        heapq.heappush(queue, (now + took(worker), place))


@dataclass
class Round:
    """What has been handed in, the samples behind it, and when all have the sum."""

    snapshots: list[Array] = field(default_factory=list)
    samples: int = 0
    end: float = math.inf
