"""What transfers cost on a cluster's links, by hand: 1 byte a nanosecond between nodes, 10 inside one."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.runner.communication.link_costs import AlphaBeta, ClusterNetwork, Cost
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.strategies.topology import Topology, peers

US = 1000
S = 12_000_000  # bytes, so 12 ms alone on a link between nodes and 1.2 ms inside one
INTER = LinkConfig(rate_gbit=8, latency_us=10)
INTRA = LinkConfig(rate_gbit=80, latency_us=1)
VERBS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send", "barrier")
WAYS = ("ring", "tree", "hierarchical")


def network(nodes: list[int], **given: Any) -> ClusterNetwork:
    return ClusterNetwork(LinksConfig(**{"inter": INTER, "intra": INTRA, **given}), Topology.of(nodes))


def both(*ends: Any) -> tuple[Any, ...]:
    """Both ways of each end's link."""
    return tuple((end, direction) for end in ends for direction in ("out", "in"))


def way(source: Any, destination: Any) -> tuple[Any, ...]:
    """The ways of a message."""
    return (source, "out"), (destination, "in")


def cost(
    nodes: list[int], verb: str = "all_reduce", members: Any = None, payload: int = S, **how: Any
) -> Cost:
    """Of a transfer among `members`, by default everybody."""
    links = network(nodes, **how)
    return links.cost(links.topology, verb, tuple(range(sum(nodes)) if members is None else members), payload)


@pytest.mark.parametrize(
    ("nodes", "algorithm", "latency_us", "transfer"),
    [
        # 4 ranks: 6 messages, 2 · 3/4 · S through each link.
        ([2, 2], "ring", 6 * 10, 18_000_000),
        # One level between nodes and one inside, up and down.
        ([2, 2], "tree", 2 * (10 + 1), 18_000_000),
        # S among 2 at 10 bytes a ns, then S among 2 at 1.
        ([2, 2], "hierarchical", 2 * 1 + 2 * 10, 1_200_000 + 12_000_000),
        ([2, 2], "auto", 2 * 1 + 2 * 10, 1_200_000 + 12_000_000),
        # 16 ranks: 30 messages, 2 · 15/16 · S.
        ([4, 4, 4, 4], "ring", 30 * 10, 22_500_000),
        ([4, 4, 4, 4], "tree", 2 * (2 * 10 + 2 * 1), 22_500_000),
        # 2 · 3/4 · S among 4, twice.
        ([4, 4, 4, 4], "hierarchical", 6 * 1 + 6 * 10, 1_800_000 + 18_000_000),
        ([4, 4, 4, 4], "auto", 6 * 1 + 6 * 10, 1_800_000 + 18_000_000),
        ([3, 1], "ring", 6 * 10, 18_000_000),
        # Three ranks of the larger node are two levels.
        ([3, 1], "tree", 2 * (10 + 2 * 1), 18_000_000),
        # 2 · 2/3 · S in the larger node, S among the two nodes.
        ([3, 1], "hierarchical", 4 * 1 + 2 * 10, 1_600_000 + 12_000_000),
        ([3, 1], "auto", 4 * 1 + 2 * 10, 1_600_000 + 12_000_000),
        *[([4], algorithm, 6 * 1, 1_800_000) for algorithm in (*WAYS, "auto")],  # one node: a ring
    ],
)
def test_an_all_reduce(nodes: list[int], algorithm: str, latency_us: int, transfer: int):
    assert cost(nodes, algorithm=algorithm).duration_ns == latency_us * US + transfer


@given(
    nodes=st.lists(st.integers(1, 5), min_size=2, max_size=5),
    payload=st.integers(0, 10**9),
    rates=st.tuples(st.floats(0.1, 1000), st.floats(0.1, 1000)),
    latencies=st.tuples(st.floats(0, 1000), st.floats(0, 1000)),
)
def test_auto_is_the_fastest_way(
    nodes: list[int], payload: int, rates: tuple[float, float], latencies: tuple[float, float]
):
    inter, intra = (LinkConfig(rate_gbit=r, latency_us=a) for r, a in zip(rates, latencies, strict=True))
    auto, *ways = (
        cost(nodes, payload=payload, inter=inter, intra=intra, algorithm=way).duration_ns
        for way in ("auto", *WAYS)
    )
    assert auto == min(ways)


