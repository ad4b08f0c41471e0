"""The clock of batch normalisation whose statistics are those of several ranks, as torch.nn.SyncBatchNorm.

In the forward pass every such layer gathers mean, inverse deviation and count of its ranks, 2C + 1 numbers
of each; in the backward pass it sums two gradients, 2C numbers. Both are waited for where they stand: sums of
gradients go on beside, the rank does not.
"""

from collections.abc import Callable

from torch import Tensor

from ..strategies.communicator import Work
from ..strategies.replica import Batch
from ..strategies.topology import NODE, WORLD, Group
from .simulated_communicator import TrainWork
from .simulated_replica import covered
from .timing_only import TimedReplica

SCOPES: dict[str, Group] = {"node": NODE, "world": WORLD}
NUMBER = 4  # bytes: statistics are fp32 whatever the model is


class NormedReplica(TimedReplica):
    """A timed replica of a model with such layers. `normed_over`: whose statistics they take."""

    normed_over: Group = WORLD

    def _compute(self, batch: Batch) -> Tensor:
        assert self._profile is not None
        comm, averaging = self.comm, self.averaging
        begun = self._begin(batch, 1.0)
        forward, backward = self._step_ns(len(batch.targets))
        self._forget_sums()
        norms = self._profile.norms
        gathers = [(1 - share, self._gather(channels)) for channels, share in reversed(norms)]
        self._walk("forward", forward, gathers)
        loss = self._done(begun, blank=len(batch.targets) == 0)
        self._weighted(1.0)
        # A share of 1: below the first layer that is trained, where backward does not come.
        marks = [(share, self._sum(channels)) for channels, share in norms if share < 1]
        works: list[Work] = []
        last: list[Callable[[], None]] = []
        if averaging.group is not None and len(comm.members(averaging.group)) > 1:
            *early, final = [self._start(index, works) for index in range(len(self._buckets))]
            if averaging.overlap:
                marks += zip((bucket.ready for bucket in self._buckets), early, strict=False)
                last = [final]
            else:
                last = [*early, final]
        computed = self._walk("backward", backward, sorted(marks, key=lambda mark: mark[0]))
        self._lose(sum(self._beside(works, low, high) for low, high in computed))
        for start in last:
            start()
            if not averaging.overlap:
                works[-1].wait()
        for work in works:
            work.wait()
        if works:
            first = works[0].total if isinstance(works[0], TrainWork) else None
            self._take(self._vector if first is None else first)
        return loss

    def _walk(
        self, name: str, whole: int, marks: list[tuple[float, Callable[[], None]]]
    ) -> list[tuple[int, int]]:
        """Compute for `whole` nanoseconds, and at each share of them do what is to be done there.

        Returns from when to when it computed.
        """
        comm, done, computed = self.comm, 0, []
        for share, act in [*marks, (1.0, lambda: None)]:
            until, now = round(whole * share), comm.now()
            then = now + until - done
            computed.append((now, then))
            if comm.simulator.timeline is not None:
                comm.simulator.timeline.compute(comm.rank, now, then, name)
            comm.simulator.advance(comm.rank, until - done)
            done = until
            act()
        return computed

    def _beside(self, works: list[Work], low: int, high: int) -> int:
        """How much of [low, high] buckets were summed in."""
        spans = [span for work in works if isinstance(work, TrainWork) for span in work.spans()]
        return covered(spans, low, high) + self._summed_aside(low, high)

    def _gather(self, channels: int) -> Callable[[], None]:
        return lambda: self.comm.blocking("all_gather", self.normed_over, NUMBER * (2 * channels + 1))

    def _sum(self, channels: int) -> Callable[[], None]:
        return lambda: self.comm.blocking("all_reduce", self.normed_over, NUMBER * 2 * channels)

    def _start(self, index: int, works: list[Work]) -> Callable[[], None]:
        comm, group, bucket = self.comm, self.averaging.group, self._buckets[index]
        assert group is not None
        payload = self._vector.element_size() * (bucket.numbers + (not index))

        def start() -> None:
            if self.averaging.reduction is None:
                works.append(comm.all_reduce_train(group, lambda: self._given(1.0), [payload], [comm.now()]))
            else:
                works.append(self._start_sum(self._vector, index))

        return start
