"""Loader of training batches from a packed file, their order, and the connections of a node's ranks."""

import hashlib
import math
import multiprocessing
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ...datasets.packed.feeder import Feeder, FeederGone, Geometry, Member
from ...datasets.packed.readers import Counters, CounterTally
from ...datasets.packed.record_order import Epoch, EpochSlice, steps
from ...datasets.sampler import Sampler
from ...datasets.transforms import epoch_key
from ...strategies.errors import ConfigError, MachineError
from ...strategies.progress import Progress
from ...strategies.topology import NODE
from ..communication.traffic import CountedCommunicator
from ..config.reader_config import PackedReader
from ..machine import page_cache
from .batch_order import GlobalOrder, Place
from .loader import Images, Loader
from .packed_set import PackedSet

_KEY_BYTES = 16


class ReaderOrder(GlobalOrder):
    """A `GlobalOrder` whose samples the reader chooses, by their numbers in the data set.

    seed: of the run's data order. Raises ConfigError where the reader cannot divide the file among the nodes.
    """

    def __init__(
        self,
        sampler: Sampler,
        rank: int,
        ranks_of_nodes: tuple[int, ...],
        reader: PackedReader,
        packed_set: PackedSet,
        seed: int,
    ) -> None:
        super().__init__(sampler, rank)
        self.reader, self.set, self.seed = reader, packed_set, seed
        self._ranks_of_nodes = ranks_of_nodes
        reader.check(packed_set.packed, len(ranks_of_nodes))
        self._order = reader.order(packed_set.packed, seed)

    def piece(self, progress: Progress) -> Tensor:
        return self._samples(self.epoch(), *self.place(progress))

    def upcoming(self, progress: Progress) -> Iterator[tuple[Place, Tensor]]:
        for part, step in steps(self.slices(progress)):
            yield (part.number, step), self._samples(part.epoch, part.number, step)

    def slices(self, progress: Progress) -> Iterator[EpochSlice]:
        """This step and all later ones, as long as the split does not change, in the form for readers."""
        (first, step), epoch = self.place(progress), self.epoch()
        for number in range(first, progress.epochs):
            yield EpochSlice(number=number, epoch=epoch, step=step if number == first else 0)

    def epoch(self) -> Epoch:
        """The division of an epoch by the present shares."""
        return Epoch.of(self.sampler, self._ranks_of_nodes, *self._split())

    def digest(self, batches: int) -> str:
        """A digest of the samples of the first global batches, whichever rank gets them."""
        digest, epoch, ranks = hashlib.blake2b(digest_size=8), self.epoch(), range(self.sampler.ranks)
        for place in range(batches):
            number, step = divmod(place, epoch.steps)
            batch = torch.cat([self._samples(epoch, number, step, rank) for rank in ranks])
            digest.update(batch.sort().values.numpy().tobytes())
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        return {"source": self.set.packed.description.source}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        source = self.set.packed.description.source
        if state["source"] != source:
            raise ConfigError(
                f"{self.set.packed.path}: is another file (of samples {source}) than the run began with (of "
                f"{state['source']}); make that one again, or begin a new run"
            )

    def _samples(self, epoch: Epoch, number: int, step: int, rank: int | None = None) -> Tensor:
        records = self._order(epoch, number, self.rank if rank is None else rank, step)
        return self.set.order[torch.from_numpy(records)]


class NodeConnections:
    """Connections from the ranks of a node, two or more, to its first rank, whose feeder serves them all.

    The first rank listens on a socket; the control channel gives its address and a key to the others. All
    ranks of the node make it together.
    """

    def __init__(self, comm: CountedCommunicator) -> None:
        self._members = comm.topology.ranks_of_nodes[comm.node]
        self._place = comm.local_rank
        self._listener: Listener | None = None
        text = ""
        if self._place == 0:
            key = secrets.token_bytes(_KEY_BYTES)
            # On Linux the address is abstract and leaves no file; elsewhere the library makes a file.
            address = f"\0daso-bench-{secrets.token_hex(16)}" if sys.platform == "linux" else None
            self._listener = Listener(address, family="AF_UNIX", backlog=self._members, authkey=key)
            text = key.hex() + (address or str(self._listener.address))
        text = comm.broadcast_text(text, NODE)
        self._key, self._address = bytes.fromhex(text[: 2 * _KEY_BYTES]), text[2 * _KEY_BYTES :]

    def open(self) -> tuple[list[Connection], Connection]:
        """A new connection for each rank of the node: the first rank's ends (else none), and this rank's.

        All ranks of the node call it.
        """
        if self._listener is None:
            theirs = cast(Connection, Client(self._address, family="AF_UNIX", authkey=self._key))
            theirs.send(self._place)
            return [], theirs
        (ours,), theirs = _pipe()
        ends = {0: ours}
        for _ in range(self._members - 1):
            connection = cast(Connection, self._listener.accept())
            ends[connection.recv()] = connection
        return [ends[place] for place in range(self._members)], theirs

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()