@pytest.mark.parametrize(
    ("verb", "payload", "took"),
    [
        ("broadcast", S, 2 * 10 * US + 12_000_000),  # 4 ranks are two levels
        ("reduce", S, 2 * 10 * US + 12_000_000),
        ("reduce_scatter", S, 3 * 10 * US + 9_000_000),
        ("all_gather", S // 4, 3 * 10 * US + 9_000_000),  # the payload is one rank's piece
        ("barrier", 0, 4 * 10 * US),
    ],
)
def test_other_verbs_over_nodes(verb: str, payload: int, took: int):
    assert cost([2, 2], verb, payload=payload) == Cost(took, both((0, 0), (1, 0)))
    assert cost([3, 3, 3], "broadcast").duration_ns == 40 * US + 12_000_000, "9 ranks are four levels"
    assert cost([1, 1, 1], "send", (2, 0)) == Cost(10 * US + 12_000_000, way((2, 0), (0, 0)))


@pytest.mark.parametrize(
    ("verb", "took"),
    [
        ("all_reduce", 4 * US + 1_600_000),  # 3 ranks: 4 messages, 2 · 2/3 · S
        ("reduce_scatter", 2 * US + 800_000),
        ("all_gather", 2 * US + 2_400_000),
        ("broadcast", 2 * US + 1_200_000),
        ("reduce", 2 * US + 1_200_000),
        ("barrier", 4 * US + 0),
    ],
)
def test_inside_a_node_no_card_is_held(verb: str, took: int):
    assert cost([3, 1], verb, (0, 1, 2), 0 if verb == "barrier" else S) == Cost(
        took, both(("rank", 0), ("rank", 1), ("rank", 2))
    )
    assert cost([3, 1], "send", (1, 2)) == Cost(US + 1_200_000, way(("rank", 1), ("rank", 2)))


def test_a_group_of_peers_uses_one_card_and_the_world_all():
    alone = 20 * US + 12_000_000
    assert cost([2, 2], members=(0, 2), nics=2) == Cost(alone, both((0, 0), (1, 0)))
    assert cost([2, 2], members=(1, 3), nics=2) == Cost(alone, both((0, 1), (1, 1)))
    together = cost([2, 2], nics=2, algorithm="ring")
    assert together.duration_ns == 60 * US + 9_000_000  # two cards: two bytes a ns
    assert set(together.links) == set(both((0, 0), (0, 1), (1, 0), (1, 1)))


@pytest.mark.parametrize(
    ("ranks", "nics", "cards"),
    [
        (4, 2, [0, 0, 1, 1]),
        (4, 3, [0, 0, 1, 2]),
        (4, 4, [0, 1, 2, 3]),
        (2, 4, [0, 1]),  # more cards than ranks: the rest is idle
        (3, 2, [0, 0, 1]),
        (1, 4, [0]),
    ],
)
def test_ranks_are_dealt_over_the_cards_in_order(ranks: int, nics: int, cards: list[int]):
    links = network([ranks, ranks], nics=nics)
    used = [links.cost(links.topology, "send", (rank, ranks + rank), 1).links for rank in range(ranks)]
    assert used == [way((0, card), (1, card)) for card in cards]
    assert len(cost([ranks, ranks], nics=nics).links) == 4 * len(set(cards))


@pytest.mark.parametrize(("nics", "ends"), [(2, [1, 1]), (1, [1, 2])])
def test_transfers_of_one_card_wait_for_each_other_and_those_of_two_do_not(nics: int, ends: list[int]):
    simulator = Simulator(Topology.of([2, 2]), network([2, 2], nics=nics))

    def body(rank: int) -> int:
        comm = SimulatedCommunicator(simulator, rank)
        comm.all_reduce(torch.zeros(3000), peers(comm.local_rank)).wait()  # 20 µs and 12000 bytes
        return comm.now()

    assert sorted(set(simulator.run(body))) == sorted({32 * US * end for end in ends})


def test_efficiency_is_of_the_rate_and_not_of_the_latency():
    half = LinkConfig(rate_gbit=8, latency_us=10, efficiency=0.5)
    assert cost([2, 2], algorithm="ring", inter=half).duration_ns == 60 * US + 36_000_000
    slow = LinkConfig(rate_gbit=80, latency_us=1, efficiency=0.25)
    assert cost([3], "broadcast", intra=slow).duration_ns == 2 * US + 4_800_000


def test_the_slowest_node_decides():
    def took(nodes: list[int], speeds: tuple[float, ...], **how: Any) -> int:
        return cost(nodes, node_speeds=speeds, algorithm="ring", **how).duration_ns

    assert took([2, 2], (1.0, 0.5)) == 60 * US + 36_000_000
    assert took([2, 2], (0.5, 1.0)) == 60 * US + 36_000_000
    assert took([2, 2], (4.0, 2.0)) == 60 * US + 9_000_000
    # Two cards of half the speed against one of four times the speed.
    assert took([3, 1], (0.5, 4.0), nics=2) == 60 * US + 18_000_000
    assert took([1, 1, 1], (1.0, 0.25, 1.0), verb="send", members=(0, 2)) == 10 * US + 12_000_000
    assert took([1, 1, 1], (1.0, 0.25, 1.0), verb="send", members=(0, 1)) == 10 * US + 48_000_000
    # The links inside a node are none of its cards.
    assert took([2, 2], (0.5, 0.5), members=(0, 1)) == 2 * US + 1_200_000


@pytest.mark.parametrize("payload", [0, 7, 1000, S])
@pytest.mark.parametrize(
    ("verb", "nodes"),
    [(verb, nodes) for verb in VERBS for nodes in (2, 3, 5) if verb != "send" or nodes == 2],
)
def test_one_rank_a_node_and_a_ring_is_alpha_beta(verb: str, nodes: int, payload: int):
    ones, everybody = [1] * nodes, tuple(range(nodes))
    plain = AlphaBeta(inter_latency_s=10e-6, inter_bytes_per_s=1e9)
    expected = plain.cost(Topology.of(ones), verb, everybody, payload)
    got = cost(ones, verb, payload=payload, algorithm="ring")
    assert got.duration_ns == expected.duration_ns
    ends = way if verb == "send" else both
    assert expected.links == (ends(*everybody) if expected.duration_ns else ())
    assert got.links == (ends(*((node, 0) for node in everybody)) if got.duration_ns else ())


def test_alpha_beta_by_hand():
    plain = AlphaBeta(1e-6, 1e10, 10e-6, 1e9)
    four = Topology.of([2, 2])
    assert plain.cost(four, "all_reduce", (0, 1, 2, 3), S) == Cost(60 * US + 18_000_000, both(0, 1))
    assert plain.cost(four, "broadcast", (0, 1, 2, 3), S) == Cost(20 * US + 12_000_000, both(0, 1))
    assert plain.cost(four, "all_reduce", (2, 3), S) == Cost(2 * US + 1_200_000, ())
    assert plain.cost(Topology.of([1, 1, 1]), "send", (0, 2), S).links == way(0, 2)
    assert (plain.sharing, AlphaBeta(fair=True).sharing) == ("fifo", "fair")
    assert [network([1, 1], sharing=how).sharing for how in ("fifo", "fair")] == ["fifo", "fair"]


FREE = LinkConfig(rate_gbit=math.inf)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("algorithm", [*WAYS, "auto"])
def test_what_is_free_takes_no_time_and_holds_no_link(verb: str, algorithm: str):
    assert cost([1, 1], inter=LinkConfig(rate_gbit=math.inf, latency_us=10)).duration_ns == 20 * US
    assert cost([3, 1], verb, inter=FREE, intra=FREE, nics=2, algorithm=algorithm) == Cost(0, ())
    assert AlphaBeta().cost(Topology.of([3, 1]), verb, (0, 1, 2, 3), S) == Cost(0, ())
