"""What a study comes to: how many times as fast as the baseline, with intervals, and above which noise.

Only from the runs that lie there. The baseline is `study.baseline` or the first arm with `ddp`; second
baselines (`study.role`) give the noise floors, the placebo says whether the whole study can be trusted.
Source: docs/method.md, "Statistics of ratios" and "Noise floor"; the arithmetic is in
`runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..data.arms import Arm, Comparison
from ..data.load import Run
from ..statistics import noise_floor, ratio
from ..statistics.decompose import Decomposition
from ..statistics.noise_floor import NoiseFloor
from ..statistics.ratio import FEWEST_RUNS, Estimate, Ratio
from ..target import baseline_of, study_of
from . import busy_machine
from .bounds import Bound, bound_of
from .comparison import Method, diverged
from .convergence_check import Guarded, guarded
from .convergence_points import Reference

CLOCK, FRESH, PLACEBO = "same_seeds", "fresh_seeds", "placebo"
WRONG = "wrong baseline"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm against the baseline. A ratio is the baseline's time over the arm's; None where there is none.

    `quality`: final accuracy, arm minus baseline, in points. `holm`: of "no gain" in fixed work and in time
    to target, adjusted for all arms of the comparison. `notes`: why something is missing.
    """

    arm: Arm
    fixed_work: Ratio | None
    to_target: Ratio | None
    parts: Decomposition | None
    quality: Estimate | None
    diverged: bool
    holm: tuple[float | None, float | None]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A comparison with a baseline. `against`: the arm that ratios are over, the baseline itself unless a
    claim names another; floors and bound are the baseline's. `bound`: what no arm can exceed.

    `fixed_floor`, `target_floor`: noise floors of the two headlines. `fresh_points`: of the final accuracy.
    `evaluations`: up to the crossing, of the median run, by arm. `forbidden`: why no arm gets a verdict.
    `faster`: other arms of ddp that beat the baseline, `wrong`: that it is not the better of them.
    `guard`: what stored samples to target say; None without a target.
    """

    comparison: Comparison
    baseline: Arm
    against: Arm
    lines: list[Line]
    placebo: Line | None
    fixed_floor: NoiseFloor
    target_floor: NoiseFloor
    fresh_points: float | None
    bound: Bound
    budget_s: float | None
    forbidden: tuple[str, ...]
    faster: tuple[Arm, ...]
    wrong: tuple[str, ...]
    guard: Guarded | None

    def reasons(self, *arms: Arm) -> tuple[str, ...]:
        """Why there is no verdict between these arms, whatever their numbers say."""
        found = self.guard.reasons(*arms) if self.guard else ()
        return (*found, *(said for arm in arms if (said := busy_machine.reason(arm))))

    @property
    def level(self) -> float:
        return float(study_of(self.baseline.runs[0], "level", 0.95))


def answers(comparisons: Iterable[Comparison], references: Sequence[Reference] = ()) -> list[Answer]:
    """One for each comparison, as configured, of a baseline and another arm of at least three runs each.

    `references`: stored samples to target (`convergence.load`).
    """
    found = (answer(comparison, references) for comparison in comparisons if not comparison.assumption)
    return [one for one in found if one is not None]


def answer(comparison: Comparison, references: Sequence[Reference] = ()) -> Answer | None:
    """None without a baseline, without an arm to hold against it, or with fewer than three runs of both."""
    baseline = baseline_of(comparison)
    if baseline is None:
        return None
    others = _others(comparison, baseline)
    placebos = [arm for arm in comparison.arms if _role(arm) == PLACEBO]
    if not _enough([baseline]) or not _enough([*others, *placebos]):
        return None
    how = Method(comparison, baseline)
    lines = _lines(how, others)
    placebo = _lines(how, placebos)[0] if placebos else None
    fresh = next((arm for arm in comparison.arms if _role(arm) == FRESH), None)
    clock = _clock(baseline, next((arm for arm in comparison.arms if _role(arm) == CLOCK), None), how.level)
    fixed_floor = _floor(clock, fresh and how.fixed_work(fresh), how.not_whole(fresh) if fresh else [])
    target_floor = _floor(clock, fresh and how.to_target(fresh), how.missed(fresh) if fresh else [])
    fresh_quality = how.quality(fresh) if fresh else None
    held = guarded(comparison, baseline, references)
    weak = [held.weak] if held and held.weak else []
    better = _better(lines, fixed_floor, target_floor)
    return Answer(
        comparison=comparison,
        baseline=baseline,
        against=baseline,
        lines=lines,
        placebo=placebo,
        fixed_floor=fixed_floor,
        target_floor=target_floor,
        fresh_points=fresh_quality.difference if fresh_quality else None,
        bound=bound_of(baseline),
        budget_s=how.budget_s,
        forbidden=(*weak, *_forbidden(comparison, placebo, fixed_floor, target_floor)),
        faster=tuple(arm for arm in others if arm.label in {arm.label for arm, _ in better}),
        wrong=tuple(f"{WRONG}: {arm.label} is faster in {said}" for arm, said in better),
        guard=held,
    )


def held_against(given: Answer, comparator: Arm) -> Answer | None:
    """`given` with its arms against another one; None where `answer` would give None."""
    if comparator is given.baseline:
        return given
    others = _others(given.comparison, comparator)
    if not _enough([comparator]) or not _enough(others):
        return None
    return replace(given, against=comparator, lines=_lines(Method(given.comparison, comparator), others))


def ratios(line: Line) -> tuple[Ratio | None, Ratio | None]:
    """Both headlines of an arm."""
    return line.fixed_work, line.to_target


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None


def _lines(how: Method, arms: Sequence[Arm]) -> list[Line]:
    made = [(arm, how.fixed_work(arm), how.to_target(arm)) for arm in arms]
    fixed = _holm([found for _, found, _ in made])
    target = _holm([found for _, _, found in made])
    return [
        Line(
            arm=arm,
            fixed_work=fixed_work,
            to_target=to_target,
            parts=how.parts(arm),
            quality=how.quality(arm),
            diverged=any(diverged(run) for run in arm.counted),
            holm=(fixed[place], target[place]),
            notes=tuple(how.notes(arm, fixed_work, to_target)),
        )
        for place, (arm, fixed_work, to_target) in enumerate(made)
    ]


def _others(comparison: Comparison, comparator: Arm) -> list[Arm]:
    return [arm for arm in comparison.arms if arm is not comparator and not _role(arm)]


def _enough(arms: Sequence[Arm]) -> bool:
    """Whether one of `arms` has runs enough for a ratio."""
    return any(len(arm.counted) >= FEWEST_RUNS for arm in arms)


def _role(arm: Arm) -> str:
    return arm.runs[0].role


def _holm(found: Sequence[Ratio | None]) -> list[float | None]:
    known = [one.p_no_gain for one in found if one is not None]
    adjusted = iter(ratio.holm(known))
    return [None if one is None else next(adjusted) for one in found]


def _clock(baseline: Arm, again: Arm | None, level: float) -> noise_floor.Floor | None:
    """From each repetition's two runs with the same seeds: time per sample, up to their last evaluation."""
    if again is None:
        return None
    first = {run.block: run for run in baseline.counted}
    ratios: list[float] = []
    for run in again.counted:
        twin = first.get(run.block)
        pair = twin and _same_part(twin, run)
        if pair:
            ratios.append(math.log(pair[0] / pair[1]))
    return noise_floor.clock_floor(ratios, level=level)


