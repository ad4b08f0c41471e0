"""Schedule of evaluations and checkpoints, and the copies of models for deferred evaluation.

Evaluations are due at marks in global samples, (k + phase)·every, which do not depend on batch or ranks.

Deferred evaluation: a rank copies its part of the model at its own step boundary, without waiting and without
a collective, and training goes on. Each copy holds this rank's training time when it was taken; the stamp of
the evaluation is the latest of all ranks. Source: docs/method.md, "Evaluations, inline and
deferred".
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


def passes_mark(every: int | None, before: int, after: int, *, phase: float = 0.0) -> bool:
    """Whether a mark lies in (before, after]: one every `every` samples, shifted by `phase` (0 … 1) of it.

    `every` None: no marks. Sample 0 is no mark.
    """
    if every is None:
        return False
    shift = round(phase * every)  # whole samples: no mark depends on a rounding error
    return (after - shift) // every > (before - shift) // every and after >= max(shift, 1)


@dataclass
class Copy:
    """One rank's copy of its part of a model.

    `part()` assembles the model on all ranks; None where there was no memory for the copy.
    """

    place: dict[str, Any]
    part: Callable[[], Tensor] | None
    train_ns: int
    payload_bytes: dict[str, int]
    rate: float
    loss_sum: Tensor
    loss_samples: int


@dataclass
class EvalSchedule:
    """When to evaluate and when to save; equal on all ranks.

    `eval_every`, `eval_phase`, `save_every`: the marks, see `passes_mark`.
    `deferred`: models are evaluated from copies. `stops_from_copies`: copies are evaluated at sync points, so
    that the run can stop at the target; no rank waits for it there. `save_anywhere`: checkpoints are written
    at the configured number of samples, else at the next sync point.

    `evaluated_samples`, `saved_samples`: global samples up to which marks are done. `step_is_open`: the marks
    of the last step are not done yet. `saves_that_waited`: checkpoints for which ranks had to wait.

    `copies`: those that wait for their evaluation, in order; at most `slots` of them are kept, and more are
    dropped: of these only the stamp waits.
    """

    eval_every: int
    eval_phase: float
    save_every: int | None = None
    save_anywhere: bool = False
    deferred: bool = False
    stops_from_copies: bool = False
    copies: list[Copy] = field(default_factory=list)
    slots: int = 0
    copies_dropped: int = 0
    evaluated_samples: int = 0
    saved_samples: int = 0
    step_is_open: bool = False
    saves_that_waited: int = 0

    def evaluation_due(self, samples: int) -> bool:
        """Whether `samples`, the global samples so far, have passed a mark that is not done."""
        return passes_mark(self.eval_every, self.evaluated_samples, samples, phase=self.eval_phase)

    def checkpoint_due(self, samples: int, met: bool) -> bool:
        """Whether to save at this number of global samples; `met`: whether this is a sync point."""
        return (met or self.save_anywhere) and passes_mark(self.save_every, self.saved_samples, samples)

    @property
    def has_room(self) -> bool:
        """Whether the next copy can be kept; equal on all ranks, since all take copies at the same marks."""
        return sum(copy.part is not None for copy in self.copies) < self.slots

    def add(self, copy: Copy) -> None:
        """Add a copy, or its stamp alone where there was no room."""
        self.copies.append(copy)
        self.copies_dropped += copy.part is None

    def copy_times(self) -> Tensor:
        """[k, 3] float64: this rank's training time (ns), loss sum and samples of each waiting copy."""
        rows = [[float(c.train_ns), float(c.loss_sum), float(c.loss_samples)] for c in self.copies]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 3)

    def pauses(self, samples: int, met: bool, *, saves: bool) -> bool:
        """Whether training pauses after this step. `saves`: whether the run writes checkpoints."""
        due = self.step_is_open and self.evaluation_due(samples)
        if self.deferred:
            due = met and self.stops_from_copies and (due or bool(self.copies))
        return due or (saves and self.checkpoint_due(samples, met))

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; no copy waits when one is written."""
        return {
            "evaluated_samples": self.evaluated_samples,
            "step_is_open": self.step_is_open,
            "saves_that_waited": self.saves_that_waited,
            "copies_dropped": self.copies_dropped,
        }

    def load_state_dict(self, state: dict[str, Any], samples: int) -> None:
        """Restore `state_dict` at this number of global samples."""
        self.evaluated_samples, self.step_is_open = state["evaluated_samples"], state["step_is_open"]
        self.saves_that_waited, self.saved_samples = state["saves_that_waited"], samples
        self.copies_dropped = state["copies_dropped"]
