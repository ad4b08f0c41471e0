"""Bytes so far: what each rank notes of its own traffic at an evaluation, and what counts as training."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from runs import Awkward, config, simulated, whole_and_resumed

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.simulation.simulated_world import SimulatedRun

LINKS = ("intra", "inter")


def run(strategy: str, **keys: Any) -> SimulatedRun:
    return simulated(
        config(strategy, model=Awkward(), **keys),
        network=AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6),
        step_time=lambda rank, n: 2_000_000,
    )


def notes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "evaluation"]


def sums(done: SimulatedRun) -> list[dict[str, int]]:
    """Of each evaluation, over ranks."""
    by_rank = [[row["payload_bytes"] for row in notes(recorded.rows)] for recorded in done.rank_rows]
    return [
        {link: sum(each[link] for each in ranks) for link in LINKS} for ranks in zip(*by_rank, strict=True)
    ]


@pytest.mark.parametrize("strategy", ["ddp", "hsgd", "ednncomm"])
def test_bytes_grow_from_evaluation_to_evaluation_and_end_as_the_summary_says(strategy: str):
    done = run(strategy, eval_every_samples=96)
    sent = sums(done)
    assert [row["index"] for row in notes(done.rank_rows[1].rows)] == [0, 1, 2, 3]
    for link in LINKS:
        values = [each[link] for each in sent]
        assert values == sorted(values)
    assert sent[0]["inter"] < sent[-1]["inter"]
    assert sent[-1] == done.results[0].summary["payload_bytes"]


def test_a_copy_is_noted_with_what_had_been_sent_when_it_was_set_aside():
    later, now = (sums(run("sgp", eval_mode=mode)) for mode in ("deferred", "inline"))
    assert len(later) == 4
    assert later == now


@pytest.mark.parametrize("strategy", ["ddp", "daso", "lasgd", "sgp"])
def test_making_a_model_for_an_evaluation_is_no_traffic_of_training(strategy: str):
    often, seldom = (run(strategy, eval_every_samples=every, eval_mode="inline") for every in (16, 96))
    ends = [done.results[0].summary for done in (often, seldom)]
    assert ends[0]["evaluations"] > ends[1]["evaluations"]
    for name in ("payload_bytes", "ring_bytes", "calls"):
        assert ends[0][name] == ends[1][name], name


def test_a_resumed_run_counts_on_from_its_checkpoint(tmp_path: Path):
    cfg = config("sgp", model=Awkward(), checkpoint_every_samples=128, eval_every_samples=40)
    whole, resumed = whole_and_resumed(partial(simulated, cfg), tmp_path, 14)
    assert resumed.metrics.rows[0]["step"] == 8, "steps 9 to 14 are done twice"
    counted, counted_of_whole = (
        [
            (row["index"], row["payload_bytes"])
            for recorded in done.rank_rows
            for row in notes(recorded.rows)
            if row["step"] > 8
        ]
        for done in (resumed, whole)
    )
    assert len(counted) > 4
    assert counted == counted_of_whole
