"""The replica in virtual time: real gradients, modelled step times, DDP's buckets summed during backward.

Computing forward and backward passes no virtual time; then the rank's clock advances by the time that its
device would have taken. With overlap each bucket's sum starts when the last of its gradients is ready, in
the order of the backward pass. A `Reduction` runs in a simulated helper thread, its buckets in a `Pipeline`,
as it does in a real one over real processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from ...strategies.communicator import Work
from ...strategies.gradients import Pipeline, by_samples, uniform
from ...strategies.replica import Batch, Replica, StepTimes
from ..training.device_model import Device, Profile
from ..training.precision import is_lost, outputs_of
from ..training.workload import generator_states, set_generators
from .gradient_pool import GradientPool
from .rank_compute import Pending, has_dropout
from .simulated_communicator import SimulatedCommunicator


@dataclass(frozen=True)
class Bucket:
    """Gradients [low, high) that travel together once the share `ready` of the backward pass is done.

    `numbers`: size in the model whose times are simulated; high - low if that is the model that trains.
    """

    low: int
    high: int
    numbers: int
    ready: float
    shapes: tuple[tuple[int, ...], ...]


def covered(spans: Sequence[tuple[int, int]], low: int, high: int) -> int:
    """How much of [low, high] lies in at least one span."""
    total, until = 0, low
    for start, end in sorted(spans):
        start, end = max(start, until), min(end, high)
        if end > start:
            total, until = total + end - start, end
    return total


Begun = Callable[[], tuple[Tensor, bool]]
"""Gives the loss [] of a step that has begun, and whether it is finite."""


class SimulatedReplica(Replica):
    """See the module. `profile`: of the model whose times are simulated; default: this model's sizes."""

    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        comm: SimulatedCommunicator,
        device: Device,
        profile: Profile | None = None,
        pool: GradientPool | None = None,
    ) -> None:
        super().__init__(model, criterion)
        self.parameters.lay_out()
        self.comm = comm
        self.device = device
        self._profile, self._pool = profile, pool or GradientPool()
        self._named = dict(model.named_parameters())
        self._named_buffers = dict(model.named_buffers())
        self._has_dropout = has_dropout(model)
        self._rng = generator_states(self.parameters.device)
        self._buckets: list[Bucket] = []
        self._line: Work | None = None
        self._pipeline = Pipeline()
        self._weights: dict[tuple[int, ...], float] = {}
        # Gradients computed in a stack, one after the other, and last the stop flag.
        self._vector = self.parameters.empty(extra=1)
        self._in_vector = self.parameters.views(self._vector)

    def compute_gradients(self, batch: Batch) -> Tensor:
        loss = self._compute(batch)
        self._unscale()
        self.times.append(StepTimes(batch.samples_of_rank, self.forward_ns, self.compute_ns))
        return loss

    def _compute(self, batch: Batch) -> Tensor:
        """Forward, backward and the average; gradients are multiplied by the loss scale, if there is one."""
        averaging, comm = self.averaging, self.comm
        members = comm.members(averaging.group) if averaging.group is not None else ()
        weight = self._weight(batch, members)
        blank = len(batch.targets) == 0
        scaled = averaging.scale == "loss" and weight != 1
        loss = self._begin(batch, weight if scaled else 1.0)
        forward, backward = self._step_ns(len(batch.targets))
        started_ns = self.device.bucket_ns * len(self._buckets) if len(members) > 1 else 0
        backward, self.compute_ns = backward + started_ns, self.compute_ns + started_ns
        self._draw(forward, backward)
        if len(members) > 1:
            # 0 · NaN is NaN: the gradient of a blank sample is not added.
            weight = 0.0 if blank else 1.0 if scaled else weight
            if averaging.overlap and averaging.reduction is None:
                return self._sum_buckets_at_once(loss, weight, forward, backward)
            return self._sum_one_by_one(loss, weight, forward, backward)
        comm.simulator.advance(comm.rank, forward + backward)
        return self._done(loss, blank)

    def _weight(self, batch: Batch, members: Sequence[int]) -> float:
        """`averaging.weight`, which looks at every member; cached for the two batch splits that alternate."""
        sizes = batch.samples_of_rank
        if self.averaging.weights not in (by_samples, uniform):  # others may look at more than sizes
            return self.averaging.weight(batch, members, self.comm.rank)
        if sizes not in self._weights:
            if len(self._weights) > 1:
                self._weights.clear()
            self._weights[sizes] = self.averaging.weight(batch, members, self.comm.rank)
        return self._weights[sizes]

    def _step_ns(self, samples: int) -> tuple[int, int]:
        """Nanoseconds until the last part's backward pass, and of that pass: only it overlaps with sums."""
        *earlier, last = [self.device.step_ns(part.stop - part.start) for part, _ in self.parts(samples)]
        before = sum(forward + backward for forward, backward in earlier)
        self.forward_ns = last[0] + sum(forward for forward, _ in earlier)
        self.compute_ns = before + sum(last)
        return before + last[0], last[1]

    def _draw(self, forward: int, backward: int) -> None:
        """Add the step that begins now to the timeline: nothing interrupts it."""
        comm, timeline = self.comm, self.comm.simulator.timeline
        if timeline is not None:
            began = comm.now()
            timeline.compute(comm.rank, began, began + forward, "forward")
            timeline.compute(comm.rank, began + forward, began + forward + backward, "backward")

    def time_steps(self, samples: int, steps: int) -> list[float]:
        took = [sum(self._step_ns(samples)) for _ in range(steps)]
        self.comm.simulator.advance(self.comm.rank, sum(took))
        return [nanoseconds / 1e9 for nanoseconds in took]

    def rng_state(self) -> dict[str, Tensor]:
        return {**self._rng, "device": torch.tensor(self.device.drawn)}

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        self._rng = {name: state[name] for name in self._rng}
        self.device.drawn = int(state["device"])

    def _begin(self, batch: Batch, weight: float) -> Begun:
        """Begin a step that leaves `weight` times the gradients of its loss in the parameters."""
        if self._bound_gradients is not None:
            self._clear_gradients()
        pool, home = self._pool, self.parameters.home_now()
        in_vector = self._bound_gradients is None and home is not None
        pending = Pending(
            self.model,
            self.criterion,
            self._named,
            self._named_buffers,
            batch.inputs,
            batch.targets,
            weight,
            partial(self._forward_and_backward, batch, weight),
            self._why_alone(),
            self.autocast,
            home,
            (self._vector[:-1], self._in_vector) if in_vector else None,
        )
        pool.submit(pending)
        return partial(pool.result, pending)

    def _done(self, begun: Begun, blank: bool) -> Tensor:
        """The loss of this rank's batch, 0 without samples; sets `stop_requested`."""
        loss, finite = begun()
        if blank:
            loss, finite = torch.zeros_like(loss), True
            self._clear_gradients()
        self.stop_requested = self.requests_stop or not finite or is_lost(self.scaler)
        return loss

    def _why_alone(self) -> str | None:
        """Why steps of this rank share no call with those of others, if they may not."""
        if self.accumulate > 1:
            return f"train.accumulate={self.accumulate}: a batch is computed as a whole"
        if self.scaler is not None:
            return "train.precision=fp16: each rank scales its own loss"
        return "the model has dropout, and random numbers are each rank's own" if self._has_dropout else None

    def _forward_and_backward(self, batch: Batch, weight: float) -> Tensor:
        """The loss [] of the batch, detached; `weight` times its gradients lie in the parameters."""
        self._clear_gradients()
        device = self.parameters.device
        shared = generator_states(device)
        set_generators(self._rng, device)
        losses: list[Tensor] = []
        with self.stand_in(batch) as (inputs, targets):
            for part, share in self.parts(len(targets)):
                outputs = outputs_of(self.model, inputs[part], self.autocast)
                loss, scale = self.criterion(outputs, targets[part]), weight * share
                weighted = loss if scale == 1 else loss * scale
                (weighted if self.scaler is None else self.scaler.scale(weighted)).backward()
                losses.append(loss.detach() if share == 1 else share * loss.detach())
        self._rng = generator_states(device)
        set_generators(shared, device)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _averaging_changed(self) -> None:
        self._weights.clear()
        slots = self.parameters.slots
        numels = [slot.numel for slot in slots]
        profile = self._profile or Profile.by_size(numels)
        buckets = profile.buckets(self.parameters.empty().element_size(), self.averaging.bucket_mib)
        ends, is_this_model = [0, *accumulate(profile.numels)], list(profile.numels) == numels
        # Buckets of another model are the same shares of this model's vector.
        scale = self.parameters.numel / max(1, ends[-1])
        self._buckets = [
            Bucket(
                low=round(ends[first] * scale),
                high=round(ends[last] * scale),
                numbers=ends[last] - ends[first],
                ready=profile.ready[first],
                shapes=tuple(slot.shape for slot in slots[first:last]) if is_this_model else (),
            )
            for first, last in buckets
        ] or [Bucket(0, 0, 0, 1.0, ())]

    def _sum_buckets_at_once(self, begun: Begun, weight: float, forward: int, backward: int) -> Tensor:
        """Sum the buckets during the backward pass; returns this rank's loss."""
        comm, group = self.comm, self.averaging.group
        losses: list[Tensor] = []
        assert group is not None
        began, size = comm.now() + forward, self._vector.element_size()

        def give() -> Tensor:
            losses.append(self._done(begun, blank=weight == 0))
            return self._given(weight)

        # The stop flag is the last number of the first bucket.
        payloads = [size * (bucket.numbers + (not index)) for index, bucket in enumerate(self._buckets)]
        times = [began + round(backward * bucket.ready) for bucket in self._buckets]
        if self.device.overlap_loss and len(times) > 1:
            # The last bucket waits for the time that the earlier sums cost the backward pass.
            earlier = comm.all_reduce_buckets(group, lambda: self._vector[:0], payloads[:-1], times[:-1])
            comm.simulator.advance(comm.rank, forward + backward)
            self._lose(covered(earlier.spans(), began, comm.now()))
            work = comm.all_reduce_buckets(group, give, payloads[-1:], [comm.now()])
            earlier.wait()
        else:
            work = comm.all_reduce_buckets(group, give, payloads, times)
            comm.simulator.advance(comm.rank, forward + backward)
        work.wait()
        assert work.total is not None
        self._take(work.total)
        return losses[0]

    def _sum_one_by_one(self, begun: Begun, weight: float, forward: int, backward: int) -> Tensor:
        """Sum the buckets in another way than one all-reduce each, or after the backward pass."""
        averaging, comm = self.averaging, self.comm
        began, sums = comm.now(), []
        self._line = None
        comm.helper_operations.clear()
        first = self._buckets[0].ready if averaging.overlap else 1.0
        comm.simulator.advance(comm.rank, forward + round(backward * first))
        loss = self._done(begun, blank=weight == 0)
        flat = self._weighted(weight)
        for index, bucket in enumerate(self._buckets):
            there = forward + round(backward * bucket.ready) if averaging.overlap else forward + backward
            comm.simulator.advance(comm.rank, max(0, began + there - comm.now()))
            if averaging.overlap and index == len(self._buckets) - 1:
                # The last bucket waits for the time that the earlier sums cost the backward pass.
                self._lose(self._summed_by_helpers(began + forward, comm.now()))
            sums.append(self._start_sum(flat, index))
            if not averaging.overlap:
                sums[-1].wait()
        for work in sums:
            work.wait()
        self._take(flat)
        return loss

    def _given(self, weight: float) -> Tensor:
        """This rank's addend in a sum of all buckets."""
        return self._weighted(weight)

    def _weighted(self, weight: float) -> Tensor:
        """This rank's addend in the sum, [m + 1]: `weight` times the gradients, and the stop flag."""
        vector = self._vector
        if weight == 0:
            vector.zero_()
        else:
            self.gradients(vector)
            if weight != 1:
                vector *= weight
        self.comm.write_stop_flag(vector[-1], self.stop_requested)
        return vector

    def gradients(self, out: Tensor | None = None) -> Tensor:
        if out is self._vector and self._gradients_lie_in_vector():
            return self._vector
        return super().gradients(out)

    def _take(self, total: Tensor) -> None:
        """Write the sum into the gradients that the optimizer reads; see who requests a stop."""
        if not self._gradients_lie_in_vector():
            self.load_gradients(total)
        elif total is not self._vector:
            self._vector[:-1].copy_(total[:-1])
        self.stop_requested = self.comm.stop_possible and total[-1].item() != 0

    def _gradients_lie_in_vector(self) -> bool:
        # All of them or none: they were computed in a stack, or by this rank alone.
        return len(self._in_vector) > 0 and self.parameters.tensors[0].grad is self._in_vector[0]

    def _start_sum(self, flat: Tensor, index: int) -> Work:
        averaging, comm, bucket = self.averaging, self.comm, self._buckets[index]
        assert averaging.group is not None
        reduction, before = averaging.reduction, self._line
        shapes = list(bucket.shapes or [(bucket.high - bucket.low,)])
        piece = flat[bucket.low : bucket.high]
        if index == 0:
            piece, shapes = flat[bucket.low : bucket.high + 1], [*shapes, (1,)]
        if reduction is None:
            return comm.all_reduce(piece, averaging.group, channel="gradients", async_op=True)
        last = index == len(self._buckets) - 1 or not averaging.overlap

        def work() -> None:
            if before is not None:
                before.wait()
            self._pipeline.add(reduction.levels(piece, index, shapes, comm), lambda: None, last=last)

        self._line = comm.start_helper(work)
        return self._line

    def _summed_by_helpers(self, low: int, high: int) -> int:
        """How much of [low, high] operations of reductions were under way."""
        operations = self.comm.helper_operations
        return covered(
            [(o.start, high if o.end is None else o.end) for o in operations if o.start is not None],
            low,
            high,
        )

    def _lose(self, summed_ns: int) -> None:
        """Extend the backward pass by what sums under way for `summed_ns` nanoseconds of it cost."""
        comm, lost = self.comm, round(summed_ns * self.device.overlap_loss)
        timeline = comm.simulator.timeline
        if lost and timeline is not None:
            timeline.compute(comm.rank, comm.now(), comm.now() + lost, "backward")
        comm.simulator.advance(comm.rank, lost)
