"""The network of an emulated cluster: addresses, and the lines for `ip -batch` and `tc -batch`.

    node 0: e0 ─ n0 ─ bridge b0 ─ n1 ─ e0 :node 1     shaped
    node 0: f0 ─ m0 ─ bridge b1 ─ m1 ─ f0 :node 1     never shaped, to measure what is not the link

A message from node 0 to node 1 is shaped where it leaves e0 (node 0's rate) and where it leaves n1 (node 1's
rate), so both ways of both nodes' links have their rate, also when several nodes send to one. At each end
packets pass netem (latency), then tbf (rate), whose queue gives all connections equal turns (htb).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

INTERFACE, UNSHAPED_INTERFACE = "e0", "f0"
MOST_NODES = 1023  # ports of a bridge (net/bridge/br_private.h)
MTU = 9000
_LINK_HEADER = 14  # Ethernet; tbf counts it
_HEADERS = 20 + 20 + 12  # IPv4, TCP, its time stamps: the part of the MTU that is no payload
_ACK = _LINK_HEADER + _HEADERS
_PACKETS_PER_ACK = 2  # RFC 5681; the other way's acknowledgements take their share of each way's rate
# A queue as long as whatever the senders' sockets may have under way: the links of a cluster lose nothing.
_QUEUE_BYTES, _QUEUE_PACKETS = 256 * 2**20, 100_000
_WINDOW_PACKETS = 1000
_LEAST_PACKETS = 1.5
_LATE_S = 0.5e-3
_LEAST_WINDOW_PACKETS = 3
_SERVED_S = 4e-3
_PORT_BITS = 3  # of each connection's two ports; two connections share a queue once in 64 times
_TURN = f"htb rate 100gbit burst 100000 cburst 100000 quantum {MTU + _LINK_HEADER}"


@dataclass(frozen=True)
class Shape:
    """A node's link to the others: payload bytes per second each way (None: unshaped), and how long a message
    is on its way from one node to another."""

    bytes_per_s: float | None = None
    latency_us: float = 0.0


@dataclass(frozen=True)
class IpBatch:
    """Lines for `program -batch -`. `node`: in whose namespace it runs, None for the bridges'.

    `summary`: what a record has instead of the lines, where they are many and alike.
    """

    node: int | None
    program: Literal["ip", "tc"]
    lines: tuple[str, ...]
    summary: tuple[str, ...] = ()


def address(node: int, *, shaped: bool = True) -> str:
    """A node's IPv4 address on one of the two bridges, of a /16 each."""
    return f"10.{99 if shaped else 98}.{(node + 1) // 256}.{(node + 1) % 256}"


def wire_bytes_per_s(bytes_per_s: float) -> float:
    """The rate at the link layer, which tbf counts, that carries `bytes_per_s` of payload.

    Full packets of this MTU with their headers, and the acknowledgements of as much payload coming back.
    """
    payload = MTU - _HEADERS
    return bytes_per_s * (MTU + _LINK_HEADER + _ACK / _PACKETS_PER_ACK) / payload


def burst_bytes(wire_rate: float) -> int:
    """Bytes of a token bucket for `wire_rate` bytes/s, between two limits.

    After a pause so many bytes pass unshaped, which makes a message of 256 KiB 10 % too fast from 23 kB on,
    and from that much later as the message costs time apart from the link (0.5 to 2 ms: waking up, the ring's
    hops). But a core that serves the queue late, as it does where there are more ranks than cores, loses what
    the bucket cannot hold: with 0.3 ms, sums of 1 MiB over 1 Gbit/s were 6 to 8 % late.
    """
    return round(_LEAST_PACKETS * (MTU + _LINK_HEADER) + wire_rate * _LATE_S)


def window_bytes(shapes: Sequence[Shape]) -> int | None:
    """Bytes that one sender may have under way to one receiver; None where no link is shaped.

    All that TCP lets a sender have under way is in the link's queue: without a bound, a whole message. gloo
    requests each part of a ring's sum by a message to its sender on the same connection, which must not wait
    behind all of the sender's data. Hosts avoid it by short queues (TSQ, BQL). So: what the slowest
    machine serves late and, of the fastest link, what is on its way; less and the link runs dry between two
    wake-ups (at 1 Gbit/s with 1 ms).
    """
    rates = [shape.bytes_per_s for shape in shapes if shape.bytes_per_s is not None]
    if len(rates) < len(shapes):
        return None
    round_trip_s = 2e-6 * max(shape.latency_us for shape in shapes)
    least = _LEAST_WINDOW_PACKETS * (MTU + _LINK_HEADER) + 1000
    return max(least, round(max(rates) * (_SERVED_S + round_trip_s)))


