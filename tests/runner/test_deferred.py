"""Deferred evaluation: copies set aside at marks, judged later, stamped with when they were complete."""

from pathlib import Path
from typing import Any

import pytest
from runs import NAMES, Awkward, config

from daso_bench.runner.network import AlphaBeta
from daso_bench.runner.simulated_world import SimulatedRun, simulate
from daso_bench.strategies.errors import ConfigError

SLOW = AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6)


def run(strategy: str = "sgp", slow_rank: int = 1, **keys: Any) -> SimulatedRun:
    cfg = config(strategy, model=Awkward(), **keys)
    return simulate(
        cfg,
        cfg.dataset.load(),
        network=SLOW,
        step_time=lambda rank, n: 2_000_000 * (2 if rank == slow_rank else 1),
    )


def evaluations(done: SimulatedRun) -> list[dict[str, Any]]:
    return [row for row in done.metrics.rows if row["kind"] == "evaluation"]


def test_gossip_is_judged_from_copies_and_at_the_end_at_once():
    rows = evaluations(run())
    assert [row["mode"] for row in rows] == ["deferred"] * 3 + ["inline"]
    assert [row["samples"] for row in rows] == [96, 192, 288, 384]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert all(row["count"] == 30 for row in rows)


@pytest.mark.parametrize("strategy", ["ddp", "sgp"])
def test_a_copy_is_the_model_that_would_have_been_judged_on_the_spot(strategy: str):
    later, now = (evaluations(run(strategy, eval_mode=mode)) for mode in ("deferred", "inline"))
    for name in ("step", "epoch", "samples", "correct", "loss", "train_loss", "learning_rate"):
        assert [row[name] for row in later] == pytest.approx([row[name] for row in now], rel=1e-6), name


def test_the_stamp_is_the_slowest_ranks_time_and_one_average_is_added():
    done = run(eval_every_samples=48)
    rows = evaluations(done)
    # ddp's model needs no average but buffers; sgp's copy costs one all-reduce of parameters, measured once.
    costs = {row["make_model_s"] for row in rows if row["mode"] == "deferred"}
    assert len(costs) == 1
    assert costs.pop() > 0
    stamps = [row["train_s"] for row in rows]
    assert stamps == sorted(stamps)
    # Three steps a mark, the slow rank takes 4 ms a step and everybody waits for a neighbour's share.
    assert stamps[0] >= 3 * 0.004
    # The run ends with one more average, which is what the last model took to make.
    assert rows[-1]["train_s"] == pytest.approx(done.results[0].summary["train_s"], rel=1e-9)


def test_the_cadence_of_evaluations_leaves_training_as_it_is():
    runs = [run(eval_every_samples=every) for every in (16, 96, 384)]
    times = [done.results[0].summary["train_s"] for done in runs]
    assert times == [times[0]] * 3
    for done in runs[1:]:
        for mine, theirs in zip(done.sessions, runs[0].sessions, strict=True):
            assert mine.replica.flat().equal(theirs.replica.flat())
        assert done.sessions[0].comm.traffic.verbs["parameters.send"] == 24


KEYS: dict[str, dict[str, Any]] = {
    "daso": {"warmup_epochs": 1, "cooldown_epochs": 1},
    "diloco": {"sync_every": 4},
}


def per_sample(strategy: str, every: int, *, slow: int = 1, mode: str = "auto") -> tuple[float, str]:
    """Seconds of training a sample on the virtual clock, and how models were judged."""
    asked = config(strategy, keys=KEYS.get(strategy, {}), eval_every_samples=every, eval_mode=mode)
    done = simulate(asked, asked.dataset.load(), step_time=lambda rank, n: 10**7 * (slow if rank == 3 else 1))
    seconds = done.results[0].summary["train_s"]
    return seconds / done.sessions[0].progress.samples, evaluations(done)[0]["mode"]


@pytest.mark.parametrize("strategy", NAMES)
def test_on_the_virtual_clock_every_strategy_trains_alike_at_a_quarter_and_four_times_the_distance(
    strategy: str,
):
    found = [per_sample(strategy, every) for every in (12, 48, 192)]
    own, mode = found[1]
    for value, judged in found:
        if judged == mode:
            assert value == pytest.approx(own, rel=1e-9)


def test_lasgd_that_is_made_to_stop_for_evaluations_beside_a_straggler_does_not():
    own, *others = [per_sample("lasgd", every, slow=4, mode="inline")[0] for every in (48, 12, 192)]
    assert max(abs(value / own - 1) for value in others) > 1e-3
    own, *others = [per_sample("lasgd", every, slow=4)[0] for every in (48, 12, 192)]
    assert others == pytest.approx([own] * 2, rel=1e-9)


def test_copies_beyond_the_memory_are_dropped_and_counted():
    done = run(eval_every_samples=16, eval_copies_mib=1e-9)
    rows = evaluations(done)
    assert [row["mode"] for row in rows] == ["deferred", "inline"]
    assert done.results[0].summary["copies_dropped"] == 22


def test_a_checkpoint_judges_what_waits_and_a_resumed_run_goes_on_alike(tmp_path: Path):
    def once(folder: Path, steps: int | None, attempt: int = 1) -> SimulatedRun:
        cfg = config("sgp", max_steps=steps, eval_every_samples=32, checkpoint_every_samples=80)
        return simulate(cfg, cfg.dataset.load(), checkpoints=folder, attempt=attempt)

    whole = evaluations(once(tmp_path / "whole", None))
    cut = once(tmp_path / "cut", 12)
    after = evaluations(once(tmp_path / "cut", None, attempt=2))
    kept = [row for row in evaluations(cut) if row["step"] <= 10]
    for mine, theirs in zip(kept + after, whole, strict=True):
        assert (mine["step"], mine["correct"], mine["loss"]) == (
            theirs["step"],
            theirs["correct"],
            theirs["loss"],
        )


def test_a_run_that_stops_at_its_target_cannot_be_judged_afterwards():
    with pytest.raises(ConfigError, match=r"train\.stop=first"):
        config("sgp", eval_mode="deferred", stop="first", target=0.5)
    done = run(stop="first", target=0.3)
    assert {row["mode"] for row in evaluations(done)} == {"inline"}
