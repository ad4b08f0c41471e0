"""What the ranks of the tests of averaged models over gloo do: our strategies beside what PyTorch ships.

PyTorch's averagers test a counter that is 0 in the first step and rise by one a step: with period H and no
warm-up they average after steps 1, H + 1, … (ours: H, 2H, …). `warmup_steps` = k0 + H - 1 makes them equal.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gloo_entries import batch, meet, net
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.warm_up import undone_step
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.post_local_sgd import PostLocalSGD, PostLocalSGDConfig
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD

STEPS, SIZE = 20, 6
Step = Callable[[Batch], None]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)


def piece(rank: int, step: int, ranks: int) -> Batch:
    made = batch(rank, step, ranks, SIZE)
    return Batch(made.inputs.double(), made.targets, made.samples_of_rank)


def backward(module: nn.Module, made: Batch) -> None:
    nn.functional.cross_entropy(module(made.inputs), made.targets).backward()


def compare(comm: TorchCommunicator, strategy: Strategy, theirs: nn.Module, step_theirs: Step) -> list[int]:
    """Train both on the same data in float64; returns after which steps ours averaged."""
    ranks = comm.topology.ranks
    replica = TorchReplica(net(torch.float64), nn.CrossEntropyLoss(), comm)
    progress = Progress(1, STEPS, budget=STEPS * SIZE * ranks, global_batch_size=SIZE * ranks)
    strategy.setup(replica, comm, progress)
    replica.optimizer = sgd(replica.stepped)
    undone_step(replica, piece(comm.rank, 77, ranks), comm)
    for progress.batch in range(STEPS):
        made = piece(comm.rank, progress.step, ranks)
        strategy.before_batch(progress)
        progress.samples_of_rank = made.samples_of_rank
        replica.compute_gradients(made)
        strategy.before_step(progress)
        replica.optimizer.step()
        strategy.after_step(progress)
        progress.samples += SIZE * ranks
        progress.step += 1
        step_theirs(made)
        for name, mine in replica.model.named_parameters():
            other = theirs.get_parameter(name)
            assert (mine - other).abs().max() < 1e-12, (progress.step, name)
    return strategy.record(progress)["averaged_after"]


def periodic(run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any) -> None:
    """`local_sgd` beside `PeriodicModelAverager`."""
    comm = meet([2, 2], rank, port, listener)
    theirs = net(torch.float64)
    optimizer = sgd(theirs.parameters())
    averager = PeriodicModelAverager(period=4, warmup_steps=3)

    def step(made: Batch) -> None:
        optimizer.zero_grad()
        backward(theirs, made)
        optimizer.step()
        averager.average_parameters(theirs.parameters())

    averaged = compare(comm, LocalSGD(LocalSGDConfig(sync_every=4)), theirs, step)
    link.finish("finished", {"averaged_after": averaged, "verbs": dict(comm.traffic.verbs)}, None)


def unconverted(
    run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any
) -> None:
    """After which steps `PeriodicModelAverager` averages without the conversion."""
    comm = meet([2, 2], rank, port, listener)
    averager = PeriodicModelAverager(period=4)
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    averaged = []
    for step in range(1, 13):
        parameter.data.fill_(rank)
        averager.average_parameters([parameter])
        if parameter.item() != rank:
            averaged.append(step)
    comm.barrier(WORLD)
    link.finish("finished", {"averaged_after": averaged}, None)


def post_local(unit: str) -> Callable[..., None]:
    """`post_local_sgd` beside `PostLocalSGDOptimizer` and its hook."""

    def ranks_do(
        run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any
    ) -> None:
        comm = meet([2, 2], rank, port, listener)
        theirs = net(torch.float64)
        module = DistributedDataParallel(theirs, process_group=comm.ddp_group(), gradient_as_bucket_view=True)
        nodes, _ = dist.new_subgroups(group_size=2)
        state = PostLocalSGDState(comm.ddp_group(), nodes, start_localSGD_iter=10)
        state.post_local_gradient_allreduce = unit == "node"
        module.register_comm_hook(state, post_localSGD_hook)
        averager = PeriodicModelAverager(period=4, warmup_steps=10 + 4 - 1)
        optimizer = PostLocalSGDOptimizer(sgd(theirs.parameters()), averager)

        def step(made: Batch) -> None:
            optimizer.zero_grad()
            backward(module, made)
            optimizer.step()

        config = PostLocalSGDConfig(switch_samples=10 * SIZE * ranks, sync_every=4, unit=unit)
        averaged = compare(comm, PostLocalSGD(config), theirs, step)
        link.finish("finished", {"averaged_after": averaged, "verbs": dict(comm.traffic.verbs)}, None)

    return ranks_do


post_local_by_rank = post_local("rank")
post_local_by_node = post_local("node")


def hierarchical(
    run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any
) -> None:
    """`unit: node` beside `HierarchicalModelAverager`: parameters averaged in the node every step.

    For SGD with momentum that is the average of gradients in the node.
    """
    comm = meet([2, 2], rank, port, listener)
    theirs = net(torch.float64)
    optimizer = sgd(theirs.parameters())
    averager = HierarchicalModelAverager(OrderedDict([(1, 2), (4, 4)]))
    averager.step = 1  # counts steps done

    def step(made: Batch) -> None:
        optimizer.zero_grad()
        backward(theirs, made)
        optimizer.step()
        averager.average_parameters(theirs.parameters())

    config = PostLocalSGDConfig(switch_samples=0, sync_every=4, unit="node")
    averaged = compare(comm, PostLocalSGD(config), theirs, step)
    link.finish("finished", {"averaged_after": averaged, "verbs": dict(comm.traffic.verbs)}, None)
