"""Training batches from a packed file: read ahead by a thread, decoded by the rank that uses them."""

import math
from dataclasses import asdict, fields, replace
from typing import Any

import torch

from ...datasets.augmentation import epoch_key
from ...datasets.packed.counters import Counters, Tally
from ...datasets.packed.feeding import Feeder, FeederGone, Member
from ...datasets.packed.slots import Geometry, Part
from ...strategies.communicator import Communicator
from ...strategies.errors import MachineError
from ...strategies.progress import Progress
from ...strategies.topology import NODE
from ..loader import Images, Loader
from . import page_cache
from .base import PackedReader
from .feed import ReaderFeed
from .lines import NodeLines, open_alone


class PackedLoader(Loader):
    """The batches of a `ReaderFeed`, which are those of its pieces by index, bit for bit.

    The reader of a node lives in the node's first rank; one of a rank, in that rank. It begins with the first
    batch that is asked for: reading that one is waited for, in training time.
    """

    def __init__(self, feed: ReaderFeed, samples: Any, seed: int, comm: Communicator) -> None:
        super().__init__(samples, feed, seed)
        self._feed, self._comm = feed, comm
        self._shared = feed.reader.by_node and comm.topology.ranks_of_nodes[comm.node] > 1
        self._lines: NodeLines | None = None
        self._feeder: Feeder | None = None
        self._member: Member | None = None
        self._tally = Tally()
        self._before = Counters()  # of earlier attempts
        self._useful_bytes, self._waited_s = 0, 0.0

    def prepare(self) -> None:
        """Get to know the ranks of the node, which all call it; bring the cache to the state asked for."""
        reader = self._feed.reader
        if self._comm.local_rank == 0:
            self._look_at_cache(reader)
        if reader.by_node:
            self._lines = NodeLines(self._comm)

    def next(self, progress: Progress) -> Images:
        """The batch of the present step. Raises MachineError: a record is damaged, the reader has ended."""
        place = self._feed.place(progress)
        if self._member is None:
            self._begin(progress)
        assert self._member is not None
        try:
            part = next(self._member)
        except FeederGone as error:
            raise MachineError(f"reader={self._feed.reader.name}: {error}") from error
        if (part.number, part.step) != place:
            raise RuntimeError(f"the reader is at {(part.number, part.step)}, the step at {place}")
        images = self._images(part, epoch_key(self.seed, place[0]))
        self._useful_bytes += part.content.nbytes
        self._member.release()  # all of it is copied; others wait for the room
        return images

    def restart(self) -> None:
        """See `Loader`; all ranks of the node call it."""
        if self._member is None:
            return
        if self._shared:  # the first rank must not hang up before the others have their last parts
            self._comm.barrier(NODE)
        self._waited_s += self._member.waited_s
        self._member.close()
        if self._feeder is not None:
            self._feeder.close()
        self._member = self._feeder = None

    def training(self, on: bool) -> None:
        """See `Loader`."""
        if self._feeder is not None:
            self._feeder.hold(not on)

    def close(self) -> None:
        """See `Loader`; all ranks of the node call it."""
        self.restart()
        if self._lines is not None:
            self._lines.close()

    def counters(self) -> Counters:
        """What this rank has read, and has had of what was read, so far."""
        waited = self._waited_s + (0.0 if self._member is None else self._member.waited_s)
        here = replace(self._tally.counters(), useful_bytes=self._useful_bytes, waited_s=waited)
        names = [field.name for field in fields(Counters)]
        return Counters(**{name: getattr(here, name) + getattr(self._before, name) for name in names})

    def state_dict(self) -> dict[str, Any]:
        """The counters, and how the cache was."""
        return {**asdict(self.counters()), "lacking": self.lacking}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from there."""
        counts = dict(state)
        self.lacking = _worse(self.lacking, counts.pop("lacking"))
        self._before = Counters(**counts)

    def _look_at_cache(self, reader: PackedReader) -> None:
        make = page_cache.drop if reader.cold else page_cache.read_in if reader.warm else page_cache.cached
        self.still_cached = make(self._feed.set.packed.path)
        if reader.cold or reader.warm:
            share = math.nan if self.still_cached is None else self.still_cached
            self.lacking = _worse(self.lacking, share if reader.cold else 1 - share)

    def _begin(self, progress: Progress) -> None:
        feed, reader = self._feed, self._feed.reader
        if self._lines is None:
            lines, own = open_alone()
        else:
            lines, own = self._lines.open()
        if lines:
            stretches, place = (
                feed.stretches(progress),
                self._comm.node if reader.by_node else self._comm.rank,
            )
            source = reader.read(feed.set.packed, stretches, place, self._tally, feed.seed)
            geometry = Geometry.of(feed.set.packed, self._most(), depth=reader.prefetch_batches + 1)
            self._feeder = Feeder(feed.set.packed, source, lines, geometry, self._tally)
        self._member = Member(own)

    def _most(self) -> int:
        """Records of the reader in a step, at most."""
        epoch, comm = self._feed.epoch(), self._comm
        ranks = epoch.members(comm.node) if self._feed.reader.by_node else [comm.rank]
        return max(sum(epoch.sizes(step)[rank] for rank in ranks) for step in {0, epoch.steps - 1})

    def _images(self, part: Part, key: int) -> Images:
        records = torch.from_numpy(part.records).clone()
        labels = torch.from_numpy(part.labels).clone()
        return self._feed.set.stored.images(part, self._feed.set.order[records], key), labels


def _worse(one: float, other: float) -> float:
    """The larger; what is not known is worse than any."""
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)