def plan(shapes: Sequence[Shape], base: str, *, ipv6: bool = True, turns: bool = True) -> list[IpBatch]:
    """The network of nodes with these links, in order of execution.

    Args:
        base: path of the namespace with the bridges, for the nodes' `ip`.
        ipv6: the kernel has it, so each interface must be kept from taking an address by itself.
        turns: the kernel has what `fair_lines` needs; without, the queues are first in, first out.
    """
    quiet = ["link set {} addrgenmode none"] if ipv6 else []
    bridges: list[str] = []
    for bridge in ("b0", "b1"):
        bridges += [f"link add {bridge} type bridge", f"link set {bridge} mtu {MTU}"]
        bridges += [line.format(bridge) for line in quiet] + [f"link set {bridge} up"]
    batches = [IpBatch(None, "ip", tuple(bridges))]
    ports: list[str] = []
    outer: list[IpBatch] = []
    window = window_bytes(shapes)
    for node, shape in enumerate(shapes):
        inside = ["link set lo up"]
        for name, port, bridge, shaped in (
            (INTERFACE, f"n{node}", "b0", True),
            (UNSHAPED_INTERFACE, f"m{node}", "b1", False),
        ):
            ip = address(node, shaped=shaped)
            inside += [
                f"link add {name} mtu {MTU} type veth peer name {port} mtu {MTU} netns {base}",
                *(line.format(name) for line in quiet),
                f"address add {ip}/16 dev {name} noprefixroute",
                f"link set {name} up",
                _route(ip, name, window if shaped else None),
            ]
            ports += [line.format(port) for line in quiet]
            ports += [f"link set {port} master {bridge}", f"link set {port} up"]
        batches.append(IpBatch(node, "ip", tuple(inside)))
        batches += _end(node, INTERFACE, shape, turns)
        outer += _end(None, f"n{node}", shape, turns)
    batches.append(IpBatch(None, "ip", tuple(ports)))
    return batches + outer


def _end(node: int | None, device: str, shape: Shape, turns: bool) -> list[IpBatch]:
    """One end of a node's pair. `node`: in whose namespace the device is."""
    batches: list[IpBatch] = []
    if lines := shaping_lines(device, shape):
        batches.append(IpBatch(node, "tc", tuple(lines)))
    if turns and shape.bytes_per_s is not None:
        first, *classes = fair_lines(device)
        rest = f"and {len(classes) // 2} classes of it by the low {_PORT_BITS} bits of both ports: {_TURN}"
        batches.append(IpBatch(node, "tc", (first, *classes), (first, rest)))
    return batches


def shaping_lines(device: str, shape: Shape) -> list[str]:
    """For one end of a node's pair: half the latency (a message passes two such ends), then the rate."""
    lines: list[str] = []
    parent = "root"
    if shape.latency_us:
        lines.append(
            f"qdisc add dev {device} root handle 1: netem delay {shape.latency_us / 2:.3f}us "
            f"limit {_QUEUE_PACKETS}"
        )
        parent = "parent 1:1"
    if shape.bytes_per_s is not None:
        rate = wire_bytes_per_s(shape.bytes_per_s)
        lines.append(
            f"qdisc add dev {device} {parent} handle 2: tbf rate {round(rate * 8)}bit "
            f"burst {burst_bytes(rate)} limit {_QUEUE_BYTES}"
        )
    return lines


def fair_lines(device: str) -> list[str]:
    """For one end of a node's pair: equal turns for the connections that wait for tbf's rate.

    In a queue that is first in, first out, a rank's request to its sender waits behind what another rank of
    the node sends, while the other way of the link is idle: sums of 4 MiB over 2 nodes of 2 ranks reached
    0.94 to 0.95 of 1 Gbit/s, with this to 0.99 to 1.00. Kernels have htb where they have no other queue with
    turns; its own rates are far above any link's and shape nothing.
    """
    lines = [f"qdisc add dev {device} parent 2:1 handle 3: htb default 1"]
    mask = 2**_PORT_BITS - 1
    for source, destination in product(range(mask + 1), repeat=2):
        flow = f"3:{1 + source * (mask + 1) + destination:x}"
        lines += [
            f"class add dev {device} parent 3: classid {flow} {_TURN}",
            f"filter add dev {device} parent 3: protocol ip prio 1 u32 match ip sport {source} 0x{mask:04x} "
            f"match ip dport {destination} 0x{mask:04x} flowid {flow}",
        ]
    return lines


def trial_lines(device: str) -> list[str]:
    """Lines that succeed where `fair_lines` would, for a device that nothing is sent over yet."""
    qdisc, first_class, first_filter, *_ = fair_lines(device)
    return [
        qdisc.replace("parent 2:1", "root"),
        first_class,
        first_filter,
        f"qdisc del dev {device} root",
    ]


def _route(source: str, device: str, window: int | None) -> str:
    """The route to the other nodes, with a TCP that neither paces itself nor starts slowly after each pause.

    The machine's own choice could be one that does (bbr sends next to nothing for 0.2 s in every 10). Reno is
    in every kernel, and where nothing is lost it only opens its window.
    """
    net = ".".join([*source.split(".")[:2], "0.0"])
    bound = "" if window is None else f" window {window}"
    return f"route add {net}/16 dev {device} src {source} congctl reno initcwnd {_WINDOW_PACKETS}{bound}"


def has_ipv6() -> bool:
    """Whether this kernel has IPv6, and so gives interfaces addresses by itself."""
    return os.path.isdir("/proc/sys/net/ipv6")
