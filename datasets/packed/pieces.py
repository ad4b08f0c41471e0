"""Which records a rank takes in a step, without reading them: what the readers give out, as numbers alone."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from . import orders
from .orders import Epoch, Records, Run


class Pieces(ABC):
    """The order of one layout."""

    @abstractmethod
    def of(self, epoch: Epoch, number: int, rank: int, step: int) -> Records:
        """Numbers int64 of the records of `rank` in `step` of epoch `number`, cut as `epoch` says."""


class InFileOrder(Pieces):
    """Layouts that are the same in every epoch. records: of (epoch, rank, step)."""

    def __init__(self, records: Callable[[Epoch, int, int], Records]) -> None:
        self._records = records

    def of(self, epoch: Epoch, number: int, rank: int, step: int) -> Records:
        """See `Pieces`."""
        return self._records(epoch, rank, step)


class Chunked(Pieces):
    """`chunked_shuffle`; all_chunks, seed, window_chunks: as of its reader.

    The orders of one epoch are kept, by node: they are asked for step after step.
    """

    def __init__(self, all_chunks: list[Run], seed: int, window_chunks: int) -> None:
        self._all_chunks, self._seed, self._window_chunks = all_chunks, seed, window_chunks
        self._kept: tuple[Epoch, int] | None = None
        self._of_node: dict[int, Records] = {}

    def of(self, epoch: Epoch, number: int, rank: int, step: int) -> Records:
        """See `Pieces`."""
        node = _node_of(epoch, rank)
        if self._kept != (epoch, number):
            self._kept = epoch, number
            self._of_node.clear()
        if node not in self._of_node:
            windows = orders.windows(epoch, self._all_chunks, self._seed, number, node, self._window_chunks)
            self._of_node[node] = orders.given_out(windows)
        first = epoch.node_before(node, step) + _before_in_node(epoch, node, rank, step)
        return self._of_node[node][first : first + epoch.sizes(step)[rank]]


def block(epoch: Epoch, rank: int, step: int) -> Records:
    """The part of its block that `rank` takes in `step`."""
    return orders.block(epoch, rank, step).records()


def node_batch(epoch: Epoch, rank: int, step: int) -> Records:
    """The part of its node's run that `rank` takes in `step`."""
    node = _node_of(epoch, rank)
    first = orders.node_batch(epoch, node, step).first + _before_in_node(epoch, node, rank, step)
    return Run(first=first, count=epoch.sizes(step)[rank]).records()


def _node_of(epoch: Epoch, rank: int) -> int:
    return bisect_right(list(accumulate(epoch.ranks_of_nodes)), rank)


def _before_in_node(epoch: Epoch, node: int, rank: int, step: int) -> int:
    """Records that the ranks of the node before `rank` take in `step`."""
    return sum(epoch.sizes(step)[epoch.members(node).start : rank])
