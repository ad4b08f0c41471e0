"""LASGD: every worker trains at its own pace; models are averaged by all-reduces that nobody waits for.

A worker (a rank, or a node with `unit: node`) hands a copy of its parameters to an asynchronous all-reduce
and trains on. When it finds the sum complete, it adds the difference between the mean and its own copy to its
present parameters: the average is exact, and progress made meanwhile is kept.

Update rule (R workers; at most one round in flight; A, then B at every step boundary of a worker):

    every step    θ_i = optimizer_i(θ_i, g_i);   `unit: node`: g_i averaged in the node, weighted by samples
    A (apply)     if both sums of the round in flight are complete:  mean = (1/R)·Σ_j s_j
                      delta        θ_i = θ_i + (mean - s_i);   θ_i = mean if no step was made in flight
                      elastic      θ_i = θ_i + α·(mean - θ_i)
                      overwrite    θ_i = mean (an ablation: progress made in flight is lost)
    B (launch)    if none is in flight and `sync_every` steps were made since the last launch:
                      s_i = θ_i, asynchronous all-reduce SUM of a copy, then of the integers q_i
    q_i           samples, local steps, out of data, wishes to stop: all ranks read the same sums of a round

`mode: fixed_delay` launches every H steps and applies exactly τ steps later, waiting if it must; τ = 0 is
local SGD, τ = H is CoCoD-SGD. It is deterministic and meant for tests.

Bytes: a ring sends 2·(R-1)/R · (4(m + F) + 32) per worker and round (m parameters, F elements of
floating-point buffers where they are averaged or models are evaluated from copies). A round begins when the
slowest worker launches it. With `unit: node` only leaders send to other nodes; in the node gradients are
summed in every step, and the sums of a round are broadcast.

Paper: T. Avidor, N. Tal Israel, Locally Asynchronous Stochastic Gradient Descent for Decentralised Deep
Learning, arXiv:2203.13085 (2022).

Ours differs: the abstract states asynchronous workers and all-reduce for model synchronisation; rule, period
and every option are our choice, after CoCoD-SGD (arXiv:1906.12043) and other published methods with the delta
rule. So this is the method as the abstract describes it, not a reproduction.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .averaging import LeaderMean, Mean, WorldMean, mean_of_copies, state_that_travels
from .base import Sampling, Strategy
from .communicator import Communicator, Work
from .errors import ConfigError, above, at_least, one_of, within
from .gradients import DEFAULT_BUCKET_MIB, by_samples, uniform
from .layout import Layout
from .progress import Progress
from .replica import Replica
from .topology import LEADERS, NODE, WORLD

TRANSPORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}
DETAILED = 16
"""Rounds of an epoch that are recorded one by one; the others are in the epoch's figures only."""


