"""Whole ranks that behave like GPUs as far as CPUs can: over gloo, without a device."""

from pathlib import Path
from typing import Any

import pytest
from gloo_entries_gpu import BEHIND_S
from real_runs import assert_close, final_model, finished, launch
from runs import PERIODS, config, simulated


def test_a_backward_pass_that_a_gpu_is_still_at_is_computing_and_no_communication(tmp_path: Path):
    _, summary = finished(config(ranks=[1, 1], results=tmp_path), entry="gloo_entries_gpu:behind")
    for overlap, told in summary.items():
        assert told["waits"] == 1, f"overlap={overlap}: for the last gradient, and not for each bucket"
        assert 0 < told["blocked_s"] < BEHIND_S, overlap


def test_tensors_of_a_gpus_operations_are_kept_until_they_are_waited_for(tmp_path: Path):
    finished(config(ranks=[1, 1], results=tmp_path), entry="gloo_entries_gpu:kept")


def test_a_hang_of_gpus_names_the_operation_that_the_others_are_at(tmp_path: Path):
    cfg = config("local_sgd", keys={"sync_every": 4}, ranks=[1, 1], results=tmp_path)
    _, outcome = launch(cfg, entry="gloo_entries_gpu:asleep", stall_s=4)
    assert outcome.status == "failed"
    reason = outcome.reason or ""
    assert "rank 1 outside collectives" in reason
    assert "rank 0 last in all_reduce on parameters/world" in reason


@pytest.mark.parametrize(
    ("strategy", "keys", "unknown"),
    [
        ("ddp", {}, 0),
        ("daso", PERIODS["daso"], 3),
        ("hsgd", {"level1": "collective"}, 1),
        ("lasgd", {}, 1),
    ],
)
def test_ranks_that_are_told_late_train_the_same_and_do_not_say_how_long_they_were_blocked(
    tmp_path: Path, strategy: str, keys: dict[str, Any], unknown: int
):
    cfg = config(strategy, keys=keys, ranks=[1, 1], results=tmp_path, epochs=3)
    directory, summary = finished(cfg, entry="gloo_entries_gpu:run")
    assert sum(summary["parts_s"].values()) == pytest.approx(summary["train_s"], rel=0.2)
    assert summary["blocked_s"] is None
    told = summary["strategy"]
    times = [told[key] for key in ("blocked_s", "overlap", "transfer_s", "seconds") if key in told]
    assert times == [None] * unknown
    if strategy != "lasgd":  # what it trains depends on how long its ranks take
        assert summary["steps"] == 18
        theirs = simulated(cfg).contexts[0].replica.model.state_dict()
        assert_close(final_model(directory), theirs, 1e-5)
