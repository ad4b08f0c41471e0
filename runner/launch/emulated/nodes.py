"""Emulated nodes of a run: makes and ends their network namespaces; why this machine cannot have them."""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, Self

from ....strategies.errors import ConfigError, MachineError
from ....strategies.topology import Topology
from ...config.cluster import LinkConfig
from ...machine.signals import signal_name, signals_blocked
from ..rank_process import Meeting
from .namespaces import INTERFACE, MOST_NODES, UNSHAPED_INTERFACE, NodeEntry, Shape

ANSWER_S, ANSWER_S_PER_NODE = 20.0, 1.0
WAY_OUT = "launcher.network=modelled needs none of this"
# Which value forbids, and one that allows.
SWITCHES = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "10000"),
    "user.max_net_namespaces": ("0", "10000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}


class Nodes:
    """Network namespaces for the ranks of a run, one per node, with links of their own: a context manager.

    A process of `namespaces` holds them; the kernel ends it with the thread that made it, so enter from the
    main thread. Inside the context, `entries` (by node) is what `namespaces.enter` takes, `commands` what
    made the network.

    inter: the link of each node to the others; a rate of null or .inf is not shaped. node_speeds: by node:
    its link has so many times the rate. Raises ConfigError for more nodes than a bridge has ports; on
    entering MachineError, with the reason and the way out, if they cannot be had here.
    """

    port = 29500  # of the rendezvous: nobody else is on the network of a run's nodes
    listener = None  # rank 0 opens the port, in its node
    keep_awake = False  # whether no core may fall asleep meanwhile

    def __init__(
        self, ranks_of_nodes: Sequence[int], inter: LinkConfig, node_speeds: Sequence[float] | None = None
    ) -> None:
        if len(ranks_of_nodes) > MOST_NODES:
            raise ConfigError(
                f"cluster.nodes={len(ranks_of_nodes)}: emulated nodes hang on one bridge, which has "
                f"{MOST_NODES} ports; launcher=simulated takes more"
            )
        self._node_of_rank = Topology.of(ranks_of_nodes).node_of_rank
        self._shapes = shapes(len(ranks_of_nodes), inter, node_speeds)
        self._latency_us = inter.latency_us
        self._process: subprocess.Popen[bytes] | None = None
        self.entries: list[NodeEntry] = []
        self.commands: list[str] = []

    @property
    def meeting(self) -> Meeting:
        """Where the ranks meet: at node 0's address."""
        return Meeting(
            host=self.entries[0].address,
            network="kernel",
            interface=INTERFACE,
            unshaped_interface=UNSHAPED_INTERFACE,
            known={"network": {"made_by": "kernel", "commands": list(self.commands)}},
        )

    def node(self, rank: int) -> NodeEntry:
        return self.entries[self._node_of_rank[rank]]

    def broken(self) -> str | None:
        """Why there are no links between the nodes any more; None if there are.

        The bridges go with the holder, and the ranks' connections do not end with them: they wait.
        """
        code = None if self._process is None else self._process.poll()
        if code is None:
            return None
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended (exit code {code})"
        return f"the emulated nodes have no links: the process that held them {how}"

    def __enter__(self) -> Self:
        if sys.platform != "linux":
            raise MachineError(f"emulated nodes are network namespaces, which are Linux's; {WAY_OUT}")
        try:
            answer = self._start_holder()
            if "error" in answer:
                raise MachineError(self._explained(answer))
        except BaseException:
            self.__exit__()
            raise
        self.commands = answer["commands"]
        self.entries = [
            NodeEntry(answer["user"], net, address)
            for net, address in zip(answer["nodes"], answer["addresses"], strict=True)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        """End the holder, which may be gone already; what it held goes with the last rank inside."""
        if self._process is None:
            return
        self._process.kill()  # it has nothing to clean up
        self._process.communicate()
        self._process = None

    def _start_holder(self) -> dict[str, Any]:
        """Start the holder and return its answer, with "error" and "cause" if there are no nodes."""
        # It ignores these signals once it can; until then a Ctrl-C must not end it.
        with signals_blocked():
            # Unbuffered: the one line is written at once, and `select` sees all there is to read.
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.namespaces", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        limit_s = ANSWER_S + ANSWER_S_PER_NODE * len(self._shapes)
        until = time.monotonic() + limit_s
        with suppress(BrokenPipeError):  # it has ended; its error is read below
            process.stdin.write(json.dumps([astuple(shape) for shape in self._shapes]).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return {"error": f"no answer within {limit_s:g} s", "cause": "other"}
            if not (more := os.read(process.stdout.fileno(), 65536)):
                lines = process.stderr.read().decode(errors="replace").strip().splitlines()
                return {"error": (lines or ["it ended without an error message"])[-1], "cause": "other"}
            answer += more
        return json.loads(answer)

    def _explained(self, answer: Mapping[str, Any]) -> str:
        if self._latency_us and answer["cause"] == "tc" and "netem" in answer["error"]:
            return (
                f"cluster.links.inter.latency_us={self._latency_us:g}: this kernel cannot delay packets "
                f"({answer['error']}); launcher.network=modelled has latencies, and "
                "cluster.links.inter.latency_us=0 does without"
            )
        return explain(answer, switches())


def impossible(latency_us: float = 0.0) -> str | None:
    """Why no nodes with such links can be had here and what would help, None if they can.

    Takes about 0.2 s: it makes one node.
    """
    try:
        with Nodes((1,), LinkConfig(rate_gbit=1.0, latency_us=latency_us)):
            return None
    except MachineError as error:
        return str(error)


def explain(answer: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """The error message for a holder's failure. `values`: of those `SWITCHES` that this kernel has."""
    error, cause = answer["error"], answer["cause"]
    if cause == "missing":
        return f"emulated nodes: {error}; install iproute2 (package iproute2 or iproute); {WAY_OUT}"
    if cause not in ("unshare", "map") and "not permitted" not in error and "denied" not in error:
        return f"emulated nodes: {error}; {WAY_OUT}"
    how = (
        "by no sysctl: a container forbids them by its seccomp profile or keeps capabilities back (Docker: "
        "--security-opt seccomp=unconfined, or --privileged)"
    )
    for name, (forbidding, allowing) in SWITCHES.items():
        if values.get(name) == forbidding:
            how = f"{name} is {forbidding}; `sysctl -w {name}={allowing}` as root allows them"
            break
    return f"emulated nodes: user namespaces are forbidden ({error}): {how}; {WAY_OUT}"


def switches() -> dict[str, str]:
    """The values of `SWITCHES` here; a kernel without one is left out."""
    values: dict[str, str] = {}
    for name in SWITCHES:
        with suppress(OSError):
            values[name] = Path("/proc/sys", *name.split(".")).read_text().strip()
    return values


def has_netem() -> bool:
    """Whether this kernel can delay packets; False too where no nodes can be had."""
    return impossible(latency_us=2.0) is None


def shapes(nodes: int, inter: LinkConfig, node_speeds: Sequence[float] | None) -> list[Shape]:
    """The links of so many nodes."""
    speeds = [1.0] * nodes if node_speeds is None else list(node_speeds)
    assert len(speeds) == nodes, "checked by LinksConfig"
    shaped = inter.rate_gbit is not None and math.isfinite(inter.rate_gbit)
    return [Shape(inter.bytes_per_s * speed if shaped else None, inter.latency_us) for speed in speeds]
