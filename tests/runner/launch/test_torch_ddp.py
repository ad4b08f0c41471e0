"""ddp over gloo: every algorithm and hook, against the flat sum, PyTorch's own hooks and virtual time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from real_runs import entry, final_model, finished
from runs import Dies, config, dies_after

from daso_bench.runner.simulation.simulated_world import simulate


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("algorithms", 4),
        ("algorithms", 3),
        ("books", 4),
        ("overlap", 2),
        ("half", 2),
        ("powersgd", 2),
        ("resume", 3),
        ("raises", 2),
        ("best", 4),
    ],
)
def test_ranks_find_what_they_should(tmp_path: Path, name: str, ranks: int):
    outcome = entry(f"gloo_entries_ddp:{name}", ranks, tmp_path)
    assert outcome.status == "finished", outcome.details


def test_one_ranks_failing_sum_ends_the_run_and_is_told(tmp_path: Path):
    outcome = entry("gloo_entries_ddp:raises_alone", 2, tmp_path)
    assert outcome.status == "failed"
    assert "rank 1" in (outcome.reason or "")
    assert "this bucket does not add up" in f"{outcome.reason}{outcome.details}"


@pytest.mark.parametrize(
    ("keys", "ranks"),
    [
        ({"algorithm": "sliced", "overlap": False}, [2, 2]),
        ({"algorithm": "hierarchical", "hook": "powersgd", "powersgd_start_steps": 3}, [2, 1]),
    ],
)
def test_gloo_and_virtual_time_train_the_same_model(tmp_path: Path, keys: dict[str, Any], ranks: list[int]):
    cfg = config("ddp", keys=keys, ranks=ranks, precision="fp64", results=tmp_path, epochs=2)
    directory, ours = finished(cfg)
    simulated = simulate(cfg, cfg.dataset.load())
    theirs = simulated.contexts[0].replica.model.state_dict()
    for name, value in final_model(directory).items():
        assert (value - theirs[name]).abs().max() <= 1e-10, name
    virtual = simulated.results[0].summary
    for counted in ("strategy", "payload_bytes", "ring_bytes"):
        assert ours[counted] == virtual[counted]


def test_checkpoints_hold_what_powersgd_remembers(tmp_path: Path):
    keys = {"hook": "powersgd", "powersgd_start_steps": 2, "algorithm": "hierarchical"}
    cfg = config("ddp", keys=keys, ranks=[2, 1], epochs=2, checkpoint_every_samples=5 * 16)
    data = cfg.dataset.load()
    whole = simulate(cfg, data, checkpoints=tmp_path / "whole")
    with pytest.raises(Dies):
        simulate(cfg, data, checkpoints=tmp_path / "cut", loop=dies_after(7))
    resumed = simulate(cfg, data, checkpoints=tmp_path / "cut")
    assert resumed.metrics.rows[0]["step"] == 5
    for mine, theirs in zip(resumed.contexts, whole.contexts, strict=True):
        assert torch.equal(mine.replica.flat(), theirs.replica.flat())
    ends = [done.results[0].summary["strategy"] for done in (resumed, whole)]
    assert ends[0] == ends[1]
    assert ends[0]["compressed_steps"] == 12 - 2
