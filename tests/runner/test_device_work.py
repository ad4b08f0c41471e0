"""Operations of NCCL: streams wait for each other, the host for none, and ends are known without asking."""

from typing import Any

from fake_gpu import FakeGPU, FakeWork
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from daso_bench.runner.device_work import DeviceWork, Spans
from daso_bench.runner.torch_communicator import share_a_gpu


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


def test_groups_do_not_tell_of_their_ends_behind_each_other():
    gpu = FakeGPU()
    slow, quick = started(gpu, ends=1000, of="world"), started(gpu, ends=5, of="node")
    gpu.now = 6
    assert quick.is_completed()
    assert not slow.is_completed()
    quick.wait()
    assert gpu.clocks["computing"] == 5


def test_ranks_that_share_a_gpu_hear_of_it_alike():
    def meet(names: list[str]) -> list[bool]:
        store = HashStore()
        for rank, name in enumerate(names):
            store.set(f"gpu/{rank}", name)
        return [share_a_gpu(store, len(names), rank, name) for rank, name in enumerate(names)]

    assert meet(["a", "b", "c"]) == [False] * 3
    assert meet(["a", "b", "a"]) == [True] * 3
