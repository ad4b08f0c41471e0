"""Speed-ups of a comparison: times as fast as the baseline, with intervals, noise floors and checks.

Computed from run directories alone. The baseline is `study.baseline` or the first arm with `ddp`; second
baselines (`study.role`) give the noise floors, the placebo shows whether the whole study can be trusted.
Source: docs/method.md, "Statistics of ratios" and "Noise floor".
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics.noise_floor import NoiseFloor, clock_floor, fresh_floor, model_floor
from ..statistics.verdict import Bound
from ..statistics.welch import FEWEST_RUNS, Ratio
from ..target import baseline_of, budget_s
from .arm_speedup import (
    ALL_WORK,
    TO_TARGET,
    WORK,
    ArmSpeedup,
    arm_speedups,
    error_of_model,
    final_quality,
    fixed_work,
    level_of,
    ratios,
    to_target,
)
from .bounds import bound_of
from .convergence_points import ConvergenceCheck, Reference, check_convergence
from .fairness import FairnessRow, fairness

NOISE_ROLES = ("same_seeds", "fresh_seeds", "placebo")  # `study.role` of arms that show the noise
Level = Literal["green", "amber", "red"]
Spared = Literal["none", "efficiency", "other comparators", "named comparators"]


@dataclass(frozen=True)
class Forbidden:
    """Why an arm may not be compared: it is grey on page one, and claims about it get no verdict.

    label: of the arm; the baseline's stands for all arms.
    reason: in at most four words, for the figure. sentence: for the verdict and the check.
    spares: claims that get their verdict all the same: those of efficiency; those with another comparator
        than the baseline; those, and claims that name the baseline as their comparator.
    """

    label: str
    reason: str
    sentence: str
    spares: Spared = field(default="none", kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check of a comparison says: a line in the strip on page one.

    name: in the strip: "fair", "plan complete", "records intact", "baseline strong", "noise", "times".
    sentence: what was found, one line. details: further sentences, shown folded.
    forbids: the arms that may not be compared, the worst reason first.
    exploratory: why the verdicts of the study are exploratory, in one sentence; "" if they are not.
    """

    name: str
    level: Level
    sentence: str
    details: tuple[str, ...] = ()
    forbids: tuple[Forbidden, ...] = ()
    exploratory: str = ""


@dataclass(frozen=True, kw_only=True)
class Speedups:
    """All arms of a comparison against the baseline. `against`: the arm that ratios are over.

    `against` is the baseline unless a claim names another arm; floors and bound are the baseline's. `bound`:
    what no arm can exceed. `fixed_floor`, `target_floor`: noise floors of the two headlines. `fresh_points`:
    of the final accuracy. `budget_s`: see `target.budget_s`. `ledgers`: by label, the fairness table of each
    other arm with `against`, second baselines included. `convergence`: samples to target against stored ones.
    `checks`: the strip of page one, see `study_checks.CHECKS`.
    """

    comparison: Comparison
    baseline: Arm
    against: Arm
    lines: list[ArmSpeedup]
    placebo: ArmSpeedup | None
    fixed_floor: NoiseFloor
    target_floor: NoiseFloor
    fresh_points: float | None
    bound: Bound
    budget_s: float | None
    convergence: ConvergenceCheck
    ledgers: Mapping[str, list[FairnessRow]]
    checks: tuple[Check, ...] = ()

    @cached_property
    def forbidden(self) -> list[Forbidden]:
        """What the checks forbid, in their order."""
        return [each for check in self.checks for each in check.forbids]

    def not_comparable(self, arm: Arm) -> str:
        """Why no ratio of `arm` may be read, in at most four words; "" if it may."""
        labels = (arm.label, self.baseline.label)
        return next((each.reason for each in self.forbidden if each.label in labels), "")

    @property
    def baselines(self) -> list[str]:
        """Labels of the baseline and of the second ones, which give the noise that every verdict rests on."""
        roles = [arm.label for arm in self.comparison.arms if arm.runs[0].role in NOISE_ROLES]
        return [self.baseline.label, *roles]

    @property
    def exploratory(self) -> str:
        """Why the verdicts are exploratory, in one sentence; "" if they are not."""
        return next((check.exploratory for check in self.checks if check.exploratory), "")

    @property
    def shown(self) -> list[ArmSpeedup]:
        """The lines of tables and figures: arms, and last the placebo."""
        return [*self.lines, *([self.placebo] if self.placebo else [])]

    @property
    def level(self) -> float:
        return level_of(self.baseline)

    @cached_property
    def faster(self) -> dict[str, list[str]]:
        """Other arms of ddp that are faster than `against` by more than the noise: label -> which times."""
        lines = [line for line in self.lines if line.arm.runs[0].strategy == "ddp"]
        works = {
            line.arm.label: [work for work, ratio, floor in self.with_floors(line) if ratio.low > 1 + floor]
            for line in lines
        }
        return {label: names for label, names in works.items() if names}

    def with_floors(self, line: ArmSpeedup) -> Iterator[tuple[str, Ratio, float]]:
        """(time, ratio, noise floor) of the headlines that have both."""
        floors = (self.fixed_floor.floor, self.target_floor.floor)
        for work, ratio, floor in zip(WORK, ratios(line), floors, strict=True):
            if ratio is not None and floor is not None:
                yield work, ratio, floor

    def over(self, comparator: Arm) -> "Speedups | None":
        """The same with ratios over another arm; None where `speedups_of` would give None."""
        if comparator is self.baseline:
            return self
        others = _others(self.comparison, comparator)
        if not _enough(comparator) or not _enough(*others):
            return None
        lines = arm_speedups(comparator, others, self.budget_s)
        return replace(self, against=comparator, lines=lines, ledgers=_ledgers(comparator, others))


