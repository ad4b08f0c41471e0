"""What the ranks of the tests of pads do; imported by the ranks themselves."""

from collections.abc import Callable
from typing import Any

import torch
from gloo_entries import on_nodes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import GradBucket, TorchCommunicator, done_sum
from daso_bench.runner.training.device_model import Device
from daso_bench.runner.training.slow_device import Padding

MS = 1_000_000
LAYERS, WIDTH = 8, 256  # a layer has 256 KiB, and so has a bucket

Launch = Callable[[GradBucket], "torch.futures.Future[Tensor]"]


# PyTorch compares the annotations with the types themselves, so they must not be strings.
def _hook(launch: Launch, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    return launch(bucket)


def passes(module: nn.Module, padding: Padding, x: Tensor) -> None:
    module.zero_grad()
    loss = module(x).sum()
    padding.begin_backward()
    loss.backward()


class Ticking:
    """A clock that goes on by a microsecond when it is read, and by sleeps."""

    def __init__(self) -> None:
        self.ns = 0

    def now(self) -> int:
        self.ns += 1000
        return self.ns

    def sleep(self, seconds: float) -> None:
        self.ns += round(seconds * 1e9)


@on_nodes([1, 1])
def order(comm: TorchCommunicator) -> dict[str, Any]:
    """When buckets are launched, on such a clock: pads' hooks made before DDP's, and after."""
    x = torch.ones(2, WIDTH)
    launched = []
    for pads_first in (True, False):
        clock = Ticking()
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        layers = {parameter: name.partition(".")[0] for name, parameter in model.named_parameters()}
        seen: list[tuple[list[str], int]] = []

        def launch(
            bucket: GradBucket, clock: Ticking = clock, layers: Any = layers, seen: Any = seen
        ) -> "torch.futures.Future[Tensor]":
            seen.append(([layers[parameter] for parameter in bucket.parameters()], clock.ns))
            return done_sum(bucket.buffer())

        def pads(model: nn.Module = model, clock: Ticking = clock) -> Padding:
            return Padding(model, Device(0, lambda *_: 1500 * MS), now=clock.now, sleep=clock.sleep)

        padding = pads() if pads_first else None
        ddp = DistributedDataParallel(
            model,
            process_group=comm.ddp_group(),
            bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20,  # pyright: ignore[reportArgumentType] (a float, PyTorch says int)
            gradient_as_bucket_view=True,
        )
        ddp.register_comm_hook(launch, _hook)
        padding = padding or pads()
        padding.measure(lambda model=model, padding=padding: passes(model, padding, x), 3)
        began = 0
        for _ in range(3):  # DDP lays its buckets out anew after the first
            padding.begin(1)
            loss = ddp(x).sum()
            seen.clear()
            began = clock.ns
            padding.begin_backward()
            loss.backward()
            padding.end()
        shares = dict(padding.backward)
        launched.append([(names, at - began, shares[names[-1]]) for names, at in seen])
    return {"launched": launched}
