"""What the ranks of the tests of averaged models over gloo do: our strategies beside what PyTorch ships.

PyTorch's averagers test a counter that is 0 in the first step and rise by one a step: with period H and no
warm-up they average after steps 1, H + 1, … (ours: H, 2H, …). `warmup_steps` = k0 + H - 1 makes them equal.
"""

from typing import Any

import torch
import torch.distributed as dist
from gloo_entries import batch, net, on_nodes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.training.context import undone_step
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ednncomm import EDNNComm, EDNNCommConfig
from daso_bench.strategies.post_local_sgd import PostLocalSGD, PostLocalSGDConfig
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch

STEPS, SIZE = 20, 6


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def beside(
    comm: TorchCommunicator,
    strategy: Strategy,
    averager: Any,
    module: DistributedDataParallel,
    optimizer: torch.optim.Optimizer | None = None,
) -> list[int]:
    """Train `strategy` in float64 beside an averager of PyTorch; returns after which steps ours averaged.

    `module`: around the averaged model. `optimizer`: one that averages itself.
    """
    ranks, theirs = comm.topology.ranks, module.module
    step_theirs = optimizer or sgd(theirs.parameters())
    replica = TorchReplica(net(torch.float64), nn.CrossEntropyLoss(), comm)
    progress = Progress(1, STEPS, budget=STEPS * SIZE * ranks, global_batch_size=SIZE * ranks)
    strategy.setup(replica, comm, progress)
    replica.optimizer = sgd(replica.stepped)

    def piece(step: int) -> Batch:
        made = batch(comm.rank, step, ranks, SIZE)
        return Batch(made.inputs.double(), made.targets, made.samples_of_rank)

    undone_step(replica, piece(77), comm)
    for progress.batch in range(STEPS):
        made = piece(progress.step)
        strategy.before_batch(progress)
        progress.samples_of_rank = made.samples_of_rank
        replica.compute_gradients(made)
        strategy.before_step(progress)
        replica.optimizer.step()
        strategy.after_step(progress)
        progress.samples += SIZE * ranks
        progress.step += 1
        # The averager leaves out parameters without gradients: they are cleared before, not after it.
        step_theirs.zero_grad()
        nn.functional.cross_entropy(module(made.inputs), made.targets).backward()
        step_theirs.step()
        if optimizer is None:
            averager.average_parameters(theirs.parameters())
        for name, mine in replica.model.named_parameters():
            assert (mine - theirs.get_parameter(name)).abs().max() < 1e-12, (progress.step, name)
    return strategy.record(progress)["averaged_after"]


def wrapped(group: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net(torch.float64), process_group=group, gradient_as_bucket_view=True)


@on_nodes([2, 2])
def post_local(comm: TorchCommunicator) -> dict[str, Any]:
    """Each unit of `post_local_sgd` beside `PostLocalSGDOptimizer` and its hook."""
    averaged: dict[str, Any] = {}
    for unit in ("rank", "node"):
        module = wrapped(comm.ddp_group())
        nodes, _ = dist.new_subgroups(group_size=2)
        state = PostLocalSGDState(comm.ddp_group(), nodes, start_localSGD_iter=10)
        state.post_local_gradient_allreduce = unit == "node"
        module.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=4, warmup_steps=10 + 4 - 1)
        optimizer = PostLocalSGDOptimizer(sgd(module.parameters()), averager)
        switch = 10 * SIZE * comm.topology.ranks
        strategy = PostLocalSGD(PostLocalSGDConfig(switch_samples=switch, sync_every=4, unit=unit))
        averaged[unit] = beside(comm, strategy, averager, module, optimizer)
    return {"averaged_after": averaged}


@on_nodes([2, 2])
def two_levels(comm: TorchCommunicator) -> dict[str, Any]:
    """Each exchange of `ednncomm` beside DDP on the node's group and an averager over all ranks."""
    averaged: dict[str, Any] = {}
    for exchange in ("leader", "world", "sliced"):
        node, _ = dist.new_subgroups(group_size=2)
        strategy = EDNNComm(EDNNCommConfig(sync_every=4, exchange=exchange))
        averager = PeriodicModelAverager(period=4, warmup_steps=3)
        averaged[exchange] = beside(comm, strategy, averager, wrapped(node))
    return {"averaged_after": averaged}