@dataclass(frozen=True, kw_only=True)
class LASGDConfig:
    """The keys of `strategy=lasgd`; steps are a worker's own optimizer steps."""

    sync_every: int = 1  # steps between launches, counted from the launch (overwrite: from the application)
    sync_interval_ms: float | None = None  # instead: milliseconds between launches, from the first step on
    apply_rule: str = "delta"  # what the mean does to the own parameters: delta | elastic | overwrite
    elastic_alpha: float | None = None  # α of elastic
    max_staleness_steps: int | None = None  # wait for a round after so many steps; null = never
    mode: str = "async"  # or fixed_delay: apply exactly `delay_steps` after the launch
    delay_steps: int | None = None  # τ of fixed_delay, at most sync_every
    unit: str = "rank"  # what trains by itself: rank | node
    buffers: str = "none"  # BatchNorm statistics in training: none (local) | average
    optimizer_state: str = "keep"  # momenta at each application: keep | average | reset
    transport_dtype: str | None = None  # send 16-bit differences to the last mean: bfloat16 | float16
    bucket_mib: float = DEFAULT_BUCKET_MIB  # of gradients per sum
    warmup_samples: int = 0  # global samples trained synchronously first
    warmup_mode: str = "gradient"  # what is averaged in each warm-up step: gradient | model
    finish_rule: str = "samples"  # the end: samples | any_done | all_done (workers' own parts of the budget)
    draw: str = "reshuffle_full"  # what a worker draws from: reshuffle_full (all samples) | shard (its part)
    lr_clock: str = "global_samples"  # or local_steps (an ablation): as if all workers kept this one's pace

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        at_least("strategy.warmup_samples", self.warmup_samples, 0)
        above("strategy.bucket_mib", self.bucket_mib, 0)
        for key, allowed in CHOICES.items():
            one_of(f"strategy.{key}", getattr(self, key), allowed)
        if self.transport_dtype is not None:
            one_of("strategy.transport_dtype", self.transport_dtype, TRANSPORT)
        if self.max_staleness_steps is not None:
            at_least("strategy.max_staleness_steps", self.max_staleness_steps, 1)
        if self.elastic_alpha is not None:
            above("strategy.elastic_alpha", self.elastic_alpha, 0)
            within("strategy.elastic_alpha", self.elastic_alpha, 0, 1)
        if (self.apply_rule == "elastic") != (self.elastic_alpha is not None):
            raise ConfigError(
                f"strategy.elastic_alpha={self.elastic_alpha}: must be a number with "
                "strategy.apply_rule=elastic, and null with others"
            )
        if self.sync_interval_ms is not None:
            above("strategy.sync_interval_ms", self.sync_interval_ms, 0)
            if self.sync_every != 1:
                raise ConfigError(
                    f"strategy.sync_interval_ms={self.sync_interval_ms}: stands for a period in steps; leave "
                    f"strategy.sync_every at 1, not {self.sync_every}"
                )
        self._check_delay()

    def _check_delay(self) -> None:
        if self.mode == "async":
            if self.delay_steps is not None:
                raise ConfigError(
                    f"strategy.delay_steps={self.delay_steps}: belongs to strategy.mode=fixed_delay"
                )
            return
        if self.delay_steps is None or not 0 <= self.delay_steps <= self.sync_every:
            raise ConfigError(
                f"strategy.delay_steps={self.delay_steps}: must be between 0 and "
                f"strategy.sync_every={self.sync_every} with strategy.mode=fixed_delay"
            )
        if self.apply_rule == "overwrite" and self.delay_steps == self.sync_every:
            raise ConfigError(
                f"strategy.apply_rule=overwrite: with strategy.delay_steps={self.delay_steps} equal to "
                "strategy.sync_every every snapshot is the last mean, so training would stand still"
            )
        for key, value in PACED.items():
            if getattr(self, key) != value:
                raise ConfigError(
                    f"strategy.{key}={getattr(self, key)}: has no meaning with strategy.mode=fixed_delay, "
                    "where all ranks take equal steps on common batches"
                )


CHOICES = {
    "apply_rule": ["delta", "elastic", "overwrite"],
    "mode": ["async", "fixed_delay"],
    "unit": ["rank", "node"],
    "buffers": ["none", "average"],
    "optimizer_state": ["keep", "average", "reset"],
    "warmup_mode": ["gradient", "model"],
    "finish_rule": ["samples", "any_done", "all_done"],
    "draw": ["reshuffle_full", "shard"],
    "lr_clock": ["global_samples", "local_steps"],
}
PACED = {
    "sync_interval_ms": None,
    "max_staleness_steps": None,
    "finish_rule": "samples",
    "draw": "reshuffle_full",
    "lr_clock": "global_samples",
}
"""Keys that are about workers at their own pace, with their defaults."""


@dataclass
class Tally:
    """How often, how much in total and at most."""

    count: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        """Take in one more value."""
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def row(self) -> dict[str, float | None]:
        """Mean and maximum; None where there was nothing."""
        return {"mean": self.total / self.count, "max": self.largest} if self.count else NOTHING


NOTHING: dict[str, float | None] = {"mean": None, "max": None}


@dataclass
class Rounds:
    """Figures of the rounds that this rank applied, over an epoch or the run."""

    staleness_steps: Tally = field(default_factory=Tally)
    staleness_s: Tally = field(default_factory=Tally)
    lag_samples: Tally = field(default_factory=Tally)
    blocked_ns: int = 0

    def state(self) -> list[Any]:
        """For a checkpoint."""
        tallies = (self.staleness_steps, self.staleness_s, self.lag_samples)
        return [*([t.count, t.total, t.largest] for t in tallies), self.blocked_ns]

    @classmethod
    def of(cls, state: list[Any]) -> "Rounds":
        """From `state`."""
        *tallies, blocked_ns = state
        steps, seconds, lag = (Tally(*values) for values in tallies)
        return cls(steps, seconds, lag, blocked_ns)

    def row(self, *, host_waits: bool) -> dict[str, Any]:
        """For a record; `host_waits`: else the host's clock does not tell for how long a GPU waited."""
        return {
            "rounds": self.staleness_steps.count,
            "staleness_steps": self.staleness_steps.row(),
            "staleness_s": self.staleness_s.row(),
            "lag_samples": self.lag_samples.row(),
            "blocked_s": self.blocked_ns / 1e9 if host_waits else None,
        }


