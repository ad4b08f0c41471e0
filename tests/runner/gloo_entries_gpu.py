"""What ranks do in tests of GPUs, as far as CPUs can do it; imported by the ranks themselves."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from fake_gpu import HostEvent, HostStreams, NotedStreams
from gloo_entries import batch, on_nodes
from runs import dies_after
from torch import Tensor, nn

from daso_bench.runner.communication import gpus, torch_communicator
from daso_bench.runner.communication.cuda_timing import DeviceWork
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.launch import rank as ranks_work
from daso_bench.runner.launch.rank_process import Link, RankTask
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.communicator import Work
from daso_bench.strategies.topology import WORLD

BEHIND_S = 0.03  # by which a GPU is behind its host at the end of backward


class DelayedReplica(TorchReplica):
    """A replica whose stop flag is read one step late; its device is this CPU."""

    def _event(self) -> Any:
        return HostEvent()


def _as_nccl(*arguments: Any, **keywords: Any) -> TorchCommunicator:
    comm = CONNECT(*arguments, **keywords)
    comm.host_waits = False  # as with NCCL; each operation is over when it has been launched
    comm._streams = HostStreams()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] (see the class)
    return comm


CONNECT = ranks_work.connect


def run(task: RankTask, link: Link) -> None:
    """`run_rank` of a rank that believes its GPU was joined to the others by NCCL."""
    ranks_work.connect, ranks_work.TorchReplica = _as_nccl, DelayedReplica
    ranks_work.run_rank(task, link)


def asleep(task: RankTask, link: Link) -> None:
    """As `run`; rank 1 falls asleep before its fourth step."""

    class Asleep(Trainer):
        def step(self) -> None:
            if task.rank == 1 and self.context.progress.step == 3:
                time.sleep(1000)
            super().step()

    ranks_work.Trainer = Asleep
    run(task, link)


@on_nodes([2])
def behind(comm: TorchCommunicator) -> dict[str, Any]:
    """Devices that still compute backward when the host is through, joined by gloo."""
    rank, ranks = comm.rank, comm.topology.ranks
    waits = 0

    def synchronise() -> None:
        nonlocal waits
        waits += 1
        time.sleep(BEHIND_S)

    comm.synchronise = synchronise
    comm.traffic.training = True
    waiting = {}
    for overlap in (True, False):
        torch.manual_seed(1)
        layers = [nn.Flatten(), nn.Linear(64, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 5)]
        model = nn.Sequential(*layers)
        replica = TorchReplica(model, nn.CrossEntropyLoss(), comm)
        replica.average_gradients_over(WORLD, bucket_mib=0.1, overlap=overlap)
        for step in range(3):
            if step == 2:  # DDP has settled on its buckets by then
                comm.traffic.clear()
                waits = 0
            replica.compute_gradients(batch(rank, step, ranks))
        waiting[str(overlap)] = {"blocked_s": comm.traffic.blocked_ns / 1e9, "waits": waits}
    return waiting


@on_nodes([1, 1])
def kept(comm: TorchCommunicator) -> None:
    """What operations of a GPU are told to keep, and whose side stream is to wait for them."""
    rank = comm.rank
    streams, other = NotedStreams(), 1 - rank
    comm.host_waits, comm._streams = False, streams  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    given: list[Tensor] = []

    class Watched(DeviceWork):
        def __init__(self, works: Any, *, tensors: Sequence[Tensor], **more: Any) -> None:
            given.extend(tensors)
            super().__init__(works, tensors=tensors, **more)

    torch_communicator.DeviceWork = Watched
    sent, received, summed, whole, piece, gathered, part = (torch.ones(n) for n in (2, 2, 2, 4, 2, 4, 2))
    cases: list[tuple[Work, list[Tensor]]] = [
        (comm.exchange({other: sent}, {other: received}, tag=1), [sent, received]),
        (comm.all_reduce(summed, WORLD, channel="gradients", async_op=True), [summed]),
        (comm.reduce_scatter(piece, whole, WORLD, async_op=True), [piece, whole]),
        (comm.all_gather(gathered, part, WORLD, async_op=True), [gathered, part]),
    ]
    for work, used in cases:
        kept = {id(tensor) for tensor in given}
        assert {id(tensor) for tensor in used} <= kept, "others would write there meanwhile"
        work.wait()
    assert streams.sides == ["messages", ("gradients", (0, 1)), *[("parameters", (0, 1))] * 2]


def dies_after_9_steps(task: RankTask, link: Link) -> None:
    """A rank of a real run that breaks off; what it has saved by then stays."""
    ranks_work.Trainer = dies_after(9)
    ranks_work.run_rank(task, link)


def on_one_gpu(task: RankTask, link: Link) -> None:
    """A rank of a real run that takes its CPU for a GPU that all have in common."""
    gpus.name_of = lambda device: "GPU-0"
    ranks_work.run_rank(task, link)
