"""ddp over gloo: every algorithm and hook, against the flat sum, PyTorch's own hooks and virtual time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Dies, config, dies_after

from daso_bench.runner.config import load
from daso_bench.runner.launch import local
from daso_bench.runner.records.outcome import Outcome
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training import checkpoint


def entry(tmp_path: Path, name: str, ranks: int) -> Outcome:
    directory = RunDirectory.create(load.to_plain(config(ranks=[ranks], results=tmp_path)), tmp_path)
    return local.launch(
        directory, ranks=ranks, threads=1, port=None, stall_s=60, entry=f"gloo_entries_ddp:{name}"
    )


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
    outcome = entry(tmp_path, name, ranks)
    assert outcome.status == "finished", outcome.details


def test_one_ranks_failing_sum_ends_the_run_and_is_told(tmp_path: Path):
    outcome = entry(tmp_path, "raises_alone", 2)
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
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    outcome = local.launch(directory, ranks=cfg.cluster.ranks, threads=1, port=None, stall_s=60)
    assert outcome.status == "finished", outcome.details
    simulated = simulate(cfg, cfg.dataset.load())
    theirs = simulated.contexts[0].replica.model.state_dict()
    for name, value in checkpoint.read(directory.checkpoints / "final" / "model.pt")["model"].items():
        assert (value - theirs[name]).abs().max() <= 1e-10, name
    ours, virtual = outcome.summary or {}, simulated.results[0].summary
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
