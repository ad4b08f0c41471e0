"""What a study comes to: how many times as fast as the baseline, with intervals, and above which noise.

Only from the runs that lie there. The baseline is `study.baseline` or the first arm with `ddp`; second
baselines (`study.role`) give the noise floors, the placebo says whether the whole study can be trusted.
Source: the measuring rules (time to accuracy); the arithmetic is in `runner/scoring/`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..convergence import Reference
from ..scoring import decompose, floor, guard, quality, ratio, reached
from ..scoring.decompose import Decomposition, Work
from ..scoring.floor import NoiseFloor
from ..scoring.quality import Difference
from ..scoring.ratio import FEWEST_RUNS, Ratio, Times
from .arms import Arm, Comparison
from .guarded import Guarded, guarded
from .load import Run
from .means import geometric_mean
from .target import baseline_of, budget_s, study_of, way

CLOCK, FRESH, PLACEBO = "clock", "fresh", "placebo"
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
    quality: Difference | None
    diverged: bool
    holm: tuple[float | None, float | None]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A comparison with a baseline. `against`: the arm that ratios are over, the baseline itself unless a
    claim names another; floors and bound are the baseline's. `bound`: what no saving of communication can
    exceed, and its upper limit.

    `fixed_floor`, `target_floor`: noise floors of the two headlines. `fresh_points`: of the final accuracy.
    `evaluations`: up to the crossing, of the median run, by arm. `forbidden`: why no arm gets a verdict.
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
    bound: float | None
    bound_limit: float | None
    budget_s: float | None
    forbidden: tuple[str, ...]
    guard: Guarded | None

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
    how = _Method(comparison, baseline)
    lines = how.lines(others)
    placebo = how.lines(placebos)[0] if placebos else None
    fresh = next((arm for arm in comparison.arms if _role(arm) == FRESH), None)
    clock = _clock(baseline, next((arm for arm in comparison.arms if _role(arm) == CLOCK), None), how.level)
    fixed_floor = NoiseFloor(clock=clock, fresh=floor.fresh_floor(fresh and how.fixed_work(fresh)))
    target_floor = NoiseFloor(clock=clock, fresh=floor.fresh_floor(fresh and how.to_target(fresh)))
    fresh_quality = how.quality(fresh) if fresh else None
    bounds = [bound for run in baseline.complete if (bound := _bound(run)) is not None]
    held = guarded(comparison, baseline, references)
    weak = [held.weak] if held and held.weak else []
    return Answer(
        comparison=comparison,
        baseline=baseline,
        against=baseline,
        lines=lines,
        placebo=placebo,
        fixed_floor=fixed_floor,
        target_floor=target_floor,
        fresh_points=fresh_quality.estimate.difference if fresh_quality else None,
        bound=geometric_mean(bounds),
        bound_limit=decompose.bound_limit(bounds),
        budget_s=how.budget_s,
        forbidden=(*weak, *_forbidden(comparison, lines, placebo, fixed_floor, target_floor)),
        guard=held,
    )


def held_against(given: Answer, comparator: Arm) -> Answer | None:
    """`given` with its arms against another one; None where `answer` would give None."""
    if comparator is given.baseline:
        return given
    others = _others(given.comparison, comparator)
    if not _enough([comparator]) or not _enough(others):
        return None
    return replace(given, against=comparator, lines=_Method(given.comparison, comparator).lines(others))


def ratios(line: Line) -> tuple[Ratio | None, Ratio | None]:
    """Both headlines of an arm."""
    return line.fixed_work, line.to_target


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None


class _Method:
    """The ratios of one comparison, all made alike."""

    def __init__(self, comparison: Comparison, baseline: Arm) -> None:
        self.comparison, self.baseline = comparison, baseline
        first = baseline.runs[0]
        self.level = float(study_of(first, "level", 0.95))
        self.paired = study_of(first, "interval", "welch") == "paired"
        self.budget_s = budget_s(comparison)

    def lines(self, arms: Sequence[Arm]) -> list[Line]:
        made = [(arm, self.fixed_work(arm), self.to_target(arm)) for arm in arms]
        fixed = _holm([found for _, found, _ in made])
        target = _holm([found for _, _, found in made])
        return [
            Line(
                arm=arm,
                fixed_work=fixed_work,
                to_target=to_target,
                parts=self._parts(arm),
                quality=self.quality(arm),
                diverged=any(_diverged(run) for run in arm.counted),
                holm=(fixed[place], target[place]),
                notes=tuple(self._notes(arm, fixed_work, to_target)),
            )
            for place, (arm, fixed_work, to_target) in enumerate(made)
        ]

    def fixed_work(self, arm: Arm) -> Ratio | None:
        """Of T_train of the whole schedule; None unless all runs of both did it."""
        if not (_all_complete(self.baseline) and _all_complete(arm)):
            return None
        base, other = self._matched(self.baseline.complete, arm.complete)
        return self._ratio(_times(base), _times(other))

    def to_target(self, arm: Arm) -> Ratio | None:
        """Of the scored crossing times, runs that missed the target at the budget."""
        if self.budget_s is None:
            return None
        base, other = self._matched(self.baseline.counted, arm.counted)
        if min(len(base), len(other)) < FEWEST_RUNS:
            return None
        method: Callable[..., Ratio | None] = ratio.paired if self.paired else ratio.welch
        return reached.compare(
            way(base, self.budget_s), way(other, self.budget_s), method=method, level=self.level
        )

    def quality(self, arm: Arm) -> Difference | None:
        """Of the final accuracies, in points; runs that ended in none are told as diverged."""
        base, other = (_points(one) for one in (self.baseline, arm))
        return quality.difference(base, other, level=self.level)

    def _parts(self, arm: Arm) -> Decomposition | None:
        if len(self.baseline.reached) < len(self.baseline.counted) or len(arm.reached) < len(arm.counted):
            return None
        return decompose.decompose(_work(self.baseline), _work(arm), level=self.level)

    def _ratio(self, base: Times, arm: Times) -> Ratio | None:
        return (ratio.paired if self.paired else ratio.welch)(base, arm, level=self.level)

    def _matched(self, base: list[Run], arm: list[Run]) -> tuple[list[Run], list[Run]]:
        """As they are, or with paired intervals the runs whose repetition both have, in its order."""
        if not self.paired:
            return base, arm
        by_block = [{run.block: run for run in runs} for runs in (base, arm)]
        both = sorted(by_block[0].keys() & by_block[1].keys(), key=str)
        return [by_block[0][block] for block in both], [by_block[1][block] for block in both]

    def _notes(self, arm: Arm, fixed_work: Ratio | None, to_target: Ratio | None) -> list[str]:
        found: list[str] = []
        for one in (self.baseline, arm):
            missing = len(one.counted) - len(_whole(one))
            if missing:
                found.append(f"{missing} of {len(one.counted)} runs of {one.label} did not do all their work")
        if self.budget_s is not None and to_target is None:
            found.append(
                f"reached the target: {len(self.baseline.reached)} of {len(self.baseline.counted)} runs of "
                f"{self.baseline.label}, {len(arm.reached)} of {len(arm.counted)} of {arm.label}: "
                "no ratio of times"
            )
        for said, made in (("all its work", fixed_work), ("the target", to_target)):
            if made is not None and made.sensitive_to_outliers:
                found.append(
                    f"time to {said}: sensitive to outliers (ratio of medians {made.ratio_of_medians:.3f})"
                )
        return found


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


def _whole(arm: Arm) -> list[Run]:
    """Runs that did the whole schedule: neither stopped at the target nor by a limit on their time."""
    return [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]


def _all_complete(arm: Arm) -> bool:
    return len(_whole(arm)) == len(arm.counted) >= FEWEST_RUNS


def _times(runs: Sequence[Run]) -> Times:
    return Times(tuple(run.train_s for run in runs if run.train_s))


def _points(arm: Arm) -> list[float]:
    found = (run.final_accuracy for run in arm.counted if not _diverged(run))
    return [100 * value for value in found if value is not None]


def _diverged(run: Run) -> bool:
    last = run.final_accuracy  # None: nothing was evaluated
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def _work(arm: Arm) -> Work:
    found = [run.crossing for run in arm.reached if run.crossing]
    return Work(tuple(one.scored_s for one in found), tuple(one.scored_samples for one in found))


def _bound(run: Run) -> float | None:
    parts = run.parts_s
    total = math.fsum(parts.values())
    exposed, waiting = parts.get("exposed", 0.0), parts.get("waiting", 0.0)
    if not parts or total - exposed - waiting <= 0:
        return None
    return decompose.bound(total, exposed_s=max(0.0, exposed), waiting_s=max(0.0, waiting))


def _clock(baseline: Arm, again: Arm | None, level: float) -> floor.ClockFloor | None:
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
    return floor.clock_floor(ratios, level=level)


def _same_part(one: Run, other: Run) -> tuple[float, float] | None:
    """Seconds of training a sample of both, up to the last sample count at which both were evaluated."""
    mine = {row["samples"]: row["train_s"] for row in one.evaluations}
    theirs = {row["samples"]: row["train_s"] for row in other.evaluations}
    common = [samples for samples in mine.keys() & theirs.keys() if mine[samples] > 0 and theirs[samples] > 0]
    if common:
        return mine[max(common)], theirs[max(common)]
    rates = [run.samples_per_s for run in (one, other)]
    return (1 / rates[0], 1 / rates[1]) if rates[0] and rates[1] else None


def _forbidden(
    comparison: Comparison,
    lines: Sequence[Line],
    placebo: Line | None,
    fixed: NoiseFloor,
    target: NoiseFloor,
) -> list[str]:
    """Why no arm gets a verdict: what the study's own checks say."""
    found: list[str] = []
    for said, noise, of in (
        ("time of all work", fixed, lambda line: line.fixed_work),
        ("time to target", target, lambda line: line.to_target),
    ):
        m = noise.floor
        if m is None:
            continue
        seen = placebo and of(placebo)
        if seen and guard.placebo_differs(seen.low, seen.high, m):
            found.append(
                f"the placebo differs from the baseline in {said}: {seen.low:.3f} to {seen.high:.3f}"
            )
        for line in lines:
            other = of(line)
            if line.arm.runs[0].strategy == "ddp" and other and guard.wrong_baseline(other.interval, m):
                found.append(f"{WRONG}: {line.arm.label} is faster in {said}")
    reasons = {reason for run in comparison.runs if run.counted for reason in run.timing_reasons}
    found += [f"times of some runs are not valid: {reason}" for reason in sorted(reasons)]
    return found
