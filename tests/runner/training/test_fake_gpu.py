"""Whole runs of one rank on a GPU that is not there: no tensor of a run lies where it cannot be used.

Tensors of the GPU are PyTorch's fake ones, which raise on a mix of devices; gloo, the train loop, evaluation
and checkpoints are real. `test_gpu.py` tries the same on a real GPU.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import DEVICE, fake_cuda, on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from fake_gpu import HostEvent
from gpu_nccl import Mirror
from runs import Blobs, Dies, config, dies_after
from test_gpu_resume import IDS, WALKS  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch._C._distributed_c10d import HashStore
from torch.distributed import destroy_process_group
from torch.utils._python_dispatch import _disable_current_modes

from daso_bench.datasets.data import on_device
from daso_bench.models.small import SmallCNN
from daso_bench.runner.communication.torch_communicator import TorchCommunicator, done_sum
from daso_bench.runner.machine import gpu_facts
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.runner.simulation.simulated_world import Recorded
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.context import Backend, TrainContext
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.communicator import Done, Operation, Work
from daso_bench.strategies.lasgd import LASGD
from daso_bench.strategies.topology import Topology

NODES = (2, 2)


class Replica(TorchReplica):
    """Sums its gradients after the backward pass: PyTorch's reducer would look for a real GPU."""

    def average_gradients_over(self, group: Any, **how: Any) -> None:
        super().average_gradients_over(group, **{**how, "overlap": False})

    def _event(self) -> Any:
        return HostEvent()

    def _mark(self) -> int:
        return self.comm.now()

    def sum_bucket(self, buffer: torch.Tensor, shapes: Any, *, last: bool) -> Any:
        reduction = self.averaging.reduction
        if reduction is None:
            return super().sum_bucket(buffer, shapes, last=last)
        reduction.sum(buffer, self._bucket, shapes, self.comm)
        self._bucket += 1
        return done_sum(buffer)


class Alone(Mirror):
    """As in `Mirror`, and a rank receives whether or not it sends."""

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        assert all(op.tensor.device == DEVICE for op in messages)
        return Done()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Rank 0 of two nodes of two ranks that share the GPU, joined by gloo; the others do what it does."""
    alone = TorchCommunicator(Topology.of([1]), 0, HashStore(), torch.device("cpu"), 20)
    alone.device, alone._staged = DEVICE, True
    monkeypatch.setattr(TorchCommunicator, "synchronise", lambda self: None)
    monkeypatch.setattr(gpu_facts, "peak_memory", lambda device: (0, 0))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(LASGD, "_read_control", _others_took_as_many)
    monkeypatch.setattr(checkpoint, "write_file", _write_for_all)
    monkeypatch.setattr(checkpoint, "read", _outside(checkpoint.read))
    try:
        yield Alone(alone, Topology.of(NODES))
    finally:
        destroy_process_group()


def _others_took_as_many(strategy: LASGD, counted: int) -> None:
    """In the place of what a round carries, which nobody can read here."""
    strategy.control.tolist()
    strategy.total, strategy.counted = strategy.rank_samples * strategy.workers, counted


def _outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` without fake tensors, which PyTorch would load instead of a file's."""

    def real(*arguments: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments)

    return real


def _write_for_all(path: Path, content: Any, write: Any = checkpoint.write_file) -> None:
    """This rank's file, and those of the ranks that are not there."""
    content = on_cpu(content)
    with _disable_current_modes():
        write(path, content)
    if path.name == checkpoint.rank_file(0):
        for other in range(1, sum(NODES)):
            shutil.copy(path, path.with_name(checkpoint.rank_file(other)))


def run(mirror: Mirror, folder: Path, loop: type[Trainer] = Trainer, *arguments: Any, **keys: Any) -> Outcome:
    """A run of 3 epochs of 4 steps, judged after every other one, saved after every fourth."""
    cfg = config(
        *arguments,
        dataset=Blobs(samples=64, test_samples=32),
        epochs=3,
        checkpoint_every_samples=64,
        eval_every_samples=32,
        **keys,
    )
    mirror.traffic.clear()
    world = Backend("fake", mirror, lambda model, loss: Replica(model, loss, mirror), DEVICE, True)
    data = on_device(cfg.dataset.load(), DEVICE, cfg.launcher.device_data_mib)
    context = TrainContext(cfg, world, data, Recorded(), Recorded(), checkpoints=folder)
    return loop(context).run()


@pytest.mark.parametrize(("norm", "mode"), [("none", "inline"), ("batch", "deferred")])
@pytest.mark.parametrize(("strategy", "keys"), WALKS, ids=IDS)
def test_a_run_and_its_resume_keep_their_tensors_where_they_belong(
    mirror: Mirror, tmp_path: Path, strategy: str, keys: dict[str, Any], norm: str, mode: str
):
    how: dict[str, Any] = {"keys": keys, "model": SmallCNN(channels=[4], norm=norm), "eval_mode": mode}
    how["launcher"] = {"device_data_mib": 0 if mode == "deferred" else 1}  # from the host, or on the GPU
    with fake_cuda():
        with pytest.raises(Dies):
            run(mirror, tmp_path, dies_after(6), strategy, **how)
        assert checkpoint.complete(tmp_path)
        result = run(mirror, tmp_path, Trainer, strategy, **how)
    assert (result.status, result.summary["steps"]) == ("finished", 12)
