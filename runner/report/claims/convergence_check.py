"""A comparison held against stored samples to target: a weak baseline, and arms that need too few samples.

Source: docs/method.md, "Validity and guard"; the arithmetic is in `statistics/noise_floor.py`, the stored
points in conf/convergence (docs/claims.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .. import words
from ..data.arms import Arm, Comparison
from ..statistics import noise_floor
from ..statistics.noise_floor import Shift
from ..statistics.ratio import SIGNIFICANT, Times
from .convergence_points import Reference, match

WEAK = "weak baseline"


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What the stored points say of the arms of a comparison.

    `reference`: None where none is stored for this workload; then nothing is said. `weak`: why the baseline
    is too weak, "" if it is not. By arm's label: `shifts`, how much better than the points it is;
    `flagged`, why it needs fewer samples than it should; `noted`, what would flag it were it the only arm.
    """

    reference: Reference | None = None
    weak: str = ""
    shifts: Mapping[str, Shift] = field(default_factory=dict)
    flagged: Mapping[str, str] = field(default_factory=dict)
    noted: Mapping[str, str] = field(default_factory=dict)

    def reasons(self, *arms: Arm) -> tuple[str, ...]:
        """Why there is no verdict between these arms."""
        return tuple(self.flagged[arm.label] for arm in arms if arm.label in self.flagged)

    @property
    def sentence(self) -> str:
        """What the samples were held against."""
        if self.reference is None:
            return "No stored reference for this workload: whether the baseline is weak is not known."
        stored = f"{len(self.reference.samples)} stored runs of {self.reference.name} ({self.reference.date})"
        return f"Samples to target were held against {stored}."


def guarded(comparison: Comparison, baseline: Arm, references: Sequence[Reference]) -> Guarded | None:
    """None without a target. Second baselines and the placebo are left out: no verdict is about them.

    A run that missed the target enters with all samples it used, as it does in a reference: it needs at least
    so many.
    """
    if len(comparison.targets) != 1:
        return None
    found = match(baseline.runs[0].config, references)
    if found is None:
        return Guarded()
    stored = Times(found.samples)
    samples = {arm.label: _samples(arm) for arm in comparison.arms if not arm.runs[0].role}
    shifts = noise_floor.any_better(stored, {label: each for label, each in samples.items() if each.seconds})
    said = {
        label: f"{_needs(label, shift, found)}; {_corrected(shift, len(shifts))})"
        for label, shift in shifts.items()
        if shift.p < SIGNIFICANT
    }
    own = samples[baseline.label]
    worse = noise_floor.worse(stored, own) if own.seconds else None
    return Guarded(
        reference=found,
        weak=f"{WEAK}: {_needs(baseline.label, worse, found)})" if worse and worse.flagged else "",
        shifts=shifts,
        flagged={
            label: f"{label} needs fewer samples than it should, flagged until explained: {why}"
            for label, why in said.items()
            if shifts[label].flagged
        },
        noted={label: f"not flagged: {why}" for label, why in said.items() if not shifts[label].flagged},
    )


def _needs(label: str, shift: Shift, reference: Reference) -> str:
    """Up to the p of this test alone; the bracket is still open."""
    times = math.exp(shift.log_shift)
    stored = f"the stored runs of {reference.name}"
    return f"{label} needs {times:.3f} times the samples of {stored} (p = {shift.p:.2g}"


def _corrected(shift: Shift, arms: int) -> str:
    return f"{shift.adjusted:.2g} after correction for {words.count(arms, 'arm')}"


def _samples(arm: Arm) -> Times:
    """Samples to target of each counted run, of those that missed it all they used."""
    found = [run.crossing.scored_samples if run.crossing else run.samples for run in arm.counted]
    return Times(tuple(float(value) for value in found if value))
