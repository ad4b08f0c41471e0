"""What reading costs: bytes, jumps, seconds."""

import threading
from dataclasses import asdict, dataclass

from .orders import Records


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums of one reader since it began.

    requested_bytes: asked of the file; useful_bytes: handed to ranks; reads: calls that ask for a run;
    jumps: of these, the ones that do not start where this reader's read before ended (the first counts);
    read_s: seconds spent in reads, of all threads together; checked_s: seconds spent on checksums;
    waited_s: seconds that ranks stood waiting for data, all ranks together.
    """

    requested_bytes: int = 0
    useful_bytes: int = 0
    reads: int = 0
    jumps: int = 0
    read_s: float = 0.0
    checked_s: float = 0.0
    waited_s: float = 0.0


class Tally:
    """The counters while they grow; any number of threads may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = asdict(Counters())
        self._end = -1

    def asked(self, firsts: Records, ends: Records) -> None:
        """Count reads of the records [first, end), in the order in which they are made; int64 [reads]."""
        self.jumped(firsts, ends)
        self.add(reads=len(firsts))

    def jumped(self, firsts: Records, ends: Records) -> None:
        """Of such reads, count the jumps alone."""
        if len(firsts) == 0:
            return
        with self._lock:
            jumps = int(firsts[0] != self._end) + int((firsts[1:] != ends[:-1]).sum())
            self._end = int(ends[-1])
            self._sums["jumps"] += jumps

    def add(self, **amounts: float) -> None:
        """Add to the counters so named."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def counters(self) -> Counters:
        """What was counted so far."""
        with self._lock:
            return Counters(**self._sums)  # pyright: ignore[reportArgumentType] (of its own fields)
