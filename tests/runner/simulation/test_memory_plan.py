"""The memory plan of simulated runs: against what is allocated at the most, and what it refuses."""

import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from runs import NAMES, config, simulated
from test_rank_compute import pool_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.runner.cli.main import run
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.runner.config.optimizers import LARS, SGD, AdamW
from daso_bench.runner.simulation.memory_plan import GIB, memory_of, states_of
from daso_bench.strategies.errors import MachineError


class Allocated(TorchDispatchMode):
    """The bytes of all tensors that operations made and that still live: now, and at the most."""

    now = most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage: Any = tensor.untyped_storage()
                if not hasattr(storage, "counted"):  # else it is a view of memory that is counted
                    storage.counted = True
                    self._add(storage.nbytes())
                    weakref.finalize(storage, self._add, -storage.nbytes())
        return made

    def _add(self, number: int) -> None:
        self.now += number
        self.most = max(self.most, self.now)


DATA = Synthetic(samples=96, test_samples=8, channels=1, height=4, width=4, classes=4)
LARGE = {"model": MLP(hidden=[384, 384]), "dataset": DATA, "epochs": 3}
EVERY = {name: {"sync_every": 2} for name in ("diloco", "ednncomm", "local_sgd", "slowmo")}
SHORT: dict[str, dict[str, Any]] = {
    **EVERY,
    "daso": {"warmup_epochs": 1, "cooldown_epochs": 1},
    "post_local_sgd": {"sync_every": 2, "switch_samples": 32},
}
WAYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((name, {}, {}) for name in NAMES),
    ("ddp", {"algorithm": "hierarchical"}, {"optimizer": SGD(momentum=0.0, nesterov=False)}),
    ("ddp", {"algorithm": "hierarchical"}, {}),
    ("ddp", {"algorithm": "sliced"}, {}),
    ("ddp", {"hook": "powersgd", "powersgd_start_steps": 2}, {"precision": "fp64"}),
    ("ddp", {}, {"ranks": [4, 4]}),  # computed in stacks
    ("local_sgd", {"sync_every": 7}, {}),  # judged from copies
    ("local_sgd", {"optimizer_state": "average"}, {"optimizer": AdamW(), "eval_mode": "deferred"}),
    ("daso", {"transport_dtype": "bfloat16"}, {"eval_mode": "deferred"}),
    ("lasgd", {"optimizer_state": "average"}, {"optimizer": AdamW()}),
    ("sgp", {"direction": "push_pull", "send_weight": "true"}, {"eval_mode": "inline"}),
    ("hsgd", {"shared_weights": False}, {"optimizer": LARS()}),
    ("hsgd", {}, {"ranks": [4, 4]}),
    ("ednncomm", {"exchange": "sliced"}, {}),
]


@pytest.mark.parametrize(("name", "keys", "more"), WAYS, ids=str)
def test_the_plan_is_what_is_allocated(name: str, keys: dict[str, Any], more: dict[str, Any]):
    cfg = config(name, keys={**SHORT.get(name, {}), **keys}, **{**LARGE, **more})
    with Allocated() as allocated:
        simulated(cfg, step_time=lambda rank, samples: 1000)
    assert memory_of(cfg).total == pytest.approx(allocated.most, rel=0.1)


@pytest.mark.parametrize(
    ("name", "way", "ranks"),
    [
        ("ddp", "stacked", [2, 2]),
        ("ddp", "stacked", [8, 8]),
        ("ddp", "graph", [2, 2]),
        ("ddp", "one_by_one", [4, 4]),
        ("hsgd", "graph", [2, 2]),
    ],
)
def test_the_plan_is_of_the_way_in_which_ranks_are_computed(name: str, way: str, ranks: list[int]):
    cfg = config(name, ranks=ranks, **LARGE)
    device = replace(cfg.cluster.device, samples_per_second=1000.0)
    cluster = replace(cfg.cluster, links=cfg.cluster.links.or_free(), device=device)
    cfg = replace(cfg, cluster=cluster, launcher=SimulatedConfig(device="cpu", rank_compute=way))
    with Allocated() as allocated:
        simulated(cfg, pool=pool_of(way, sum(ranks)), step_time=lambda rank, samples: 1000)
    assert memory_of(cfg).total == pytest.approx(allocated.most, rel=0.1)


def test_the_state_of_an_optimizer_is_counted_by_parameter():
    plain = SGD(momentum=0.0, nesterov=False)
    assert [states_of(optimizer) for optimizer in (plain, SGD(), LARS(), AdamW())] == [0, 1, 1, 2]


def resnet50(nodes: int) -> list[str]:
    words = ["launcher=simulated", "launcher.extrapolate=true", "model=resnet50", f"cluster.nodes={nodes}"]
    data = ["dataset=synthetic", "dataset.height=224", "dataset.width=224", "dataset.samples=65536"]
    return [*words, *data, "cluster.ranks_per_node=4", "train.global_batch_size=8192"]


@pytest.mark.parametrize("gpu", [False, True])
def test_ranks_that_do_not_fit_are_refused_before_anything_is_made(
    gpu: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    room = {"name": "NVIDIA H200", "total_memory": 140 * GIB} if gpu else {"available": 100 * GIB}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**room))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(**room))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=40 * GIB))
    name = "NVIDIA H200" if gpu else "this machine"
    assert run(["--dry-run", *resnet50(nodes=16)]) == 0
    parts = "parameters 89.8, gradients 89.8, sums 89.8, optimizer 89.8, buffers 0.2, strategy 90.0"
    needs = f"memory: 64 ranks x 449.2 MiB ({parts}) + 90.0 MiB = 28.16 GiB, beside data and activations"
    assert f"{needs}; {name} has 140.00 GiB" in capsys.readouterr().out
    refused = (
        f"launcher=simulated: 1024 ranks x 449.2 MiB need 449.3 GiB, and {name} has 140.0 GiB; take at most "
        "318 ranks (cluster.nodes=79) or optimizer.momentum=0 optimizer.nesterov=false (at most 398 ranks)"
    )
    assert run(["--dry-run", *resnet50(nodes=256)]) == 2
    assert f"would      refuse: {refused}" in capsys.readouterr().out
    with pytest.raises(MachineError) as error:
        run(resnet50(nodes=256))
    assert str(error.value) == refused
    assert not Path("results").exists()


def test_times_alone_need_no_memory(here: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["--dry-run", *resnet50(nodes=256), "launcher.timing_only=true"]) == 0
    assert "memory:" not in capsys.readouterr().out
