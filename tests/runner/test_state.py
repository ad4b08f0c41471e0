"""What a run goes on from: not from another kind of device's numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Dies, config, dies_after

from daso_bench.runner import loop, state
from daso_bench.runner.simulated_world import simulate
from daso_bench.strategies.errors import ConfigError


def saved_as(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], without: str = "") -> None:
    """What is saved from now on, changed so."""

    def snapshot(*args: Any) -> dict[str, Any]:
        return {key: value for key, value in (state.snapshot(*args) | change).items() if key != without}

    monkeypatch.setattr(loop, "snapshot", snapshot)


@pytest.mark.parametrize(
    ("change", "without"),
    [
        ({"device": "cuda"}, ""),
        ({"rng": {"cpu": torch.get_rng_state(), "cuda": torch.get_rng_state()}}, "device"),
    ],
    ids=["it says so", "an older one has a generator of GPUs"],
)
def test_what_a_gpu_has_saved_is_not_gone_on_with_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], without: str
):
    cfg = config(ranks=[2], epochs=2, checkpoint_every_samples=48)
    saved_as(monkeypatch, change, without)
    with pytest.raises(Dies):
        simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, loop=dies_after(4))
    with pytest.raises(ConfigError, match="step_0000000003: was saved on cuda, and this rank is on cpu"):
        simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, attempt=2)


def test_what_a_cpu_had_saved_before_devices_were_noted_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cfg = config(ranks=[2], epochs=2, checkpoint_every_samples=48)
    saved_as(monkeypatch, {}, without="device")
    with pytest.raises(Dies):
        simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, loop=dies_after(4))
    resumed = simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, attempt=2)
    assert resumed.metrics.rows[0]["resumed_from"] == "step_0000000003"
