"""What the bench says of NCCL, tried over gloo: ranks that are not there, operations that are not as told."""

import time
from collections.abc import Iterator
from typing import Any

import gpu_nccl
import gpu_probes
import gpu_runs
import pytest
import torch
from fake_gpu import FakeGPU, FakeWork, HostEvent, HostStreams
from gpu_nccl import Mirror
from gpu_options import Time, parse

from daso_bench.runner.communication.cuda_timing import DeviceWork
from daso_bench.runner.communication.gpus import connect
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.communicator import Work
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Topology

SMALL = ["device=cpu", "model=small_cnn", "image=8", "batch=8", "blocks=5", "steps=4"]
FINE = {
    "backend": "nccl",
    "host_ahead": 0.01,
    "beside": 2.5,
    "kept": 1,
    "hook": 1e-7,
    "buckets": 3,
    "late": 1,
}


@pytest.fixture
def mirror(request: pytest.FixtureRequest) -> Iterator[Mirror]:
    """Rank 0 of so many nodes, over gloo; it alone is there."""
    alone = connect(
        Topology.of([1]),
        0,
        host="127.0.0.1",
        port=0,
        listener_fd=None,
        device=torch.device("cpu"),
        timeout_s=20,
    )
    try:
        yield Mirror(alone, Topology.of(request.param))
    finally:
        alone.close()


@pytest.mark.parametrize("mirror", [[2, 2]], indirect=True)
def test_ranks_that_are_not_there_do_what_this_one_does(mirror: Mirror):
    def own() -> torch.Tensor:
        return torch.tensor([1.0, 2.0, 3.0, 4.0])

    for group, size in ((WORLD, 4), (NODE, 2), (LEADERS, 2)):
        for async_op in (False, True):
            summed = own()
            mirror.all_reduce(summed, group, async_op=async_op).wait()
            assert summed.tolist() == [size * x for x in own().tolist()]
        summed = own()
        mirror.reduce(summed, 1, group).wait()
        assert summed.tolist() == [size * x for x in own().tolist()]
        assert mirror.start_sum(own(), group).wait().tolist() == [size * x for x in own().tolist()]
        sent = own()
        mirror.broadcast(sent, 1, group, channel="control").wait()
        assert sent.tolist() == own().tolist()
        everybody = torch.zeros(size * 4)
        mirror.all_gather(everybody, own(), group).wait()
        assert everybody.tolist() == own().tolist() * size
        piece = torch.zeros(4 // size)
        mirror.reduce_scatter(piece, own(), group).wait()
        assert piece.tolist() == [size * x for x in own().tolist()][: 4 // size]
        mirror.barrier(group)
    got = torch.zeros(4)
    mirror.exchange({3: own()}, {1: got}, tag=0).wait()
    assert got.tolist() == own().tolist()
    assert mirror.traffic.verbs["gradients.all_reduce"] == 3, "each call is counted as in a real world"


@pytest.mark.parametrize("mirror", [[1, 1]], indirect=True)
def test_all_probes_hold_where_ranks_behave_like_gpus(mirror: Mirror, monkeypatch: pytest.MonkeyPatch):
    streams: Any = HostStreams()
    mirror.host_waits, mirror._streams = False, streams
    monkeypatch.setattr(TorchReplica, "_event", lambda self: HostEvent())
    told = gpu_probes.measure(mirror)
    assert (told["kept"], told["hook"], told["late"]) == (1, 0, 1)
    assert told["buckets"] >= 2
    names = ["backend", "host_ahead", "beside", "kept", "hook", "buckets", "late"]
    assert list(told) == names
    assert [figure.name for figure in gpu_probes.facts(told, on_gpu=False)] == [
        f"gpu_nccl_{name}" for name in names[1:]
    ]


@pytest.mark.parametrize("mirror", [[1, 1]], indirect=True)
def test_a_hook_that_changes_gradients_is_found(mirror: Mirror, monkeypatch: pytest.MonkeyPatch):
    start = mirror.start_sum
    monkeypatch.setattr(mirror, "start_sum", lambda tensor, group: start(tensor.mul_(1.01), group))
    assert gpu_probes.hook(mirror)["hook"] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("host_ahead", 0.9), ("beside", 1.02), ("kept", 0), ("hook", 1e-2), ("buckets", 1), ("late", 0)],
)
def test_each_fact_that_does_not_hold_is_short_on_a_gpu_alone(name: str, value: float):
    assert all(figure.ok for figure in gpu_probes.facts(FINE, on_gpu=True))
    told = {**FINE, name: value}
    short = [figure.name for figure in gpu_probes.facts(told, on_gpu=True) if not figure.ok]
    assert short == [f"gpu_nccl_{name}"]
    assert all(figure.ok for figure in gpu_probes.facts(told, on_gpu=False))


