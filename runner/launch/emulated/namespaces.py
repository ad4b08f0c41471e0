"""Network namespaces of emulated nodes: their network, entering a node, the process that holds all nodes.

    node 0: e0 ─ n0 ─ bridge b0 ─ n1 ─ e0 :node 1     shaped
    node 0: f0 ─ m0 ─ bridge b1 ─ m1 ─ f0 :node 1     never shaped, to measure what is not the link

A message from node 0 to node 1 is shaped where it leaves e0 (node 0's rate) and where it leaves n1 (node 1's
rate), so both ways of both nodes' links have their rate, also when several nodes send to one. At each end
packets pass netem (latency), then tbf (rate), whose queue gives all connections equal turns (htb).

`python -m daso_bench.runner.launch.emulated.namespaces PARENT` makes the nodes and holds them until it ends.
stdin: one JSON line, a list with [payload bytes per second or null, latency in µs] of each node; then nothing
until its end, which ends this process. stdout: one JSON line,

    {"user": path, "nodes": [path, …], "addresses": […], "commands": […]}
    {"error": what failed, "cause": "unshare" | "map" | "missing" | "ip" | "tc" | "other"}

The namespaces have no names: only the open files of this process and the ranks inside keep them. So they
disappear with the last of these processes, in whatever order they are killed.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from ....strategies.errors import MachineError
from ...machine.signals import LEFT_TO_THE_SUPERVISOR, die_with_parent

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
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
EVERY_ID = "0 0 4294967295"
COMMAND_S = 30.0  # one batch
# An ordinary user's PATH often lacks the folders where `tc` is.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
# Lines for `program -batch -`, and the node in whose namespace they run; None for the bridges'.
Batch = tuple[int | None, Literal["ip", "tc"], list[str]]


@dataclass(frozen=True)
class NodeEntry:
    """What a rank needs to enter its node: the paths of two namespaces; and its address.

    The paths are below /proc of the process that holds the namespaces, and valid while that process lives.
    """

    user: str
    net: str
    address: str


def enter(entry: NodeEntry) -> None:
    """Move this process into the node, for good. Only its network changes, and what it may do to others'.

    It must have one thread, and no open socket that it means to use there. Files keep their owners.

    Raises MachineError if the node is gone, or the kernel refuses.
    """
    if sys.platform != "linux":
        raise MachineError(f"a node cannot be entered: namespaces are Linux's, this is {sys.platform}")
    paths = (entry.user, entry.net)
    try:
        # Both are opened first: from inside the user namespace the second might not be seen.
        descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    except OSError as error:
        raise MachineError(
            f"{error.filename}: the node's namespace cannot be opened ({os.strerror(error.errno or 0)}); has "
            "the process that holds it ended, or does another user run this rank?"
        ) from error
    for descriptor, kind, path in zip(descriptors, (CLONE_NEWUSER, CLONE_NEWNET), paths, strict=True):
        try:
            system_call("setns", descriptor, kind)
        except OSError as error:
            threads = len(os.listdir("/proc/self/task"))
            raise MachineError(
                f"{path}: the node's namespace cannot be entered ({os.strerror(error.errno or 0)}); this "
                f"process has {threads} threads (it must have one) and must not be inside already"
            ) from error
        os.close(descriptor)


def system_call(name: str, *arguments: int) -> None:
    """unshare(2) or setns(2), which Python has from 3.12 on. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def new_user_and_net() -> None:
    """Move this process (one thread) into a new user and network namespace, with all capabilities there.

    Real root keeps its access to all files, as all ids are mapped to themselves. Another user appears as root
    inside and keeps their own access to files.

    Raises OSError; its `filename` is the map that could not be written, None if `unshare` failed.
    """
    pid, uid, gid = os.getpid(), os.getuid(), os.getgid()
    read_end, write_end = os.pipe()
    # A map of all ids has to be written from outside, so a child stays there to do it.
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.close(write_end)
            code = _write_maps(pid, uid, gid) if os.read(read_end, 1) else 0
        finally:
            os._exit(code)
    os.close(read_end)
    try:
        system_call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        os.write(write_end, b"x")
    finally:
        os.close(write_end)
        _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code) if 0 < code < 255 else f"code {code}", f"/proc/{pid}/uid_map")


def _write_maps(pid: int, uid: int, gid: int) -> int:
    try:
        for name, id in (("uid_map", uid), ("gid_map", gid)):
            try:
                _write(f"/proc/{pid}/{name}", EVERY_ID)
            except PermissionError:
                if name == "gid_map":  # else a group could be left that is there to deny access
                    _write(f"/proc/{pid}/setgroups", "deny")
                _write(f"/proc/{pid}/{name}", f"0 {id} 1")
    except OSError as error:
        return error.errno or 254
    return 0


