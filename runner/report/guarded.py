"""A comparison held against stored samples to target: a weak baseline, and arms that need too few samples.

Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard"; the tests are in
`runner/scoring/guard.py`, the stored points in conf/convergence (docs/claims.md).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..convergence import Reference, match
from ..scoring import guard
from ..scoring.guard import Shift
from ..scoring.ratio import Times
from .arms import Arm, Comparison

WEAK = "weak baseline"


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What the stored points say of the arms of a comparison.

    `reference`: None where none is stored for this workload; then nothing is said. `weak`: why the baseline
    is too weak, "" if it is not. `flagged`: by arm's label, why it needs fewer samples than it should.
    """

    reference: Reference | None = None
    weak: str = ""
    flagged: Mapping[str, str] = field(default_factory=dict)

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
    shifts = {
        label: guard.better_in_samples(stored, of_arm) for label, of_arm in samples.items() if of_arm.seconds
    }
    own = samples[baseline.label]
    worse = guard.worse(stored, own) if own.seconds else None
    return Guarded(
        reference=found,
        weak=f"{WEAK}: {baseline.label} {_needs(worse, found)}" if worse and worse.flagged else "",
        flagged={
            label: f"{label} needs fewer samples than it should, flagged until explained: it "
            f"{_needs(shift, found)}"
            for label, shift in shifts.items()
            if shift.flagged
        },
    )


def _needs(shift: Shift, reference: Reference) -> str:
    times = math.exp(shift.log_shift)
    p = f"p = {shift.p:.2g}"
    return f"needs {times:.3f} times the samples of the stored runs of {reference.name} ({p})"


def _samples(arm: Arm) -> Times:
    """Samples to target of each counted run, of those that missed it all they used."""
    found = [run.crossing.scored_samples if run.crossing else run.samples for run in arm.counted]
    return Times(tuple(float(value) for value in found if value))
