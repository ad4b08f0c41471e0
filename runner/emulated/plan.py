"""What an emulated cluster's network is made of: addresses, and the lines for `ip -batch` and `tc -batch`.

    node 0: e0 ─ n0 ─ bridge b0 ─ n1 ─ e0 :node 1     shaped
    node 0: f0 ─ m0 ─ bridge b1 ─ m1 ─ f0 :node 1     never shaped, to measure what is not the link

A message from node 0 to node 1 is shaped where it leaves e0 (node 0's rate) and where it leaves n1 (node 1's
rate), so both ways of both nodes' links have their rate, also when several nodes send to one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
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
_LEAST_PACKETS = 2
_LATE_S = 0.75e-3
_LEAST_WINDOW_PACKETS = 3
_SERVED_S = 2e-3


@dataclass(frozen=True)
class Shape:
    """A node's link to the others: payload bytes per second each way (None: unshaped), and how long a message
    is on its way from one node to another."""

    bytes_per_s: float | None = None
    latency_us: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Lines for `program -batch -`. `node`: in whose namespace it runs, None for the bridges'."""

    node: int | None
    program: Literal["ip", "tc"]
    lines: tuple[str, ...]


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
    and from that much later as the message costs time besides the link (0.5 to 2 ms: waking up, the ring's
    hops). But a core that serves the queue late, as it does where there are more ranks than cores, loses what
    the bucket cannot hold: too small, and long messages are too slow (at 1 Gbit/s, 4 ranks on 2 cores).
    """
    return round(_LEAST_PACKETS * (MTU + _LINK_HEADER) + wire_rate * _LATE_S)


def window_bytes(shapes: Sequence[Shape]) -> int | None:
    """Bytes that one sender may have under way to one receiver; None where no link is shaped.

    A link's queue is first in, first out, and whatever TCP lets a sender have under way lies in it: without
    bounds a whole message. gloo asks for each part of a ring's sum by a word to its sender, and where another
    rank of the node has filled the queue, that word waits behind it while the other way of the link stands
    idle: sums over 2 nodes of 2 ranks were 7 to 20 % late, over 4 nodes of one exact. Hosts avoid it by short
    queues (TSQ, BQL) or fair ones. So: what the slowest machine serves late and, of the fastest link, what is
    on its way; less and the link runs dry between two wake-ups (at 1 Gbit/s with half of this).
    """
    rates = [shape.bytes_per_s for shape in shapes if shape.bytes_per_s is not None]
    if len(rates) < len(shapes):
        return None
    round_trip_s = 2e-6 * max(shape.latency_us for shape in shapes)
    least = _LEAST_WINDOW_PACKETS * (MTU + _LINK_HEADER) + 1000
    return max(least, round(max(rates) * (_SERVED_S + round_trip_s)))


def plan(shapes: Sequence[Shape], base: str, *, ipv6: bool = True) -> list[Batch]:
    """The network of nodes with these links, in order of execution.

    Args:
        base: path of the namespace with the bridges, for the nodes' `ip`.
        ipv6: the kernel has it, so each interface must be told to take no address of its own accord.
    """
    quiet = ["link set {} addrgenmode none"] if ipv6 else []
    bridges: list[str] = []
    for bridge in ("b0", "b1"):
        bridges += [f"link add {bridge} type bridge", f"link set {bridge} mtu {MTU}"]
        bridges += [line.format(bridge) for line in quiet] + [f"link set {bridge} up"]
    batches = [Batch(None, "ip", tuple(bridges))]
    ports: list[str] = []
    shaping: list[str] = []
    window = window_bytes(shapes)
    for node, shape in enumerate(shapes):
        inside = ["link set lo up"]
        for name, port, bridge, shaped in (
            (INTERFACE, f"n{node}", "b0", True),
            (UNSHAPED_INTERFACE, f"m{node}", "b1", False),
        ):
            own = address(node, shaped=shaped)
            inside += [
                f"link add {name} mtu {MTU} type veth peer name {port} mtu {MTU} netns {base}",
                *(line.format(name) for line in quiet),
                f"address add {own}/16 dev {name} noprefixroute",
                f"link set {name} up",
                _route(own, name, window if shaped else None),
            ]
            ports += [line.format(port) for line in quiet]
            ports += [f"link set {port} master {bridge}", f"link set {port} up"]
        batches.append(Batch(node, "ip", tuple(inside)))
        if own_end := shaping_lines(INTERFACE, shape):
            batches.append(Batch(node, "tc", tuple(own_end)))
        shaping += shaping_lines(f"n{node}", shape)
    batches.append(Batch(None, "ip", tuple(ports)))
    if shaping:
        batches.append(Batch(None, "tc", tuple(shaping)))
    return batches


def shaping_lines(device: str, shape: Shape) -> list[str]:
    """For one end of a node's pair: the rate, then half the latency (a message passes two such ends)."""
    lines: list[str] = []
    parent = "root handle 1:"
    if shape.bytes_per_s is not None:
        rate = wire_bytes_per_s(shape.bytes_per_s)
        lines.append(
            f"qdisc add dev {device} {parent} tbf rate {round(rate * 8)}bit burst {burst_bytes(rate)} "
            f"limit {_QUEUE_BYTES}"
        )
        parent = "parent 1:1 handle 10:"  # the place of tbf's own queue
    if shape.latency_us:
        lines.append(
            f"qdisc add dev {device} {parent} netem delay {shape.latency_us / 2:.3f}us limit {_QUEUE_PACKETS}"
        )
    return lines


def _route(own: str, device: str, window: int | None) -> str:
    """The way to the other nodes, with TCP that neither paces itself nor starts slowly after each pause.

    The machine's own choice could be one that does (bbr sends next to nothing for 0.2 s in every 10). Reno is
    in every kernel, and where nothing is lost it only opens its window.
    """
    net = ".".join([*own.split(".")[:2], "0.0"])
    bound = "" if window is None else f" window {window}"
    return f"route add {net}/16 dev {device} src {own} congctl reno initcwnd {_WINDOW_PACKETS}{bound}"


def has_ipv6() -> bool:
    """Whether this kernel gives interfaces IPv6 addresses unasked."""
    return os.path.isdir("/proc/sys/net/ipv6")
