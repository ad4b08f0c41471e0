"""What is a GPU's alone, with torch's CUDA put aside: streams, pinned memory, copies that do not block."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_cuda_timing import on_fake_gpu
from torch import Tensor

from daso_bench.runner.communication.nccl_work import Streams
from daso_bench.runner.training.context import TrainContext
from daso_bench.strategies.gradients import GradientAveraging, Reduction
from daso_bench.strategies.topology import WORLD

CUDA = torch.device("cuda", 0)


def test_each_group_has_a_side_stream_of_its_own_and_keeps_it(monkeypatch: pytest.MonkeyPatch):
    made: list[Any] = []

    def stream(device: torch.device) -> object:
        made.append(device)
        return object()

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda of: of)
    streams = Streams(CUDA)
    world, node, again = (streams.side(of) for of in ("world", "node", "world"))
    assert world is again
    assert world is not node
    assert made == [CUDA] * 2


@pytest.mark.parametrize("pinned", [True, False])
def test_a_batch_goes_to_the_gpu_from_pinned_memory_and_nobody_waits(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
):
    calls: list[tuple[str, Any]] = []

    def to(tensor: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        calls.append(("to", keywords["non_blocking"]))
        return tensor

    def pin(tensor: Tensor) -> Tensor:
        calls.append(("pin", tensor.dtype))
        return tensor

    monkeypatch.setattr(Tensor, "is_pinned", lambda tensor: pinned)
    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    batch = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    context: Any = SimpleNamespace(
        backend=SimpleNamespace(batch=None, device=CUDA, spend=lambda what, samples: None),
        progress=SimpleNamespace(samples_of_rank=(2,)),
        loader=SimpleNamespace(next=lambda progress: batch),
        dtype=torch.float32,
        memory_format=torch.preserve_format,
    )
    TrainContext.next_batch(context)
    pins = [] if pinned else [("pin", torch.float32), ("pin", torch.int64)]
    assert calls == [*pins, ("to", True), ("to", True)]


def test_a_reduction_beside_backward_waits_for_the_gradients_it_is_to_sum(monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    class Stream:
        def wait_event(self, event: str) -> None:
            order.append(f"waits for {event}")

    class Noted(Reduction):
        def sum(self, bucket: Tensor, index: int, shapes: Any, comm: Any) -> None:
            order.append("sums")

    def on(stream: Any) -> AbstractContextManager[None]:
        order.append(f"on {type(stream).__name__}")
        return nullcontext()

    future = torch.futures.Future
    monkeypatch.setattr(torch.futures, "Future", lambda devices: future())
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=lambda: "the gradients")
    )
    replica: Any = on_fake_gpu()[2]
    replica._members, replica._stream = (0, 1), Stream()
    replica.averaging = GradientAveraging(group=WORLD, reduction=Noted())
    with ThreadPoolExecutor(1) as replica._helper:
        replica.sum_bucket(torch.ones(2), [(2,)], last=True).wait()
    assert order == ["on Stream", "waits for the gradients", "sums"]
