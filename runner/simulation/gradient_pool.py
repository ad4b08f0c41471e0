"""Steps of simulated ranks wait here until one is needed; then all are computed, in the way of the run.

A rank's gradients are needed when its clock reaches the time at which the first of them is sent. Until then
other ranks submit their own steps. Losses are read once for all that were computed together.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...strategies.errors import ConfigError
from .graphed_ranks import GraphedRanks
from .rank_compute import OneByOne, Pending, RankCompute, buffers_kept
from .stacked_ranks import FEWEST, StackedRanks

TIMED = 3  # runs of each way; the fastest counts
CLOSE = 1.1  # ways within this factor are as fast as each other: their order decides, not noise


@dataclass(frozen=True)
class Choice:
    """The `way` in which a run's ranks are computed.

    `step_s`: seconds of a rank's step in each way that was possible, if there were several; `refused`: why
    others were not.
    """

    way: str
    step_s: dict[str, float]
    refused: dict[str, str]


class GradientPool:
    """Computes the waiting steps of `ranks` ranks.

    `asked`: `launcher.rank_compute`, followed when the first steps wait (`on_choice` hears what it came to).
    Without it nothing is timed: each shape of batches is computed in the first way that can.
    """

    def __init__(
        self,
        ranks: int = 1,
        tick: Callable[[], None] = lambda: None,
        *,
        asked: str | None = None,
        on_choice: Callable[[Choice], None] = lambda choice: None,
    ) -> None:
        self._waiting: list[Pending] = []
        self._ranks, self._asked, self._on_choice = ranks, asked, on_choice
        self._one_by_one = OneByOne(tick)
        # The first that a shape of batches allows computes it.
        self.ways: Sequence[RankCompute] = (StackedRanks(ranks, tick), GraphedRanks(tick), self._one_by_one)
        if ranks < FEWEST and asked in (None, "auto"):
            self.ways = (self._one_by_one,)

    def submit(self, pending: Pending) -> None:
        """Queue a step, computed before its `result` returns. Its model must not change until then."""
        self._waiting.append(pending)

    def result(self, pending: Pending) -> tuple[Tensor, bool]:
        """The loss [], detached, and whether it is finite; the gradients are in the model's parameters.

        Raises ConfigError: the model or the device does not allow what was asked for.
        """
        if pending.loss is None:
            waiting, self._waiting = self._waiting, []
            groups: dict[Any, list[Pending]] = {}
            for step in waiting:
                groups.setdefault(step.shapes, []).append(step)
            full = [steps for steps in groups.values() if len(steps[0].targets)]
            if self._asked is not None and full:
                self._choose(self._asked, max(full, key=len))
            for steps in groups.values():
                losses = self._way_of(steps[0]).compute(steps)
                for step, loss, value in zip(steps, losses.unbind(0), losses.tolist(), strict=True):
                    step.loss, step.finite = loss, math.isfinite(value)
        assert pending.loss is not None
        return pending.loss, pending.finite

    def _way_of(self, step: Pending) -> RankCompute:
        if len(step.targets) == 0:  # a blank sample in evaluation mode stands for it
            return self._one_by_one
        return next(way for way in self.ways if way.refusal(step) is None)

    def _choose(self, asked: str, steps: Sequence[Pending]) -> None:
        """Choose the way of the whole run by its first steps."""
        ways = [way for way in self.ways if asked in (way.name, "auto")]
        refused = {way.name: why for way in ways if (why := way.refusal(steps[0])) is not None}
        possible = [way for way in ways if way.name not in refused]
        if not possible:
            raise ConfigError(f"launcher.rank_compute={asked}: {refused[asked]}; take auto or one_by_one")
        step_s = {way.name: step_seconds(way, steps) for way in possible} if len(possible) > 1 else {}
        least = min(step_s.values(), default=0.0)
        chosen = next(way for way in possible if not step_s or step_s[way.name] <= CLOSE * least)
        self.ways, self._asked = (chosen, self._one_by_one), None
        self._on_choice(Choice(chosen.name, step_s, refused))


def step_seconds(way: RankCompute, steps: Sequence[Pending]) -> float:
    """Seconds of one of these steps, computed as many at a time as the way does, or `FEWEST`."""
    some = steps[: max(FEWEST, way.at_once(steps[0]))]
    took = []
    with buffers_kept(some):
        for _ in range(TIMED):
            _wait_for_gpu(some[0])
            started = time.perf_counter()
            way.compute(some)
            _wait_for_gpu(some[0])
            took.append(time.perf_counter() - started)
    return min(took) / len(some)


def _wait_for_gpu(step: Pending) -> None:
    if step.inputs.is_cuda:
        torch.cuda.synchronize(step.inputs.device)
