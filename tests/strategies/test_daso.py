"""DASO against the equations, traces and tables of its description, computed by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import Linear, Trace, constant, drive
from hypothesis import given, settings
from hypothesis import strategies as st

from daso_bench.runner.communication.link_costs import Network
from daso_bench.strategies.daso import DASO, DASOConfig, PlateauRule

CYCLING: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0}


def daso(**keys: Any):
    return lambda: DASO(DASOConfig(**keys))


def values(trace: Trace) -> list[float]:
    return [p.item() for p in trace.parameters]


# ------------------------------------------------------------------ the schedule of events


@pytest.mark.parametrize(
    ("keys", "steps", "epochs"),
    [
        (
            dict(sync_every=4, wait_batches=1),
            10,
            ["0 S0 | 1 M0 | 4 S1 | 5 M1 | 9 A2", "0 S3 | 1 M3 | 4 S0 | 5 M0 | 9 A1"],
        ),
        (dict(sync_every=2, wait_batches=1), 7, ["0 S0 | 1 M0 | 2 S1 | 3 M1 | 4 S2 | 5 M2 | 6 A3"]),
        (dict(sync_every=1, wait_batches=1), 6, ["0 S0 | 1 S1 M0 | 2 S2 M1 | 3 S3 M2 | 4 M3 | 5 A0"]),
        (dict(sync_every=4, wait_batches=4), 10, ["0 S0 | 4 S1 M0 | 8 M1 | 9 A2"]),
        (dict(sync_every=8, wait_batches=2), 19, ["0 S0 | 2 M0 | 8 S1 | 10 M1 | 18 A2"]),
        (dict(sync_every=4, wait_batches=3), 5, ["0 S0 | 3 M0 | 4 A1"]),
        (dict(sync_every=4, wait_batches=3), 2, ["1 A0"]),
        (dict(sync_every=4, wait_batches=3), 1, ["0 A0"]),
        (dict(sync_every=4, wait_batches=0), 10, ["0 A0 | 4 A1 | 8 A2 | 9 A3"]),
        (dict(warmup_epochs=1, allow_no_cycling=True), 3, ["0 A0 | 1 A1 | 2 A2"]),  # a blocking epoch
    ],
)
def test_events_of_epochs(keys, steps, epochs):
    for trace in drive(daso(**{**CYCLING, **keys}), [4, 4], epochs=len(epochs), steps_per_epoch=steps):
        assert trace.events == epochs


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 20), period=st.integers(1, 9), wait=st.integers(1, 9), local=st.integers(1, 3))
def test_each_start_is_merged_exactly_wait_batches_later(steps, period, wait, local):
    wait = min(wait, period)
    make = daso(sync_every=period, wait_batches=wait, **CYCLING)
    trace = drive(make, [local, local], epochs=2, steps_per_epoch=steps)[0]
    q = 0
    for text, record in zip(trace.events, trace.records, strict=True):
        events = [
            (int(part.split()[0]), e[0], int(e[1:])) for part in text.split(" | ") for e in part.split()[1:]
        ]
        starts = [(batch, rank) for batch, letter, rank in events if letter == "S"]
        merges = [(batch, rank) for batch, letter, rank in events if letter == "M"]
        assert merges == [(batch + wait, rank) for batch, rank in starts]
        assert len(starts) == math.ceil(max(0, steps - 1 - wait) / period) == record["starts"]
        assert record["waited_batches"] == [wait] * len(merges)
        assert [batch for batch, letter, _ in events if letter == "A"] == [steps - 1]
        for _, _, rank in [e for e in events if e[1] in "SA"]:
            assert rank == q
            q = (q + 1) % local
    assert not trace.strategy.pending


# ------------------------------------------------------------------ the merge


@pytest.mark.parametrize(
    ("nodes", "speeds"),
    [
        (2, (0.667, 0.750, 0.875, 0.917)),
        (4, (0.600, 0.667, 0.833, 0.875)),
        (16, (0.529, 0.556, 0.778, 0.800)),
    ],
)
def test_speed_of_the_mean_against_synchronous_sgd(nodes, speeds):
    for (period, wait), speed in zip([(1, 1), (2, 1), (4, 1), (8, 2)], speeds, strict=True):
        steps = 160 if period == 1 else 40  # W = B settles slowly: its error shrinks by 1 - a a step
        make = daso(sync_every=period, wait_batches=wait, **CYCLING)
        theta = values(drive(make, [1] * nodes, steps_per_epoch=steps)[0])
        # Between equal places of two late cycles: the start and the epoch's end do not count.
        late = steps - 16 + wait
        early = late - 8
        assert (theta[early] - theta[late]) / (late - early) == pytest.approx(speed, abs=0.002)


BLOCKING: dict[str, Any] = dict(warmup_epochs=2, cooldown_epochs=0, allow_no_cycling=True)


# ------------------------------------------------------------------ B and W over the epochs


@pytest.mark.parametrize(
    ("epochs", "each"), [(3, 1), (12, 1), (20, 1), (33, 1), (34, 2), (90, 4), (100, 4), (300, 13)]
)
def test_auto_scales_the_reference(epochs, each):
    assert DASOConfig().blocking_epochs(epochs) == (each, each)


@settings(max_examples=50, deadline=None)
@given(
    period=st.integers(1, 16),
    wait=st.integers(0, 16),
    factor=st.integers(2, 20),
    largest=st.integers(1, 40),
    divisor=st.integers(1, 9),
)
def test_the_wait_never_exceeds_the_period(period, wait, factor, largest, divisor):
    wait, largest = min(wait, period), max(largest, period)
    config = DASOConfig(
        sync_every=period,
        wait_batches=wait,
        max_sync_every=largest,
        reduction_factor=factor,
        reset_wait_divisor=divisor,
        plateau_patience=0,
    )
    rule = PlateauRule(config, period, wait)
    for _ in range(60):
        rule.observe(1.0)
        assert 1 <= rule.sync_every <= largest
        assert (rule.wait_batches == 0) if wait == 0 else (1 <= rule.wait_batches <= rule.sync_every)


# ------------------------------------------------------------------ time and bytes


class FreeButGlobal(Network):
    """25 ms for each all-reduce of parameters between nodes, everything else free."""

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return 25_000_000 if verb == "all_reduce" and inter else 0


@pytest.mark.parametrize(
    ("keys", "milliseconds"),
    [
        (dict(warmup_epochs=1, cooldown_epochs=0, allow_no_cycling=True), 350),
        (dict(wait_batches=0, **CYCLING), 200),
        (dict(wait_batches=1, **CYCLING), 155),
        (dict(wait_batches=2, **CYCLING), 135),
        (dict(wait_batches=3, **CYCLING), 125),
    ],
)
def test_epoch_time_on_the_virtual_clock(keys, milliseconds):
    for trace in drive(
        daso(sync_every=4, **keys), [2, 2], steps_per_epoch=10, network=FreeButGlobal(), step_ns=10_000_000
    ):
        assert trace.epoch_end_ns == [milliseconds * 1_000_000]


def test_bytes_of_an_epoch():
    m = 10**4
    traces = drive(
        daso(**CYCLING),
        [2, 2, 2, 2],
        steps_per_epoch=10,
        data=constant(0.0, m, torch.float32),
        model=lambda: Linear(torch.zeros(m)),
    )
    inter = [trace.comm.traffic.payload_bytes["inter"] for trace in traces]
    # Three global all-reduces of m + 1 elements: local ranks 0, 1, 0 in turn.
    assert inter == [2 * 4 * (m + 1), 4 * (m + 1)] * 4
    ring = [trace.comm.traffic.ring_bytes["inter"] for trace in traces]
    assert [a + b for a, b in zip(ring[::2], ring[1::2], strict=True)] == [18 * (m + 1)] * 4


def test_overlap_is_what_was_not_blocked():
    """Rank 0 carries S0 (25 ms, 15 of them waited for) and the last average (25 of 25), rank 1 only S1."""
    traces = drive(
        daso(sync_every=4, wait_batches=1, **CYCLING),
        [2, 2],
        steps_per_epoch=10,
        network=FreeButGlobal(),
        step_ns=10_000_000,
    )
    first, second = (trace.strategy.summary() for trace in traces[:2])
    assert (first["transfer_s"], first["blocked_s"]) == (0.050, 0.040)
    assert (second["transfer_s"], second["blocked_s"]) == (0.025, 0.015)
    assert first["overlap"] == pytest.approx(0.2)
    assert second["overlap"] == pytest.approx(0.4)


# ------------------------------------------------------------------ agreement


def test_a_stop_request_of_one_step_waits_for_the_next_transfer():
    make = daso(sync_every=4, wait_batches=1, **CYCLING)
    traces = drive(make, [2, 2], steps_per_epoch=12, stop_request=lambda rank, step: (rank, step) == (1, 2))
    assert [trace.agreed.index(True) for trace in traces] == [5] * 4
    assert all(trace.agreed.count(True) == 1 for trace in traces), "once told, it is not told again"


def test_labels_tell_what_did_not_happen():
    only_blocking = drive(daso(**BLOCKING), [2, 2], epochs=2, steps_per_epoch=3)[0].strategy
    assert "no asynchronous phase" in only_blocking.labels(None)
    cycled = drive(daso(warmup_epochs=1, cooldown_epochs=1), [2, 2], epochs=4, steps_per_epoch=3)[0].strategy
    assert cycled.labels(None) == []
    assert cycled.labels(3) == ["no asynchronous phase before the target"]
    assert cycled.labels(4) == []
