"""The clock of batch normalisation whose statistics are those of several ranks, as torch.nn.SyncBatchNorm.

In the forward pass every such layer gathers mean, inverse deviation and count of its ranks, 2C + 1 numbers
of each; in the backward pass it sums two gradients, 2C numbers. Both are waited for where they stand: sums of
gradients go on beside, the rank does not.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..strategies.replica import Batch
from ..strategies.topology import NODE, WORLD, Group
from .simulated_communicator import TrainWork
from .timing_only import TimedReplica

SCOPES: dict[str, Group] = {"node": NODE, "world": WORLD}
NUMBER = 4  # bytes: statistics are fp32 whatever the model is


class NormedReplica(TimedReplica):
    """A timed replica of a model with such layers. `normed_over`: whose statistics they take."""

    normed_over: Group = WORLD

    def compute_gradients(self, batch: Batch) -> Tensor:
        assert self._profile is not None
        comm, averaging = self.comm, self.averaging
        began = self._begin(batch, 1.0)
        forward, backward = self.device.step_ns(len(batch.targets))
        self.forward_ns, self.compute_ns = forward, forward + backward
        self._draw(forward, backward)
        norms = self._profile.norms
        self._walk(forward, [(1 - share, self._gather(channels)) for channels, share in reversed(norms)])
        loss = self._done(began, blank=len(batch.targets) == 0)
        works: list[TrainWork] = []
        marks: list[tuple[float, Callable[[], None]]] = [
            (share, self._sum(channels)) for channels, share in norms
        ]
        summed = averaging.group is not None and len(comm.members(averaging.group)) > 1
        if summed:
            marks += [
                (bucket.ready if averaging.overlap else 1.0, self._start(index, works))
                for index, bucket in enumerate(self._buckets)
            ]
        turned, marks = comm.now(), sorted(marks, key=lambda mark: mark[0])
        self._walk(backward, [mark for mark in marks if mark[0] < 1])
        beside = sum(work.beside(turned, comm.now()) for work in works)
        comm.simulator.advance(comm.rank, round(beside * self.device.overlap_loss))
        for share, start in marks:
            if share == 1:  # what sums cost the backward pass, its last bucket waits for
                start()
        for work in works:
            work.wait()
        if summed:
            assert works[0].total is not None
            self._take(works[0].total)
        return loss

    def _walk(self, whole: int, marks: list[tuple[float, Callable[[], None]]]) -> None:
        """Compute for `whole` nanoseconds, and at each share of them do what is to be done there."""
        done = 0
        for share, act in marks:
            until = round(whole * share)
            self.comm.simulator.advance(self.comm.rank, until - done)
            done = until
            act()
        self.comm.simulator.advance(self.comm.rank, whole - done)

    def _gather(self, channels: int) -> Callable[[], None]:
        return lambda: self.comm.blocking("all_gather", self.normed_over, NUMBER * (2 * channels + 1))

    def _sum(self, channels: int) -> Callable[[], None]:
        return lambda: self.comm.blocking("all_reduce", self.normed_over, NUMBER * 2 * channels)

    def _start(self, index: int, works: list[TrainWork]) -> Callable[[], None]:
        group, bucket = self.averaging.group, self._buckets[index]
        assert group is not None
        wish = torch.tensor([float(self.wished)])
        payload = self._vector.element_size() * (bucket.numbers + (not index))

        def start() -> None:
            works.append(self.comm.all_reduce_train(group, lambda: wish, [payload], [self.comm.now()]))

        return start