# ------------------------------------------------------------------ operations that are not as told


class Waits(Work):
    """An operation for which the host is held up so long; it forgets its tensor."""

    def __init__(self, seconds: float, then: Any = lambda: None) -> None:
        self.seconds, self.then = seconds, then

    def wait(self) -> None:
        time.sleep(self.seconds)
        self.then()

    def is_completed(self) -> bool:
        return True

    def transfer_ns(self) -> int | None:
        return 0


class Two:
    """Two ranks on a device that is through after `device_s`; the host is held up `host_s` by waiting."""

    device = torch.device("cpu")

    def __init__(self, *, device_s: float = 0.0, host_s: float = 0.0, doubles: bool = True) -> None:
        self.device_s, self.host_s, self.doubles = device_s, host_s, doubles
        self.first_s = 0.0  # for which the first operation holds the host up

    def members(self, group: Any) -> tuple[int, ...]:
        return (0, 1)

    def synchronise(self) -> None:
        time.sleep(self.device_s)

    def all_reduce(self, tensor: torch.Tensor, group: Any, **keys: Any) -> Work:
        if self.doubles:
            tensor.mul_(2)
        held_up_s, self.first_s = self.host_s + self.first_s, 0.0
        return Waits(held_up_s)


def test_a_host_that_is_held_up_is_told_from_one_that_is_ahead():
    ahead: Any = Two(device_s=0.05)
    held_up: Any = Two(host_s=0.05)
    wrong: Any = Two(doubles=False)
    assert gpu_probes.host_ahead(ahead, lambda: None) < 0.5
    assert gpu_probes.host_ahead(held_up, lambda: None) > 0.8
    with pytest.raises(RuntimeError, match="did not follow the sum"):
        gpu_probes.host_ahead(wrong, lambda: None)


def test_the_first_operation_of_a_group_holds_the_host_up_and_does_not_count():
    begins: Any = Two(device_s=0.05)
    begins.first_s = 0.5
    assert gpu_probes.host_ahead(begins, lambda: None) < 0.5


class OnStreams(Two):
    """A gather of 20 ms on a fake GPU; without `aside` all streams are one: what comes next waits for it."""

    def __init__(self, aside: bool) -> None:
        super().__init__()
        self.gpu, self.aside = FakeGPU(), aside

    def now(self) -> int:
        return round(self.gpu.clocks["computing"] * 1e6)

    def all_gather(self, everybody: torch.Tensor, own: torch.Tensor, group: Any, **keys: Any) -> Work:
        gpu: Any = self.gpu
        operation = FakeWork(self.gpu, self.gpu.clocks["computing"] + 20)
        if not self.aside:
            operation.wait()
        return DeviceWork(
            [operation], streams=gpu, began=gpu.mark(), of="world", tensors=[own], note=lambda *_: None
        )


@pytest.mark.parametrize(("aside", "found"), [(True, 20), (False, 21 / 21)])
def test_an_operation_that_computing_waits_for_is_told_from_one_beside_it(aside: bool, found: float):
    comm: Any = OnStreams(aside)
    assert gpu_probes.beside(comm, lambda: comm.gpu.compute(1)) == pytest.approx(found)


def test_a_tensor_that_nobody_keeps_is_missed():
    forgets: Any = Two()
    assert not gpu_probes.kept(forgets)


def test_each_strategy_runs_as_one_rank_of_four(monkeypatch: pytest.MonkeyPatch):
    chosen = [arm for arm in gpu_runs.arms() if arm.name in ("hsgd", "sgp", "ddp_sliced")]
    monkeypatch.setattr(gpu_nccl, "arms", lambda: chosen)
    figures = {}
    for figure in gpu_nccl.nccl(parse(SMALL), Time(10)):
        assert figure.ok, figure.detail
        figures[figure.name] = figure
    assert list(figures)[-4:] == ["gpu_ddp_over_torch", *(f"gpu_nccl_{arm.name}" for arm in chosen)]
    assert figures["gpu_nccl_hook"].value == 0
    assert "gloo, rank 0 of 2 + 2, 4 steps, accuracy" in figures["gpu_nccl_sgp"].detail