def speedups_of(comparison: Comparison, references: Sequence[Reference] = ()) -> Speedups | None:
    """Without checks, see `study_checks.all_speedups`; `references`: stored samples to target.

    None without a baseline, without an arm to compare with it, or with fewer than three runs of both.
    """
    baseline = baseline_of(comparison)
    if baseline is None:
        return None
    others, budget = _others(comparison, baseline), budget_s(comparison)
    same_seeds, fresh_seeds, placebo_arm = (
        next((arm for arm in comparison.arms if arm.runs[0].role == role), None) for role in NOISE_ROLES
    )
    if not _enough(baseline) or not _enough(*others, *([placebo_arm] if placebo_arm else [])):
        return None
    lines = arm_speedups(baseline, others, budget)
    placebo = arm_speedups(baseline, [placebo_arm], budget)[0] if placebo_arm else None
    clock = _clock_floor(baseline, same_seeds) if same_seeds else NoiseFloor()
    virtual, fresh_quality = comparison.world == "simulated", None
    if virtual:
        errors = [error for line in lines if (error := error_of_model(baseline, line.arm))]
        clock = model_floor(errors, clock, baseline.runs[0].jitters)
    # Seeds change no simulated time of equal work: it is known without a second baseline.
    fixed_floor = replace(clock, fresh=0.0) if virtual and not baseline.runs[0].jitters else clock
    target_floor = clock
    if fresh_seeds:
        twice = (baseline, fresh_seeds)
        no_time = ["the study has no target"] if budget is None else TO_TARGET.missing(*twice)
        fixed_floor = _floor(clock, fixed_work(*twice), ALL_WORK.missing(*twice))
        target_floor = _floor(clock, to_target(*twice, budget), no_time)
        fresh_quality = final_quality(*twice)
    return Speedups(
        comparison=comparison,
        baseline=baseline,
        against=baseline,
        lines=lines,
        placebo=placebo,
        fixed_floor=fixed_floor,
        target_floor=target_floor,
        fresh_points=fresh_quality.difference if fresh_quality else None,
        bound=bound_of(baseline),
        budget_s=budget,
        convergence=check_convergence(comparison, baseline, references),
        ledgers=_ledgers(baseline, comparison.arms),
    )


def _ledgers(comparator: Arm, arms: Iterable[Arm]) -> dict[str, list[FairnessRow]]:
    return {arm.label: fairness(comparator.runs, arm.runs) for arm in arms if arm is not comparator}


def _others(comparison: Comparison, comparator: Arm) -> list[Arm]:
    return [arm for arm in comparison.arms if arm is not comparator and not arm.runs[0].role]


def _enough(*arms: Arm) -> bool:
    """Whether one of `arms` has runs enough for a ratio."""
    return any(len(arm.counted) >= FEWEST_RUNS for arm in arms)


def _clock_floor(baseline: Arm, again: Arm) -> NoiseFloor:
    """From each repetition's two runs with the same seeds: time per sample, up to their last evaluation."""
    first = {run.block: run for run in baseline.counted}
    pairs = [_same_part(first[run.block], run) for run in again.counted if run.block in first]
    return clock_floor([math.log(pair[0] / pair[1]) for pair in pairs if pair], level=level_of(baseline))


def _same_part(first: Run, second: Run) -> tuple[float, float] | None:
    """Seconds of training a sample of both, up to the last sample count at which both were evaluated."""
    times = [{row["samples"]: row["train_s"] for row in run.evaluations} for run in (first, second)]
    common = [samples for samples in times[0].keys() & times[1].keys() if min(t[samples] for t in times) > 0]
    if common:
        return times[0][max(common)], times[1][max(common)]
    rates = [run.samples_per_s for run in (first, second)]
    return (1 / rates[0], 1 / rates[1]) if rates[0] and rates[1] else None


def _floor(clock: NoiseFloor, again: Ratio | None, why: Sequence[str]) -> NoiseFloor:
    """`again`: the baseline over the one with fresh seeds. `why`: what may forbid a ratio of them."""
    fresh = fresh_floor(again)
    return replace(clock, fresh=fresh, unknown="" if fresh is not None else "; ".join(why))
