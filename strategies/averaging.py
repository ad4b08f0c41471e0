"""Strategies whose models move apart for a round of steps and are then averaged, and the means they use.

`PeriodicStrategy` counts the steps of a round, ends the round with a blocking average, and derives the rest
from that: sync points, agreement to stop, the evaluated model, the state of a resume. A `Mean` is a function
of a flat vector, so that a subclass can choose how an average is made.

The payload of an average is one flat vector [m + F + 1]: parameters, floating-point buffers if they travel
with them, and one element that is above 0 if a rank requests a stop.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Strategy
from .communicator import Communicator
from .errors import one_of
from .layout import Layout
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import LEADERS, NODE, WORLD, Group

Mean = Callable[[Tensor], None]
"""Replaces a flat vector [n] by its mean: in place, blocking, with the same result on every rank. All ranks
call it together."""


def world_mean(comm: Communicator, flat: Tensor, weight: float | None = None) -> None:
    """A `Mean`: Σ_r w_r·x_r over all ranks in one all-reduce; without `weight` (this rank's w_r) 1/R each."""
    if weight is not None:
        flat *= weight
    comm.all_reduce(flat, WORLD).wait()
    if weight is None:
        flat /= comm.topology.ranks


def leader_mean(comm: Communicator, flat: Tensor, weight: float | None = None) -> None:
    """A `Mean`: Σ_j w_j·x_j over nodes whose ranks are equal; without `weight` (this node's w_j) ranks / R.

    Leaders all-reduce, then broadcast in their nodes: one copy per node crosses the link.
    """
    if comm.local_rank == 0:
        flat *= len(comm.members(NODE)) / comm.topology.ranks if weight is None else weight
        comm.all_reduce(flat, LEADERS).wait()
    with comm.summing("inter"):  # the other ranks of the node wait here while their leader sums
        comm.broadcast(flat, 0, NODE).wait()


class PeriodicStrategy(Strategy):
    """Rounds of steps in which models move apart, each ended by a blocking average.

    A subclass calls `start` in its `setup`, sets `period` (steps of a round) and `samples_between_syncs`, and
    calls `replica.average_gradients_over`. While that names all ranks, there are no rounds: steps are
    synchronous. `Config` has the keys `buffers` and `optimizer_state`. Hooks: `begin_round`, `due`, `outer`.

    `since` counts the steps since the last average; 0 means equal models.
    """

    # Rounds that are longer than the distance of evaluations change what is evaluated, and how often.
    may_differ = ("strategy", "evaluation.mode", "evaluation.count")
    needs_numbers = (("optimizer_state", "average"),)  # which state an optimizer has shows in its steps only
    remembers = (
        *("since", "period", "stop_requested", "lengths", "steps_of_phase", "first_average"),
        *("averaged_after", "spreads"),
    )
    period: int = 1
    outer_steps: ClassVar[bool] = False  # whether `outer` does something: then a single rank has rounds too

    def start(self, replica: Replica, comm: Communicator, *, mean: Mean | None = None) -> None:
        """Keep replica and communicator and lay out the payload.

        `mean` averages parameters; default: over all ranks, 1/R each. Another mean need not see the vector of
        each rank, so buffers then travel alone, averaged by `everybody`.
        """
        self.replica, self.comm = replica, comm
        self.everybody: Mean = partial(world_mean, comm)
        self.mean = mean or self.everybody
        named = replica.parameters.named()
        self.buffers_ride = mean is None and self.config.buffers == "average"
        if self.buffers_ride:
            named += replica.buffers.named()
        # One table for both: the vector is as wide as the widest tensor, and each comes back in its own type.
        self.model = Layout(named, replica.parameters.device)
        self.payload = self.model.empty(extra=1)
        self.since = 0
        self.stop_requested = self.agreed = False
        self.lengths: Counter[int] = Counter()  # steps of a complete round -> how often
        self.partial_round = 0
        self.steps_of_phase: Counter[str] = Counter()
        self.first_average: int | None = None
        self._clear_epoch()

    def start_alone(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        """`start`, for ranks that train by themselves for rounds of `sync_every` steps."""
        self.start(replica, comm)
        self.period = self.config.sync_every
        if not self.holds_all(None):
            self.samples_between_syncs = samples_of_round(self.period, progress)
        replica.average_gradients_over(None)

    @classmethod
    def communication_share(cls, config: Any, plan: Plan, steps: int) -> float:
        """Each complete round ends with an average, where `sync_every` is the number of its steps."""
        every = getattr(config, "sync_every", None)
        return steps // every / steps if isinstance(every, int) else 0.0

    @classmethod
    def copies_held(cls, config: Any, plan: Plan, memory: RankMemory) -> float:
        """The payload, and what undoes the first step or is put aside in an evaluation; averaged momenta."""
        momenta = memory.states if config.optimizer_state == "average" else 0
        waiting = memory.copies(cls.round_samples(config, plan))
        return 1 + max(1, momenta, waiting) + 2 * cls.outer_steps

    @classmethod
    def round_samples(cls, config: Any, plan: Plan) -> float:
        """Global samples of the longest round, where `sync_every` is the number of its steps."""
        every = getattr(config, "sync_every", None)
        return samples_of_round(every, plan) if isinstance(every, int) else 0

    # ---------------------------------------------------------------- hooks

    def begin_round(self, progress: Progress) -> None:
        """A round begins: its first gradients are computed, its learning rate is set, models are equal."""

    def due(self, progress: Progress) -> bool:
        """Whether the last step ends the round; `since` counts it already. Equal on all ranks."""
        return self.since >= self.period

    def outer(self, mean: Tensor, progress: Progress) -> None:
        """Change the mean [m] of a complete round, in place, into the parameters to continue with."""

    # ---------------------------------------------------------------- calls of the trainer

    @property
    def rounds(self) -> int:
        """Complete rounds of the whole run."""
        return self.lengths.total()

    @property
    def synchronous(self) -> bool:
        """Whether steps leave equal models equal, because gradients are averaged over all ranks."""
        return not self.outer_steps and self.holds_all(self.replica.averaging.group)

    def holds_all(self, group: Group | None) -> bool:
        """Whether `group` has all ranks; None stands for this rank alone."""
        members = 1 if group is None else len(self.comm.members(group))
        return members == self.comm.topology.ranks

    def before_step(self, progress: Progress) -> None:
        self.agreed = False
        if self.since == 0 and not self.synchronous:
            self.begin_round(progress)

    def after_step(self, progress: Progress) -> None:
        self.steps_of_phase["synchronous" if self.synchronous else "local"] += 1
        if self.synchronous:
            return
        self.since += 1
        if self.due(progress):
            self.lengths[self.since] += 1
            self.averaged_after.append(progress.step + 1)
            if self.first_average is None:
                self.first_average = progress.step + 1
            self._average(progress)
            mix_optimizer_state(self.replica, self.config.optimizer_state, self.everybody)

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        if self.synchronous:
            return stop_requested
        # A payload has carried the request to all ranks; a later request waits for the next payload.
        self.stop_requested = (self.stop_requested or stop_requested) and not self.agreed
        return self.agreed

    def is_sync_point(self, progress: Progress) -> bool:
        return self.since == 0 or progress.last_step

    def snapshot(self, progress: Progress) -> Callable[[], Tensor]:
        return mean_of_snapshots(self.replica, self.comm, self.config.buffers, self.mean, self.everybody)

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        with self.replica.kept():
            if self.since:
                mean = self.replica.flat(self.payload)[: self.replica.numel]
                self.mean(mean)
                self.replica.load(mean)
            # `none` is about training: an evaluated model has one set of statistics in any case.
            if self.since or self.synchronous or self.config.buffers == "none":
                mix_buffers(self.replica, self.comm, self.config.buffers, self.everybody)
            yield

    def finalize(self) -> None:
        if self.since:
            self.partial_round = self.since
            self._average(None)

    # ---------------------------------------------------------------- records

    def record(self, progress: Progress) -> dict[str, Any]:
        """`spread`: ‖θ_i - mean‖ / ‖mean‖ of this rank just before the epoch's last average."""
        row = {
            "period": self.period,
            "rounds": len(self.averaged_after),
            "averaged_after": self.averaged_after,
            "since": self.since,
            "spread": self.spreads[-1] if self.spreads else None,
            "largest_spread": max(self.spreads, default=None),
        }
        self._clear_epoch()
        return row

    def summary(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "steps_of_rounds": sum(length * count for length, count in self.lengths.items()),
            "rounds_of_length": {str(length): count for length, count in sorted(self.lengths.items())},
            "steps_of_last_partial_round": self.partial_round,
            "steps_of_phase": dict(self.steps_of_phase),
        }

    def labels(self, target_step: int | None) -> list[str]:
        if self.comm.topology.ranks == 1:
            return ["one rank: nothing to average"]
        if not self.steps_of_phase["local"]:
            return ["no local steps: all were synchronous"]
        if self.rounds < 2:
            return [f"fewer than two complete rounds ({self.rounds})"]
        if target_step is not None and (self.first_average or 0) > target_step:
            return ["no average before the target"]
        return []

    # ---------------------------------------------------------------- the average

    def _average(self, progress: Progress | None) -> None:
        """End the round with the mean; with `progress` also with `outer`."""
        flat, m = self.payload, self.replica.numel
        self.model.pack(flat)
        self.comm.write_stop_flag(flat[-1], self.stop_requested or self.replica.stop_requested)
        self.mean(flat)
        mean = flat[:m]
        off = self.replica.flat().to(mean.dtype)
        off -= mean
        norms = [torch.linalg.vector_norm(vector) for vector in (mean, off)]
        # One read of the device for all three numbers.
        size, distance, stop_flags = torch.stack([*norms, flat[-1]]).tolist()
        self.spreads.append(distance / size if size else 0.0)
        if progress is not None:
            self.outer(mean, progress)
        self.model.unpack(flat)
        if not self.buffers_ride and self.config.buffers != "none":
            mix_buffers(self.replica, self.comm, self.config.buffers, self.everybody)
        # Weights are positive: the mean of the stop flags is above 0 if any rank requests a stop.
        self.agreed = stop_flags > 0
        self.since = 0

    def _clear_epoch(self) -> None:
        self.averaged_after: list[int] = []
        self.spreads: list[float] = []


def mix_buffers(replica: Replica, comm: Communicator, policy: str, mean: Mean) -> None:
    """Give all ranks one set of floating-point buffers: rank 0's (`broadcast`), else the mean."""
    if replica.buffers.numel and comm.topology.ranks > 1:
        flat = replica.buffers.pack()
        if policy == "broadcast":
            comm.broadcast(flat, 0, WORLD).wait()
        else:
            mean(flat)
        replica.buffers.unpack(flat)


def mix_optimizer_state(replica: Replica, policy: str, mean: Mean) -> None:
    """Keep the optimizer's state where it is, forget it (`reset`), or replace it by its mean (`average`)."""
    if policy == "reset":
        replica.optimizer.state.clear()
    elif policy == "average":
        state = replica.optimizer_state()
        if state.numel:
            flat = state.pack()
            mean(flat)
            state.unpack(flat)


def mean_of_snapshots(
    replica: Replica, comm: Communicator, policy: str, mean: Mean, everybody: Mean
) -> Callable[[], Tensor]:
    """For `Strategy.snapshot`: parameters by `mean`, buffers by `everybody` or from rank 0 (`broadcast`)."""
    copy = replica.model_vector()

    def assemble() -> Tensor:
        model = copy.clone()
        if mean is everybody and policy != "broadcast":
            everybody(model)  # both in one message
            return model
        parameters, buffers = model[: replica.numel], model[replica.numel :]
        mean(parameters)
        if buffers.numel() and policy == "broadcast":
            comm.broadcast(buffers, 0, WORLD).wait()
        elif buffers.numel():
            everybody(buffers)
        return model

    return assemble


def samples_of_round(period: int, progress: Progress | Plan, *, ends_with_epoch: bool = False) -> int:
    """For `Strategy.samples_between_syncs`: global samples of a round of `period` steps.

    `ends_with_epoch`: the end of an epoch ends a round. The last batch of an epoch may have one sample.
    """
    steps, batch = progress.steps_per_epoch or 0, progress.global_batch_size
    return (steps - 1) * batch + 1 if ends_with_epoch and period >= steps else period * batch


def check_policies(config: Any) -> None:
    """Refuse unknown values of the keys that all periodic strategies have."""
    one_of("strategy.buffers", config.buffers, ["average", "broadcast", "none"])
    one_of("strategy.optimizer_state", config.optimizer_state, ["keep", "average", "reset"])
