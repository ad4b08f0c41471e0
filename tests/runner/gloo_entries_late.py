"""Ranks that behave like GPUs as far as CPUs can; imported by the ranks themselves."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from gloo_entries import batch, meet
from torch import Tensor, nn

from daso_bench.runner.communication import torch_communicator
from daso_bench.runner.communication.nccl_work import DeviceWork
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.launch import rank as ranks_work
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.communicator import Work
from daso_bench.strategies.topology import WORLD

BEHIND_S = 0.03  # by which a GPU is behind its host at the end of backward


class HostStreams:
    """Streams of a rank without a GPU: what is waited for has been waited for, on the host."""

    def mark(self) -> int:
        return time.monotonic_ns()

    def side(self, of: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def await_mark(self, mark: int) -> None:
        return


class Noted(HostStreams):
    """Remembers whose side streams were asked for."""

    def __init__(self) -> None:
        self.sides: list[Any] = []

    def side(self, of: Any) -> AbstractContextManager[None]:
        self.sides.append(of)
        return super().side(of)


class HostEvent:
    """An event that is over."""

    def record(self, *stream: Any) -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True


class LateReplica(TorchReplica):
    """A replica whose device tells late; it is this rank's CPU."""

    def _event(self) -> Any:
        return HostEvent()


def _late(*arguments: Any, **keywords: Any) -> TorchCommunicator:
    comm = CONNECT(*arguments, **keywords)
    comm.host_waits = False  # as with NCCL; each operation is over when it has been launched
    comm._streams = HostStreams()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] (see the class)
    return comm


CONNECT = ranks_work.connect


def run(run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any) -> None:
    """`run_rank` of a rank that believes its GPU was joined to the others by NCCL."""
    ranks_work.connect, ranks_work.TorchReplica = _late, LateReplica
    ranks_work.run_rank(run_dir, rank, ranks, port, listener, threads, link)


def asleep(run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any) -> None:
    """As `run`; rank 1 falls asleep before its fourth step."""

    class Asleep(Trainer):
        def step(self) -> None:
            if rank == 1 and self.context.progress.step == 3:
                time.sleep(1000)
            super().step()

    ranks_work.Trainer = Asleep
    run(run_dir, rank, ranks, port, listener, threads, link)


def behind(run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any) -> None:
    """Devices that still compute backward when the host is through, joined by gloo."""
    comm = meet([2], rank, port, listener)
    waits = 0

    def synchronise() -> None:
        nonlocal waits
        waits += 1
        time.sleep(BEHIND_S)

    comm.synchronise = synchronise
    comm.traffic.training = True
    told = {}
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
        told[str(overlap)] = {"blocked_s": comm.traffic.blocked_ns / 1e9, "waits": waits}
    link.finish("finished", told, None)


def kept(run_dir: Path, rank: int, ranks: int, port: int, listener: Any, threads: int, link: Any) -> None:
    """What operations of a GPU are told to keep, and whose side stream is to wait for them."""
    comm = meet([1, 1], rank, port, listener)
    streams, other = Noted(), 1 - rank
    comm.host_waits, comm._streams = False, streams  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    given: list[Tensor] = []

    class Watched(DeviceWork):
        def __init__(self, works: Any, *, tensors: Sequence[Tensor], **more: Any) -> None:
            given.extend(tensors)
            super().__init__(works, tensors=tensors, **more)

    torch_communicator.DeviceWork = Watched
    sent, received, summed, whole, piece, every, own = (torch.ones(n) for n in (2, 2, 2, 4, 2, 4, 2))
    cases: list[tuple[Work, list[Tensor]]] = [
        (comm.exchange({other: sent}, {other: received}, tag=1), [sent, received]),
        (comm.all_reduce(summed, WORLD, channel="gradients", async_op=True), [summed]),
        (comm.reduce_scatter(piece, whole, WORLD, async_op=True), [piece, whole]),
        (comm.all_gather(every, own, WORLD, async_op=True), [every, own]),
    ]
    for work, used in cases:
        kept = {id(tensor) for tensor in given}
        assert {id(tensor) for tensor in used} <= kept, "others would write there meanwhile"
        work.wait()
    assert streams.sides == ["messages", ("gradients", (0, 1)), *[("parameters", (0, 1))] * 2]
    link.finish("finished", None, None)
