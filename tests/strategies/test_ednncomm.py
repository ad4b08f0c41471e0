"""eDNNcomm: exchange steps, hand values, records, refusals."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Linear, averaged_after, constant, drive, scenario
from real_runs import entry  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor

from daso_bench.runner.conformance.driver import drive as walk
from daso_bench.strategies.ednncomm import EDNNComm, EDNNCommConfig
from daso_bench.strategies.progress import Progress

EXCHANGES = ["leader", "world", "sliced"]


def ednncomm(**keys: Any) -> EDNNComm:
    return EDNNComm(EDNNCommConfig(**keys))


# ------------------------------------------------------------------ when parameters are exchanged


@pytest.mark.parametrize(
    ("keys", "steps", "epochs", "wanted"),
    [
        (dict(sync_every=5), 20, 1, [5, 10, 15, 20]),
        (dict(sync_every=4), 20, 1, [4, 8, 12, 16, 20]),
        (dict(sync_every=4), 10, 2, [4, 8, 10, 14, 18, 20]),
        (dict(sync_every=4, sync_at_epoch_end=False), 10, 2, [4, 8, 12, 16, 20]),
        (dict(sync_every=4, sync_at_epoch_end=False), 11, 1, [4, 8, 0]),
        (dict(), 10, 2, [10, 20]),
        (dict(sync_at_epoch_end=False), 10, 2, [10, 20]),
        (dict(sync_every=50), 98, 1, [50, 98]),
        (dict(sync_every=100), 10, 2, [10, 20]),
        (dict(sync_every=1), 3, 1, [1, 2, 3]),
    ],
)
def test_parameters_are_exchanged_after_every_kth_step(keys, steps, epochs, wanted):
    """0: an exchange that ends the run."""
    strategy = ednncomm(**keys)
    for history in walk(scenario(strategy, [1, 1], steps=steps, epochs=epochs)):
        after = [step for step in wanted if step]
        assert averaged_after(history) == after
        assert history.verbs()["parameters.all_reduce"] == len(wanted)
        # Ranks meet where they exchange, and at the end of the schedule.
        assert [step for step, met in history.met.items() if met] == sorted({*after, steps * epochs})
        per_epoch = [record["rounds"] for record in history.records]
        assert history.summary["rounds"] == sum(per_epoch) == len(after)
        if strategy.config.sync_at_epoch_end:
            assert per_epoch == [math.ceil(steps / history.records[0]["period"])] * epochs


def test_a_step_that_one_node_skips_counts_and_is_exchanged_like_any_other():
    """What a scaler does on overflow: node 1 does not step at step 4, where the exchange is due."""

    class Skips(EDNNComm):
        def before_step(self, progress: Progress) -> None:
            super().before_step(progress)
            optimizer: Any = self.replica.optimizer
            skips = progress.step == 3 and self.comm.node == 1
            optimizer.step = (lambda: None) if skips else type(optimizer).step.__get__(optimizer)

    traces = drive(lambda: Skips(EDNNCommConfig(sync_every=4)), [1, 1], steps_per_epoch=8)
    assert [trace.records[0]["averaged_after"] for trace in traces] == [[4, 8]] * 2
    assert [trace.parameters[3].item() for trace in traces] == [-3.5] * 2


# ------------------------------------------------------------------ bytes, records, refusals


def test_bytes_between_nodes_as_a_ring():
    m, sent = 999, {}  # one element more carries the stop request
    for exchange in EXCHANGES:
        traces = drive(
            lambda exchange=exchange: ednncomm(exchange=exchange),
            [2, 2],
            steps_per_epoch=5,
            data=constant(0.0, m, torch.float32),
            model=lambda: Linear(torch.zeros(m)),
        )
        sent[exchange] = [trace.comm.traffic.ring_bytes["inter"] for trace in traces]
    # A node sends 2·(N-1)/N · 4m, through its leader or over all its links, or 2·(R-1)/R · 4m where the ring
    # of all ranks leaves it.
    assert sent == {"leader": [4000, 0] * 2, "sliced": [2000, 2000] * 2, "world": [0, 6000] * 2}


def by_rank(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """A gradient of its own for each rank."""
    return torch.full((1, 1), float(rank), dtype=torch.float64), torch.zeros(1)


def test_what_is_recorded():
    make = lambda: ednncomm(sync_every=4, sync_at_epoch_end=False)  # noqa: E731
    traces = drive(make, [2, 2], data=by_rank, epochs=2, steps_per_epoch=10)
    first, second = traces[3].records
    assert (first["period"], first["period_from"]) == (4, "strategy.sync_every")
    assert (first["rounds"], first["averaged_after"], first["since"]) == (2, [4, 8], 2)
    assert (second["rounds"], second["averaged_after"], second["since"]) == (3, [12, 16, 20], 0)
    # 4 steps with gradients 0.5 and 2.5 from -24 and back to -30: how far each node was from the mean.
    assert traces[0].parameters[19].item() == -30
    assert [trace.records[1]["spread"] for trace in traces] == [pytest.approx(4 / 30)] * 4
    assert traces[0].strategy.labels(None) == []
    assert drive(ednncomm, [2], steps_per_epoch=2)[0].strategy.labels(None) == [
        "one node: nothing to exchange"
    ]


# ------------------------------------------------------------------ real processes


def test_over_gloo_it_is_ddp_in_the_node_and_pytorchs_periodic_averager(tmp_path: Path):
    outcome = entry("gloo_entries_averaging:two_levels", 4, tmp_path)
    assert outcome.status == "finished", outcome.details
    assert outcome.summary["averaged_after"] == {name: [4, 8, 12, 16, 20] for name in EXCHANGES}