class PackedLoader(Loader):
    """Gives the batches of a `ReaderOrder`, equal bit for bit to those that its indices give.

    The reader of a node runs in the node's first rank; a reader per rank runs in that rank. It starts with
    the first batch that is requested: the wait for that batch is training time.
    """

    def __init__(self, batch_order: ReaderOrder, samples: Any, seed: int, comm: CountedCommunicator) -> None:
        super().__init__(samples, batch_order, seed)
        self._batch_order, self._comm = batch_order, comm
        self._shared = batch_order.reader.by_node and comm.topology.ranks_of_nodes[comm.node] > 1
        self._connections: NodeConnections | None = None
        self._feeder: Feeder | None = None
        self._member: Member | None = None
        self._tally = CounterTally()  # with earlier attempts
        self._useful_bytes, self._waited_s = 0, 0.0

    def on_prepared(self, replica: Any, batch_order: Any) -> None:
        """Connect the ranks of the node, which all call it, and bring the cache to its configured state."""
        reader = self._batch_order.reader
        if self._comm.local_rank == 0:
            self._look_at_cache(reader)
        if self._shared:
            self._connections = NodeConnections(self._comm)

    def next(self, progress: Progress) -> Images:
        """The batch of this step. Raises MachineError: a record is damaged, or the reader has ended."""
        place = self._batch_order.place(progress)
        if self._member is None:
            self._begin(progress)
        assert self._member is not None
        try:
            part = next(self._member)
        except FeederGone as error:
            raise MachineError(f"reader={self._batch_order.reader.name}: {error}") from error
        if (part.number, part.step) != place:
            raise RuntimeError(f"the reader is at {(part.number, part.step)}, the step at {place}")
        records, labels = torch.from_numpy(part.records).clone(), torch.from_numpy(part.labels).clone()
        packed_set, key = self._batch_order.set, epoch_key(self.seed, place[0])
        inputs = packed_set.codec.images(part, packed_set.order[records], key)
        self._useful_bytes += part.content.nbytes
        self._member.release()  # its content is copied, and other ranks may wait for the memory
        return inputs, labels

    def restart(self) -> None:
        """See `Loader`; all ranks of the node call it."""
        if self._member is None:
            return
        if self._shared:  # the first rank must not close before the others have their last batches
            self._comm.barrier(NODE)
        self._waited_s += self._member.waited_s
        self._member.close()
        if self._feeder is not None:
            self._feeder.close()
        self._member = self._feeder = None

    def on_train_start(self) -> None:
        if self._feeder is not None:
            self._feeder.hold(False)

    def on_pause(self) -> None:
        if self._feeder is not None:
            self._feeder.hold(True)

    def close(self) -> None:
        """See `Loader`; all ranks of the node call it."""
        self.restart()
        if self._connections is not None:
            self._connections.close()

    def counters(self) -> Counters:
        """Counters of this rank so far: what its reader has read, and what it has used of it."""
        waited = self._waited_s + (0.0 if self._member is None else self._member.waited_s)
        return replace(self._tally.counters(), useful_bytes=self._useful_bytes, waited_s=waited)

    def state_dict(self, train_ns: int) -> dict[str, Any]:
        """The counters, and the state of the cache."""
        return {**asdict(self.counters()), "lacking": self.lacking}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue counting from `state_dict`."""
        counts = dict(state)
        self._lacked(counts.pop("lacking"))
        self._useful_bytes += counts["useful_bytes"]
        self._waited_s += counts["waited_s"]
        self._tally.add(**counts)

    def _look_at_cache(self, reader: PackedReader) -> None:
        path = self._batch_order.set.packed.path
        if reader.cold:
            page_cache.drop(path)
        elif reader.warm:
            page_cache.read_in(path)
        self.still_cached = page_cache.cached(path.parent, [path.name])
        if reader.cold or reader.warm:
            share = math.nan if self.still_cached is None else self.still_cached
            self._lacked(share if reader.cold else 1 - share)

    def _lacked(self, share: float) -> None:
        self.lacking = float(np.maximum(self.lacking, share))  # NaN, not known, if one of them is

    def _begin(self, progress: Progress) -> None:
        batch_order, reader = self._batch_order, self._batch_order.reader
        ours, theirs = _pipe() if self._connections is None else self._connections.open()
        if ours:
            place = self._comm.node if reader.by_node else self._comm.rank
            read = reader.reader(batch_order.seed)
            source = read(batch_order.set.packed, batch_order.slices(progress), place, self._tally)
            geometry = Geometry.of(batch_order.set.packed, self._most(), depth=reader.prefetch_batches + 1)
            self._feeder = Feeder(batch_order.set.packed, source, ours, geometry, self._tally)
        self._member = Member(theirs)

    def _most(self) -> int:
        """Records of the reader in a step, at most."""
        epoch, comm = self._batch_order.epoch(), self._comm
        ranks = epoch.members(comm.node) if self._batch_order.reader.by_node else [comm.rank]
        return max(sum(epoch.sizes(step)[rank] for rank in ranks) for step in {0, epoch.steps - 1})


def _pipe() -> tuple[list[Connection], Connection]:
    """As `NodeConnections.open`, for a rank that has its own reader."""
    ours, theirs = cast(tuple[Connection, Connection], multiprocessing.Pipe())
    return [ours], theirs
