"""The device of a rank, how ranks join each other if their devices fit together, and float32 precision."""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from ...strategies.errors import ConfigError, MachineError
from ...strategies.topology import Topology
from ..config.cluster import ClusterConfig
from ..config.launchers import LauncherConfig
from ..machine.environment import processor, visible_devices
from .torch_communicator import Store, TCPStore, TorchCommunicator

CPU = "cpu"
"""The name of the device of a rank without a GPU."""


def device_of(
    cluster: ClusterConfig, launcher: LauncherConfig, topology: Topology, rank: int
) -> torch.device:
    """The device that `cluster.device.kind` names for this rank, or that of its place on its machine.

    If a batch system shows each task one GPU of its own, every rank uses that one. Raises MachineError: the
    rank is to take a GPU, and there is none for it.
    """
    kind = cluster.device.kind_of(rank)
    if not launcher.takes_gpu(kind):
        return torch.device("cpu")
    # Nodes that this program starts are all on this machine.
    mates = topology.on_node(topology.node_of_rank[rank]) if launcher.external else range(topology.ranks)
    place = [mate for mate in mates if launcher.takes_gpu(cluster.device.kind_of(mate))].index(rank)
    count, shown = torch.cuda.device_count(), visible_devices()
    if not count:
        if shown or kind == "cuda":  # training on the CPU instead would be another experiment
            asked = (
                f"CUDA_VISIBLE_DEVICES={','.join(shown)}" if shown else f"cluster.device.kind of rank {rank}"
            )
            raise MachineError(
                f"{asked}: torch sees no GPU (no driver, or a CPU build); to run on CPUs take "
                "cluster.device.kind=cpu and launcher.gpus_per_rank=0"
            )
        return torch.device("cpu")
    if place >= count > 1 and not launcher.may_share_gpus(cluster.device.kind):
        raise MachineError(
            f"rank {rank} has no device of its own: {count} are visible; start at most {count} ranks "
            "on a machine, take cluster.device.kind=cpu, or launcher.share_gpus=true (no valid times)"
        )
    torch.cuda.set_device(place % count)
    return torch.device("cuda", place % count)


def device_of_all(asked: str) -> torch.device:
    """The device that computes all ranks of virtual time, by `launcher.device`.

    Raises MachineError: it is to be a GPU, and there is none.
    """
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise MachineError(
            "launcher.device=cuda: torch sees no GPU (no driver, or a CPU build); take launcher.device=cpu"
        )
    return torch.device("cuda", 0) if there and asked != "cpu" else torch.device("cpu")


def connect(
    topology: Topology,
    rank: int,
    *,
    host: str,
    port: int,
    listener_fd: int | None,
    device: torch.device,
    timeout_s: float,
    interface: str | None = None,
    mixed: bool = False,
    share_gpus: bool = False,
) -> TorchCommunicator:
    """Join the other ranks at `host:port`.

    Rank 0 serves on the listening socket `listener_fd`, which the store then owns and closes, or opens the
    port itself. `interface`: the network interface for gloo. `mixed`: the configuration gives ranks devices
    of several kinds. `share_gpus`: ranks may share a GPU. Raises MachineError: some ranks have a GPU and
    others do not, or two share one, without being configured so.
    """
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    # One machine: gloo must not resolve the host name, which may point at an address without a listener.
    elif host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore(
        host,
        port,
        topology.ranks,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener_fd if rank == 0 else None,
    )
    names = names_of_all(store, topology.ranks, rank, name_of(device))
    check(names, mixed=mixed, share=share_gpus)
    sharing = most_on_one(names)
    comm = TorchCommunicator(topology, rank, store, device, timeout_s, mixed=mixed or sharing > 1)
    comm.ranks_on_a_gpu, comm.some_on_gpus = sharing, sharing > 0
    return comm


def name_of(device: torch.device) -> str:
    """The GPU's UUID; `CPU` of other devices."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else CPU


def names_of_all(store: Store, ranks: int, rank: int, name: str) -> list[str]:
    """The device names of all ranks, in rank order. All ranks call it."""
    store.set(f"gpu/{rank}", name)
    names = [value.decode() for value in store.multi_get([f"gpu/{r}" for r in range(ranks)])]
    store.set(f"gpu/{rank}/heard", "")
    if rank == 0:  # it serves the store: if it ended first, others would only see a lost connection
        store.wait([f"gpu/{r}/heard" for r in range(ranks)])
    return names


def most_on_one(names: Sequence[str]) -> int:
    """The largest number of ranks on one GPU; 0 without GPUs."""
    return max(Counter(name for name in names if name != CPU).values(), default=0)


def untimed(sharing: int) -> tuple[str, ...]:
    """Why times are not valid where `sharing` ranks are on one GPU; empty if each has its own."""
    return (f"{sharing} ranks share a GPU, joined by gloo",) if sharing > 1 else ()


def check(names: Sequence[str], *, mixed: bool, share: bool) -> None:
    """Refuse, on all ranks alike, a mix of devices or a shared GPU that the configuration does not ask for.

    `mixed`: `cluster.device.kind` names CPUs and GPUs. `share`: `launcher.may_share_gpus`. Raises
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
            f"launcher.share_gpus: {sharing} ranks would share a GPU, which nobody asked for; take fewer "
            "ranks per node, cluster.device.kind=cpu, or launcher.share_gpus=true (no valid times)"
        )


def choose_precision(precision: str, device: torch.device) -> None:
    """Set how GPUs of this process multiply float32 numbers: in TF32 for `precision` tf32, else in full.

    By default PyTorch's convolutions take TF32, and its matrix products do not. CPUs have no TF32.
    Raises ConfigError for tf32 on a CPU.
    """
    if device.type != "cuda":
        if precision == "tf32":
            raise ConfigError(
                "train.precision=tf32: products of TF32 are a GPU's, and this rank computes on a CPU; "
                "take fp32"
            )
        return
    word = "tf32" if precision == "tf32" else "ieee"
    cudnn: Any = torch.backends.cudnn
    # PyTorch has two sets of flags. Where they differ, reading the older set (its compiler does) fails.
    torch.backends.cuda.matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = word
    torch.backends.cuda.matmul.fp32_precision = word


def numeric_flags() -> dict[str, Any]:
    """Torch's flags of float32 precision by library, and of how kernels are chosen."""
    # Attributes that torch makes at import, unknown to type checkers; torch 2.9, our oldest, has them.
    conv: Any = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue] (see above)
    mkldnn: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue] (see above)
    return {
        "fp32_cuda_matmul": torch.backends.cuda.matmul.fp32_precision,
        "fp32_cudnn_conv": conv.fp32_precision,
        "fp32_mkldnn_matmul": mkldnn.fp32_precision,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def device_model(device: torch.device) -> str | None:
    """The model name of `device`; None if the system does not give it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
