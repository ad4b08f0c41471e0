"""Links that are shared fairly, and one after the other, against schedules made by hand."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.runner.communication.link_costs import Cost, Network
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.virtual_time import Carry, Collective, FairLinks, Simulator, fifo_links
from daso_bench.strategies.topology import Topology, peers

Transfer = tuple[int, int, str]
"""When it starts, how long it takes alone, its links: a letter each."""


def ends(carry: Carry, *transfers: Transfer) -> list[int]:
    """When each transfer ends, once all of them are known; they are given in the order of their starts."""
    operations = []
    for start, took, names in transfers:
        operations.append(Collective("all_reduce", (0, 1)))
        carry(operations[-1], Cost(took, tuple(names)), start)
    return [operation.end or 0 for operation in operations]


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([(0, 100, "a")], [100]),
        ([(7, 100, "a")], [107]),
        # Two of T together: 2T both.
        ([(0, 100, "a"), (0, 100, "a")], [200, 200]),
        # Halfway: the first has T/2 left and half the speed, the second then T/2 and all of it.
        ([(0, 100, "a"), (50, 100, "a")], [150, 200]),
        # A short one among two: 20 · 2, and the long one makes up for it alone.
        ([(0, 100, "a"), (0, 20, "a")], [120, 40]),
        # One after the other: nothing is shared.
        ([(0, 100, "a"), (100, 100, "a")], [100, 200]),
        ([(0, 100, "a"), (500, 100, "a")], [100, 600]),
        # Three of 60 at 0, 30, 60. At 30 the first has 30 left, at 60 it has 15 and the second 45; thirds
        # until 105, halves until the second ends at 165, the third alone for its last 15.
        ([(0, 60, "a"), (30, 60, "a"), (60, 60, "a")], [105, 165, 180]),
        ([(0, 60, "a"), (0, 60, "a"), (0, 60, "a")], [180, 180, 180]),
        # Nothing to carry: over at once, whatever is on the link.
        ([(0, 100, "a"), (50, 0, "a")], [100, 50]),
        # Other links, and none, share nothing.
        ([(0, 100, "a"), (10, 100, "b"), (20, 100, "cd")], [100, 110, 120]),
        ([(0, 100, "a"), (10, 100, ""), (10, 100, "")], [100, 110, 110]),
        # Three on a, two on b: only the one on b alone gets a half. At 120 it ends; the others have 20 of 60
        # left, and still three of them are on a.
        ([(0, 60, "ab"), (0, 60, "a"), (0, 60, "a"), (0, 60, "b")], [180, 180, 180, 120]),
        # At 30 one joins on b: the first, on both links, goes at half speed; its half of a stays unused.
        ([(0, 60, "ab"), (30, 60, "b"), (30, 60, "c")], [90, 120, 90]),
    ],
)
def test_transfers_by_hand(transfers: list[Transfer], expected: list[int]):
    assert ends(FairLinks().carry, *transfers) == expected


def test_fifo_serves_in_the_order_of_entering_and_waits_for_all_its_links():
    transfers = [(0, 100, "a"), (10, 50, "b"), (20, 10, "ab"), (30, 10, "b"), (300, 10, "a")]
    assert ends(fifo_links(), *transfers) == [100, 60, 110, 120, 310]


class Bytes(Network):
    """A byte takes a nanosecond between nodes, and nothing inside one."""

    def __init__(self, sharing: str) -> None:
        self._sharing = sharing

    @property
    def sharing(self) -> str:
        return self._sharing

    def duration_ns(self, verb: str, members: Any, payload: int, inter: bool) -> int:
        return payload if inter else 0


def payload(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def run(body: Any, nodes: list[int], sharing: str = "fair") -> list[Any]:
    simulator = Simulator(Topology.of(nodes), Bytes(sharing))
    return simulator.run(lambda rank: body(SimulatedCommunicator(simulator, rank)))


@pytest.mark.parametrize(
    ("sharing", "starts", "expected"),
    [
        ("fair", [0, 0], [200, 200]),
        ("fair", [0, 50], [150, 200]),
        ("fair", [0, 100], [100, 200]),
        ("fair", [30, 0], [200, 170]),  # 70 left of the second when the first comes
        ("fifo", [0, 50], [100, 200]),
        ("fifo", [30, 0], [200, 100]),
    ],
)
def test_ranks_end_when_their_transfers_do(sharing: str, starts: list[int], expected: list[int]):
    """Rank 0 told at 0 that it ends at 100 sleeps on where a second transfer has put it off meanwhile."""

    def body(comm: SimulatedCommunicator) -> int:
        comm.simulator.advance(comm.rank, starts[comm.local_rank])
        comm.all_reduce(payload(100), peers(comm.local_rank)).wait()
        return comm.now()

    assert run(body, [2, 2], sharing) == expected * 2


def all_at_once(transfers: list[Transfer]) -> list[float]:
    """The same rule in the plainest way: from one start or end to the next, over everything under way."""
    left = {number: float(took) for number, (_, took, _) in enumerate(transfers)}
    exact_ends = [0.0] * len(transfers)
    now = 0.0
    while left:
        under_way = [n for n in left if transfers[n][0] <= now]
        later = [transfers[n][0] for n in left if transfers[n][0] > now]
        share = {
            n: max(sum(link in transfers[m][2] for m in under_way) for link in transfers[n][2])
            for n in under_way
        }
        step = min([start - now for start in later] + [left[n] * share[n] for n in under_way])
        now += step
        for n in under_way:
            left[n] -= step / share[n]
            if left[n] < 1e-9:
                exact_ends[n] = now
                del left[n]
    return exact_ends


LINKS = st.sets(st.sampled_from("abcdefgh"), min_size=1, max_size=3).map(lambda names: "".join(sorted(names)))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 200), LINKS), min_size=1, max_size=10))
def test_only_those_that_share_links_are_looked_at_and_nothing_else_comes_out(given: list[Transfer]):
    starts = sorted(given)
    wanted = all_at_once(starts)
    for got, exact in zip(ends(FairLinks().carry, *starts), wanted, strict=True):
        assert abs(got - exact) <= 1 + 1e-6
