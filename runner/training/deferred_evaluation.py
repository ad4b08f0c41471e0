"""Deferred evaluation: copies of would-be models, set aside while training goes on and evaluated later.

A rank sets its part aside at its own step boundary: no wait, no collective. Each copy carries this rank's
training time when it was taken; the copy's stamp is the latest of all ranks. Source: docs/method.md,
"Evaluations, inline and deferred".
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Copy:
    """What one rank keeps of one would-be model; `part` makes the model, None: there was no room for it."""

    place: dict[str, Any]
    part: Callable[[], Tensor] | None
    kept: bool
    train_ns: int
    payload_bytes: dict[str, int]
    rate: float
    loss_sum: Tensor
    loss_samples: int


@dataclass
class Copies:
    """The copies of one rank, in order; at most `slots` are kept at once, further ones are dropped and
    counted."""

    slots: int = 0
    waiting: list[Copy] = field(default_factory=list)
    dropped: int = 0
    taken: int = 0

    @property
    def free(self) -> bool:
        """Whether the next copy can be kept; equal on all ranks, since all take copies at the same marks."""
        return sum(copy.kept for copy in self.waiting) < self.slots

    def add(self, copy: Copy) -> None:
        """Keep a copy, or its stamp alone where there was no room."""
        self.waiting.append(copy)
        self.taken += 1
        self.dropped += not copy.kept

    def times(self) -> Tensor:
        """[k, 3] float64: this rank's training time (ns), loss sum and samples of each waiting copy."""
        rows = [[float(c.train_ns), float(c.loss_sum), float(c.loss_samples)] for c in self.waiting]
        return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), 3)
