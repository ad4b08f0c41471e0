"""The text of the plan: no process, no kernel."""

import pytest

from daso_bench.runner.config.cluster import LinkConfig
from daso_bench.runner.launch.emulated.namespaces import (
    Shape,
    address,
    burst_bytes,
    plan,
    shaping_lines,
    window_bytes,
    wire_bytes_per_s,
)
from daso_bench.runner.launch.emulated.nodes import shapes


def test_addresses_go_on_past_a_byte_and_no_two_of_the_most_nodes_share_one():
    expected = {0: "0.1", 253: "0.254", 254: "0.255", 255: "1.0", 1022: "3.255"}
    assert {node: address(node) for node in expected} == {
        node: f"10.99.{end}" for node, end in expected.items()
    }
    assert address(255, shaped=False) == "10.98.1.0"
    assert len({address(node) for node in range(1023)}) == 1023


def test_headers_and_acknowledgements_are_added_to_the_rate():
    # 8948 bytes of payload go in 9014, and half of an acknowledgement of 66 comes back.
    assert wire_bytes_per_s(8948.0) == pytest.approx(9014 + 33)


def test_a_burst_holds_a_packet_and_a_half_and_what_comes_while_a_core_is_late():
    assert burst_bytes(0.0) == 1.5 * 9014, "tbf drops a packet that its bucket cannot hold"
    assert burst_bytes(6.25e6) < 18_350  # 256 KiB after a pause are at most 7 % too fast
    assert burst_bytes(125e6) - burst_bytes(25e6) == pytest.approx(100e6 * 0.5e-3, abs=1)


def test_a_sender_may_have_four_milliseconds_of_the_fastest_link_under_way():
    """And what is on its way; at least three packets."""
    assert window_bytes([Shape(25e6), Shape(125e6)]) == 500_000
    assert window_bytes([Shape(125e6, latency_us=500.0), Shape(25e6)]) == 625_000
    assert window_bytes([Shape(5e6)] * 2) == 3 * 9014 + 1000
    assert window_bytes([Shape(5e6), Shape()]) is None, "an unshaped link is not to be bounded"


def test_the_window_bounds_shaped_cards_only():
    routes = [
        line
        for _, _, lines in plan([Shape(5e6), Shape(125e6)], "/proc/1/fd/9")
        for line in lines
        if line.startswith("route")
    ]
    assert [line.endswith(" window 500000") for line in routes] == [" dev e0 " in line for line in routes]
    assert len(routes) == 4


def test_payload_rates_are_the_links_efficiency_and_the_nodes_speed():
    link = LinkConfig(rate_gbit=0.8, efficiency=0.5, latency_us=7.0)
    assert shapes(2, link, (1.0, 0.25)) == [Shape(50e6, 7.0), Shape(12.5e6, 7.0)]
    assert shapes(2, LinkConfig(rate_gbit=None), None) == [Shape(), Shape()]
    assert shapes(1, LinkConfig(rate_gbit=float("inf")), None) == [Shape()]


def test_rate_and_latency_are_chained_and_each_end_has_half_the_latency():
    delay, rate, *_ = shaping_lines("e0", Shape(12.5e6, 100.0))
    assert delay.startswith("qdisc add dev e0 root handle 1: netem delay 50.000us limit ")
    assert rate.startswith("qdisc add dev e0 parent 1:1 handle 2: tbf rate 101106392bit burst 19840 limit ")
    (delay,) = shaping_lines("e0", Shape(None, 5.0))
    assert delay.startswith("qdisc add dev e0 root handle 1: netem delay 2.500us limit ")
    assert shaping_lines("e0", Shape()) == []


def test_the_whole_plan_of_two_nodes_of_which_one_is_shaped():
    batches = plan([Shape(12.5e6), Shape()], "/proc/1/fd/3")
    assert [(node, program) for node, program, _ in batches] == [
        (None, "ip"), (0, "ip"), (0, "tc"), (1, "ip"), (None, "ip"), (None, "tc"),
    ]  # fmt: skip
    bridges, node_0, shaping, node_1, ports, outer = [lines for _, _, lines in batches]
    assert bridges[:4] == [
        "link add b0 type bridge",
        "link set b0 mtu 9000",
        "link set b0 addrgenmode none",
        "link set b0 up",
    ]
    assert node_0[:6] == [
        "link set lo up",
        "link add e0 mtu 9000 type veth peer name n0 mtu 9000 netns /proc/1/fd/3",
        "link set e0 addrgenmode none",
        "address add 10.99.0.1/16 dev e0 noprefixroute",
        "link set e0 up",
        "route add 10.99.0.0/16 dev e0 src 10.99.0.1 congctl reno initcwnd 1000",
    ]
    assert "link add f0 mtu 9000 type veth peer name m1 mtu 9000 netns /proc/1/fd/3" in node_1
    assert ports[:3] == ["link set n0 addrgenmode none", "link set n0 master b0", "link set n0 up"]
    assert ports[3:6] == ["link set m0 addrgenmode none", "link set m0 master b1", "link set m0 up"]
    tbf = "root handle 2: tbf rate 101106392bit burst 19840 limit 268435456"
    assert (shaping[0], outer[0]) == (f"qdisc add dev e0 {tbf}", f"qdisc add dev n0 {tbf}")
    assert (shaping, outer) == tuple(shaping_lines(name, Shape(12.5e6)) for name in ("e0", "n0"))
    quiet, plain = (plan([Shape()], "/proc/1/fd/3", ipv6=ipv6) for ipv6 in (True, False))
    assert any("addrgenmode" in line for _, _, lines in quiet for line in lines)
    assert not any("addrgenmode" in line for _, _, lines in plain for line in lines)
