"""DASO: gradients are averaged in each node every step, parameters between nodes rarely, without blocking.

One rank per node at a time takes part in the global all-reduce; its result is merged `wait_batches` later,
weighted by its age, and broadcast in the node. Blocking epochs at the start and at the end average
parameters in every step.

Update rule (N nodes, G ranks a node; y_j: node j's parameters when merged, s_j: when the transfer started, n:
batches between, λ: `staleness_weight`; the active group peers(q) moves on by one after every global
synchronisation):

    every batch     g_node = Σ_{r in node} n_r·g_r / Σ_{r in node} n_r,   θ = optimizer(θ, g_node)
    S (start)       members of peers(q): asynchronous all-reduce SUM of a copy of θ
    M (merge)       x_j = (λ·n·y_j + Σ_k s_k) / (λ·n + N), then broadcast from local rank q to the node
    A (average)     x = (1/N)·Σ_k θ_k, blocking, then broadcast from local rank q to the node
    D (discard)     wait for a transfer and drop its result

Bytes: cycling sends 2·(N-1)/N · 4(m+1)/B per node and batch between nodes (B: `sync_every`; one element
carries the node's stop request), on the active rank's link alone; blocking epochs send B times as much.

Paper: D. Coquelin, C. Debus, M. Götz, F. von der Lehr, J. Kahn, M. Siggel, A. Streit, Accelerating neural
network training with distributed asynchronous and selective optimization (DASO), Journal of Big Data 9:14
(2022), doi:10.1186/s40537-021-00556-1, arXiv:2104.05588. The abstracts give neither the merge formula nor the
schedule; both are those of the authors' public code (HeAT, `heat.optim.DASO`).

Ours differs: a transfer is merged exactly `wait_batches` later and weighted as such, and is not started when
the epoch's last average would overwrite it; blocking epochs average in full precision (16-bit transport sends
differences); BatchNorm statistics are averaged over ranks; `warmup_epochs` and `cooldown_epochs` scale with
the length of the run; `wait_batches: 0` and `blocking: gradients` are options of ours.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from .averaging import Mean, leader_mean, mean_of_snapshots, mix_buffers, samples_of_round, world_mean
from .base import Strategy, require_uniform
from .communicator import Communicator, Work
from .errors import ConfigError, above, at_least, one_of
from .gradients import DEFAULT_BUCKET_MIB
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import NODE, WORLD, peers

Phase = Literal["warm-up", "cycling", "cool-down"]
TRANSPORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class DASOConfig:
    """The keys of `strategy=daso`; periods are in batches, phases in epochs."""

    sync_every: int = 4  # B, batches between starts; the first cycling value
    wait_batches: int = 1  # W, batches between start and merge; 0 = blocking
    warmup_epochs: int | str = "auto"  # blocking epochs at the start; auto = max(1, round(4/90 · epochs))
    cooldown_epochs: int | str = "auto"  # blocking epochs at the end
    max_sync_every: int | None = None  # B after a reset; null = sync_every
    reset_wait_divisor: int = 4  # W after a reset = max_sync_every // this
    plateau_threshold: float = 0.05  # relative improvement of the epoch loss that counts
    plateau_patience: int = 2  # bad epochs tolerated
    reduction_factor: int = 2  # B is divided by this on a plateau
    staleness_weight: float = 2.0  # λ, weight of the own parameters per batch waited
    blocking: str = "parameters"  # what blocking epochs average; or `gradients`
    transport_dtype: str | None = None  # 16-bit differences in blocking epochs: bfloat16 | float16
    bucket_mib: float = DEFAULT_BUCKET_MIB  # of gradients per sum over a node
    buffers: str = "average"  # BatchNorm statistics at epoch ends and evaluation: average | broadcast | none
    allow_no_cycling: bool = False  # permit runs whose warm-up and cool-down leave no cycling epoch

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        at_least("strategy.wait_batches", self.wait_batches, 0)
        if self.wait_batches > self.sync_every:
            raise ConfigError(
                f"strategy.wait_batches={self.wait_batches}: must be <= sync_every={self.sync_every}"
            )
        if self.largest_sync_every < self.sync_every:
            raise ConfigError(
                f"strategy.max_sync_every={self.max_sync_every}: must be >= "
                f"strategy.sync_every={self.sync_every}"
            )
        for key in ("warmup_epochs", "cooldown_epochs"):
            value = getattr(self, key)
            if isinstance(value, str) and value != "auto":
                raise ConfigError(f"strategy.{key}={value}: must be auto or an integer >= 0")
            if isinstance(value, int):
                at_least(f"strategy.{key}", value, 0)
        at_least("strategy.reset_wait_divisor", self.reset_wait_divisor, 1)
        at_least("strategy.plateau_threshold", self.plateau_threshold, 0)
        at_least("strategy.plateau_patience", self.plateau_patience, 0)
        at_least("strategy.reduction_factor", self.reduction_factor, 2)
        above("strategy.staleness_weight", self.staleness_weight, 0)
        above("strategy.bucket_mib", self.bucket_mib, 0)
        one_of("strategy.blocking", self.blocking, ["parameters", "gradients"])
        one_of("strategy.buffers", self.buffers, ["average", "broadcast", "none"])
        if self.transport_dtype is not None:
            one_of("strategy.transport_dtype", self.transport_dtype, TRANSPORT)

    @property
    def largest_sync_every(self) -> int:
        return self.sync_every if self.max_sync_every is None else self.max_sync_every

    def blocking_epochs(self, epochs: int) -> tuple[int, int]:
        """(warm-up, cool-down) epochs of a run of `epochs`; `auto` is the reference's share, 4 in 90."""
        auto = max(1, round(4 / 90 * epochs))
        warmup, cooldown = (
            auto if isinstance(value, str) else value for value in (self.warmup_epochs, self.cooldown_epochs)
        )
        return warmup, cooldown


