"""What the ranks of the tests over gloo do; imported by the ranks themselves."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.gpus import connect
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.launch.rank_process import Link, RankTask
from daso_bench.runner.training.context import undone_step
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.communicator import Communicator, Work
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import NODE, WORLD, Topology, peers

Nodes = list[int] | dict[int, list[int]]


def meet(nodes: list[int], task: RankTask) -> TorchCommunicator:
    torch.set_num_threads(1)
    return connect(
        Topology.of(nodes),
        task.rank,
        host="127.0.0.1",
        port=task.port,
        listener_fd=task.listener_fd(),
        device=torch.device("cpu"),
        timeout_s=30,
    )


def on_nodes(nodes: Nodes) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make what ranks do with their communicator the entry of a rank process; its result is the summary.

    `nodes`: ranks of each node, or that by the number of ranks. The function may take `run_dir` too.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        def entry(task: RankTask, link: Link) -> None:
            comm = meet(nodes[task.ranks] if isinstance(nodes, dict) else nodes, task)
            more = {"run_dir": task.run_dir} if "run_dir" in signature(body).parameters else {}
            link.finish("finished", body(comm, **more), None)

        return entry

    return decorate


def every_verb(comm: Communicator) -> Work:
    """Every verb of the communicator on 2 x 2 ranks, in any world; returns an asynchronous sum."""
    rank = comm.rank
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
        x = torch.full((5,), rank + 1, dtype=dtype)
        comm.all_reduce(x, WORLD).wait()
        assert x.tolist() == [10] * 5
    x = torch.tensor([float(rank)])
    work = comm.all_reduce(x, peers(comm.local_rank), async_op=True)
    work.wait()
    assert x.item() == [2, 4, 2, 4][rank]
    assert work.is_completed()
    x = torch.tensor([rank])
    comm.broadcast(x, 1, NODE).wait()
    assert x.item() == [1, 1, 3, 3][rank]
    x = torch.tensor([float(rank)])
    comm.reduce(x, 1, NODE).wait()
    assert rank % 2 == 0 or x.item() == [0, 1, 0, 5][rank]
    out = torch.zeros(8)
    comm.all_gather(out, torch.tensor([float(rank), 7.0]), WORLD).wait()
    assert out.tolist() == [0, 7, 1, 7, 2, 7, 3, 7]
    piece = torch.zeros(2)
    comm.reduce_scatter(piece, torch.arange(8.0), WORLD).wait()
    assert piece.tolist() == [8 * rank, 8 * rank + 4]
    received = torch.zeros(1)
    comm.exchange({(rank + 1) % 4: torch.tensor([float(rank)])}, {(rank - 1) % 4: received}, tag=3).wait()
    assert received.item() == (rank - 1) % 4
    memory = comm.shared(6, torch.float32, NODE)
    memory[comm.local_rank] = 5 + rank
    comm.barrier(NODE)
    assert memory[:2].tolist() == [[5, 6], [5, 6], [7, 8], [7, 8]][rank]
    comm.barrier(WORLD)
    return work


@on_nodes([2, 2])
def verbs(comm: TorchCommunicator) -> dict[str, Any]:
    """`every_verb` over gloo, whose transfers take time."""
    assert (every_verb(comm).transfer_ns() or 0) > 0
    return comm.traffic.totals() | {"verbs": dict(comm.traffic.verbs)}


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 300), nn.ReLU(), nn.Linear(300, 5)
    ).to(dtype)


def batch(rank: int, step: int, ranks: int, size: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(size, 1, 8, 8, generator=generator)
    return Batch(inputs, (inputs.mean((1, 2, 3)) > 0).long(), (size,) * ranks)


@on_nodes([2])
def hook(comm: TorchCommunicator) -> dict[str, Any]:
    """Our one hook against PyTorch's built-in averaging, bit for bit on 2 ranks."""
    rank, ranks = comm.rank, comm.topology.ranks
    ours = TorchReplica(net(), nn.CrossEntropyLoss(), comm)
    ours.optimizer = torch.optim.SGD(ours.parameters.tensors, lr=0.1, momentum=0.9)
    ours.average_gradients_over(WORLD)
    plain = net()
    module = DistributedDataParallel(plain, process_group=comm.ddp_group(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(8):
        piece = batch(rank, step, ranks)
        ours.compute_gradients(piece)
        ours.optimizer.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(piece.inputs), piece.targets).backward()
        optimizer.step()
        for mine, theirs in zip(ours.model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine, theirs), step
    return {"verbs": dict(comm.traffic.verbs)}


@on_nodes([3])
def undone(comm: TorchCommunicator) -> None:
    """The warm-up step leaves all state as it was, and fixes the layout of the buckets."""
    rank, ranks = comm.rank, comm.topology.ranks
    finals = []
    for warm_ups in (1, 2):
        torch.manual_seed(5)
        model = nn.Sequential(net(), nn.Dropout(0.3), nn.Linear(5, 5), nn.BatchNorm1d(5))
        replica = TorchReplica(model, nn.CrossEntropyLoss(), comm)
        replica.optimizer = torch.optim.SGD(replica.parameters.tensors, lr=0.1, momentum=0.9)
        replica.average_gradients_over(WORLD)
        before = [t.clone() for t in model.state_dict().values()]
        rng = torch.get_rng_state()
        for _ in range(warm_ups):
            undone_step(replica, batch(rank, 77, ranks), comm)
        for now, then in zip(model.state_dict().values(), before, strict=True):
            assert torch.equal(now, then)
        assert torch.equal(rng, torch.get_rng_state())
        assert not replica.optimizer.state
        for step in range(5):
            replica.compute_gradients(batch(rank, step, ranks))
            replica.optimizer.step()
        finals.append(replica.flat())
    assert torch.equal(*finals), "a second undone step changes nothing: the layout is final after the first"
