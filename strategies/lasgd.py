"""LASGD: every worker trains at its own pace; models are averaged by asynchronous all-reduces.

A worker, which is a rank, starts an asynchronous all-reduce of a copy of its parameters and trains on. Once
the sum is complete, it adds the difference between the mean and its copy to its present parameters: the
average is exact, and the progress made meanwhile is kept.

Update rule (R workers; at most one round in flight; A, then B at every step boundary of a worker):

    every step    θ_i = optimizer_i(θ_i, g_i)
    A (apply)     if both sums of the round in flight are complete:  mean = (1/R)·Σ_j s_j
                      θ_i = θ_i + (mean - s_i);   θ_i = mean if no step was made in flight
    B (launch)    if none is in flight and `sync_every` steps were made since the last launch:
                      s_i = θ_i, asynchronous all-reduce SUM of a copy, then of the integers q_i
    q_i           samples, local steps, out of data, stop requests: all ranks read the same sums of a round

Bytes: a ring sends 2·(R-1)/R · (4(m + F) + 32) per worker and round (m parameters, F elements of
floating-point buffers where models are evaluated from copies). A round begins when the slowest worker
launches it.

Paper: T. Avidor, N. Tal Israel, Locally Asynchronous Stochastic Gradient Descent for Decentralised Deep
Learning, arXiv:2203.13085 (2022).

Ours differs: the abstract states asynchronous workers and all-reduce for model synchronisation; rule and
period are our choice, after CoCoD-SGD (arXiv:1906.12043) and other published methods with this rule. So this
is the method as the abstract describes it, not a reproduction.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .averaging import Mean, mix_buffers, world_mean
from .base import AsynchronousStrategy
from .communicator import Communicator, Work
from .errors import at_least, one_of
from .layout import Layout
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import WORLD

DETAILED = 16
"""Rounds of an epoch that are recorded one by one; later ones only count in the epoch's figures."""


@dataclass(frozen=True, kw_only=True)
class LASGDConfig:
    """The keys of `strategy=lasgd`; steps are a worker's own optimizer steps."""

    sync_every: int = 1  # steps between launches, counted from the launch
    optimizer_state: str = "keep"  # momenta at each application: keep | average

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        one_of("strategy.optimizer_state", self.optimizer_state, ["keep", "average"])


FIGURES = ("staleness_steps", "staleness_s", "lag_samples")


@dataclass
class Rounds:
    """Figures of the rounds that this rank applied, over an epoch or the run.

    `sums` and `largest`: of each of `FIGURES`.
    """

    rounds: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0.0))
    largest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0.0))
    blocked_ns: int = 0

    def add(self, **figures: float) -> None:
        """Add the figures of a round."""
        self.rounds += 1
        for name, value in figures.items():
            self.sums[name] += value
            self.largest[name] = max(self.largest[name], value)

    def row(self, *, host_waits: bool) -> dict[str, Any]:
        """For a record; without `host_waits` the host's clock cannot measure how long a GPU waited."""
        row: dict[str, Any] = {"rounds": self.rounds}
        for name in FIGURES:
            mean, most = (self.sums[name] / self.rounds, self.largest[name]) if self.rounds else (None, None)
            row[name] = {"mean": mean, "max": most}
        return {**row, "blocked_s": self.blocked_ns / 1e9 if host_waits else None}


@dataclass
class Flight:
    """The round in flight; `works` is empty on ranks that take no part, and after a resume."""

    sent: Tensor  # c, the vector that is summed
    samples: int  # the worker's samples at the snapshot
    launched_ns: int
    works: list[Work]
    steps: int = 0  # k_s, local steps since the snapshot
    took: int | None = None  # nanoseconds of the transfer, where it was completed before a resume

    def arrived(self) -> bool:
        """Whether the sums are complete, as this rank sees it."""
        return all(work.is_completed() for work in self.works)

    def transfer_ns(self) -> int | None:
        """Nanoseconds from the launch until the last sum was complete; None if this rank cannot know."""
        took = [work.transfer_ns() for work in self.works]
        known = [ns for ns in took if ns is not None]
        return max(known) if known and len(known) == len(took) else self.took