@dataclass
class PlateauRule:
    """B and W, shrunk on every plateau of the epoch loss and reset at the bottom."""

    config: DASOConfig
    sync_every: int
    wait_batches: int
    best: float = math.nan
    bad_epochs: int = 0

    def observe(self, loss: float) -> bool:
        """Update with an epoch's loss; True on a plateau, when B and W change. NaN is no improvement."""
        if math.isfinite(loss) and (
            math.isnan(self.best) or loss < self.best - self.config.plateau_threshold * abs(self.best)
        ):
            self.best, self.bad_epochs = loss, 0
            return False
        self.bad_epochs += 1
        if self.bad_epochs <= self.config.plateau_patience:
            return False
        self.bad_epochs = 0
        if self.sync_every == 1:
            self.sync_every = self.config.largest_sync_every
            reset = max(1, self.config.largest_sync_every // self.config.reset_wait_divisor)
            self.wait_batches = reset if self.wait_batches else 0
            return True
        self.sync_every = max(1, self.sync_every // self.config.reduction_factor)
        if self.wait_batches:
            self.wait_batches = min(max(self.wait_batches - 1, 1), self.sync_every)
        return True


@dataclass
class Transfer:
    """A global all-reduce in flight. Ranks outside the active group have no buffer, only its batches."""

    start: int
    due: int
    local_rank: int
    buffer: Tensor | None = None
    work: Work | None = None

    def wait_pending(self) -> int:
        """Wait until `buffer` holds the sum; returns the transfer's nanoseconds. Safe to call again."""
        if self.work is None:
            return 0
        self.work.wait()
        duration, self.work = self.work.transfer_ns() or 0, None
        return duration


class DASO(Strategy):
    """Every rank computes the same events from (epoch, batch, B, W)."""

    Config = DASOConfig
    reads_epoch_loss = True
    config: DASOConfig
    remembers = (
        *("active", "reference", "equal", "stop_requested", "steps_of_phase", "epochs_of_phase"),
        *("first_cycling_step", "events", "waits", "spread", "blocked_ns", "transfer_ns"),
    )
    # Where an epoch is longer than the distance of evaluations, copies are evaluated, or fewer models.
    may_differ = ("strategy", "evaluation.mode", "evaluation.count")
    tuned = (
        ("sync_every", (2, 4, 8, 16)),
        ("wait_batches", (1, 2)),
        ("staleness_weight", (0.5, 1.0, 2.0, 4.0)),
    )
    caveats = (
        "Implemented after the abstract and HeAT's public code; merge and schedule are as in that code.",
        "With sync_every=1 and many nodes about half of the progress made while waiting is lost in the merge "
        "(on a constant gradient the mean moves at 0.51 of synchronous SGD's speed with 64 nodes): time per "
        "epoch is no result, look at accuracy against time and against samples.",
        "Warm-up and cool-down are blocking: a run that has no asynchronous epoch is refused, or, with "
        "allow_no_cycling, labelled in every table.",
        "BatchNorm variances are averaged, not pooled.",
        "With gloo a non-blocking sum may progress only inside wait: the record holds the measured overlap.",
        "Virtual nodes on one machine share its memory bus: there is no slow link for DASO to save.",
    )

    @classmethod
    def check(cls, config: DASOConfig, plan: Plan) -> None:
        require_uniform(plan, "daso")
        warmup, cooldown = config.blocking_epochs(plan.epochs)
        if warmup + cooldown >= plan.epochs and not config.allow_no_cycling:
            raise ConfigError(
                f"strategy.warmup_epochs={warmup} + strategy.cooldown_epochs={cooldown} leave no "
                f"asynchronous epoch in train.epochs={plan.epochs}: lower them, or "
                "strategy.allow_no_cycling=true"
            )

    @classmethod
    def communication_share(cls, config: DASOConfig, plan: Plan, steps: int) -> float:
        """Blocking epochs wait in each step; a cycling epoch at its end, and where merges block in each."""
        per_epoch = plan.steps_per_epoch
        if plan.topology.nodes == 1 or per_epoch is None:
            return 0.0
        warmup, cooldown = config.blocking_epochs(plan.epochs)
        begin, end = warmup * per_epoch, max(warmup, plan.epochs - cooldown) * per_epoch
        blocking = min(steps, begin) + max(0, steps - end)
        if config.transport_dtype is not None and config.blocking == "parameters":
            blocking /= 2  # half the bytes
        cycles = max(0, min(steps, end) - begin) // per_epoch  # complete cycling epochs
        averages = 1 if config.wait_batches else math.ceil(per_epoch / config.largest_sync_every)
        return (blocking + cycles * averages) / steps

    @classmethod
    def copies_held(cls, config: DASOConfig, plan: Plan, memory: RankMemory) -> float:
        """Of an average at the end of an epoch: parameters before and after; by node a sum and its copy."""
        by_node = 2 * plan.topology.nodes / plan.topology.ranks
        steps, between = plan.steps_per_epoch, 0
        if steps is not None and plan.topology.nodes > 1:
            period = steps if config.wait_batches else config.largest_sync_every
            between = samples_of_round(period, plan, ends_with_epoch=True)
        return max(2 + by_node, 1 + memory.copies(between)) + (config.transport_dtype is not None)

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.everybody: Mean = partial(world_mean, comm)
        self.nodes = comm.topology.nodes
        self.ranks_per_node = comm.topology.ranks_of_nodes[0]
        self.warmup_epochs, self.cooldown_epochs = self.config.blocking_epochs(progress.epochs)
        self.epochs = progress.epochs
        self.rule = PlateauRule(self.config, self.config.sync_every, self.config.wait_batches)
        self.active = 0  # q, the local rank whose group synchronises next
        self.pending: list[Transfer] = []
        self.steps_of_phase: Counter[str] = Counter()
        self.epochs_of_phase: Counter[str] = Counter()
        self.first_cycling_step: int | None = None
        self.equal = True  # whether all nodes hold the same parameters now
        if self.nodes > 1 and self.warmup_epochs + self.cooldown_epochs < self.epochs:
            # After merges nodes are equal again at the end of the epoch only.
            period = progress.steps_per_epoch if self.config.wait_batches else self.config.largest_sync_every
            self.samples_between_syncs = samples_of_round(period, progress, ends_with_epoch=True)
        self.stop_requested = self.agreed = False
        self.reference: Tensor | None = None
        self._clear_epoch()
        self.blocked_ns = self.transfer_ns = 0
        replica.average_gradients_over(NODE, bucket_mib=self.config.bucket_mib)
        if self.config.transport_dtype is not None:
            self.transport = TRANSPORT[self.config.transport_dtype]
            self.reference = replica.flat()

    def phase(self, epoch: int) -> Phase:
        if epoch < self.warmup_epochs:
            return "warm-up"
        return "cool-down" if epoch >= self.epochs - self.cooldown_epochs else "cycling"

    def before_step(self, progress: Progress) -> None:
        self.agreed = False
        blocking = self.phase(progress.epoch) != "cycling"
        if self.nodes > 1 and blocking and self.config.blocking == "gradients":
            flat = self._average_over_nodes(self.replica.gradients, progress.batch)
            self.replica.load_gradients(flat)

    def after_step(self, progress: Progress) -> None:
        phase = self.phase(progress.epoch)
        self.steps_of_phase[phase] += 1
        if phase == "cycling" and self.first_cycling_step is None:
            self.first_cycling_step = progress.step
        if self.nodes == 1:
            return
        # Equal gradients on equal parameters leave them equal; a local step does not.
        self.equal = self.equal and phase != "cycling" and self.config.blocking == "gradients"
        batch, last = progress.batch, progress.steps_per_epoch - 1
        period, wait = self.rule.sync_every, self.rule.wait_batches
        if batch == last or (phase != "cycling" and self.config.blocking == "parameters"):
            self._average(progress)
        elif phase == "cycling" and wait == 0:
            if batch % period == 0:
                self._average(progress)
        elif phase == "cycling":
            # Start before merge: when both fall on one batch (W = B) the buffer must hold the unmerged
            # parameters, or the steps made while waiting are lost twice.
            if batch % period == 0 and batch + wait < last:
                self._start(batch, wait)
            if self.pending and self.pending[0].due == batch:
                self._merge(self.pending.pop(0), batch)
        if batch == last and self.config.buffers != "none":
            mix_buffers(self.replica, self.comm, self.config.buffers, self.everybody)

    def after_epoch(self, progress: Progress) -> None:
        self.epochs_of_phase[self.phase(progress.epoch)] += 1
        following = progress.epoch + 1
        if following >= self.epochs or self.phase(following) != "cycling":
            return
        assert progress.epoch_loss is not None, "the loop must provide the global epoch loss"
        changed = self.rule.observe(progress.epoch_loss)
        rule = self.rule
        # Rank 0 decides: the loss is equal on all ranks already, but a difference in the last bit would part
        # them for good.
        decision = torch.tensor(
            [rule.sync_every, rule.wait_batches, rule.bad_epochs, rule.best], dtype=torch.float64
        )
        self.comm.broadcast(decision, 0, WORLD, channel="control").wait()
        *integers, rule.best = decision.tolist()
        rule.sync_every, rule.wait_batches, rule.bad_epochs = map(int, integers)
        self.decisions.append(
            {"loss": progress.epoch_loss, "plateau": changed, "bad_epochs": rule.bad_epochs}
        )

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        # A node's stop request is known to its ranks at once, to the others with the next sum that reaches
        # them.
        self.stop_requested = self.stop_requested or stop_requested
        return stop_requested if self.nodes == 1 else self.agreed

    def wait_pending(self) -> None:
        for transfer in self.pending:
            self.transfer_ns += transfer.wait_pending()

    def is_sync_point(self, progress: Progress) -> bool:
        return self.equal

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        mean = partial(leader_mean, self.comm)
        return mean_of_snapshots(self.replica, self.comm, self.config.buffers, mean, self.everybody)

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        with self.replica.kept():
            if self.nodes > 1 and not self.equal:
                mean = self.replica.flat()
                leader_mean(self.comm, mean)
                self.replica.load(mean)
            # `none` is about training: an evaluated model has one set of statistics in any case.
            mix_buffers(self.replica, self.comm, self.config.buffers, self.everybody)
            yield

    def finalize(self) -> None:
        if self.nodes == 1:
            return
        for transfer in self.pending:
            self.events.append((transfer.start, "D", transfer.local_rank))
            transfer.wait_pending()
        self.pending.clear()
        if not self.equal:
            self.replica.load(self._average_over_nodes(self.replica.flat, batch=-1))
            self.equal = True

    def state_dict(self) -> dict[str, Any]:
        self.wait_pending()
        return {
            **super().state_dict(),
            "rule": [self.rule.sync_every, self.rule.wait_batches, self.rule.best, self.rule.bad_epochs],
            "pending": [[t.start, t.due, t.local_rank, t.buffer] for t in self.pending],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.rule = PlateauRule(self.config, *state["rule"])
        here = self.replica.here
        self.pending = [Transfer(start, due, q, here(buffer)) for start, due, q, buffer in state["pending"]]
        for buffer in (transfer.buffer for transfer in self.pending if transfer.buffer is not None):
            self.comm.write_stop_flag(buffer[-1], buffer[-1].item())  # a request may be on its way
        self.epoch_period = (self.rule.sync_every, self.rule.wait_batches)

    def record(self, progress: Progress) -> dict[str, Any]:
        counts = Counter(letter for _, letter, _ in self.events)
        row = {
            "phase": self.phase(progress.epoch),
            "sync_every": self.epoch_period[0],
            "wait_batches": self.epoch_period[1],
            "active": self.active,
            "starts": counts["S"],
            "merges": counts["M"],
            "averages": counts["A"],
            "discards": counts["D"],
            "waited_batches": self.waits,
            "spread": self.spread,
            "decisions": self.decisions,
        }
        self._clear_epoch()
        return row

    def summary(self) -> dict[str, Any]:
        host_waits = self.comm.host_waits  # else transfers were not over when they were asked
        overlap = 1 - self.blocked_ns / self.transfer_ns if self.transfer_ns and host_waits else None
        return {
            "warmup_epochs": self.warmup_epochs,
            "cooldown_epochs": self.cooldown_epochs,
            "steps_of_phase": dict(self.steps_of_phase),
            "epochs_of_phase": dict(self.epochs_of_phase),
            "transfer_s": self.transfer_ns / 1e9 if host_waits else None,
            "blocked_s": self.blocked_ns / 1e9 if host_waits else None,
            "overlap": overlap,
        }

    def labels(self, target_step: int | None) -> list[str]:
        remarks = []
        if self.nodes == 1:
            remarks.append("one node: no global synchronisation")
        elif self.first_cycling_step is None:
            remarks.append("no asynchronous phase")
        elif target_step is not None and self.first_cycling_step >= target_step:
            remarks.append("no asynchronous phase before the target")
        if self.cooldown_epochs and self.epochs_of_phase["cool-down"] < self.cooldown_epochs:
            remarks.append("ended before its cool-down")
        return remarks

    # ---------------------------------------------------------------- events

    def _start(self, batch: int, wait: int) -> None:
        q = self._advance()
        self.events.append((batch, "S", q))
        transfer = Transfer(batch, batch + wait, q)
        if self.comm.local_rank == q:
            # A copy, never the live parameters: the optimizer writes them while the sum is on its way.
            transfer.buffer = self._filled(self.replica.flat)
            transfer.work = self.comm.all_reduce(transfer.buffer, peers(q), async_op=True)
        self.pending.append(transfer)

    def _merge(self, transfer: Transfer, batch: int) -> None:
        self.events.append((batch, "M", transfer.local_rank))
        waited = batch - transfer.start
        self.waits.append(waited)
        entered = self.comm.now()
        self.transfer_ns += transfer.wait_pending()
        if transfer.buffer is None:
            merged = self.replica.parameters.empty(extra=1)
        else:
            self.blocked_ns += self.comm.now() - entered
            merged = self._merged(transfer.buffer, waited)
        self._spread_in_node(merged, transfer.local_rank)
        self.replica.load(merged)

    def _merged(self, total: Tensor, waited: int) -> Tensor:
        """The merge formula on [m+1] vectors; the count of stop requests, last, passes unweighted."""
        model = self._filled(self.replica.flat)
        weight = self.config.staleness_weight * waited
        merged = (weight * model + total) / (weight + self.nodes)
        merged[-1] = total[-1]
        return merged

    def _average(self, progress: Progress) -> None:
        last = progress.last_batch
        before = self.replica.flat() if last else None
        base = None if self.phase(progress.epoch) == "cycling" else self.reference
        flat = self._average_over_nodes(self.replica.flat, progress.batch, base)
        self.replica.load(flat)
        self.equal = True
        if self.reference is not None:
            self.reference.copy_(flat[:-1])
        if before is not None:
            mean = flat[:-1]
            norm = torch.linalg.vector_norm(mean)
            spread = torch.linalg.vector_norm(before - mean) / norm
            self.spread = torch.where(norm > 0, spread, 0.0).item()

    def _average_over_nodes(self, pack: Any, batch: int, base: Tensor | None = None) -> Tensor:
        """Event A on what `pack(out)` writes: the mean over nodes [m+1], the count of stop requests last.

        base [m]: the last common parameters, where differences to them travel in 16 bits.
        """
        q = self._advance()
        self.events.append((batch, "A", q))
        entered = self.comm.now()
        flat = self._filled(pack)
        if self.comm.local_rank == q:
            sent = flat
            if base is not None:  # only differences are narrowed, so that small updates survive
                sent = flat.clone()
                sent[:-1] -= base
                sent = sent.to(self.transport)
            work = self.comm.all_reduce(sent, peers(q), async_op=True)
            work.wait()
            self.transfer_ns += work.transfer_ns() or 0
            if base is None:
                flat[:-1] /= self.nodes
            else:
                flat.copy_(sent)
                flat[:-1] = base + flat[:-1] / self.nodes
            self.blocked_ns += self.comm.now() - entered
        self._spread_in_node(flat, q)
        return flat

    def _spread_in_node(self, flat: Tensor, q: int) -> None:
        with self.comm.summing("inter"):  # the others wait here while their rank q sums
            self.comm.broadcast(flat, q, NODE).wait()
        self.agreed = self.agreed or (self.comm.stop_possible and flat[-1].item() > 0)
        # This node's stop request travelled with the sum just used or, if it is younger, travels with the
        # next one.
        if self.agreed:
            self.stop_requested = False

    # ---------------------------------------------------------------- helpers

    def _filled(self, pack: Any) -> Tensor:
        flat = self.replica.parameters.empty(extra=1)
        pack(flat)
        self.comm.write_stop_flag(flat[-1], self.stop_requested or self.replica.stop_requested)
        return flat

    def _advance(self) -> int:
        q, self.active = self.active, (self.active + 1) % self.ranks_per_node
        return q

    def _clear_epoch(self) -> None:
        self.events: list[tuple[int, str, int]] = []  # (batch, S | M | A | D, local rank)
        self.waits: list[int] = []
        self.spread: float | None = None
        self.decisions: list[dict[str, Any]] = []
        self.epoch_period = (self.rule.sync_every, self.rule.wait_batches)
