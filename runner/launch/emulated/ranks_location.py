"""Where the ranks of `launcher=local` and `launcher=emulated` live, and who makes their links."""

from typing import Self

from ....strategies.topology import Topology
from ...config.cluster import ClusterConfig
from ...config.launchers import LocalConfig
from ...config.schema import RunConfig
from ..local import Loopback, Venue
from ..rank_process import Meeting
from .ability import has_netem, impossible
from .namespaces import NodeEntry
from .nodes import Nodes

PORT = 29500  # of the rendezvous: nobody else is on the network of a run's nodes


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
