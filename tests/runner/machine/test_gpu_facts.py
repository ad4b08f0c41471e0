"""What the records say of GPUs besides their names; read on machines without any."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import config

from daso_bench.runner.machine import gpu_facts
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.trainer import Trainer

MODULES = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023": "535.104.05",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)": "570.86.15",
    "something else\n": None,
}


@pytest.mark.parametrize(("told", "version"), MODULES.items())
def test_the_drivers_version_is_read_from_its_kernel_module(tmp_path: Path, told: str, version: str | None):
    file = tmp_path / "version"
    assert gpu_facts.driver(file) is None
    file.write_text(f"{told}\nGCC version:  gcc version 12.3.0\n")
    assert gpu_facts.driver(file) == version


def test_variables_that_change_how_gpus_compute_or_speak_are_kept():
    kept = {"NCCL_ALGO": "Ring", "NVIDIA_TF32_OVERRIDE": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert gpu_facts.variables({**kept, "HOME": "/root", "MY_NCCL_ALGO": "Tree"}) == kept


def test_a_rank_says_what_its_gpu_is_driven_by(monkeypatch: pytest.MonkeyPatch):
    assert gpu_facts.of_rank(torch.device("cpu")) is None
    assert gpu_facts.peak_memory(torch.device("cpu")) == (-1, -1)
    found = SimpleNamespace(total_memory=80 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    told = gpu_facts.of_rank(torch.device("cuda", 0)) or {}
    assert set(told) == {"memory", "capability", "driver", "cuda", "cudnn", "nccl", "variables"}
    assert (told["memory"], told["capability"]) == (80 * 2**30, "9.0")
    assert told["cuda"] == torch.version.cuda
    assert told["variables"]["NCCL_P2P_DISABLE"] == "1"


def test_the_summary_has_each_ranks_peak_of_memory_where_some_are_on_gpus(monkeypatch: pytest.MonkeyPatch):
    class OnGPUs(Trainer):
        def begin(self, resumed_from: str | None) -> None:
            self.context.comm.some_on_gpus = True
            super().begin(resumed_from)

    peaks = iter([(100, 200), (-1, -1), (300, 400)])
    monkeypatch.setattr(gpu_facts, "peak_memory", lambda device: next(peaks))
    cfg = config(ranks=[2, 1], epochs=1)
    summary: dict[str, Any] = simulate(cfg, cfg.dataset.load(), loop=OnGPUs).results[0].summary
    of_ranks = zip(
        *(summary["gpu_memory"][key] for key in ("allocated_bytes", "reserved_bytes")), strict=True
    )
    assert sorted(of_ranks, key=str) == [(100, 200), (300, 400), (None, None)]
    assert "gpu_memory" not in simulate(cfg, cfg.dataset.load()).results[0].summary
