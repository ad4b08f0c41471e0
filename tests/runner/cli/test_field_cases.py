"""Troubles that users of distributed training reported, each in small (the letters name the case)."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Awkward, Blobs, Dies, Raises, config, dies_after

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.records.json_lines import read_json, read_records
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.errors import MachineError


def run(cfg: RunConfig, **more: Any):
    return simulate(cfg, cfg.dataset.load(), **more)


def test_a01_the_default_port_of_others_does_not_matter_and_a_taken_port_is_named(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        directory = RunDirectory.create(config(ranks=[2], results=tmp_path, epochs=1).tree, tmp_path)
        with pytest.raises(MachineError, match=f"launcher.port={port}: cannot be used"):
            local.launch(directory, ranks=2, threads=1, port=port, stall_s=60)
        outcome = local.launch(directory, ranks=2, threads=1, port=None, stall_s=60)
        assert outcome.status == "finished", outcome.details
        assert len(read_json(directory.environment)["ranks"]) == 2


def test_a05_a_model_that_raises_on_a_rank_fails_the_run(tmp_path: Path):
    cfg = config(ranks=[2], results=tmp_path, model=Raises(rank=1), eval_every_samples=32)
    directory = RunDirectory.create(cfg.tree, tmp_path)
    outcome = local.launch(directory, ranks=2, threads=1, port=None, stall_s=60)
    assert (outcome.status, outcome.exit_code) == ("failed", 1)
    assert outcome.reason == "rank 1: RuntimeError: this model does not like me"
    assert "in forward" in outcome.details, "the traceback"
    assert directory.status()["status"] == "failed"
    kinds = [row["kind"] for row in read_records(directory.metrics).rows]
    assert "evaluation" in kinds, "what it had measured is kept"
    assert "summary" not in kinds, "but it is no finished run"


def test_a17_a_last_batch_of_one_and_batch_norm():
    """33 images, 2 ranks, batch 16:

    batches of 16 and 17, nobody gets a single sample, nothing is left out.
    """
    parts: dict[str, Any] = {"ranks": [1, 1], "model": Awkward(), "dataset": Blobs(samples=33)}
    keys = {"warmup_epochs": 1, "cooldown_epochs": 1}
    done = run(config("daso", keys=keys, epochs=3, global_batch_size=16, **parts))
    summary = done.results[0].summary
    assert (summary["status"], summary["steps"], summary["left_out_samples"]) == ("finished", 6, 0)
    assert done.contexts[0].progress.samples == 99


def test_a24_warm_up_is_not_repeated_by_a_restart(tmp_path: Path):
    keys = {"warmup_epochs": 2, "cooldown_epochs": 1}
    cfg = config("daso", keys=keys, epochs=5, checkpoint_every_samples=16 * 15)
    with pytest.raises(Dies):
        run(cfg, checkpoints=tmp_path, loop=dies_after(15))
    resumed = run(cfg, checkpoints=tmp_path, attempt=2)
    assert resumed.metrics.rows[0]["step"] == 15
    phases = [row["strategy"]["phase"] for row in resumed.metrics.rows if row["kind"] == "epoch"]
    assert phases == ["cycling", "cycling", "cool-down"]
    steps = resumed.results[0].summary["strategy"]["steps_of_phase"]
    assert steps == {"warm-up": 12, "cycling": 12, "cool-down": 6}


@pytest.mark.parametrize("samples", [80, 16, 32])
def test_a29_nothing_is_in_flight_when_an_epoch_ends(samples: int):
    """5, 1 and 2 batches an epoch with a period of 4 and a wait of 3: replicas are equal after each epoch."""

    class Watch(Trainer):
        def _end_epoch(self) -> None:
            ends.setdefault(self.context.progress.epoch, []).append(self.context.replica.flat())
            assert not self.context.strategy.pending  # pyright: ignore[reportAttributeAccessIssue] (DASO's)
            super()._end_epoch()

    ends: dict[int, list[torch.Tensor]] = {}
    keys = {"warmup_epochs": 0, "cooldown_epochs": 0, "sync_every": 4, "wait_batches": 3}
    run(config("daso", keys=keys, dataset=Blobs(samples=samples), epochs=4), loop=Watch)
    assert len(ends) == 4
    for replicas in ends.values():
        assert len(replicas) == 4
        assert all(torch.equal(replicas[0], other) for other in replicas)
