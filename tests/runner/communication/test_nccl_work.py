"""NCCL operations and streams, on a fake GPU: streams wait for each other, the host waits for none."""

import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_gpu import FakeGPU, FakeWork
from test_cuda_timing import on_fake_gpu
from torch import Tensor

from daso_bench.runner.communication.nccl_work import DeviceWork, InFlight, Spans, Streams
from daso_bench.runner.training.context import TrainContext
from daso_bench.strategies.gradients import GradientAveraging, Reduction
from daso_bench.strategies.topology import WORLD

CUDA = torch.device("cuda", 0)


def started(gpu: FakeGPU, ends: float, of: Any = "world", spans: Spans | None = None) -> DeviceWork:
    note: Any = (spans or Spans()).add
    streams: Any = gpu
    return DeviceWork(
        [FakeWork(gpu, ends)], streams=streams, began=streams.mark(), of=of, tensors=[Tensor()], note=note
    )


def test_computing_goes_on_beside_an_operation_and_waits_where_it_is_asked_to():
    gpu, spans = FakeGPU(), Spans()
    gpu.compute(10)
    work = started(gpu, ends=25, spans=spans)
    gpu.compute(6)
    assert gpu.clocks["computing"] == 16, "nothing waits for what was started"
    work.wait()
    assert gpu.clocks["computing"] == 25
    work.wait()
    assert gpu.host_waits == [], "the host waits for nothing"
    assert spans.take_ns() == 0, "unknown while it is not over"
    gpu.now = 30
    assert spans.take_ns() == 9_000_000
    assert spans.take_ns() == 0


def test_an_operation_that_ended_earlier_costs_nothing():
    gpu, spans = FakeGPU(), Spans()
    work = started(gpu, ends=2, spans=spans)
    gpu.compute(5)
    work.wait()
    assert gpu.clocks["computing"] == 5
    gpu.now = 5
    assert spans.take_ns() == 0


def test_its_end_and_length_are_known_once_it_is_over_and_waited_for_or_not():
    gpu = FakeGPU()
    gpu.compute(10)
    work = started(gpu, ends=25)
    gpu.now = 24
    assert not work.is_completed()
    assert work.transfer_ns() is None
    gpu.now = 25
    assert work.is_completed()
    assert work.transfer_ns() == 15_000_000
    assert gpu.host_waits == []


def test_tensors_are_kept_until_they_are_waited_for_and_no_longer():
    gpu, tensor = FakeGPU(), Tensor([1.0])
    theirs = weakref.ref(tensor)
    given: dict[str, Any] = {"streams": gpu, "began": gpu.mark(), "of": "world", "note": Spans().add}
    work = DeviceWork([], tensors=[tensor], **given)
    del tensor
    assert theirs() is not None, "its memory would go to others while the operation uses it"
    work.wait()
    assert theirs() is None


def test_groups_do_not_tell_of_their_ends_behind_each_other():
    gpu = FakeGPU()
    slow, quick = started(gpu, ends=1000, of="world"), started(gpu, ends=5, of="node")
    gpu.now = 6
    assert quick.is_completed()
    assert not slow.is_completed()
    quick.wait()
    assert gpu.clocks["computing"] == 5


def test_the_oldest_operation_that_is_not_over_says_where_a_gpu_stands_still():
    gpu, flight = FakeGPU(), InFlight()
    assert flight.oldest() == ""
    for name, ends in (("all_reduce on gradients/world", 5), ("broadcast on parameters/node", 25)):
        launched = flight.add(name)
        launched.over = started(gpu, ends).is_completed
    third = flight.add("reduce on parameters/node")
    assert flight.oldest() == "all_reduce on gradients/world"
    gpu.now = 6
    assert flight.oldest() == "broadcast on parameters/node"
    gpu.now = 30
    assert flight.oldest() == "reduce on parameters/node", "it is still being launched"

    def broken() -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    third.over = broken
    assert flight.oldest() == "reduce on parameters/node", "the thread of the beats outlives a broken GPU"
    third.over = lambda: True
    assert flight.oldest() == ""
    assert gpu.host_waits == []


# ------------------------------------------------------------------ with torch.cuda replaced


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
        backend=SimpleNamespace(make_batch=None, device=CUDA, spend=lambda what, samples: None),
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