def _floor(clock: noise_floor.Floor | None, again: Ratio | None, why: Sequence[str]) -> NoiseFloor:
    """`again`: the baseline over the one with fresh seeds. `why`: what may stand against a ratio of them."""
    fresh = noise_floor.fresh_floor(again)
    return NoiseFloor(clock=clock, fresh=fresh, unknown="" if fresh else "; ".join(why))


def _same_part(one: Run, other: Run) -> tuple[float, float] | None:
    """Seconds of training a sample of both, up to the last sample count at which both were evaluated."""
    mine = {row["samples"]: row["train_s"] for row in one.evaluations}
    theirs = {row["samples"]: row["train_s"] for row in other.evaluations}
    common = [samples for samples in mine.keys() & theirs.keys() if mine[samples] > 0 and theirs[samples] > 0]
    if common:
        return mine[max(common)], theirs[max(common)]
    rates = [run.samples_per_s for run in (one, other)]
    return (1 / rates[0], 1 / rates[1]) if rates[0] and rates[1] else None


_OF: tuple[tuple[str, Callable[[Line], Ratio | None]], ...] = (
    ("time of all work", lambda line: line.fixed_work),
    ("time to target", lambda line: line.to_target),
)


def _better(lines: Sequence[Line], fixed: NoiseFloor, target: NoiseFloor) -> list[tuple[Arm, str]]:
    """The other arms of ddp that beat the baseline, and in what."""
    return [
        (line.arm, said)
        for (said, of), noise in zip(_OF, (fixed, target), strict=True)
        for line in lines
        if line.arm.runs[0].strategy == "ddp" and (seen := of(line)) and noise.floor is not None
        if noise_floor.wrong_baseline(seen.interval, noise.floor)
    ]


def _forbidden(
    comparison: Comparison, placebo: Line | None, fixed: NoiseFloor, target: NoiseFloor
) -> list[str]:
    """Why no arm gets a verdict: what the study's own checks say."""
    found: list[str] = []
    for (said, of), noise in zip(_OF, (fixed, target), strict=True):
        m = noise.floor
        if m is None:
            continue
        seen = placebo and of(placebo)
        if seen and noise_floor.placebo_differs(seen.low, seen.high, m):
            found.append(
                f"the placebo differs from the baseline in {said}: {seen.low:.3f} to {seen.high:.3f}"
            )
    reasons = {reason for run in comparison.runs if run.counted for reason in run.timing_reasons}
    found += [f"times of some runs are not valid: {reason}" for reason in sorted(reasons)]
    return found
