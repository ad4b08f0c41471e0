"""What is to be true of operations of NCCL: the host is ahead, computing goes on beside them, memory is kept;
and DDP's hook is called and changes no gradient.
"""

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from figures import Figure
from torch import Tensor, nn

from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec
from daso_bench.runner.communication.cuda_timing import Mark, between
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD

SIDE = {"cuda": 8192, "cpu": 64}  # of matrices: 20 products in float32 are half a second of a large GPU
SHORT_SIDE = {"cuda": 1024, "cpu": 16}  # one product is far shorter than gathering a piece
PIECE = {"cuda": 2**28, "cpu": 2**12}  # numbers of a piece: a gibibyte, a millisecond or more to copy
STEPS = 3  # after the first DDP orders its buckets anew; a stop request of the second is heard in the third


def facts(told: dict[str, Any], *, on_gpu: bool) -> Iterator[Figure]:
    """The figures of what `measure` told; limits are for NCCL alone."""
    for name, limit, at_least, detail in (
        ("host_ahead", 0.5, False, "launching and waiting by the host, over the device's time for it"),
        ("beside", 1.5, True, "an operation's end over that of computing that was launched behind it"),
        ("kept", 1, True, "a tensor that nobody else holds lives until its operation is waited for"),
        ("hook", 1e-4, False, "gradients through DDP's hook, apart from those without, over their largest"),
        ("buckets", 2, True, "of gradients in a step, each summed by the hook on its own"),
        ("late", 1, True, "a stop request is heard in the next step"),
    ):
        detail = f"{told['backend']}: {detail}"
        yield Figure(f"gpu_nccl_{name}", told[name], limit if on_gpu else None, detail, at_least)


def measure(comm: TorchCommunicator) -> dict[str, Any]:
    """All of it, of a world of two or more ranks."""
    many, one = _products(comm, SIDE, 20), _products(comm, SHORT_SIDE, 1)
    many()  # libraries are loaded, kernels chosen
    one()
    return {
        "backend": comm.backend,
        "host_ahead": host_ahead(comm, many),
        "beside": beside(comm, one),
        "kept": float(kept(comm)),
        **hook(comm),
    }


def host_ahead(comm: TorchCommunicator, computing: Callable[[], None]) -> float:
    """The host's time for computing, a sum behind it and waiting for it, over the time until all is done."""
    launched = took = 0.0
    for _ in range(2):  # the first makes connections and loads kernels, for which the host waits
        summed = torch.ones(1024, device=comm.device)
        comm.synchronise()
        started = time.perf_counter()
        computing()
        comm.all_reduce(summed, WORLD, async_op=True).wait()
        summed.add_(1)
        launched = time.perf_counter() - started
        comm.synchronise()
        took = time.perf_counter() - started
        if float(summed[0]) != len(comm.members(WORLD)) + 1:
            raise RuntimeError("what was computed after wait() did not follow the sum")
    return launched / took


def beside(comm: TorchCommunicator, computing: Callable[[], None]) -> float:
    """The time of an operation over the time after which what was launched behind it was computed.

    1: they were one after the other. Waiting comes last, so it is never less.
    """
    own = torch.ones(PIECE[comm.device.type], device=comm.device)
    everybody = torch.empty(len(comm.members(WORLD)) * len(own), device=comm.device)
    over = 0.0
    for _ in range(2):  # the first makes connections and finds memory
        comm.synchronise()
        began = _mark(comm)
        work = comm.all_gather(everybody, own, WORLD, async_op=True)
        computing()
        computed = _mark(comm)
        work.wait()
        ended = _mark(comm)
        comm.synchronise()
        over = between(began, ended) / between(began, computed)
    return over


def kept(comm: TorchCommunicator) -> bool:
    """Whether a tensor lives that its operation still needs and nobody else holds."""
    tensor = torch.ones(1024, device=comm.device)
    reference = weakref.ref(tensor)
    work = comm.all_reduce(tensor, WORLD, async_op=True)
    del tensor
    alive = reference() is not None
    work.wait()
    return alive


def hook(comm: TorchCommunicator) -> dict[str, float]:
    """How far gradients through the hook are from those without, its buckets, and whether stop requests come
    late.

    All ranks are taken to have the same batch, so that the mean gradient is that of one of them.
    """
    torch.manual_seed(0)
    model = SmallCNN(channels=[64, 128, 256]).build(InputSpec(3, 16, 16, 10)).to(comm.device)
    replica = TorchReplica(model, nn.CrossEntropyLoss(), comm)
    replica.average_gradients_over(WORLD, bucket_mib=0.25)
    inputs = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(comm.device)
    batch = Batch(inputs, torch.arange(8, device=comm.device), (8,) * comm.topology.ranks)
    heard: list[bool] = []
    sums: list[int] = []
    for step in range(STEPS):
        replica.requests_stop = step == 1
        replica.compute_gradients(batch)
        heard.append(replica.stop_requested)
        sums.append(comm.traffic.verbs["gradients.all_reduce"])
    replica.wait_pending()
    averaged = _gradients(replica)
    replica.model.zero_grad()
    nn.functional.cross_entropy(replica.model(batch.inputs), batch.targets).backward()
    pairs = zip(averaged, _gradients(replica), strict=True)
    return {
        "hook": max(float((mean - own).abs().max() / own.abs().max()) for mean, own in pairs),
        "buckets": float(sums[-1] - sums[-2]),
        "late": float(heard == [False, False, True]),
    }


def _gradients(replica: TorchReplica) -> list[Tensor]:
    return [gradient.clone() for p in replica.parameters.tensors if (gradient := p.grad) is not None]


def _products(comm: TorchCommunicator, side: dict[str, int], number: int) -> Callable[[], None]:
    matrix = torch.rand(side[comm.device.type], side[comm.device.type], device=comm.device)
    result = torch.empty_like(matrix)

    def multiply() -> None:
        for _ in range(number):
            torch.mm(matrix, matrix, out=result)

    return multiply


def _mark(comm: TorchCommunicator) -> Mark:
    """The present moment of computing."""
    if comm.device.type != "cuda":
        return comm.now()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