class LASGD(AsynchronousStrategy):
    """A round is applied at the end of a step, and the next one is launched at the start of a step.

    Between the two, where ranks evaluate, save and stop, nothing is in flight on ranks that have just applied
    the same round.
    """

    Config = LASGDConfig
    config: LASGDConfig
    remembers = (
        *("steps", "rank_samples", "since", "launched", "applied", "total", "counted", "total_steps"),
        *("due", "met", "agreed", "stop_requested", "equal", "copies", "before"),
    )
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
    )
    needs_numbers = (("optimizer_state", "average"),)
    # Workers draw by themselves, the budget is overshot by up to a round, and ranks never all meet.
    may_differ = ("strategy", "data.order", "data.samples", "evaluation.mode", "evaluation.count")

    @classmethod
    def copies_held(cls, config: LASGDConfig, plan: Plan, memory: RankMemory) -> float:
        """A round has three vectors, and an evaluation two; the copies that wait are rank 0's."""
        momenta = memory.states if config.optimizer_state == "average" else 0
        return (3 + memory.copies(math.inf) / plan.topology.ranks) * (1 + momenta) + 2

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm, self.budget = replica, comm, progress.budget
        self.workers = comm.topology.ranks
        self.everybody: Mean = partial(world_mean, comm)
        self.copies_are_whole = self.never_syncs = self.workers > 1

        # Counts are the worker's, or sums over all workers as of the last applied round.
        self.steps = self.rank_samples = 0  # k, and its samples
        self.since = 0  # steps since the last launch
        self.launched = self.applied = 0
        self.total = self.counted = 0  # S_last, and this rank's samples in it (n_snap)
        self.total_steps = 0
        self.copies = 0
        self.flight: Flight | None = None
        self.due = False  # the next step begins with a launch
        self.met = self.agreed = self.stop_requested = False
        self.equal = True  # all models are the same now
        self.origin_ns = comm.now()
        self.begun = False  # whether training has begun; earlier time is in no interval
        self.run, self.final = Rounds(), {}
        self._clear_epoch()

        self.free: list[Tensor] = []
        self.mean: Tensor | None = None  # of the last applied round, until the next launch
        # The host reads these sums. Where it makes them itself, they need not lie on a GPU.
        device = torch.device("cpu") if comm.one_process else replica.parameters.device
        self.control = torch.zeros(4, dtype=torch.int64, device=device)
        self.rides = False  # whether buffers are summed with the parameters
        self._lay_out()
        replica.average_gradients_over(None)

    # ---------------------------------------------------------------- the loop's calls

    def before_batch(self, progress: Progress) -> None:
        if not self.begun:
            self.begun, self.origin_ns = True, self.comm.now()
            if self.flight is not None:  # from a checkpoint
                self.flight.launched_ns = self.origin_ns
        # A stop request does not wait for the period.
        if (self.due or self.stop_requested) and self.flight is None:
            self._launch()

    def after_step(self, progress: Progress) -> None:
        self.met = self.agreed = self.equal = False
        self.steps += 1
        self.since += 1
        self.rank_samples += progress.samples_of_rank[self.comm.rank]
        if self.flight is not None:
            self.flight.steps += 1
        if self.workers == 1:
            self.total = self.counted = self.rank_samples
            self.met = self.equal = True
        else:
            # Apply the round in flight if it is there, and see if one is due.
            if self.flight is not None and self.flight.arrived():
                self._apply()
            self.due = self.since >= self.config.sync_every

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        if self.workers == 1:
            return stop_requested
        # A round has carried the request to all ranks; a later request waits for the next round.
        self.stop_requested = (self.stop_requested or stop_requested) and not self.agreed
        return self.agreed

    def is_sync_point(self, progress: Progress) -> bool:
        return self.met

    def samples(self, progress: Progress) -> int:
        return self.total

    def global_samples(self, progress: Progress) -> int:
        return self.total + self.rank_samples - self.counted

    def reserve(self, copies: int) -> None:
        if self.copies_are_whole:
            self.rides = True
            self._lay_out()
            if self.comm.rank == 0:
                self.free = [self.model.empty() for _ in range(copies)]

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        if not self.copies_are_whole:
            return super().snapshot(progress)
        copy: Tensor | None = None  # rank 0 keeps it
        if self.comm.rank == 0:
            self.copies += 1
            assert self.mean is not None, "a copy is asked for where a round was applied"
            copy, self.mean = self.mean, None

        def assemble() -> Tensor:
            whole = self.model.empty() if copy is None else copy
            whole = whole[: self.replica.numel + self.replica.buffers.numel]
            self.comm.broadcast(whole, 0, WORLD).wait()
            return whole

        return assemble

    def wait_pending(self) -> None:
        if self.flight is not None:
            self._wait(self.flight)

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        with self.replica.kept():
            self._average()
            yield

    def finalize(self) -> None:
        # Ranks stop where they have applied the same round. If some are a round behind nevertheless, they
        # launch it now: one more average by all ranks would be paired with another round.
        counts = torch.tensor([self.launched, self.steps, self.rank_samples], dtype=torch.int64)
        launched, steps, samples = self.comm.gather(counts).T.tolist()
        if max(launched) - min(launched) > 1:
            raise RuntimeError(f"ranks are more than one round apart: launched {launched}")
        if self.launched < max(launched):
            if self.flight is not None:
                self._apply()
            self.stop_requested = False
            self._launch()
        if self.flight is not None:
            self._apply()
        self._average()
        self.equal = True
        self.final = {
            "steps_of_worker": steps,
            "samples_of_worker": samples,
            "overshoot_samples": sum(samples) - self.budget,
        }

    # ---------------------------------------------------------------- rounds

    def _launch(self) -> None:
        """B: start the next round with a copy of the parameters."""
        # Never the live parameters: the optimizer writes them while the sum is on its way.
        sent = self._table().pack(self._buffer())
        self.copy.copy_(sent)
        self._fill_control()
        launched_ns = self.comm.now()
        works = [self.comm.all_reduce(t, WORLD, async_op=True) for t in (sent, self.control)]
        self.flight = Flight(sent, self.rank_samples, launched_ns, works)
        self.launched += 1
        self.since, self.due = 0, False

    def _apply(self) -> None:
        """A: the sums are there, or are waited for."""
        flight, m = self.flight, self.replica.numel
        assert flight is not None
        self._wait(flight)
        mean = self.mean = flight.sent.div_(self.workers)
        model = self._table().pack(self.work)
        before = torch.dist(model[:m], mean[:m]) if len(self.details) < DETAILED else None
        self._correct(model, mean, flight.steps)
        self._unpack(model)
        self.applied += 1
        self.flight, self.met = None, True
        # This rank's count of global samples at the snapshot.
        known = self.total + flight.samples - self.counted
        self._read_control(flight.samples)
        self._note(flight, self.total - known, before, model[:m], mean[:m])

    def _correct(self, model: Tensor, mean: Tensor, steps: int) -> None:
        """Apply the rule to `model`, in place."""
        if steps == 0:
            model.copy_(mean)
        else:
            # Variances and second moments must not become negative: buffers and momenta stay between their
            # value and the mean.
            rest, target = model[self.replica.numel :], mean[self.replica.numel :]
            low, high = torch.minimum(rest, target), torch.maximum(rest, target)
            model += mean - self.copy
            rest.clamp_(low, high)

    def _unpack(self, model: Tensor) -> None:
        self.replica.load(model)
        if self.config.optimizer_state == "average":
            behind = self.replica.numel + self.replica.buffers.numel * self.rides
            self.replica.optimizer_state().unpack(model[behind:])

    def _fill_control(self) -> None:
        # No rank reads the sum of the third number, workers out of data: it is part of the recorded bytes.
        out_of_data = self.rank_samples * self.workers >= self.budget
        numbers = [self.rank_samples, self.steps, int(out_of_data), int(self.stop_requested)]
        for slot, number in zip(self.control.unbind(), numbers, strict=True):
            slot.fill_(number)  # a copy from ordinary memory would wait for the GPU

    def _read_control(self, counted: int) -> None:
        self.total, self.total_steps, _, stop_flags = self.control.tolist()
        self.counted, self.agreed = counted, stop_flags > 0

    def _wait(self, flight: Flight) -> None:
        entered = self.comm.now()
        for work in flight.works:
            work.wait()
        waited = self.comm.now() - entered
        self.run.blocked_ns += waited
        self.epoch.blocked_ns += waited

    def _average(self) -> None:
        """A blocking average of parameters and floating-point buffers, loaded into the replica."""
        if self.workers > 1 and not self.equal:
            mean = self.replica.flat()
            self.everybody(mean)
            self.replica.load(mean)
        mix_buffers(self.replica, self.comm, "average", self.everybody)

    # ---------------------------------------------------------------- memory

    def _table(self) -> Layout:
        """The layout of what is summed: parameters, then buffers and momenta if they are averaged too."""
        if self.config.optimizer_state == "average":
            self._lay_out()  # momenta appear with the first step, and in new memory after a resume
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
        self.mean = None

    def _buffer(self) -> Tensor:
        if self.mean is not None:
            free, self.mean = self.mean, None
            return free
        return self.free.pop() if self.free else self.model.empty()

    # ---------------------------------------------------------------- state and records

    def state_dict(self) -> dict[str, Any]:
        self.wait_pending()
        flown, flight = None, self.flight
        if flight is not None:
            counts = [flight.samples, flight.steps, flight.transfer_ns()]
            flown = [flight.sent, self.copy, self.control, counts]
        return {
            **super().state_dict(),
            "flight": flown,
            "mean": self.mean,  # an evaluation may be due where the run stops
            "run": asdict(self.run),
            "epoch": asdict(self.epoch),
            "details": [_read(row) for row in self.details],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._table()
        self.origin_ns = self.comm.now()
        if state["flight"] is not None:
            sent, copy, control, (samples, steps, took) = state["flight"]
            self.copy.copy_(copy)
            self.control.copy_(control)
            self.flight = Flight(self._buffer().copy_(sent), samples, self.origin_ns, [], steps, took)
        if state["mean"] is not None:
            self.mean = self._buffer().copy_(state["mean"])
        self.run, self.epoch = Rounds(**state["run"]), Rounds(**state["epoch"])
        self.details = list(state["details"])

    def record(self, progress: Progress) -> dict[str, Any]:
        """Figures of the epoch; `detail` lists its first rounds.

        `stamps_s`: launch, completion and application, in seconds since this attempt's first step. `spread`:
        ‖θ_i - mean‖ / ‖mean‖ just before and just after the application.
        `lag_samples`: how much this rank's count of global samples was too low when a round corrected it.
        """
        row = {
            **self.epoch.row(host_waits=self.comm.host_waits),
            "launched": self.launched - self.before[0],
            "steps": self.steps - self.before[1],
            "samples": self.rank_samples - self.before[2],
            "steps_of_all": self.total_steps,
            "copies": self.copies - self.before[3],
            "detail": [_read(row) for row in self.details],
        }
        self._clear_epoch()
        return row

    def summary(self) -> dict[str, Any]:
        return {
            **self.run.row(host_waits=self.comm.host_waits),
            "launched": self.launched,
            "steps": self.steps,
            "samples": self.rank_samples,
            "copies": self.copies,
            **self.final,
        }

    def labels(self, target_step: int | None) -> list[str]:
        if self.workers == 1:
            return ["one rank: nothing to average"]
        return [] if self.applied else ["no round was applied"]

    def _note(self, flight: Flight, lag: int, before: Tensor | None, model: Tensor, mean: Tensor) -> None:
        """Record the round just applied, without reading from a device."""
        now = self.comm.now()
        seconds = (now - flight.launched_ns) / 1e9
        for rounds in (self.run, self.epoch):
            rounds.add(staleness_steps=flight.steps, staleness_s=seconds, lag_samples=lag)
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
                    "spread": torch.stack([before, torch.dist(model, mean), torch.linalg.vector_norm(mean)]),
                }
            )

    def _clear_epoch(self) -> None:
        self.epoch = Rounds()
        self.details: list[dict[str, Any]] = []
        self.before = [self.launched, self.steps, self.rank_samples, self.copies]


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """A round's row with its spreads, before and after, read from the device."""
    if isinstance(row["spread"], list):
        return row
    *distances, norm = row["spread"].tolist()
    return {**row, "spread": [distance / norm if norm else 0.0 for distance in distances]}
