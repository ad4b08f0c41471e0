"""LASGD against the numbers of its description: rounds in virtual time, stop requests, moments, labels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from harness import Linear, Mean, Trace, constant, drive, scenario
from torch import Tensor

from daso_bench.runner.communication.link_costs import Network
from daso_bench.runner.conformance.driver import drive as walk
from daso_bench.runner.conformance.scenario import History
from daso_bench.strategies.lasgd import LASGD, LASGDConfig
from daso_bench.strategies.progress import Progress

SECOND = 10**9
HALF_SPEED = (1, 1, 1, 2)
"""Seconds of a step on each rank."""


@dataclass
class Rounds(Network):
    """Only sums of parameters take time."""

    seconds: float = 1.0

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return 0 if verb != "all_reduce" or payload == 32 else round(self.seconds * SECOND)


def race(seconds: Sequence[float], steps: int, *, round_s: float = 1.0, **more: Any) -> list[History]:
    """Ranks of such step times, one sample a step, up to `steps` samples of each on average."""
    keys = more.pop("keys", {})
    made = scenario(
        LASGD(LASGDConfig(**keys)),
        [len(seconds)],
        steps=steps,
        model=lambda: Linear(torch.zeros(1, dtype=torch.float64)),
        criterion=Mean,
        data=more.pop("data", constant()),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        **more,
    )
    return walk(made, network=Rounds(round_s), step_time=lambda rank, samples: round(seconds[rank] * SECOND))


# ------------------------------------------------------------------ rounds in virtual time


def test_rounds_with_one_rank_at_half_speed():
    """Round n begins after 2n - 1 s and has (2n - 1)·3 + n samples: the twelfth, with 81, ends the run."""
    histories = race(HALF_SPEED, steps=20)
    assert [history.steps for history in histories] == [25, 25, 25, 13]
    for rank, history in enumerate(histories):
        summary = history.summary
        assert (summary["rounds"], summary["launched"]) == (12, 12)
        assert summary["staleness_steps"] == {"mean": 2 - (rank == 3), "max": 2 - (rank == 3)}
        assert history.clock_ns[history.steps] == (25 + (rank == 3)) * SECOND, "nobody ever waited"
        assert summary["blocked_s"] == 0
        assert summary["steps_of_worker"] == [25, 25, 25, 13]
        assert summary["overshoot_samples"] == 88 - 80
        assert history.labels == []
    # A round's sum, and what this rank did since its snapshot: 4 + 3 - 1 after 3 s, 11 + 5 - 3 after 5 s.
    assert list(histories[0].known.values())[:7] == [0, 1, 2, 6, 7, 13, 14]
    first, second = histories[0].records[0]["detail"][:2]
    assert (first["stamps_s"], second["stamps_s"]) == ([1, 3, 3], [3, 5, 5])
    # 4 samples in the snapshots of round 1, this rank knew of its own; then of 4 and two more of its own.
    assert [row["samples"] for row in (first, second)] == [4, 11]
    assert [row["lag_samples"] for row in (first, second)] == [3, 5]
    assert histories[0].strategy.control.dtype == torch.int64, "float32 would lose samples beyond 2**24"


def test_rounds_with_one_rank_at_a_quarter_of_the_speed():
    """Rounds of 3 s begin every 4 s; with a period of 8 steps every 32 s, when the slow rank has its 8."""
    often, seldom = (
        race([1] * 7 + [4], steps=160, round_s=3, keys={"sync_every": period}) for period in (1, 8)
    )
    for histories, fastest, period_s in ((often, 6, 4), (seldom, 32, 32)):
        assert histories[0].summary["staleness_steps"]["max"] <= fastest
        launches = [row["stamps_s"][0] for row in histories[7].records[0]["detail"]]
        assert {after - before for before, after in pairwise(launches)} == {period_s}


@pytest.mark.parametrize("round_s", [0.1, 1, 10])
def test_slow_sums_and_slow_ranks_hold_up_nobody(round_s: float):
    for history in race((1, 1, 1, 4), steps=30, round_s=round_s)[:3]:
        assert list(history.clock_ns.values()) == [SECOND * step for step in range(history.steps + 1)]


# ------------------------------------------------------------------ stop requests


def test_a_stop_request_does_not_wait_for_the_period():
    histories = race((1, 1), steps=60, keys={"sync_every": 50}, stop_request=lambda rank, step: step == 3)
    # Made in the fourth step, sent with a round that begins before the fifth, and heard once.
    assert [[step for step, agreed in h.agreed.items() if agreed] for h in histories] == [[5], [5]]


def test_a_loss_that_is_not_finite_stops_all_ranks():
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        value = math.inf if (rank, step) == (1, 4) else 1.0
        return torch.full((1, 1), value, dtype=torch.float64), torch.zeros(1)

    histories = race((1, 2), steps=100, data=data)
    assert all(any(history.agreed.values()) for history in histories)
    assert max(history.steps for history in histories) < 20


# ------------------------------------------------------------------ what travels besides


class Watched(LASGD):
    """Notes the smallest and the largest second moment after each step."""

    def after_step(self, progress: Progress) -> None:
        super().after_step(progress)
        self.seen = [*getattr(self, "seen", []), self.replica.optimizer_state().pack()[-1].item()]


def trained(
    ranks: int, make: Callable[[], LASGD] = lambda: LASGD(LASGDConfig()), *, steps: int = 3, **more: Any
) -> list[Trace]:
    return drive(make, [ranks], steps_per_epoch=steps, network=Rounds(1), step_ns=SECOND, **more)


def test_averaged_second_moments_stay_positive():
    """Rank 0 has a wide gradient once and narrow ones then: the plain difference would be below 0."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.full((1, 1), 100.0 if (rank, step) == (0, 0) else 1.0).double(), torch.zeros(1)

    seen: list[float] = []
    for trace in trained(
        4,
        lambda: Watched(LASGDConfig(optimizer_state="average")),
        steps=9,
        data=data,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.5)),
    ):
        seen += trace.strategy.seen
        assert trace.strategy.seen[-1] < max(seen) / 2, "the wide gradient is forgotten: moments move on"
    assert min(seen) > 0


def test_labels():
    assert trained(1)[0].strategy.labels(None) == ["one rank: nothing to average"]
    seldom = trained(2, lambda: LASGD(LASGDConfig(sync_every=9)))[0].strategy
    assert seldom.labels(None) == ["no round was applied"]
