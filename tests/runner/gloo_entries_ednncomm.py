"""What the ranks of eDNNcomm's test over gloo do: ours beside PyTorch's own two levels."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_entries import meet, net
from gloo_entries_averaging import backward, compare, sgd
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.strategies.ednncomm import EDNNComm, EDNNCommConfig
from daso_bench.strategies.replica import Batch


def averaged_beside_pytorch(comm: TorchCommunicator, exchange: str) -> list[int]:
    """After which steps ours exchanged; in between and there parameters are the same."""
    theirs = net(torch.float64)
    node, _ = dist.new_subgroups(group_size=2)
    module = DistributedDataParallel(theirs, process_group=node, gradient_as_bucket_view=True)
    optimizer = sgd(theirs.parameters())
    averager = PeriodicModelAverager(period=4, warmup_steps=3)

    def step(made: Batch) -> None:
        # The averager leaves out parameters without gradients: they are cleared before, not after it.
        optimizer.zero_grad()
        backward(module, made)
        optimizer.step()
        averager.average_parameters(theirs.parameters())

    return compare(comm, EDNNComm(EDNNCommConfig(sync_every=4, exchange=exchange)), theirs, step)


def two_levels(
    run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any
) -> None:
    """Each way to exchange beside DDP on the node's group and a `PeriodicModelAverager` over all ranks."""
    comm = meet([2, 2], rank, port, listener)
    averaged = {name: averaged_beside_pytorch(comm, name) for name in ("leader", "world", "sliced")}
    link.finish("finished", {"averaged_after": averaged}, None)
