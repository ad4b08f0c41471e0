"""Which device a rank takes, and what ranks hear of each other's before they meet."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch

from ...strategies.errors import MachineError
from ...strategies.topology import Topology
from ..config.cluster import ClusterConfig
from ..config.launchers import LauncherConfig
from ..machine.environment import device_index, visible_devices


class Store(Protocol):
    """What all ranks read and write before they meet; PyTorch's stores have it."""

    def set(self, key: str, value: str, /) -> None: ...

    def multi_get(self, keys: list[str], /) -> list[bytes]: ...

    def wait(self, keys: list[str], /) -> None: ...


CPU = "cpu"
"""What a rank without a GPU is called among the GPUs' names."""


def device_of(
    cluster: ClusterConfig, launcher: LauncherConfig, topology: Topology, rank: int
) -> torch.device:
    """The device that `cluster.device.kind` names for this rank, or that of its local rank.

    Where links or devices are emulated a rank takes a GPU only if it is told to: a slowed down one is a CPU.

    Raises:
        MachineError: it is to take a GPU, and none is there for it.
    """
    kind, place = cluster.device.kind_of(rank), topology.local_ranks[rank]
    if kind == "cpu" or (kind is None and launcher.asked_network != "none"):
        return torch.device("cpu")
    if kind == "cuda":  # its place among those of its node that take a GPU
        mates = topology.on_node(topology.node_of_rank[rank])
        place = [mate for mate in mates if cluster.device.kind_of(mate) == "cuda"].index(rank)
    count, shown = torch.cuda.device_count(), visible_devices()
    if shown and not count:  # training on the CPU instead would be another experiment
        raise MachineError(
            f"CUDA_VISIBLE_DEVICES={','.join(shown)}: torch sees no GPU (a build for CPUs, or no driver); to "
            "run on CPUs ask for no GPU (launcher.gpus_per_rank=0) or unset it"
        )
    index = device_index(place, count, share=launcher.share_gpus)
    if index is None and kind == "cuda":
        raise MachineError(
            f"cluster.device.kind: rank {rank} is to take a GPU (cuda), and torch sees none; take cpu"
        )
    if index is None:
        return torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def name_of(device: torch.device) -> str:
    """Of a GPU, unlike any other's in the world; `CPU` of anything else."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else CPU


def names_of_all(store: Store, ranks: int, rank: int, name: str) -> list[str]:
    """Each rank's `name_of` its device, in rank order. All ranks call it, each with its own."""
    store.set(f"gpu/{rank}", name)
    names = [told.decode() for told in store.multi_get([f"gpu/{other}" for other in range(ranks)])]
    store.set(f"gpu/{rank}/heard", "")
    if rank == 0:  # it serves the store: were it refused and gone, others would hear a broken line alone
        store.wait([f"gpu/{other}/heard" for other in range(ranks)])
    return names


def most_on_one(names: Sequence[str]) -> int:
    """How many ranks are on the GPU that most are on; 0 without GPUs."""
    return max(Counter(name for name in names if name != CPU).values(), default=0)


def untimed(sharing: int) -> tuple[str, ...]:
    """Why no time is to be used of ranks of which `sharing` are on one GPU; nothing if each has its own."""
    return (f"{sharing} ranks share a GPU, joined by gloo",) if sharing > 1 else ()


def check(names: Sequence[str], *, mixed: bool, share: bool) -> None:
    """Refuse, on all ranks alike, devices that were not asked for.

    `mixed`: some ranks were told to take a CPU, others a GPU. `share`: `launcher.share_gpus`.

    Raises:
        MachineError: some ranks see a GPU and others do not, or two take one.
    """
    without = [rank for rank, name in enumerate(names) if name == CPU]
    if without and len(without) < len(names) and not mixed:
        raise MachineError(
            f"cluster.device.kind: rank{'s' * (len(without) > 1)} {', '.join(map(str, without))} of "
            f"{len(names)} see{'s' * (len(without) == 1)} no GPU, and the others do; give each its GPU, or "
            "say which kind each rank takes: cpu (all), or a list ([cuda,cpu])"
        )
    sharing = most_on_one(names)
    if sharing > 1 and not share:
        raise MachineError(
            f"launcher.share_gpus=false: {sharing} ranks would share a GPU; start as many ranks per node as "
            "there are GPUs (cluster.ranks_per_node), take CPUs (cluster.device.kind=cpu), or allow it with "
            "launcher.share_gpus=true, whose times are not valid"
        )
