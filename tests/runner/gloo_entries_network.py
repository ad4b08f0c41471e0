"""What the ranks of the tests of the modelled network do; imported by the ranks themselves."""

import os
import time
from typing import Any

import torch
from gloo_entries import meet, on_nodes
from gloo_entries_ddp import SMALL, trained
from torch import Tensor, nn

from daso_bench.runner.communication import modelled_network
from daso_bench.runner.communication.link_costs import ClusterNetwork
from daso_bench.runner.communication.modelled_network import HeldWork, ModelledCommunicator
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig
from daso_bench.runner.launch.rank_process import Link, RankTask
from daso_bench.runner.training.context import undone_step
from daso_bench.runner.training.device_model import Device
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.communicator import Work
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import NODE, WORLD, Group, peers

NODES = {2: [1, 1], 4: [2, 2]}
MS = 1_000_000
LAYERS, WIDTH, SAMPLES = 4, 256, 8  # a layer has 256 KiB, and so has a bucket
LAYER_BYTES = 4 * WIDTH * WIDTH


def network(comm: TorchCommunicator, rate_gbit: float, latency_us: float = 0) -> ClusterNetwork:
    inter = LinkConfig(rate_gbit=rate_gbit, latency_us=latency_us)
    return ClusterNetwork(LinksConfig(inter=inter, algorithm="ring").or_free(), comm.topology)


def everything(comm: TorchCommunicator) -> list[Tensor]:
    """The results of all verbs, messages and sums of buckets on ranks with numbers of their own."""
    generator = torch.Generator().manual_seed(comm.rank)

    def numbers(count: int) -> Tensor:
        return torch.randn(count, generator=generator)

    results: list[Tensor] = []
    groups: list[Group] = [WORLD, NODE, peers(comm.local_rank)]
    for group in groups:
        size = len(comm.members(group))
        place = comm.members(group).index(comm.rank)
        for asynchronous in (False, True):
            x = numbers(50)
            comm.all_reduce(x, group, async_op=asynchronous).wait()
            y = numbers(50)
            comm.broadcast(y, size - 1, group, async_op=asynchronous).wait()
            z = numbers(50)
            comm.reduce(z, 0, group, async_op=asynchronous).wait()
            results += [x, y, *([z] if place == 0 else [])]  # on others its content is undefined
            gathered, piece = torch.zeros(5 * size), torch.zeros(5)
            comm.all_gather(gathered, numbers(5), group, async_op=asynchronous).wait()
            comm.reduce_scatter(piece, numbers(5 * size), group, async_op=asynchronous).wait()
            results += [gathered, piece]
        bucket = numbers(50)
        results.append(comm.start_sum(bucket, group).wait().clone())
        comm.barrier(group, channel="parameters")  # control has no group of peers
    ranks, got = comm.topology.ranks, torch.zeros(7)
    comm.exchange({(comm.rank + 1) % ranks: numbers(7)}, {(comm.rank - 1) % ranks: got}, tag=3).wait()
    return [*results, got]


@on_nodes(NODES)
def values(comm: TorchCommunicator) -> None:
    """Held back, or through copies on the host, every verb has the values that it has otherwise.

    The file of the clocks has no name any more once all ranks have it.
    """
    made: list[tuple[int, str]] = []
    make = modelled_network.make

    def watched(*arguments: Any) -> tuple[int, str]:
        made.append(make(*arguments))
        return made[-1]

    modelled_network.make = watched
    held_back = ModelledCommunicator(comm, network(comm, 0.01, 100))
    assert len(made) == (comm.rank == 0)
    assert not any(os.path.exists(address.split(" ", 2)[2]) for _, address in made)
    plain, tensor = everything(comm), torch.ones(3)
    assert len(plain) > 25
    for staged in (False, True):
        for other in (comm, held_back):
            other._staged = staged
            assert (other._here(tensor) is tensor) != staged
            assert all(torch.equal(*pair) for pair in zip(everything(other), plain, strict=True)), staged
    held_back.close()


