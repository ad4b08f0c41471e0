"""Groups of ranks on uniform and ragged nodes."""

import pytest

from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Topology, peers


def test_two_by_two():
    two = Topology.of([2, 2])
    assert (two.ranks, two.nodes, two.uniform) == (4, 2, True)
    assert [two.members(NODE, rank) for rank in range(4)] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert two.members(LEADERS, 3) == (0, 2)
    assert two.members(peers(1), 0) == (1, 3)
    assert two.members(WORLD, 1) == (0, 1, 2, 3)
    assert two.spans_nodes((1, 2))
    assert not two.spans_nodes((2, 3))


def test_ragged_nodes():
    ragged = Topology.of([3, 1])
    assert (ragged.ranks_of_nodes, ragged.uniform) == ((3, 1), False)
    assert ragged.members(peers(0), 0) == (0, 3)
    assert ragged.members(peers(2), 0) == (2,)
    assert ragged.local_ranks == (0, 1, 2, 0)


def test_ranks_may_be_dealt_out_in_turn():
    cyclic = Topology((0, 1, 0, 1))
    assert cyclic.members(NODE, 2) == (0, 2)
    assert cyclic.local_ranks == (0, 0, 1, 1)


@pytest.mark.parametrize("nodes", [[], [2, 0], [-1]])
def test_nodes_without_ranks_are_refused(nodes: list[int]):
    with pytest.raises(ValueError, match="at least one rank"):
        Topology.of(nodes)


def test_gaps_are_refused():
    with pytest.raises(ValueError, match="without gaps"):
        Topology((0, 2))


def test_nodes_of_ranks_are_told_once_each():
    topology = Topology.of([2, 2, 1])
    everybody = tuple(range(5))
    assert topology.nodes_of(everybody) == (0, 1, 2)
    assert topology.nodes_of(everybody) == (0, 1, 2)
    assert topology.nodes_of((4, 2, 0, 1)) == (0, 1, 2)
    assert topology.nodes_of((4, 1)) == (2, 0), "of a message: from where, to where"
    assert topology.nodes_of((0, 1)) == (0,)
    assert topology.nodes_of((3,)) == (1,)
