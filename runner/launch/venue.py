"""Where the ranks of `launcher=local` and `launcher=emulated` live and meet, and who makes their links."""

import os
import socket
from abc import ABC, abstractmethod
from typing import Self

from ...strategies.errors import ConfigError, MachineError
from ...strategies.topology import Topology
from ..config.cluster import ClusterConfig
from ..config.launchers import LocalConfig
from ..config.schema import RunConfig
from .emulated.namespaces import NodeEntry
from .emulated.nodes import Nodes, has_netem, impossible
from .rank_process import Meeting

HOST = "127.0.0.1"
PORT = 29500  # of the rendezvous of emulated nodes: nobody else is on the network of a run's nodes


class Venue(ABC):
    """Where the ranks of a run live and meet. Entered before anything changes, left when they have ended."""

    meeting: Meeting
    port: int
    listener: socket.socket | None = None  # rank 0's, open; None: rank 0 opens the port itself
    emulated: bool = False  # devices and links are slower ones than this machine's: other checks apply
    keep_awake: bool = False  # no core may fall asleep meanwhile

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    def node(self, rank: int) -> NodeEntry | None:
        """The emulated node of a rank."""
        return None

    def broken(self) -> str | None:
        """Why no rank can reach another any more; None if they can."""
        return None


class Loopback(Venue):
    """All ranks on the machine's own network. `port`: of the rendezvous, None for a free one."""

    def __init__(
        self, port: int | None, *, modelled: bool = False, instead_of_kernel: str | None = None
    ) -> None:
        """`instead_of_kernel`: why the kernel does not make the links that were asked for."""
        self._port, self.emulated = port, modelled
        known = {"network": {"made_by": "ranks", "instead_of_kernel": instead_of_kernel}} if modelled else {}
        self.meeting = Meeting(network="modelled" if modelled else "none", known=known)

    def __enter__(self) -> Self:
        self.listener = _listen(self._port)
        self.port = self.listener.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        if self.listener is not None:
            self.listener.close()


class OwnNodes(Venue):
    """A network namespace for each node, links between them that the kernel shapes."""

    port = PORT
    emulated = True

    def __init__(self, cluster: ClusterConfig) -> None:
        self._nodes = Nodes(cluster.ranks_of_nodes, cluster.links.inter, cluster.links.node_speeds)
        self._node_of_rank = Topology.of(cluster.ranks_of_nodes).node_of_rank

    def __enter__(self) -> Self:
        nodes = self._nodes.__enter__()
        first = nodes.entries[0]
        self.meeting = Meeting(
            host=first.address,
            network="kernel",
            interface=first.interface,
            unshaped_interface=first.unshaped_interface,
            known={"network": {"made_by": "kernel", "commands": list(nodes.commands), "turns": nodes.turns}},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes.__exit__(None, None, None)

    def node(self, rank: int) -> NodeEntry | None:
        return self._nodes.entries[self._node_of_rank[rank]]

    def broken(self) -> str | None:
        return self._nodes.broken()


def venue_of(config: RunConfig) -> Venue:
    """Where the ranks of `config` live. With `launcher.network=auto` the kernel makes the links if it can.

    What it lacks is in environment.json, and in the run's labels.
    """
    launcher, cluster = config.launcher, config.cluster
    network, lacking = launcher.asked_network, None
    if network == "auto":
        lacking = cluster.kernel_lacks() or impossible() or _latency(cluster)
        network = "kernel" if lacking is None else "modelled"
    if network == "kernel":
        venue: Venue = OwnNodes(cluster)
    else:
        venue = Loopback(launcher.port, modelled=network == "modelled", instead_of_kernel=lacking)
    venue.keep_awake = venue.emulated and isinstance(launcher, LocalConfig) and launcher.keep_awake
    return venue


def _latency(cluster: ClusterConfig) -> str | None:
    if not cluster.links.inter.latency_us or has_netem():
        return None
    return f"cluster.links.inter.latency_us={cluster.links.inter.latency_us:g}: this kernel has no netem"


def _listen(port: int | None) -> socket.socket:
    """An open, listening socket: a port that is ours from now on, so that no other run can take it."""
    if port is not None and not 1 <= port <= 65535:
        raise ConfigError(f"launcher.port={port}: must be null (a free one) or between 1 and 65535")
    try:
        return socket.create_server((HOST, port or 0), backlog=1024)
    except OSError as error:
        raise MachineError(
            f"launcher.port={port}: cannot be used on {HOST}: {os.strerror(error.errno or 0)}; "
            "launcher.port=null takes a free one"
        ) from error
