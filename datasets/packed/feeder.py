"""Passes the steps of a reader to the ranks that use them, through slots in shared memory.

A thread, the feeder, fills slots of shared memory, `depth` steps ahead. Over a connection to each member (a
socket) it sends which slot holds the next step, and the member answers when it is done with it. Nothing
polls; idle threads sleep in `recv`. The feeder and a slow member m, two slots:

    feeder: fill slot 0, "step 0 is in slot 0" · fill slot 1, "step 1 is in slot 1" · needs slot 0: recv(m)
    m:      recv, use slot 0, "done with step 0", recv, use slot 1, …
    feeder: has "done with step 0" of every member: fill slot 0 again

Crashes: the memory has no name (on Linux; elsewhere it is a file that is unlinked at once), so nothing
remains. When a process dies the system closes its ends of the connections: a member whose feeder dies gets
`FeederGone` at once, and so do the other members when one of them dies. Processes that are forked while
connections are open keep the ends open: start them before, or by spawn or forkserver.
"""

import contextlib
import logging
import mmap
import os
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .packed_file import Packed
from .readers import Counters, CounterTally, Load, Reader

CACHE_LINE_BYTES = 64
_log = logging.getLogger(__name__)


class FeederGone(OSError):
    """No more data will come: the file is damaged, or the feeder or another member has ended."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The layout of shared memory: `depth` slots of records, their ends (int64), numbers and labels.

    content_bytes: of the records in a slot; records: their largest number.
    """

    depth: int
    content_bytes: int
    records: int

    @classmethod
    def of(cls, packed: Packed, records: int, depth: int = 2) -> "Geometry":
        """Room for any `records` records of a file; pages that are never used cost nothing."""
        if depth < 2:
            raise ValueError(f"depth={depth}: must be >= 2, or nothing is read while ranks compute")
        largest = packed.record_bytes or int(np.diff(packed.starts()).max())
        return cls(depth=depth, content_bytes=largest * records, records=records)

    @property
    def slot_bytes(self) -> int:
        """A slot, in whole cache lines."""
        return -(-(self.content_bytes + 3 * 8 * self.records) // CACHE_LINE_BYTES) * CACHE_LINE_BYTES

    def slots(self, memory: mmap.mmap) -> "list[Part]":
        """Views of the slots in mapped memory, each as the part of a member that gets all of a step."""
        made = []
        for offset in range(0, self.depth * self.slot_bytes, self.slot_bytes):
            # Numbers first, so that they are aligned.
            numbers = np.frombuffer(memory, np.int64, 3 * self.records, offset)
            ends, records, labels = numbers.reshape(3, self.records)
            content = np.frombuffer(memory, np.uint8, self.content_bytes, offset + numbers.nbytes)
            made.append(Part(number=0, step=0, ends=ends, records=records, labels=labels, content=content))
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The part of a step for one member: views of shared memory, valid until it asks for the next.

    number: of the epoch; step: in it; records, labels: int64 [b]; ends: int64 [b], where records end in
    `content`, uint8, one after another.
    """

    number: int
    step: int
    records: NDArray[np.int64]
    labels: NDArray[np.int64]
    ends: NDArray[np.int64]
    content: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.records)

    def part(self, number: int, step: int, first: int, count: int) -> "Part":
        """The records [first, first + count) of this part, as a part of `step` in epoch `number`."""
        begin = int(self.ends[first - 1]) if first else 0
        ends = self.ends[first : first + count]
        return Part(
            number=number,
            step=step,
            records=self.records[first : first + count],
            labels=self.labels[first : first + count],
            ends=ends - begin,
            content=self.content[begin : int(ends[-1]) if count else begin],
        )

    def record(self, place: int) -> NDArray[np.uint8]:
        """The bytes of the record at `place`."""
        return self.content[int(self.ends[place - 1]) if place else 0 : int(self.ends[place])]


Ready = tuple[int, int, int, int, int]
"""Message to a member: number of the epoch, step, slot, its first record there, number of its records."""


class Feeder:
    """The thread that fills slots from `reader` for the members at the other ends of `connections`.

    connections: one for each of a load's counts, in that order; ends of `multiprocessing.Pipe()` or of a
    `multiprocessing.connection.Listener`. They belong to the feeder from now on.
    """

    def __init__(
        self,
        packed: Packed,
        reader: Reader,
        connections: Sequence[Connection],
        geometry: Geometry,
        tally: CounterTally,
    ) -> None:
        self._packed, self._reader, self._connections = packed, reader, list(connections)
        self._geometry, self._tally = geometry, tally
        self._done = [0] * len(self._connections)  # finished steps of each member
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="daso-bench-feeder", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        return self._tally.counters()

    def hold(self, on: bool) -> None:
        """Fill no further slot, and make reads and announcements wait, until it is called with False.

        The system may still read what was announced before: at most 32 MiB, or 128 records.
        """
        self._packed.hold(on)

    def close(self) -> None:
        """End the thread; members that still wait get `FeederGone`."""
        self._hang_up()
        self.hold(False)
        self._ended()

    def join(self) -> None:
        """Wait until all members are done with all steps; raises the error that ended the feeder before."""
        self._ended()
        if self._failure is not None:
            raise self._failure

    def _ended(self) -> None:
        self._thread.join()
        for connection in self._connections:  # not before: its descriptor could be reused
            connection.close()

    def _run(self) -> None:
        try:
            with contextlib.closing(self._reader):
                try:
                    self._feed()
                finally:
                    self._packed.hold(False)  # the reader ends once its threads have
        except BaseException as error:
            self._failure = error
            reason = _reason(error)
            traceback.clear_frames(error.__traceback__)  # they hold the slots
            for connection in self._connections:
                with contextlib.suppress(OSError):  # this member may have died
                    connection.send(reason)
        finally:
            self._hang_up()

    def _feed(self) -> None:
        descriptor = _anonymous(self._geometry.depth * self._geometry.slot_bytes)
        try:
            for connection in self._connections:
                connection.send(self._geometry)
                reduction.send_handle(connection, descriptor, 0)
            slots = self._geometry.slots(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
        fed = 0
        for load in self._reader:
            place = fed % len(slots)
            self._await(fed - len(slots) + 1)
            self._packed.wait()
            self._fill(load, slots[place])
            first = 0
            for member, count in zip(range(len(self._connections)), load.counts, strict=True):
                self._tell(member, (load.number, load.step, place, first, count))
                first += count
            fed += 1
        for member in range(len(self._connections)):
            self._tell(member, None)
        self._await(fed, last=True)

    def _fill(self, load: Load, slot: Part) -> None:
        count = len(load.records)
        if count > self._geometry.records:
            room = self._geometry.records
            raise ValueError(f"step {load.step} has {count} records: there is room for {room}")
        load.fill(slot.content.data)
        slot.ends[:count] = self._packed.ends_in(load.records)
        slot.records[:count] = load.records
        slot.labels[:count] = self._packed.labels[load.records]

    def _await(self, steps: int, *, last: bool = False) -> None:
        """Wait until every member is done with so many steps; raises FeederGone if one ends before."""
        while min(self._done) < steps:
            # Members that are ahead are watched, too, to notice a death at once; at the end they may leave.
            watched = [place for place, done in enumerate(self._done) if done < steps or not last]
            ready = wait([self._connections[place] for place in watched])
            for place in watched:
                if self._connections[place] in ready:
                    self._hear(place)

    def _tell(self, place: int, word: Ready | None) -> None:
        try:
            self._connections[place].send(word)
        except OSError as error:
            raise self._gone(place) from error

    def _hear(self, place: int) -> None:
        try:
            waited_s = self._connections[place].recv()
        except (EOFError, OSError) as error:
            raise self._gone(place) from error
        self._tally.add(waited_s=waited_s)
        self._done[place] += 1

    def _gone(self, place: int) -> FeederGone:
        done = self._done[place]
        return FeederGone(f"{self._packed.path}: member {place} of the node has ended after {done} steps")

    def _hang_up(self) -> None:
        """Wake up both ends; closing alone would not wake a thread that sleeps in `recv`."""
        for connection in self._connections:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)


def _reason(error: BaseException) -> str:
    """The message about an error for the members; the traceback of a fault in the code goes to the log."""
    if isinstance(error, OSError):  # of files and processes: the message is enough
        return str(error) or repr(error)
    _log.error("the reader has failed", exc_info=error)
    return f"{type(error).__name__}: {error} (the log of the process that reads has the traceback)"


class Member:
    """The end of a rank: iterates over its parts of the steps.

    A part is valid until the next one is requested, or `release` is called. Raises FeederGone.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.waited_s = 0.0
        self._waited_now: float | None = None  # of the part in use
        geometry = self._hear()
        descriptor = reduction.recv_handle(connection)
        try:
            self._slots = geometry.slots(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)

    def __iter__(self) -> Iterator[Part]:
        return self

    def __next__(self) -> Part:
        self.release()
        began = time.perf_counter()
        ready = self._hear()
        if ready is None:
            raise StopIteration
        self._waited_now = time.perf_counter() - began
        self.waited_s += self._waited_now
        number, step, slot, first, count = ready
        return self._slots[slot].part(number, step, first, count)

    def release(self) -> None:
        """Allow the part in use to be overwritten."""
        if self._waited_now is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next `recv` has the reason
                self._connection.send(self._waited_now)
            self._waited_now = None

    def close(self) -> None:
        """Leave; unless all steps are done, this ends the feeder and so the other members."""
        self._connection.close()

    def _hear(self) -> Any:
        try:
            word = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise FeederGone("the reader of this node has ended; its own log says why") from error
        if isinstance(word, str):
            raise FeederGone(word)
        return word


def _anonymous(size: int) -> int:
    """Descriptor of so many bytes of shared memory without a name (without memfd: of an unlinked file)."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("daso-bench-reader")
    else:
        descriptor, path = tempfile.mkstemp(prefix="daso-bench-reader-")
        os.unlink(path)
    os.ftruncate(descriptor, size)
    return descriptor
