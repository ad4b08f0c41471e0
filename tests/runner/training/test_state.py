"""What a run goes on from: not from another kind of device's numbers."""

from pathlib import Path

import pytest
from runs import Dies, config, dies_after

from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.state import TrainState
from daso_bench.strategies.errors import ConfigError


def test_what_a_gpu_has_saved_is_not_gone_on_with_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cfg = config(ranks=[2], epochs=2, checkpoint_every_samples=48)
    saved = TrainState.state_dict
    monkeypatch.setattr(TrainState, "state_dict", lambda state: saved(state) | {"device": "cuda"})
    with pytest.raises(Dies):
        simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, loop=dies_after(4))
    with pytest.raises(ConfigError, match="step_0000000003: was saved on cuda, and this rank is on cpu"):
        simulate(cfg, cfg.dataset.load(), checkpoints=tmp_path, attempt=2)