def _write(path: str, text: str) -> None:
    """One write, as the kernel wants it, whose error is seen."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Shape:
    """A node's link to the others: payload bytes per second each way (None: unshaped), and how long a message
    is on its way from one node to another."""

    bytes_per_s: float | None = None
    latency_us: float = 0.0


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


def plan(shapes: Sequence[Shape], base: str, *, ipv6: bool = True) -> list[Batch]:
    """The network of nodes with these links, in order of execution.

    base: path of the namespace with the bridges; ipv6: the kernel has it, so each interface must be kept from
    taking an address by itself.
    """
    quiet = ["link set {} addrgenmode none"] if ipv6 else []
    bridges: list[str] = []
    for bridge in ("b0", "b1"):
        bridges += [f"link add {bridge} type bridge", f"link set {bridge} mtu {MTU}"]
        bridges += [line.format(bridge) for line in quiet] + [f"link set {bridge} up"]
    batches: list[Batch] = [(None, "ip", bridges)]
    ports: list[str] = []
    outer: list[Batch] = []
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
        batches.append((node, "ip", inside))
        if shape != Shape():
            batches.append((node, "tc", shaping_lines(INTERFACE, shape)))
            outer.append((None, "tc", shaping_lines(f"n{node}", shape)))
    batches.append((None, "ip", ports))
    return batches + outer


def shaping_lines(device: str, shape: Shape) -> list[str]:
    """For one end of a node's pair: half the latency (a message passes two such ends), the rate, equal turns.

    In a queue that is first in, first out, a rank's request to its sender waits behind what another rank of
    the node sends, while the other way of the link is idle: sums of 4 MiB over 2 nodes of 2 ranks reached
    0.94 to 0.95 of 1 Gbit/s, with equal turns of the connections 0.99 to 1.00. Kernels have htb where they
    have no other queue with turns; its own rates are far above any link's and shape nothing.
    """
    lines: list[str] = []
    parent = "root"
    if shape.latency_us:
        lines.append(
            f"qdisc add dev {device} root handle 1: netem delay {shape.latency_us / 2:.3f}us "
            f"limit {_QUEUE_PACKETS}"
        )
        parent = "parent 1:1"
    if shape.bytes_per_s is None:
        return lines
    rate = wire_bytes_per_s(shape.bytes_per_s)
    lines += [
        f"qdisc add dev {device} {parent} handle 2: tbf rate {round(rate * 8)}bit "
        f"burst {burst_bytes(rate)} limit {_QUEUE_BYTES}",
        f"qdisc add dev {device} parent 2:1 handle 3: htb default 1",
    ]
    mask = 2**_PORT_BITS - 1
    for source, destination in product(range(mask + 1), repeat=2):
        flow = f"3:{1 + source * (mask + 1) + destination:x}"
        lines += [
            f"class add dev {device} parent 3: classid {flow} {_TURN}",
            f"filter add dev {device} parent 3: protocol ip prio 1 u32 match ip sport {source} 0x{mask:04x} "
            f"match ip dport {destination} 0x{mask:04x} flowid {flow}",
        ]
    return lines


def _route(source: str, device: str, window: int | None) -> str:
    """The route to the other nodes, with a TCP that neither paces itself nor starts slowly after each pause.

    The machine's own choice could be one that does (bbr sends next to nothing for 0.2 s in every 10). Reno is
    in every kernel, and where nothing is lost it only opens its window.
    """
    net = ".".join([*source.split(".")[:2], "0.0"])
    bound = "" if window is None else f" window {window}"
    return f"route add {net}/16 dev {device} src {source} congctl reno initcwnd {_WINDOW_PACKETS}{bound}"


class StepFailed(Exception):
    """A step of making the nodes failed. `cause`: as in the printed JSON line."""

    def __init__(self, cause: str, error: str) -> None:
        super().__init__(error)
        self.cause = cause


def build(shapes: list[Shape]) -> dict[str, Any]:
    """Make the namespaces and the network in them; this process keeps them open from now on.

    Returns the JSON line to print. Raises StepFailed.
    """
    programs = {name: shutil.which(name, path=SEARCHED) for name in ("ip", "tc")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise StepFailed("missing", f"no command {' and '.join(missing)} on the PATH")
    try:
        new_user_and_net()
        base = _current_net()
        nodes: list[int] = []
        for _ in shapes:
            system_call("unshare", CLONE_NEWNET)
            nodes.append(_current_net())
        system_call("setns", base, CLONE_NEWNET)
    except OSError as error:
        raise StepFailed("map" if error.filename else "unshare", str(error)) from error
    proc = f"/proc/{os.getpid()}"
    commands: list[str] = []
    for node, program, lines in plan(shapes, f"{proc}/fd/{base}", ipv6=os.path.isdir("/proc/sys/net/ipv6")):
        system_call("setns", base if node is None else nodes[node], CLONE_NEWNET)
        _run(program, str(programs[program]), lines)
        where = "bridges" if node is None else f"node {node}"
        # The many classes of equal turns are alike: the record has their queue alone.
        kept = [line for line in lines if not line.startswith(("class ", "filter "))]
        commands += [f"{where}: {program} {line}" for line in kept]
    system_call("setns", base, CLONE_NEWNET)
    return {
        "user": f"{proc}/ns/user",
        "nodes": [f"{proc}/fd/{node}" for node in nodes],
        "addresses": [address(node) for node in range(len(nodes))],
        "commands": commands,
    }


def _current_net() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _run(name: str, program: str, lines: list[str]) -> None:
    try:
        done = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepFailed(name, f"{program} -batch -: {error}") from error
    if done.returncode != 0:
        errors = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        number = errors[-1].rpartition(":")[2]  # `ip` and `tc` end with "Command failed -:NUMBER"
        known = number.isdecimal() and 1 <= int(number) <= len(lines)
        line = lines[int(number) - 1] if known else "-batch -"
        raise StepFailed(name, f"{name} {line}: {errors[0]}")


def main() -> int:
    for number in LEFT_TO_THE_SUPERVISOR:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_SUPERVISOR)
    die_with_parent(int(sys.argv[1]))
    try:
        answer = build([Shape(*numbers) for numbers in json.loads(sys.stdin.buffer.readline())])
    except StepFailed as failure:
        answer = {"error": str(failure), "cause": failure.cause}
    except Exception as error:  # a fault of ours: the supervisor shows it to the user
        answer = {"error": repr(error), "cause": "other"}
    print(json.dumps(answer), flush=True)
    if "error" in answer:
        return 1
    sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
