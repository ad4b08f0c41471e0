"""Emulated nodes of a run: makes and ends their network namespaces; why this machine cannot have them."""

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any, Self

from ....strategies.errors import ConfigError, MachineError
from ...config.cluster import LinkConfig
from ...machine.signals import LEFT_TO_THE_SUPERVISOR, signal_name
from .addresses import INTERFACE, MOST_NODES, UNSHAPED_INTERFACE, Shape
from .namespaces import NodeEntry

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
    """A context manager for network namespaces, one per node, with links of their own.

    `entries` (by node) is what `namespaces.enter` takes, `commands` what made the network and `turns` whether
    a link's connections wait in turns (else first in, first out), for the record, `holder_pid` the process
    that keeps it. Enter it from the main thread: the nodes end with that thread.

    Args:
        ranks_of_nodes: number of ranks of each node.
        inter: the link of each node to the others; a rate of null or .inf is not shaped.
        node_speeds: by node: its link has so many times the rate. None: all alike.

    Raises:
        ConfigError: more nodes than a bridge has ports.
    """

    def __init__(
        self, ranks_of_nodes: Sequence[int], inter: LinkConfig, node_speeds: Sequence[float] | None = None
    ) -> None:
        if len(ranks_of_nodes) > MOST_NODES:
            raise ConfigError(
                f"cluster.nodes={len(ranks_of_nodes)}: emulated nodes hang on one bridge, which has "
                f"{MOST_NODES} ports; launcher=simulated takes more"
            )
        self._shapes = shapes(len(ranks_of_nodes), inter, node_speeds)
        self._holder: Holder | None = None
        self.entries: list[NodeEntry] = []
        self.commands: list[str] = []
        self.turns: bool | None = None

    @property
    def holder_pid(self) -> int | None:
        """The process that keeps the nodes; None outside of the context."""
        return None if self._holder is None else self._holder.pid

    def broken(self) -> str | None:
        """Why there are no links between the nodes any more; None if there are.

        The bridges go with the holder, and the ranks' connections do not end with them: they wait.
        """
        how = None if self._holder is None else self._holder.ended()
        return None if how is None else f"the emulated nodes have no links: the process that held them {how}"

    def __enter__(self) -> Self:
        """Make the nodes. Raises MachineError: they cannot be had here, with the reason and the way out."""
        if sys.platform != "linux":
            raise MachineError(f"emulated nodes are Linux's, this is {sys.platform}; {WAY_OUT}")
        latency_us = max(shape.latency_us for shape in self._shapes)
        holder = Holder(self._shapes)
        answer = holder.answer
        if "error" in answer:
            if latency_us and answer["cause"] == "tc" and "netem" in answer["error"] and not has_netem():
                raise MachineError(
                    f"cluster.links.inter.latency_us={latency_us:g}: this kernel cannot delay packets "
                    f"({answer['error']}); launcher.network=modelled has latencies, and "
                    "cluster.links.inter.latency_us=0 does without"
                )
            raise MachineError(explain(answer, switches()))
        self._holder = holder
        self.commands, self.turns = answer["commands"], answer["turns"]
        self.entries = [
            NodeEntry(answer["user"], net, address, INTERFACE, UNSHAPED_INTERFACE)
            for net, address in zip(answer["nodes"], answer["addresses"], strict=True)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        """End what holds the nodes, which may be gone already; they go with the last rank inside."""
        if self._holder is not None:
            self._holder.end()
            self._holder = None


class Holder:
    """The running process of `namespaces`. `answer`: its JSON line, with "error" if there are no nodes.

    The kernel ends it with the thread that made it: make it in the main thread.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        # It ignores these signals once it can; until then a Ctrl-C must not end it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_SUPERVISOR)
        try:
            # Unbuffered: the one line is written at once, and `select` sees all there is to read.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.namespaces", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            self.answer = self._ask(shapes)
        except BaseException:
            self.end()
            raise
        if "error" in self.answer:
            self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal_name(-code)}" if code < 0 else f"ended (exit code {code})"

    def end(self) -> None:
        """End it if it runs; what it held goes with the last rank inside. May be called again."""
        self._process.kill()  # it has nothing to clean up
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _ask(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        limit_s = ANSWER_S + ANSWER_S_PER_NODE * len(shapes)
        until = time.monotonic() + limit_s
        line = json.dumps([astuple(shape) for shape in shapes]).encode() + b"\n"
        with suppress(BrokenPipeError):  # it has ended; its error is read below
            process.stdin.write(line)
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                return {"error": f"no answer within {limit_s:g} s", "cause": "other"}
            if not (more := os.read(process.stdout.fileno(), 65536)):
                lines = process.stderr.read().decode(errors="replace").strip().splitlines()
                return {"error": (lines or ["it ended without an error message"])[-1], "cause": "other"}
            answer += more
        return json.loads(answer)


def impossible() -> str | None:
    """Why no nodes can be had here and what would help, None if they can. Takes about 0.2 s: it makes one."""
    if sys.platform != "linux":
        return f"emulated nodes are network namespaces, which are Linux's; this is {sys.platform}; {WAY_OUT}"
    answer = _tried(Shape(bytes_per_s=1e6))
    return explain(answer, switches()) if "error" in answer else None


def has_netem() -> bool:
    """Whether this kernel can delay packets; False too where no nodes can be had."""
    return sys.platform == "linux" and "error" not in _tried(Shape(latency_us=2.0))


def explain(answer: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """The error message for a holder's failure. `values`: of those `SWITCHES` that this kernel has."""
    error, cause = answer["error"], answer["cause"]
    if cause == "missing":
        return f"emulated nodes: {error}; install iproute2 (package iproute2 or iproute); {WAY_OUT}"
    refused = cause in ("unshare", "map") or "not permitted" in error or "denied" in error
    if not refused:
        return f"emulated nodes: {error}; {WAY_OUT}"
    for name, (forbidding, allowing) in SWITCHES.items():
        if values.get(name) == forbidding:
            return (
                f"emulated nodes: user namespaces are forbidden ({error}): {name} is {forbidding}; "
                f"`sysctl -w {name}={allowing}` as root allows them; {WAY_OUT}"
            )
    return (
        f"emulated nodes: user namespaces are forbidden ({error}), and by no sysctl: a container forbids "
        "them by its seccomp profile or keeps capabilities back (Docker: --security-opt seccomp=unconfined, "
        f"or --privileged); {WAY_OUT}"
    )


def switches() -> dict[str, str]:
    """The values of `SWITCHES` here; a kernel without one is left out."""
    values: dict[str, str] = {}
    for name in SWITCHES:
        try:
            values[name] = Path("/proc/sys", *name.split(".")).read_text().strip()
        except OSError:
            continue
    return values


def _tried(shape: Shape) -> dict[str, Any]:
    holder = Holder([shape])
    holder.end()
    return holder.answer


def shapes(nodes: int, inter: LinkConfig, node_speeds: Sequence[float] | None) -> list[Shape]:
    """The links of so many nodes."""
    speeds = [1.0] * nodes if node_speeds is None else list(node_speeds)
    assert len(speeds) == nodes, "checked by LinksConfig"
    shaped = inter.rate_gbit is not None and math.isfinite(inter.rate_gbit)
    return [Shape(inter.bytes_per_s * speed if shaped else None, inter.latency_us) for speed in speeds]
