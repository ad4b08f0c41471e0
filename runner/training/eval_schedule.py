"""Cadence in samples: marks at (k + phase)·every, equal for all arms whatever their batch or rank count."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Marks:
    """Marks every `every` samples, shifted by `phase` (0 … 1) of it.

    `every` None: no marks. Sample 0 is no mark.
    """

    every: int | None
    phase: float = 0.0

    def passed(self, before: int, after: int) -> bool:
        """Whether a mark lies in (before, after]."""
        if self.every is None:
            return False
        shift = round(self.phase * self.every)  # whole samples: no mark hangs on a rounding error
        return (after - shift) // self.every > (before - shift) // self.every and after >= max(shift, 1)