@dataclass
class Flight:
    """The round in flight; `works` is empty on ranks that take no part, and after a resume."""

    sent: Tensor  # c, the vector that is summed
    samples: int  # the worker's own samples at the snapshot
    launched_ns: int
    works: list[Work]
    steps: int = 0  # k_s, local steps since the snapshot
    took: int | None = None  # nanoseconds of the transfer, where it was completed before a resume

    def arrived(self) -> bool:
        """Whether waiting would return at once; a local observation."""
        return all(work.is_completed() for work in self.works)

    def transfer_ns(self) -> int | None:
        """Nanoseconds from the launch until the last sum was complete; None if this rank cannot know."""
        took = [work.transfer_ns() for work in self.works]
        known = [ns for ns in took if ns is not None]
        return max(known) if known and len(known) == len(took) else self.took


class LASGD(Strategy):
    """Rounds of asynchronous model averaging.

    A round is applied when a step ends and the next one launched when a step begins: between the two, where
    ranks evaluate, save and stop, nothing is in flight for those that have just applied the same round.
    """

    Config = LASGDConfig
    config: LASGDConfig
    tuned = (("sync_every", (1, 2, 4, 8)), ("optimizer_state", ("keep", "average")))
    caveats = (
        "The abstract of the paper gives no rule, period, hyper-parameters or numbers: this is the method as "
        "the abstract describes it, with details of ours, and reproduces no table.",
        "Ranks take different numbers of steps and see different shares of the data: an epoch means global "
        "samples, and weight decay acts more often on fast ranks.",
        "On a real clock a run depends on its timing and cannot be repeated bit for bit: use several seeds.",
        "Work does not wait for stragglers, mixing does: rounds follow the slowest rank, and a dead one ends "
        "them. Without stragglers, on a fast network, no advantage is to be expected.",
        "Over NCCL an all-reduce that waits for a straggler occupies the devices of those who wait.",
        "mode: fixed_delay waits for its rounds; it tests the method and is not the method.",
    )
    # Workers draw by themselves, the budget is overshot by up to a round, and ranks never all meet.
    may_differ = ("strategy", "data.order", "data.samples", "evaluation.mode", "evaluation.count")

    @classmethod
    def needs_numbers(cls, config: LASGDConfig) -> str | None:
        return state_that_travels(config)

    @classmethod
    def sampling(cls, config: LASGDConfig) -> Sampling:
        if config.mode == "fixed_delay":
            return "global"
        return "node" if config.unit == "node" else "rank"

    @classmethod
    def draw(cls, config: LASGDConfig) -> str:
        return config.draw

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        config, topology = self.config, comm.topology
        by_node = config.unit == "node"
        self.replica, self.comm, self.budget = replica, comm, progress.budget
        self.independent = config.mode == "async"
        self.workers = topology.nodes if by_node else topology.ranks
        self.members = comm.members(NODE) if by_node else (comm.rank,)
        self.group, self.own_group = (LEADERS, NODE) if by_node else (WORLD, None)
        self.takes_part = not by_node or comm.local_rank == 0
        self.everybody: Mean = LeaderMean(comm, 1 / topology.nodes) if by_node else WorldMean(comm)
        self.copies_are_whole = self.never_syncs = self.independent and self.workers > 1

        # Counts are the worker's, or sums over all workers as of the last applied round.
        self.steps = self.own = 0  # k, and own samples
        self.since = 0  # steps since the last launch (overwrite: since the last application)
        self.launched = self.applied = 0
        self.total = self.counted = 0  # S_last, and own samples in it (n_snap)
        self.total_steps = self.done = 0
        self.warmup_steps = self.copies = 0
        self.flight: Flight | None = None
        self.due = False  # the next step begins with a launch
        self.met = self.agreed = self.wished = False
        self.equal = True  # all models are the same now
        self.warm = config.warmup_samples > 0 and self.workers > 1
        self.origin_ns = self.last_launch_ns = comm.now()
        self.begun = False  # whether training goes on: what came before is in no interval
        self.run, self.final = Rounds(), {}
        self._clear_epoch()

        self.free: list[Tensor] = []
        self.mean: Tensor | None = None  # of the last applied round; with 16-bit transport the reference
        self.lent = False  # whether the reference is somebody's copy by now
        self.tail: Tensor | None = None  # the mean of the buffers in a warm-up by gradients
        self.control = torch.zeros(4, dtype=torch.int64, device=replica.parameters.device)
        self.rides = config.buffers == "average"
        self._lay_out()
        if self.warm and config.warmup_mode == "gradient":
            # Sizes of other ranks' batches are known where all draw from common batches, not elsewhere.
            weights = uniform if self.independent else by_samples
            replica.average_gradients_over(WORLD, weights=weights, bucket_mib=config.bucket_mib)
        else:
            self._average_own_gradients()
        if config.transport_dtype is not None and self.workers > 1:
            self._probe_transport()

    # ---------------------------------------------------------------- the loop's calls

    def before_batch(self, progress: Progress) -> None:
        if not self.begun:
            self.begun, self.origin_ns = True, self.comm.now()
            self.last_launch_ns = self.origin_ns
            if self.flight is not None:  # from a checkpoint
                self.flight.launched_ns = self.origin_ns
        samples = self.total if self.independent else progress.samples
        if self.warm and samples >= self.config.warmup_samples:
            if self.synchronous and self.narrow is not None and self.mean is not None:
                self.replica.flat(self.mean)  # models are equal
            self.warm = False
            self._average_own_gradients()
        # A wish does not wait for the period, where periods are not part of the deal.
        hurries = self.independent and self.wished and not self.synchronous
        if (self.due or hurries) and not self.warm and self.flight is None:
            self._launch(self.wished)

    def after_step(self, progress: Progress) -> None:
        self.met = self.agreed = self.equal = False
        self.steps += 1
        self.since += 1
        self.own += sum(progress.samples_of_rank[member] for member in self.members)
        if self.flight is not None:
            self.flight.steps += 1
        if self.workers == 1:
            self.total = self.counted = self.own
            self.done = int(self._is_done())
            self.met = self.equal = True
        elif self.warm:
            self._step_together()
        elif self.independent:
            self._poll()
        else:
            self._keep_to_schedule()

    def agree(self, progress: Progress, wished: bool) -> bool:
        if self.synchronous:
            return wished
        # Known to all where a round carried it; a wish that came later waits for the next one.
        self.wished = (self.wished or wished) and not self.agreed
        return self.agreed

    def meets(self, progress: Progress) -> bool:
        return self.met or (not self.independent and progress.last_step)

    def samples(self, progress: Progress) -> int:
        return self.total

    def global_samples(self, progress: Progress) -> int:
        if not self.independent:
            return progress.samples
        if self.config.lr_clock == "local_steps":
            # The loop adds this worker's samples of the step: together so many whole global batches.
            coming = sum(progress.samples_of_rank[member] for member in self.members)
            return (self.steps + 1) * progress.global_batch_size - coming
        return self.total + self.own - self.counted

    def ended(self, progress: Progress) -> bool:
        return {
            "samples": self.total >= progress.budget,
            "any_done": self.done > 0,
            "all_done": self.done == self.workers,
        }[self.config.finish_rule]

    def deferred(self, progress: Progress, every: int) -> bool:
        if self.workers == 1:
            return False
        return self.never_syncs or self.config.sync_every * progress.global_batch_size > every

    def reserve(self, copies: int) -> None:
        if self.copies_are_whole:
            self.rides = True
            self._lay_out()
            if self.comm.rank == 0:
                self.free = [self.model.empty() for _ in range(copies)]

    def snapshot(self, progress: Progress) -> Tensor | None:
        if not self.copies_are_whole:
            return super().snapshot(progress)
        if self.comm.rank != 0:
            return None
        self.copies += 1
        if self.synchronous:
            copy, m = self._buffer(), self.replica.numel
            self.replica.flat(copy)
            if self.tail is not None:
                copy[m : m + len(self.tail)] = self.tail
        else:
            assert self.mean is not None, "a copy is asked for where a round was applied"
            copy, self.lent = self.mean, True
            if self.narrow is None:
                self.mean = None
        return copy[: self.replica.numel + self.replica.buffers.numel]

    def assemble(self, copy: Tensor | None) -> Tensor:
        if not self.copies_are_whole:
            assert copy is not None
            ranks = self.everybody if isinstance(self.everybody, WorldMean) else WorldMean(self.comm)
            return mean_of_copies(copy, self.replica, "average", self.everybody, ranks)
        whole = self.model.empty() if copy is None else copy
        whole = whole[: self.replica.numel + self.replica.buffers.numel]
        self.comm.broadcast(whole, 0, WORLD).wait()
        return whole

    def settle(self) -> None:
        if self.flight is not None:
            self._wait(self.flight)

    @contextmanager
    def consensus(self) -> Iterator[None]:
        with self.replica.kept():
            self._average()
            yield

    def finish(self) -> None:
        # Ranks stop where they have applied the same round. Where somebody did not keep to that, those who
        # are a round behind launch it now: one more average by everybody would pair it with another round.
        topology = self.comm.topology
        own = torch.tensor([self.launched, self.steps, self.own], dtype=torch.int64)
        every = torch.zeros(3 * topology.ranks, dtype=torch.int64)
        self.comm.all_gather(every, own, WORLD, channel="control").wait()
        launched, steps, samples = (column.tolist() for column in every.view(-1, 3).unbind(1))
        if max(launched) - min(launched) > 1:
            raise RuntimeError(f"ranks are more than one round apart: launched {launched}")
        if self.launched < max(launched):
            if self.flight is not None:
                self._apply()
            self._launch(wished=False)
        if self.flight is not None:
            self._apply()
        self._average()
        self.equal = True
        firsts = topology.members(self.group, 0)
        self.final = {
            "steps_of_worker": [steps[rank] for rank in firsts],
            "samples_of_worker": [samples[rank] for rank in firsts],
            "overshoot_samples": sum(samples[rank] for rank in firsts) - self.budget,
        }

    # ---------------------------------------------------------------- rounds

    @property
    def synchronous(self) -> bool:
        """Whether gradients are averaged over all ranks in the present step."""
        return self.workers == 1 or (self.warm and self.config.warmup_mode == "gradient")

    def _poll(self) -> None:
        """Apply the round in flight if it is there (or too old to go on without), and see if one is due."""
        config, flight = self.config, self.flight
        arrived = elapsed = False
        if self.takes_part:
            limit = config.max_staleness_steps
            too_old = flight is not None and limit is not None and flight.steps >= limit
            arrived = flight is not None and (too_old or flight.arrived())
            if config.sync_interval_ms is not None:
                elapsed = self.comm.now() - self.last_launch_ns >= config.sync_interval_ms * 1e6
        if len(self.members) > 1:
            # What one rank observes must not part the replicas of a node: its leader decides for all.
            decision = torch.tensor([arrived, elapsed], dtype=torch.uint8)
            self.comm.broadcast(decision, 0, NODE, channel="control").wait()
            arrived, elapsed = (bool(value) for value in decision.tolist())
        if arrived:
            self._apply()
        self.due = elapsed if config.sync_interval_ms is not None else self.since >= config.sync_every

    def _keep_to_schedule(self) -> None:
        """`fixed_delay`: launch every H steps, apply τ steps later."""
        if self.flight is not None and self.flight.steps == self.config.delay_steps:
            self._apply()
        self.due = self.since >= self.config.sync_every
        if self.due and self.config.delay_steps == 0:
            self._launch(self.wished or self.replica.wished)
            self._apply()

    def _step_together(self) -> None:
        """A warm-up step: all workers take it together, and the count of samples is exact after it."""
        self.warmup_steps += 1
        if self.config.warmup_mode == "model":
            self._launch(self.wished or self.replica.wished)
            self._apply()
            return
        self.met = self.equal = True
        self.since = 0
        if self.rides and self.replica.buffers.numel:
            self.tail = self.replica.buffers.pack()
            self.comm.all_reduce(self.tail, WORLD).wait()
            self.tail /= self.comm.topology.ranks
            if self.config.buffers == "average":
                self.replica.buffers.unpack(self.tail)
        if self.independent:  # else the loop knows all sizes
            self._fill_control(wished=False)
            if self.takes_part:
                self.comm.all_reduce(self.control, self.group).wait()
            self._spread_in_node(self.control)
            self._read_control(self.own)

    def _launch(self, wished: bool) -> None:
        """B: hand a copy of the parameters to the next round."""
        sent = self._pack()
        self._fill_control(wished)
        self.last_launch_ns = self.comm.now()
        works = []
        if self.takes_part:
            works = [self.comm.all_reduce(t, self.group, async_op=True) for t in (sent, self.control)]
        self.flight = Flight(sent, self.own, self.last_launch_ns, works)
        self.launched += 1
        self.since, self.due = 0, False

    def _apply(self) -> None:
        """A: the sums are there, or are waited for."""
        flight, rule, m = self.flight, self.config.apply_rule, self.replica.numel
        assert flight is not None
        self._wait(flight)
        self._spread_in_node(flight.sent)
        self._spread_in_node(self.control)
        mean = self._mean(flight)
        own = self._table().pack(self.work)
        before = torch.dist(own[:m], mean[:m]) if len(self.details) < DETAILED else None
        self._correct(own, mean, flight.steps)
        self._unpack(own)
        if rule == "overwrite":
            self.since = 0
        self.applied += 1
        self.flight, self.met = None, True
        # Only where all apply at one step do all know that none came between; `elastic` leaves differences.
        together = self.warm or not self.independent
        self.equal = together and (rule == "overwrite" or (rule == "delta" and flight.steps == 0))
        known = self.total + flight.samples - self.counted  # what this rank took the snapshot's count for
        self._read_control(flight.samples)
        self._note(flight, self.total - known, before, own[:m], mean[:m])

    def _correct(self, own: Tensor, mean: Tensor, steps: int) -> None:
        """Apply the rule to `own`, in place."""
        rule = self.config.apply_rule
        if rule == "elastic":
            assert self.config.elastic_alpha is not None
            own += self.config.elastic_alpha * (mean - own)
        elif rule == "overwrite" or steps == 0:
            own.copy_(mean)
        else:
            # Variances and second moments must not become negative: what is no parameter stays between its
            # own value and the mean.
            rest, target = own[self.replica.numel :], mean[self.replica.numel :]
            low, high = torch.minimum(rest, target), torch.maximum(rest, target)
            own += mean - self.copy
            rest.clamp_(low, high)

    def _unpack(self, own: Tensor) -> None:
        config, m, f = self.config, self.replica.numel, self.replica.buffers.numel
        self.replica.load(own)
        if config.buffers == "average":
            self.replica.buffers.unpack(own[m:])
        if config.optimizer_state == "average":
            self.replica.optimizer_state().unpack(own[m + f * self.rides :])
        elif config.optimizer_state == "reset" and not self.warm:
            self.replica.optimizer.state.clear()

    def _fill_control(self, wished: bool) -> None:
        own = [self.own, self.steps, int(self._is_done()), int(wished)]
        for slot, number in zip(self.control.unbind(), own, strict=True):
            slot.fill_(number)  # copied from ordinary memory, they would wait for all that a GPU has to do

    def _read_control(self, counted: int) -> None:
        self.total, self.total_steps, self.done, wishes = self.control.tolist()
        self.counted, self.agreed = counted, wishes > 0

    def _wait(self, flight: Flight) -> None:
        entered = self.comm.now()
        for work in flight.works:
            work.wait()
        waited = self.comm.now() - entered
        self.run.blocked_ns += waited
        self.epoch.blocked_ns += waited

    def _spread_in_node(self, tensor: Tensor) -> None:
        if len(self.members) > 1:
            with self.comm.summing("inter"):  # the others stand here while their leader waits for a sum
                self.comm.broadcast(tensor, 0, NODE).wait()

    def _average(self) -> None:
        """A blocking average of parameters and floating-point buffers, loaded into the replica."""
        if self.workers > 1 and not self.equal:
            mean = self.replica.flat()
            self.everybody(mean)
            self.replica.load(mean)
        self.average_buffers()

    def _is_done(self) -> bool:
        """Whether this worker has had its part of the samples of the whole schedule."""
        return self.own * self.workers >= self.budget

    # ---------------------------------------------------------------- memory

    def _average_own_gradients(self) -> None:
        self.replica.average_gradients_over(self.own_group, bucket_mib=self.config.bucket_mib)

    def _table(self) -> Layout:
        """What travels: parameters, behind them buffers and momenta where they ride along."""
        if self.config.optimizer_state != "average":
            return self.model
        # Momenta appear with the first step, and in new memory after a resume.
        self._lay_out()
        return self.model

    def _lay_out(self) -> None:
        named = self.replica.parameters.named()
        if self.rides:
            named += self.replica.buffers.named()
        if self.config.optimizer_state == "average" and hasattr(self.replica, "optimizer"):
            named += self.replica.optimizer_state().named()
        before = self.model.numel if hasattr(self, "model") else -1
        self.model = Layout(named, self.replica.parameters.device)
        if self.model.numel == before:
            return
        self.copy, self.work = self.model.empty(), self.model.empty()  # s, and the present parameters
        self.free = [self.model.empty() for _ in self.free]
        self.narrow: Tensor | None = None
        if self.config.transport_dtype is None:
            self.mean = None
            return
        # The reference must be equal everywhere: models at the start, zero for what has come since.
        reference = torch.zeros_like(self.copy)
        start = (
            Layout(named, self.replica.parameters.device).pack()
            if self.mean is None or not self.steps
            else self.mean
        )
        reference[: len(start)] = start
        self.mean, self.lent = reference, False
        self.narrow = self.copy.to(TRANSPORT[self.config.transport_dtype])

    def _buffer(self) -> Tensor:
        """A vector that nobody uses."""
        if self.narrow is None and self.mean is not None:
            free, self.mean = self.mean, None
            return free
        return self.free.pop() if self.free else self.model.empty()

    def _pack(self) -> Tensor:
        """The vector to be summed; afterwards `copy` holds what of it is this rank's own."""
        table, m, f = self._table(), self.replica.numel, self.replica.buffers.numel
        # Never the live parameters: the optimizer writes them while the sum is on its way.
        buffer = table.pack(self._buffer())
        self.copy.copy_(buffer)
        if self.rides and f and len(self.members) > 1:
            tail = buffer[m : m + f]  # replicas of a node differ in their buffers
            self.comm.all_reduce(tail, NODE).wait()
            tail /= len(self.members)
        if self.narrow is None:
            return buffer
        assert self.mean is not None
        self.narrow.copy_(buffer.sub_(self.mean))
        # What 16 bits cannot hold counts as a step made in flight: it stays here and is sent later.
        torch.add(self.mean[:m], self.narrow[:m], out=self.copy[:m])
        self.free.append(buffer)
        return self.narrow

    def _mean(self, flight: Flight) -> Tensor:
        """The mean of the round; it is kept until the next launch, as reference until the next mean."""
        if self.narrow is None:
            self.mean = flight.sent.div_(self.workers)
            return self.mean
        assert self.mean is not None
        mean = self._buffer()
        mean.copy_(flight.sent).div_(self.workers).add_(self.mean)
        if not self.lent:
            self.free.append(self.mean)
        self.mean, self.lent = mean, False
        return mean

    def _probe_transport(self) -> None:
        assert self.narrow is not None
        try:
            self.comm.all_reduce(torch.ones_like(self.narrow[:1]), WORLD).wait()
        except RuntimeError as error:
            raise ConfigError(
                f"strategy.transport_dtype={self.config.transport_dtype}: this backend cannot sum it: {error}"
            ) from error

    # ---------------------------------------------------------------- state and records

    def state_dict(self) -> dict[str, Any]:
        self.settle()
        flown, flight = None, self.flight
        if flight is not None:
            counts = [flight.samples, flight.steps, flight.transfer_ns()]
            flown = [flight.sent, self.copy, self.control, counts]
        return {
            "workers": self.workers,
            "counts": {name: getattr(self, name) for name in COUNTS},
            "reference": self.mean if self.narrow is not None else None,
            "flight": flown,
            "run": self.run.state(),
            "epoch": self.epoch.state(),
            "details": [_read(row) for row in self.details],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["workers"] != self.workers:
            raise ConfigError(
                f"this checkpoint is of {state['workers']} workers, the run has {self.workers}: lasgd "
                "resumes only on the same number"
            )
        for name, value in state["counts"].items():
            setattr(self, name, value)
        if not self.warm:
            self._average_own_gradients()
        self._table()
        if self.mean is not None and state["reference"] is not None:
            self.mean[: len(state["reference"])] = state["reference"]
        self.origin_ns = self.last_launch_ns = self.comm.now()
        if state["flight"] is not None:
            sent, copy, control, (samples, steps, took) = state["flight"]
            self.copy.copy_(copy)
            self.control.copy_(control)
            buffer = self._buffer() if self.narrow is None else self.narrow
            self.flight = Flight(buffer.copy_(sent), samples, self.origin_ns, [], steps, took)
        self.run, self.epoch = Rounds.of(state["run"]), Rounds.of(state["epoch"])
        self.details = list(state["details"])

    def record(self, progress: Progress) -> dict[str, Any]:
        """Figures of the epoch; `detail` lists its first rounds.

        `stamps_s`: launch, completion and application, in seconds since this attempt's first step. `spread`:
        ‖θ_i - mean‖ / ‖mean‖ just before and just after the application.
        `lag_samples`: by how much this rank's count of global samples was behind when a round corrected it.
        """
        row = {
            "phase": "warm-up" if self.warm else "local",
            **self.epoch.row(host_waits=self.comm.host_waits),
            "launched": self.launched - self.before[0],
            "steps": self.steps - self.before[1],
            "samples": self.own - self.before[2],
            "steps_of_all": self.total_steps,
            "copies": self.copies - self.before[3],
            "detail": [_read(one) for one in self.details],
        }
        self._clear_epoch()
        return row

    def summary(self) -> dict[str, Any]:
        return {
            **self.run.row(host_waits=self.comm.host_waits),
            "launched": self.launched,
            "steps": self.steps,
            "samples": self.own,
            "warmup_steps": self.warmup_steps,
            "copies": self.copies,
            **self.final,
        }

    def labels(self, target_step: int | None) -> list[str]:
        if self.workers == 1:
            return [f"one {self.config.unit}: nothing to average"]
        remarks = []
        if self.config.mode == "fixed_delay":
            remarks.append("fixed_delay waits for its rounds: a test of the method, not the method")
        if self.warmup_steps == self.steps:
            remarks.append("all steps were in the warm-up")
        elif not self.applied:
            remarks.append("no round was applied")
        elif target_step is not None and self.warmup_steps >= target_step:
            remarks.append("no asynchronous round before the target")
        return remarks

    def _note(self, flight: Flight, lag: int, before: Tensor | None, own: Tensor, mean: Tensor) -> None:
        """Book the round just applied, without reading anything from a device."""
        now = self.comm.now()
        seconds = (now - flight.launched_ns) / 1e9
        for rounds in (self.run, self.epoch):
            rounds.staleness_steps.add(flight.steps)
            rounds.staleness_s.add(seconds)
            rounds.lag_samples.add(lag)
        if before is not None:
            took = flight.transfer_ns()
            completed = None if took is None else flight.launched_ns + took
            stamps = (flight.launched_ns, completed, now)
            self.details.append(
                {
                    "round": self.applied,
                    "stamps_s": [None if at is None else (at - self.origin_ns) / 1e9 for at in stamps],
                    "staleness_steps": flight.steps,
                    "samples": self.total,
                    "lag_samples": lag,
                    "spread": torch.stack([before, torch.dist(own, mean), torch.linalg.vector_norm(mean)]),
                }
            )

    def _clear_epoch(self) -> None:
        self.epoch = Rounds()
        self.details: list[dict[str, Any]] = []
        self.before = [self.launched, self.steps, self.own, self.copies]


COUNTS = (
    *("steps", "own", "since", "launched", "applied", "total", "counted", "total_steps", "done"),
    *("due", "met", "agreed", "wished", "equal", "warm", "warmup_steps", "copies", "before"),
)
"""What of the strategy's position a checkpoint holds, by attribute."""


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """A round's row with its spreads, before and after, read from the device."""
    if isinstance(row["spread"], list):
        return row
    *distances, norm = row["spread"].tolist()
    return {**row, "spread": [distance / norm if norm else 0.0 for distance in distances]}
