"""The curve of NCCL's collectives: by hand, its properties, and how it enters the costs of a cluster."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_link_costs import VERBS, cost, way

from daso_bench.runner.communication.collectives import Ends, ends, seconds, through
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig

KIB, MIB, GIB = 2**10, 2**20, 2**30
RAMP = 0.7
NVLINK, PCIE = 0.6, 1.0  # µs of a hop


def nccl(inside: float, hop: float, *, a_e: float = 0, nvls: float | None = None) -> LinksConfig:
    """Links with `inside` GB/s of a rank in its node, hops of `hop` and `a_e` µs."""
    return LinksConfig(
        model="nccl",
        launch_us=7.6,
        ramp=RAMP,
        intra=LinkConfig(rate_gbit=8 * inside, latency_us=hop),
        inter=LinkConfig(rate_gbit=1, latency_us=a_e),
        nvls_gbit=None if nvls is None else 8 * nvls,
    )


A100, H100 = nccl(240, NVLINK, a_e=12), nccl(360, NVLINK, a_e=12, nvls=476)
SLOW = {a_e: nccl(12, PCIE, a_e=a_e) for a_e in (12, 29, 40)}
BY_HAND = [
    # nodes, ranks of each, GB/s of their cards, links, t0 µs, GB/s of payload, µs by bytes
    (1, 8, math.inf, A100, 16.0, 137.14, {MIB: 39.1, 25 * MIB: 284.6, 256 * MIB: 2221.1}),
    (1, 8, math.inf, H100, 16.0, 272.0, {MIB: 30.9, 16 * MIB: 121.7, GIB: 4315.4}),
    (
        *(1, 8, math.inf, nccl(720, NVLINK, nvls=829), 16.0, 473.7),
        {MIB: 26.5, 16 * MIB: 84.7, GIB: 2549.3},
    ),
    (1, 4, math.inf, SLOW[12], 13.6, 8.0, {16 * KIB: 23.0, MIB: 203.8, 64 * MIB: 8875}),
    (2, 8, 192, A100, 40.0, 126.17, {KIB: 40.8, MIB: 73.8, 16 * MIB: 275.1, GIB: 9367}),
    (4, 8, 192, A100, 64.0, 99.10, {MIB: 111.0, 16 * MIB: 379.0, 4 * GIB: 45_737}),
    (2, 8, 384, H100, 40.0, 253.87, {KIB: 40.6, MIB: 62.1, 16 * MIB: 178.1, GIB: 4845}),
    (8, 4, 1.2, SLOW[40], 253.6, 0.6194, {4: 255.4, MIB: 2864, 16 * MIB: 31_011, 256 * MIB: 448_343}),
    (8, 4, 6, SLOW[12], 85.6, 3.097, {4: 86.1, MIB: 662.5, 16 * MIB: 6457, 256 * MIB: 90_581}),
    (2, 1, 3, SLOW[29], 65.6, 3.0, {KIB: 72.6, 16 * KIB: 97.6, MIB: 627.1, 64 * MIB: 24_131}),
]


@pytest.mark.parametrize(("nodes", "most", "net", "links", "latency_us", "rate", "us_of"), BY_HAND)
def test_an_all_reduce_by_hand(
    nodes: int,
    most: int,
    net: float,
    links: LinksConfig,
    latency_us: float,
    rate: float,
    us_of: dict[int, float],
):
    curve = ends("all_reduce", nodes, most, nodes * most, net * 1e9, links)
    assert curve.latency_s * 1e6 == pytest.approx(latency_us, rel=1e-3)
    assert curve.bytes_per_s / 1e9 == pytest.approx(rate, rel=1e-3)
    for size, us in us_of.items():
        digits = 0.05 if us < 1000 else 0.5  # half of the last one given
        assert seconds(size, curve, RAMP) * 1e6 == pytest.approx(us, rel=1e-3, abs=digits)


@pytest.mark.parametrize(
    ("verb", "latency_us", "gbytes_per_s"),
    [
        # 2 nodes of 8: one way is 7 hops of 0.6 and one of 12; cards 192, inside 240 GB/s.
        ("reduce_scatter", 7.6 + 16.2, 16 / 15 * 192),
        ("all_gather", 7.6 + 16.2, 192 / 15),  # the payload is one rank's piece
        ("broadcast", 7.6 + 16.2, 192),
        ("reduce", 7.6 + 16.2, 192),
        ("barrier", 7.6 + 32.4, 192),
    ],
)
def test_other_verbs_by_hand(verb: str, latency_us: float, gbytes_per_s: float):
    curve = ends(verb, 2, 8, 16, 192e9, A100)
    assert (1e6 * curve.latency_s, curve.bytes_per_s / 1e9) == pytest.approx((latency_us, gbytes_per_s))


def test_switches_that_add_need_five_ranks_of_a_node():
    """Of 4 or 2 H100 NCCL takes a ring; so does a group of one rank a node."""
    for most in (2, 4):
        assert ends("all_reduce", 1, most, most, math.inf, H100).bytes_per_s < 0.5 * most / (most - 1) * 361e9
    assert ends("all_reduce", 2, 1, 2, 48e9, H100).bytes_per_s == 48e9


positive = st.floats(1e-3, 1e4)


@given(nodes=st.integers(1, 64), most=st.integers(2, 16), size=st.integers(0, 2**34), links=st.data())
def test_properties(nodes: int, most: int, size: int, links: st.DataObject):
    """Without a ramp it is latency plus transfer; time grows with the payload, the ramp and the hops."""
    inside, net, hop, a_e = (links.draw(positive) for _ in range(4))
    given_links = nccl(inside, hop, a_e=a_e)
    curve = ends("all_reduce", nodes, most, nodes * most, net * 1e9, given_links)
    assert seconds(size, curve, 0) == curve.latency_s + size / curve.bytes_per_s
    times = [seconds(size, curve, ramp) for ramp in (0, 0.5, 1)]
    assert times == sorted(times)
    assert seconds(size, curve, RAMP) <= seconds(size + MIB, curve, RAMP)
    longer = ends("all_reduce", nodes, most, nodes * most, net * 1e9, nccl(inside, 2 * hop, a_e=a_e))
    assert longer.latency_s > curve.latency_s
    if nodes == 1:
        assert ends("all_reduce", 1, most, most, 1.0, given_links) == curve, "no card is in it"


@given(small=positive, rate=positive, size=st.integers(1, 2**34), ramp=st.floats(0, 1))
def test_through_inverts_seconds(small: float, rate: float, size: int, ramp: float):
    curve = Ends(small / 1e6, rate * 1e9)
    again = through(curve.latency_s, size, seconds(size, curve, ramp), ramp)
    assert seconds(size, again, ramp) == pytest.approx(seconds(size, curve, ramp))
    if size / curve.bytes_per_s > 1e-3 * curve.latency_s:  # else rounding of the time is all that is seen
        assert again.bytes_per_s == pytest.approx(curve.bytes_per_s, rel=1e-6)


# ---------------------------------------------------------------- on a cluster: as in test_link_costs

NCCL: dict[str, Any] = {"model": "nccl", "launch_us": 5.0, "ramp": 0.5}


@pytest.mark.parametrize("verb", VERBS)
def test_a_cluster_of_the_model_nccl_costs_what_the_curve_says(verb: str):
    """Two nodes of two ranks, 1 GB/s a card and two cards, 10 GB/s inside; the links held are as before."""
    members, nodes, most = ((0, 2), 2, 1) if verb == "send" else ((0, 1, 2, 3), 2, 2)
    plain = cost([2, 2], verb, members, 12_000, nics=2)
    got = cost([2, 2], verb, members, 12_000, nics=2, node_speeds=(1.0, 0.5), **NCCL)
    links = LinksConfig(
        **NCCL,
        inter=LinkConfig(rate_gbit=8, latency_us=10),
        intra=LinkConfig(rate_gbit=80, latency_us=1),
    )
    curve = ends(verb, nodes, most, len(members), most * 0.5e9, links)
    ramp = 0 if verb == "send" else 0.5
    assert got.duration_ns == round(seconds(12_000, curve, ramp) * 1e9)
    assert got.links == plain.links


def test_messages_and_one_node_by_hand():
    assert cost([1, 1], "send", (1, 0), 12_000, **NCCL).duration_ns == 5_000 + 10_000 + 12_000
    # 3 ranks: launch and 2 · 2 hops; 3/4 of 10 bytes a ns make 1600 ns; 2 · 0.5 · √(9000 · 1600).
    assert cost([3], payload=12_000, **NCCL).duration_ns == 9_000 + 1_600 + round(math.sqrt(9_000 * 1_600))
    assert cost([3], "send", (2, 1), 12_000, **NCCL).links == way(("rank", 2), ("rank", 1))
    assert cost([2], members=(1,), **NCCL).duration_ns == 0, "a rank alone"


def test_gloo_is_a_ring_in_which_a_process_has_its_cap():
    """Two cards of 10 bytes a ns, of which a process fills 1; inside a node a half."""
    fast, inside = (LinkConfig(rate_gbit=80, latency_us=us, cap_gbit=cap) for us, cap in ((10, 8), (1, 4)))
    gloo: dict[str, Any] = {"model": "gloo", "inter": fast, "intra": inside, "nics": 2}
    assert cost([1, 1], **gloo).duration_ns == 20_000 + 12_000_000
    assert cost([2, 2], members=(0, 1), **gloo).duration_ns == 2_000 + 24_000_000
    assert cost([2, 2], **gloo).duration_ns == 60_000 + 36_000_000
    uncapped = cost([2, 2], model="gloo")
    assert uncapped == cost([2, 2], algorithm="ring") != cost([2, 2])
