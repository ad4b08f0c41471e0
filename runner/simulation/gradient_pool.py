"""Steps of simulated ranks wait here until one is needed; then all are computed, in the way of the run.

A rank's gradients are needed when its clock reaches the time at which the first of them is sent. Until then
other ranks submit their own steps. Losses are read once for all that were computed together.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...strategies.errors import ConfigError
from .graphed_ranks import GraphedRanks
from .rank_compute import OneByOne, Pending, RankCompute, Shapes, buffers_kept
from .stacked_ranks import FEWEST, StackedRanks

log = logging.getLogger(__name__)

TIMED, ENOUGH_S = 3, 1.0  # runs of each way, of which the fastest counts; fewer where they take so long
CLOSE = 1.1  # ways within this factor are as fast as each other: their order decides, not noise


class GradientPool:
    """Computes the waiting steps of `ranks` ranks. `tick`: called where the work makes progress.

    `asked`: `launcher.rank_compute`, which is followed when the first steps wait. `on_choice` then gets the
    `way`, `step_s` (seconds of a step in each possible way, if there were several) and `refused` (why the
    others are not). None: nothing is timed, each shape of batches is computed in the first way that can.
    """

    def __init__(
        self,
        ranks: int = 1,
        tick: Callable[[], None] = lambda: None,
        asked: str | None = None,
        on_choice: Callable[[dict[str, Any]], None] = lambda choice: None,
    ) -> None:
        self._waiting: list[Pending] = []
        self._asked, self._on_choice, self._alone = asked, on_choice, OneByOne(tick)
        self.ways: Sequence[RankCompute] = (StackedRanks(ranks, tick), GraphedRanks(tick), self._alone)
        if ranks < FEWEST and asked in (None, "auto"):
            self.ways = (self._alone,)
        self._way_of: dict[Shapes, RankCompute] = {}

    def submit(self, pending: Pending) -> None:
        """Queue a step, computed before its `result` returns. Its model must not change until then."""
        self._waiting.append(pending)

    def result(self, pending: Pending) -> tuple[Tensor, bool]:
        """The loss [], detached, and whether it is finite; the gradients are in the model's parameters.

        Raises ConfigError: the model or the device does not allow what was asked for.
        """
        if pending.loss is None:
            waiting, self._waiting = self._waiting, []
            groups: dict[Shapes, list[Pending]] = {}
            for step in waiting:
                groups.setdefault(step.shapes, []).append(step)
            full = [steps for steps in groups.values() if len(steps[0].targets)]
            if self._asked is not None and full:
                self._choose(self._asked, max(full, key=len))
            for shapes, steps in groups.items():
                if shapes not in self._way_of:
                    self._way_of[shapes] = next(w for w in self.ways if self._refusal(w, steps[0]) is None)
                losses = self._way_of[shapes].compute(steps)
                for step, loss, value in zip(steps, losses.unbind(0), losses.tolist(), strict=True):
                    step.loss, step.finite = loss, math.isfinite(value)
        assert pending.loss is not None
        return pending.loss, pending.finite

    def _refusal(self, way: RankCompute, step: Pending) -> str | None:
        if way is self._alone:
            return None
        # A rank without samples runs a blank one in evaluation mode.
        why = step.why_alone or way.refusal(step) if len(step.targets) else "no samples"
        if why is not None:
            log.info("rank_compute=%s: not for inputs of %s: %s", way.name, [*step.inputs.shape], why)
        return why

    def _choose(self, asked: str, steps: Sequence[Pending]) -> None:
        """Choose the way of the whole run by its first steps."""
        ways = [way for way in self.ways if asked in (way.name, "auto")]
        refused = {way.name: why for way in ways if (why := self._refusal(way, steps[0])) is not None}
        possible = [way for way in ways if way.name not in refused]
        if not possible:
            raise ConfigError(f"launcher.rank_compute={asked}: {refused[asked]}; take auto or one_by_one")
        step_s = {way.name: step_seconds(way, steps) for way in possible} if len(possible) > 1 else {}
        least = min(step_s.values(), default=0)
        chosen = next(way for way in possible if step_s.get(way.name, 0) <= CLOSE * least)
        self.ways, self._way_of, self._asked = (chosen, self._alone), {steps[0].shapes: chosen}, None
        self._on_choice({"way": chosen.name, "step_s": step_s, "refused": refused})


def step_seconds(way: RankCompute, steps: Sequence[Pending]) -> float:
    """Seconds of one of these steps, computed together."""
    took: list[float] = []
    with buffers_kept(steps):
        while len(took) < TIMED and sum(took) < ENOUGH_S:
            started = time.perf_counter()
            losses = way.compute(steps)
            if losses.is_cuda:
                torch.cuda.synchronize(losses.device)
            took.append(time.perf_counter() - started)
    return min(took) / len(steps)
