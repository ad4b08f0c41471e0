"""The nodes of one run: made on entering, gone after leaving."""

import math
import sys
from collections.abc import Sequence
from typing import Self

from ....strategies.errors import ConfigError, MachineError
from ...config.cluster import LinkConfig
from .ability import WAY_OUT, explain, has_netem, switches
from .addresses import INTERFACE, MOST_NODES, UNSHAPED_INTERFACE, Shape
from .hold_nodes import Holder
from .namespaces import NodeEntry


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


def shapes(nodes: int, inter: LinkConfig, node_speeds: Sequence[float] | None) -> list[Shape]:
    """The links of so many nodes."""
    speeds = [1.0] * nodes if node_speeds is None else list(node_speeds)
    assert len(speeds) == nodes, "checked by LinksConfig"
    shaped = inter.rate_gbit is not None and math.isfinite(inter.rate_gbit)
    return [Shape(inter.bytes_per_s * speed if shaped else None, inter.latency_us) for speed in speeds]
