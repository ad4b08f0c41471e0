"""LASGD's reference: who launches which round when, in virtual time or after fixed numbers of steps."""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..twins import Array
from .world import NARROW, NoReference, World, mean, narrow_sum


@dataclass(frozen=True)
class Rule:
    """The keys that say when rounds begin and what becomes of their means."""

    sync_every: int
    apply_rule: str
    elastic_alpha: float | None
    optimizer_state: str
    buffers: str
    transport_dtype: str | None


class Worker:
    """One rank, or the ranks of a node that share their gradients.

    `kept` are its ranks' vectors as of the launch of the round in flight: θ, behind it buffers and optimizer
    state where they travel. `since` counts steps since the last launch (`overwrite`: application).
    """

    def __init__(self, world: World, ranks: Sequence[int], rule: Rule) -> None:
        self.world, self.ranks, self.rule = world, list(ranks), rule
        self.steps = self.samples = self.since = self.staleness = 0
        self.kept: Array | None = None  # [ranks, m + …]
        self.reference = world.theta[0].copy()  # the last mean: narrow transport sends differences to it

    def step(self) -> None:
        """One local step of all its ranks, with their mean gradient."""
        gradients, sizes = self.gradients()
        self.update(mean(gradients, sizes))

    def gradients(self) -> tuple[Array, Array]:
        """Of each of its ranks: the mean gradient on the samples of the coming step, and their number."""
        world, gradients, sizes = self.world, [], []
        for rank in self.ranks:
            x, t = world.setting.piece(rank, self.steps)
            _, gradient, world.buffers[rank] = world.setting.twin.descend(
                world.theta[rank], world.buffers[rank], x, t
            )
            gradients.append(gradient)
            sizes.append(len(x))
        self.samples += sum(sizes)
        return np.stack(gradients), np.array(sizes, dtype=float)

    def update(self, gradient: Array) -> None:
        """Its optimizers step."""
        for rank in self.ranks:
            self.world.step_of(rank, gradient)
        self.steps += 1
        self.since += 1
        self.staleness += 1

    @property
    def wants_round(self) -> bool:
        """Whether it launches now."""
        return self.kept is None and self.since >= self.rule.sync_every

    def launch(self) -> Array:
        """Hand in a copy: what is summed over workers."""
        self.kept = np.stack([self._vector(rank) for rank in self.ranks])
        self.since = self.staleness = 0
        if self.rule.transport_dtype is None:
            return self.kept.mean(0)  # θ is equal on all ranks of a node, buffers are not
        sent = NARROW[self.rule.transport_dtype](self.kept[0] - self.reference)
        # What the narrow type cannot hold counts as learnt since.
        self.kept[:] = self.reference + sent
        return sent

    def apply(self, handed: Sequence[Array]) -> None:
        """Take in the mean of what all handed in; what was learnt since is kept, but with `overwrite`."""
        assert self.kept is not None
        m, rule = self.world.theta.shape[1], self.rule
        if rule.transport_dtype is None:
            whole = np.mean(handed, axis=0)
        else:
            whole = self.reference + narrow_sum(np.stack(handed), rule.transport_dtype) / len(handed)
        for rank, kept in zip(self.ranks, self.kept, strict=True):
            own = self._vector(rank)
            if rule.apply_rule == "elastic":
                assert rule.elastic_alpha is not None
                new = own + rule.elastic_alpha * (whole - own)
            elif rule.apply_rule == "overwrite" or self.staleness == 0:
                new = whole.copy()
            else:
                new = own + (whole - kept)
                # Variances may not become negative: all but θ stays between what it is and the mean.
                low, high = np.minimum(own, whole), np.maximum(own, whole)
                new[m:] = np.clip(new, low, high)[m:]
            self._set(rank, new)
        self.since = 0 if rule.apply_rule == "overwrite" else self.since
        self.reference = whole[:m]
        self.kept = None

    def _vector(self, rank: int) -> Array:
        parts = [self.world.theta[rank]]
        if self.rule.buffers == "average":
            parts.append(self.world.buffers[rank])
        if self.rule.optimizer_state == "average":
            parts += self.world.optimizers[rank].moments
        return np.concatenate(parts)

    def _set(self, rank: int, vector: Array) -> None:
        world, (m, f) = self.world, (self.world.theta.shape[1], self.world.buffers.shape[1])
        world.theta[rank], rest = vector[:m], vector[m:]
        if self.rule.buffers == "average":
            world.buffers[rank], rest = rest[:f], rest[f:]
        if self.rule.optimizer_state == "average":
            world.optimizers[rank].moments = [moment.copy() for moment in rest.reshape(-1, m)]
        elif self.rule.optimizer_state == "reset":
            world.optimizers[rank].reset()


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
    warmup_mode: str = "gradient",
    finish_rule: str = "samples",
    sync_interval_ms: float | None = None,
    **keys: Any,
) -> Iterator[Sequence[int] | None]:
    """θ_i ← θ_i + (mean(s) - s_i) when a round is complete, which nobody waits for (but in `fixed_delay`)."""
    if transport_dtype is not None and (buffers == "average" or optimizer_state == "average"):
        raise NoReference("no reference for buffers or momenta in 16 bits")
    rule = Rule(sync_every, apply_rule, elastic_alpha, optimizer_state, buffers, transport_dtype)
    groups = world.nodes if unit == "node" else [[rank] for rank in range(world.ranks)]
    workers = [Worker(world, ranks, rule) for ranks in groups]
    if len(workers) == 1:
        # No rounds: it steps until it has had the samples of the whole schedule.
        least = world.budget if mode == "fixed_delay" else world.nominal_budget
        while workers[0].samples < least:
            workers[0].step()
            yield
    elif mode == "fixed_delay":
        assert delay_steps is not None
        yield from _fixed(world, workers, delay_steps, warmup_samples, warmup_mode)
    else:
        if world.setting.rate is not None or sync_interval_ms is not None:
            raise NoReference("no reference for asynchronous runs with a schedule or a period in time")
        if finish_rule != "samples":
            raise NoReference(f"no reference for finish_rule={finish_rule}")
        while sum(worker.samples for worker in workers) < warmup_samples:
            # Each draws for itself and does not know the others' batches: ranks count alike.
            _together(world, workers, warmup_mode, "uniform")
            yield None
        yield from _polled(workers, max_staleness_steps)
    world.theta[:] = mean(world.theta[[worker.ranks[0] for worker in workers]])


