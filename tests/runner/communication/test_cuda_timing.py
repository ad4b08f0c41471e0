"""CUDA events: the host waits neither for the step just launched nor for an NCCL operation; on a fake GPU."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_gpu import FakeGPU, FakeWork
from runs import config, simulated
from torch import Tensor, nn

from daso_bench.runner.communication.cuda_timing import (
    DeviceWork,
    InFlight,
    Spans,
    StepTimings,
    one_step_late,
)
from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.training.clock import TrainInterval, by_device
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.replica import Batch, StepTimes
from daso_bench.strategies.topology import Topology


def add_step(
    times: StepTimings, gpu: FakeGPU, sizes: tuple[int, ...], forward: float = 2, backward: float = 4
) -> None:
    """A step whose sums take 1 ms behind the backward pass."""
    began = gpu.mark()
    gpu.compute(forward)
    ended = gpu.mark()
    gpu.compute(backward)
    computed = gpu.mark()
    gpu.compute(1)
    times.add(sizes, forward=[(began, ended)], started=began, computed=computed, done=gpu.mark())


def test_times_of_a_step_are_read_once_it_is_over_and_nobody_waits():
    gpu, times = FakeGPU(), StepTimings()
    add_step(times, gpu, (1,))
    assert times.known() == []
    add_step(times, gpu, (2,), forward=3)
    gpu.now = 7.5  # the first step is over, the second is not
    assert times.known() == [StepTimes((1,), 2_000_000, 6_000_000)]
    assert times.known() == [], "once"
    assert gpu.host_waits == []
    assert times.wait_pending() == [StepTimes((2,), 3_000_000, 7_000_000)]
    assert gpu.host_waits == [15.0], "a pause waits, for the last step alone"
    assert times.take_sums() == (13_000_000, 2_000_000)
    assert times.take_sums() == (0, 0)


def test_marks_of_a_clock_are_known_in_the_step_itself():
    times = StepTimings()
    times.add((4,), forward=[(1, 3), (10, 15)], started=0, computed=20, done=20)
    assert times.known() == [StepTimes((4,), 7, 20)]
    assert times.wait_pending() == []


def test_the_stop_flag_is_read_one_step_late_even_if_it_could_be_earlier():
    for early in (False, True):
        gpu, flags = FakeGPU(), []
        delayed = one_step_late(gpu.event, pinned=False)
        for stop_request in (0.0, 1.0, 0.0, 0.0):
            gpu.compute(5)
            flags.append(delayed(torch.tensor([stop_request])))
            if early:
                gpu.now = gpu.clocks["computing"]
        assert flags == [0, 0, 1, 0]
        assert gpu.host_waits == [5, 10, 15], "for the step before, never for the one just launched"


def test_parts_of_an_interval_by_device_times_sum_to_its_time():
    host = TrainInterval(train=100, compute=5, blocked=2, data=60, step_other=33)
    assert by_device(host, 70, 10) == TrainInterval(100, 70, 12, 18, 0)
    assert by_device(host, 20, 10) == TrainInterval(100, 20, 12, 60, 8)
    # Events tick otherwise than the host's clock: no part is ever negative.
    assert by_device(host, 101, 10) == TrainInterval(100, 100, 0, 0, 0)


class FakeComm:
    """A communicator of one rank on a fake GPU."""

    rank, topology, host_waits = 0, Topology.of([1]), False
    device = torch.device("cpu")

    def __init__(self, gpu: FakeGPU) -> None:
        self.gpu, self.traffic, self.synchronised = gpu, Traffic(self.topology, 0), 0

    def members(self, group: Any) -> tuple[int, ...]:
        return (0,)

    def take_exposed_ns(self) -> int:
        return 0

    def synchronise(self) -> None:
        self.synchronised += 1
        self.gpu.now = self.gpu.clocks["computing"]

    def now(self) -> int:
        return 0


class OnFakeGPU(TorchReplica):
    """A replica whose marks are a fake GPU's; its passes take 3 ms each."""

    def _mark(self) -> Any:
        gpu: FakeGPU = self.comm.gpu  # pyright: ignore[reportAttributeAccessIssue]
        event = gpu.mark()
        gpu.compute(3)
        return event

    def _event(self) -> Any:
        gpu: FakeGPU = self.comm.gpu  # pyright: ignore[reportAttributeAccessIssue]
        return gpu.event()


def on_fake_gpu() -> tuple[FakeGPU, Any, OnFakeGPU]:
    gpu = FakeGPU()
    comm: Any = FakeComm(gpu)
    replica = OnFakeGPU(nn.Linear(2, 2), nn.CrossEntropyLoss(), comm)
    replica.optimizer = torch.optim.SGD(replica.parameters.tensors, lr=0.1)
    return gpu, comm, replica