@on_nodes(NODES)
def asynchronous(comm: TorchCommunicator) -> None:
    """A transfer of 100 ms is launched at once, and over for nobody before its end.

    What is compared are recorded times: a loaded machine may wake a rank late.
    """
    rank, ranks = comm.rank, comm.topology.ranks
    comm = ModelledCommunicator(comm, network(comm, 0.08))  # 10 MB/s
    size = int(1e6 / (2 * (ranks - 1) / ranks))
    launching: list[float] = []
    late: list[float] = []

    def known_at(operation: Work) -> int | None:
        """When the operation is seen to be over; None if it is not."""
        over = operation.is_completed() or operation.transfer_ns() is not None
        return time.monotonic_ns() if over else None

    for _ in range(3):
        tensor = torch.ones(size // 4)
        comm.barrier(WORLD)
        began = time.monotonic_ns()
        work = comm.all_reduce(tensor, WORLD, async_op=True)
        launching.append((time.monotonic_ns() - began) / MS)
        assert isinstance(work, HeldWork)
        polls = [known_at(work)]
        time.sleep(0.05)
        polls.append(known_at(work))
        work.wait()
        now = time.monotonic_ns()
        end = work.held.end_ns()
        assert end is not None
        assert now >= end
        assert all(at is None or at >= end for at in polls), "the data are there, the transfer is not"
        assert end - began >= 99 * MS, "it begins with the last rank, which is at least this one"
        assert work.is_completed()
        assert (work.transfer_ns() or 0) >= end - began - (launching[-1] + 5) * MS
        assert tensor[0] == ranks
        late.append((now - end) / MS)
        comm.barrier(WORLD)
    assert min(launching) < 50, launching
    assert min(late) < 200, late
    # A message is awaited by a helper thread: the rank goes on.
    last, got = ranks - 1, torch.ones(250_000)
    sends = {last: torch.zeros(250_000)} if rank == 0 else {}
    sending: list[float] = []
    for tag in range(3):
        began = time.monotonic_ns()
        message = comm.exchange(sends, {0: got} if rank == last else {}, tag=tag)
        sending.append((time.monotonic_ns() - began) / MS)
        if rank in (0, last):
            at = known_at(message)
            assert at is None or at >= began + 100 * MS
            message.wait()
            assert time.monotonic_ns() >= began + 100 * MS
            assert message.is_completed()
        comm.barrier(WORLD)
    assert min(sending) < 50, sending


@on_nodes(NODES)
def same_gradients(comm: TorchCommunicator) -> None:
    """DDP in three buckets and more ends with the same bits, however its sums are made."""
    rank, ranks = comm.rank, comm.topology.ranks
    variants: list[dict[str, Any]] = [
        {},
        {"overlap": False},
        {"algorithm": "hierarchical"},
        {"algorithm": "sliced"},
        {"hook": "powersgd", "powersgd_start_steps": 2},
    ]
    wanted = [trained(comm, 4, bucket_mib=SMALL, **keys)[0].flat() for keys in variants]
    comm = ModelledCommunicator(comm, network(comm, 0.4, 100))
    for keys, flat in zip(variants, wanted, strict=True):
        began = comm.now()
        assert torch.equal(trained(comm, 4, bucket_mib=SMALL, **keys)[0].flat(), flat), keys
        took_s = (comm.now() - began) / 1e9
        assert comm.traffic.verbs["gradients.all_reduce"] >= 3 * 4 or rank % 2, keys
        if not keys:  # 220 kB at 50 MB/s, five times
            assert took_s >= 5 * 220e3 * 2 * (ranks - 1) / ranks / 50e6


class _Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(1)
        super().__init__(nn.Flatten(), *(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


@on_nodes(NODES)
def step_time(comm: TorchCommunicator) -> None:
    """A padded step lasts as the buckets say: each is sent when all have it and the one before is through."""
    rank, ranks = comm.rank, comm.topology.ranks
    cost_s = 0.03  # of a bucket of one layer
    rate_gbit = 2 * (ranks - 1) / ranks * LAYER_BYTES * 8 / cost_s / 1e9
    modelled = network(comm, rate_gbit)
    comm = ModelledCommunicator(comm, modelled)
    replica = TorchReplica(_Net(), nn.CrossEntropyLoss(), comm)
    replica.optimizer = torch.optim.SGD(replica.stepped, lr=0.01)
    replica.average_gradients_over(WORLD, bucket_mib=LAYER_BYTES / 2**20)
    inputs = torch.rand(SAMPLES, 1, 16, 16)
    given = Batch(inputs, torch.arange(SAMPLES), (SAMPLES,) * ranks)
    undone_step(replica, given, comm)
    replica.pad(Device(rank, lambda rank, samples: 180 * MS))
    replica.noise = lambda size: (inputs[:size], torch.arange(size))
    replica.measure_layers(SAMPLES, 5)
    came: list[int] = []
    costs: list[int] = []
    start_sum = comm.start_sum

    def watched(tensor: Tensor, group: Group) -> "torch.futures.Future[Tensor]":
        came.append(comm.now())
        size = tensor.numel() * tensor.element_size()
        costs.append(modelled.cost(comm.topology, "all_reduce", tuple(range(ranks)), size).duration_ns)
        return start_sum(tensor, group)

    comm.start_sum = watched
    ratios: list[float] = []
    hidden: list[float] = []
    for _ in range(4):
        came.clear()
        costs.clear()
        comm.barrier(WORLD)
        began = comm.now()
        replica.compute_gradients(given)
        ended = comm.now()
        assert len(came) >= 3
        everybody = torch.zeros(ranks * len(came), dtype=torch.int64)
        comm.all_gather(everybody, torch.tensor(came), WORLD, channel="control").wait()
        through = 0
        for ready, cost in zip(everybody.view(ranks, -1).amax(0).tolist(), costs, strict=True):
            through = max(ready, through) + cost
        assert ended >= through, "never sooner than its buckets"
        ratios.append((ended - began) / (through - began))
        # Were nothing sent beside backward, it would last so long.
        hidden.append((ended - began) / (180 * MS + sum(costs)))
    assert min(ratios) < 1.3, ratios
    assert min(hidden) < 0.95, hidden


def leaves(task: RankTask, link: Link) -> None:
    """Rank 1 is gone in the middle of a run: what the others wait for raises."""
    comm = meet(NODES[task.ranks], task)
    comm = ModelledCommunicator(comm, network(comm, 0.08))
    comm.barrier(WORLD)
    if task.rank == 1:
        time.sleep(0.3)  # the others wait already
        os._exit(7)
    errors: list[str] = []
    bucket = comm.start_sum(torch.zeros(1000), WORLD)
    work = comm.all_reduce(torch.zeros(1000), WORLD, async_op=True)
    for wait in (bucket.wait, work.wait):
        try:
            wait()
        except RuntimeError as error:
            errors.append(type(error).__name__)
    (task.run_dir / f"errors-{task.rank}").write_text(f"{errors}")
    raise RuntimeError("rank 1 is gone")
