"""From a reader to the ranks that use what it reads, through memory that they share.

One thread fills slots of shared memory, `depth` steps ahead. It tells each member by a line of its own (a
socket) which slot holds the next step, and the member says when it is done with it. Nobody polls: whoever has
nothing to do sleeps in `recv`. The feeder and a slow member m, two slots:

    feeder: fill slot 0, "step 0 is in slot 0" · fill slot 1, "step 1 is in slot 1" · needs slot 0: recv(m)
    m:      recv, use slot 0, "done with step 0", recv, use slot 1, …
    feeder: has "done with step 0" of every member: fill slot 0 again

Crashes: the memory has no name (Linux; elsewhere a file that is unlinked before anybody is told of it), so
there is nothing to leave behind. When a process dies the system closes its end of the lines: a member whose
feeder dies gets `FeederGone` at once, and so do the other members when one of them dies. Processes that are
forked while lines are open keep the ends open: start them before, or by spawn or forkserver.
"""

import contextlib
import logging
import mmap
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from .counters import Counters, Tally
from .loads import Load, Reader
from .packed_file import Packed
from .slots import Geometry, Part, Slot, anonymous

_log = logging.getLogger(__name__)


class FeederGone(OSError):
    """No more data will come: the file is damaged, or the feeder or another member has ended."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What a member is told: its part of a step lies in `slot`, `count` records from `first` on."""

    number: int
    step: int
    slot: int
    first: int
    count: int


class Feeder:
    """The thread that fills slots from `reader` for the members at the other ends of `lines`.

    lines: one for each of a load's counts, in that order; ends of `multiprocessing.Pipe()` or of a
    `multiprocessing.connection.Listener`. They belong to the feeder from now on.
    """

    def __init__(
        self, packed: Packed, reader: Reader, lines: Sequence[Connection], geometry: Geometry, tally: Tally
    ) -> None:
        self._packed, self._reader, self._lines = packed, reader, list(lines)
        self._geometry, self._tally = geometry, tally
        self._done = [0] * len(self._lines)  # steps that each member is done with
        self._failure: BaseException | None = None
        self._open = threading.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._run, name="daso-bench-feeder", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counters(self) -> Counters:
        """What was counted so far."""
        return self._tally.counters()

    def hold(self, on: bool) -> None:
        """Fill no further slot, and let reads and announcements wait, until it is called with False.

        What was announced before may still come: at most 32 MiB, or 128 records.
        """
        self._packed.hold(on)
        if on:
            self._open.clear()
        else:
            self._open.set()

    def close(self) -> None:
        """End the thread, members or no members; whoever still waits gets `FeederGone`."""
        self._hang_up()
        self.hold(False)
        self._ended()

    def join(self) -> None:
        """Wait until all members are done with all steps; raises what ended the feeder before that."""
        self._ended()
        if self._failure is not None:
            raise self._failure

    def _ended(self) -> None:
        self._thread.join()
        for line in self._lines:  # not before: a number of theirs could be another file's by then
            line.close()

    def _run(self) -> None:
        try:
            with contextlib.closing(self._reader):
                try:
                    self._feed()
                finally:
                    self._packed.hold(False)  # the reader ends once its threads have
        except BaseException as error:
            self._failure = error
            told = _told(error)
            traceback.clear_frames(error.__traceback__)  # they hold the slots
            for line in self._lines:
                with contextlib.suppress(OSError):  # it may be this one that has gone
                    line.send(told)
        finally:
            self._hang_up()

    def _feed(self) -> None:
        descriptor = anonymous(self._geometry.depth * self._geometry.slot_bytes)
        try:
            for line in self._lines:
                line.send(self._geometry)
                reduction.send_handle(line, descriptor, 0)
            slots = self._geometry.slots(mmap.mmap(descriptor, 0))
        finally:
            os.close(descriptor)
        fed = 0
        for load in self._reader:
            place = fed % len(slots)
            self._await(fed - len(slots) + 1)
            self._open.wait()
            self._fill(load, slots[place])
            first = 0
            for member, count in zip(range(len(self._lines)), load.counts, strict=True):
                ready = Ready(number=load.number, step=load.step, slot=place, first=first, count=count)
                self._tell(member, ready)
                first += count
            fed += 1
        for member in range(len(self._lines)):
            self._tell(member, None)
        self._await(fed, last=True)

    def _fill(self, load: Load, slot: Slot) -> None:
        count = len(load.records)
        if count > self._geometry.records:
            room = self._geometry.records
            raise ValueError(f"step {load.step} has {count} records: there is room for {room}")
        load.fill(slot.content.data)
        slot.ends[:count] = self._packed.ends_in(load.records)
        slot.records[:count] = load.records
        slot.labels[:count] = self._packed.labels[load.records]

    def _await(self, steps: int, *, last: bool = False) -> None:
        """Return once every member is done with so many steps; FeederGone when one has ended before that."""
        while min(self._done) < steps:
            # Those that are ahead are heard too, so one that has ended is noticed at once; at the end it may.
            watched = [place for place, done in enumerate(self._done) if done < steps or not last]
            ready = wait([self._lines[place] for place in watched])
            for place in watched:
                if self._lines[place] in ready:
                    self._hear(place)

    def _tell(self, place: int, word: Ready | None) -> None:
        try:
            self._lines[place].send(word)
        except OSError as error:
            raise self._gone(place) from error

    def _hear(self, place: int) -> None:
        try:
            waited_s = self._lines[place].recv()
        except (EOFError, OSError) as error:
            raise self._gone(place) from error
        self._tally.add(waited_s=waited_s)
        self._done[place] += 1

    def _gone(self, place: int) -> FeederGone:
        done = self._done[place]
        return FeederGone(f"{self._packed.path}: member {place} of the node has ended after {done} steps")

    def _hang_up(self) -> None:
        """Wake up both ends; closing alone would not wake a thread that sleeps in `recv`."""
        for line in self._lines:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(line.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)


def _told(error: BaseException) -> str:
    """What members hear of what ended the reader; the traceback of a fault in the code goes to the log."""
    if isinstance(error, OSError):  # of files and processes: its words say all
        return str(error) or repr(error)
    _log.error("the reader has failed", exc_info=error)
    return f"{type(error).__name__}: {error} (the log of the process that reads has the traceback)"


class Member:
    """A rank's end: goes through its parts of the steps, `for part in member`.

    A part is valid until the next one is asked for, or `release` is called.
    Raises FeederGone.
    """

    def __init__(self, line: Connection) -> None:
        self._line = line
        self.waited_s = 0.0
        self._waited_now: float | None = None  # of the part in use
        geometry = self._hear()
        descriptor = reduction.recv_handle(line)
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
        return self._slots[ready.slot].part(ready.number, ready.step, ready.first, ready.count)

    def release(self) -> None:
        """The part in use may be overwritten."""
        if self._waited_now is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next `recv` says why
                self._line.send(self._waited_now)
            self._waited_now = None

    def close(self) -> None:
        """Leave; the feeder ends, and with it the other members, unless all steps are done."""
        self._line.close()

    def _hear(self) -> Any:
        try:
            word = self._line.recv()
        except (EOFError, ConnectionResetError) as error:
            raise FeederGone("the reader of this node has ended; its own log says why") from error
        if isinstance(word, str):
            raise FeederGone(word)
        return word