def _fixed(
    world: World, workers: list[Worker], delay: int, warmup_samples: int, warmup_mode: str
) -> Iterator[None]:
    """All take equal steps; a round is applied exactly `delay` of them after its launch. Then the next one.

    In the warm-up gradients are averaged over all ranks, or models after every step.
    """
    handed: list[Array] = []
    for _ in world.steps():
        if world.samples < warmup_samples:
            _together(world, workers, warmup_mode, "samples")
        else:
            for worker in workers:
                worker.step()
            if handed and workers[0].staleness == delay:
                _apply(workers, handed)
                handed = []
            if workers[0].wants_round:
                handed = [worker.launch() for worker in workers]
                if delay == 0:
                    _apply(workers, handed)
                    handed = []
        world.sizes = np.array([len(x) for x, _ in world.pieces()], dtype=float)
        yield
    if handed:
        _apply(workers, handed)


def _apply(workers: list[Worker], handed: Sequence[Array]) -> None:
    for worker in workers:
        worker.apply(handed)


def _together(world: World, workers: list[Worker], mode: str, weighting: str) -> None:
    """A step of the warm-up: one gradient for all, or the mean of the models behind it."""
    if mode == "model":
        for worker in workers:
            worker.step()
        _apply(workers, [worker.launch() for worker in workers])
        return
    each = [worker.gradients() for worker in workers]
    gradients, sizes = (np.concatenate([pair[side] for pair in each]) for side in (0, 1))
    for worker in workers:
        worker.update(mean(gradients, sizes if weighting == "samples" else None))
        worker.since = 0
    if workers[0].rule.buffers == "average":
        world.mix_buffers("average")


def _polled(workers: list[Worker], most: int | None) -> Iterator[Sequence[int]]:
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
        if worker.kept is not None:
            here = rounds[place_in[place]]
            if here.end <= now:
                worker.apply([here.handed[other] for other in range(len(workers))])
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
            if len(rounds) == place_in[place]:
                rounds.append(Round(len(workers)))
            here = rounds[place_in[place]]
            here.handed[place] = worker.launch()
            here.samples += worker.samples
            if here.complete:
                here.end = now + setting.round_time
                for other in sorted(waiting):
                    heapq.heappush(queue, (here.end, other))
        yield worker.ranks
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