def batch_of(value: float, size: int = 3) -> Batch:
    return Batch(torch.full((size, 2), value), torch.zeros(size, dtype=torch.long), (size,))


def test_no_step_waits_for_itself_and_a_loss_that_is_nan_stops_in_the_next():
    gpu, comm, replica = on_fake_gpu()
    flags, known = [], []
    for value in (1.0, float("nan"), 1.0, 1.0):
        replica.compute_gradients(batch_of(value))
        flags.append(replica.stop_requested)
        known.append(len(replica.take_times()))
    assert flags == [False, False, True, False]
    assert len(gpu.host_waits) == 3
    assert max(gpu.host_waits) < gpu.clocks["computing"] - 3, "the last step is still in the queue"
    assert comm.synchronised == 0
    assert known == [0, 1, 1, 1], "times of a step come in the next"
    replica.wait_pending()
    assert comm.synchronised == 1
    assert len(replica.take_times()) == 1
    compute_ns, exposed_ns = replica.take_device_ns() or (0, 0)
    assert compute_ns > 0
    assert exposed_ns > 0


@pytest.mark.parametrize("late", [True, False])
def test_a_pause_waits_for_what_is_behind_backward_whoever_sums(late: bool):
    _, comm, replica = on_fake_gpu()
    replica.delayed_flag = late  # not where gloo joins GPUs: their optimizer's step is as late as any other's
    replica.wait_pending()
    assert comm.synchronised == 1


def test_an_undone_step_changes_no_time_and_no_flag():
    _, _, replica = on_fake_gpu()
    replica.compute_gradients(batch_of(float("nan")))
    with replica.untouched():
        replica.compute_gradients(batch_of(1.0, size=5))
        replica.compute_gradients(batch_of(1.0, size=5))
    replica.compute_gradients(batch_of(1.0))
    assert replica.stop_requested, "of the step before the one that was undone"
    replica.wait_pending()
    assert [step.samples_of_rank for step in replica.take_times()] == [(3,), (3,)]
    fresh = on_fake_gpu()[2]
    fresh.compute_gradients(batch_of(1.0))
    fresh.wait_pending()
    once = fresh.take_device_ns() or (0, 0)
    assert replica.take_device_ns() == (2 * once[0], 2 * once[1])


@pytest.mark.parametrize(
    ("epochs", "every", "step"),
    [
        (1, {"eval_every_samples": 48}, 5),  # the last step
        (2, {"eval_every_samples": 48, "checkpoint_every_samples": 960}, 2),
        (2, {"eval_every_samples": 960, "checkpoint_every_samples": 48}, 2),
    ],
)
def test_where_flags_are_delayed_ranks_agree_before_the_end_an_evaluation_and_a_checkpoint(
    tmp_path: Path, epochs: int, every: dict[str, Any], step: int
):
    class Delayed(Trainer):
        def begin(self, resumed_from: str | None) -> None:
            self.context.replica.delayed_flag = True
            super().begin(resumed_from)

        def step(self) -> None:
            super().step()
            self.context.replica.stop_requested = False  # it would be read in the next step
            if self.context.progress.step == step and self.context.comm.rank == 2:
                self.context.state.losses.of_run.fill_(float("nan"))

    cfg = config(epochs=epochs, **every)
    done = simulated(cfg, loop=Delayed, checkpoints=tmp_path)
    assert {result.status for result in done.results} == {"diverged"}
    assert f"step {step + 1}" in (done.results[0].reason or "")
    if step == 2:
        assert not [row for row in done.metrics.rows if row["kind"] == "evaluation"]
        assert not list(tmp_path.glob("step_*"))


# ------------------------------------------------------------------ NCCL operations


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
        flight.add(name)(started(gpu, ends).is_completed)
    third = flight.add("reduce on parameters/node")
    assert flight.oldest() == "all_reduce on gradients/world"
    gpu.now = 6
    assert flight.oldest() == "broadcast on parameters/node"
    gpu.now = 30
    assert flight.oldest() == "reduce on parameters/node", "it is still being launched"

    broken = True

    def over() -> bool:
        if broken:
            raise RuntimeError("CUDA error: device-side assert triggered")
        return True

    third(over)
    assert flight.oldest() == "reduce on parameters/node", "the thread of the beats outlives a broken GPU"
    broken = False
    assert flight.oldest() == ""
    assert gpu.host_waits == []
