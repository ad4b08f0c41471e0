"""Speed-ups of a comparison: times as fast as the baseline, with intervals, noise floors and checks.

Computed from run directories alone. The baseline is `study.baseline` or the first arm with `ddp`; second
baselines (`study.role`) give the noise floors, the placebo shows whether the whole study can be trusted.
Source: docs/method.md, "Statistics of ratios" and "Noise floor"; the arithmetic is in
`runner/report/statistics/`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..data.arms import Arm, Comparison, per_sample
from ..data.load import Run
from ..statistics import decompose, noise_floor, quality, ratio, reached
from ..statistics.decompose import ArmWork, Decomposition
from ..statistics.noise_floor import Floor, NoiseFloor
from ..statistics.ratio import FEWEST_RUNS, Estimate, Ratio, Times
from ..target import baseline_of, budget_s, study_of, way
from . import recorded
from .bounds import Bound, bound_of
from .convergence_points import ConvergenceCheck, Reference, check_convergence

CLOCK, FRESH, PLACEBO = "same_seeds", "fresh_seeds", "placebo"
WRONG = "wrong baseline"


class Method:
    """How every arm of one comparison is compared with one of them.

    `budget_s`: seconds of T_train after which a run has missed its target; None without a target.
    """

    def __init__(self, comparison: Comparison, baseline: Arm) -> None:
        self.comparison, self.baseline = comparison, baseline
        first = baseline.runs[0]
        self.level = float(study_of(first, "level", 0.95))
        self.paired = study_of(first, "interval", "welch") == "paired"
        self.budget_s = budget_s(comparison)
        self._ratio: Callable[..., Ratio | None] = ratio.paired if self.paired else ratio.welch

    def fixed_work(self, arm: Arm) -> Ratio | None:
        """Of T_train of the whole schedule; None unless all runs of both did it."""
        if not (_all_complete(self.baseline) and _all_complete(arm)):
            return None
        sides = self._matched(self.baseline.complete, arm.complete)
        base, times = (Times(tuple(run.train_s for run in runs if run.train_s)) for runs in sides)
        return self._ratio(base, times, level=self.level)

    def per_sample(self, arm: Arm) -> Ratio | None:
        """Of seconds a sample, over the runs of both that did all their work."""
        base, runs = self._matched(rated(self.baseline), rated(arm))
        return self._ratio(per_sample(base), per_sample(runs), level=self.level)

    def to_target(self, arm: Arm) -> Ratio | None:
        """Of the scored crossing times, runs that missed the target at the budget."""
        if self.budget_s is None:
            return None
        base, runs = self._matched(self.baseline.counted, arm.counted)
        if min(len(base), len(runs)) < FEWEST_RUNS:
            return None
        ways = way(base, self.budget_s), way(runs, self.budget_s)
        return reached.compare(*ways, method=self._ratio, level=self.level)

    def quality(self, arm: Arm) -> Estimate | None:
        """Of the final accuracies, arm minus baseline, in points; without runs that diverged."""
        return quality.difference(_points(self.baseline), _points(arm), level=self.level)

    def parts(self, arm: Arm) -> Decomposition | None:
        """Throughput times statistical efficiency; None unless all runs of both reached the target."""
        if len(self.baseline.reached) < len(self.baseline.counted) or len(arm.reached) < len(arm.counted):
            return None
        return decompose.decompose(_work(self.baseline), _work(arm), level=self.level)

    def _matched(self, base: list[Run], runs: list[Run]) -> tuple[list[Run], list[Run]]:
        """As they are, or with paired intervals the runs whose repetition both have, in its order."""
        if not self.paired:
            return base, runs
        by_block = [{run.block: run for run in side} for side in (base, runs)]
        both = sorted(by_block[0].keys() & by_block[1].keys(), key=str)
        return [by_block[0][block] for block in both], [by_block[1][block] for block in both]

    def not_whole(self, arm: Arm) -> list[str]:
        """How many runs of the baseline, and of `arm`, did not do all their work, where some did not."""
        return self._short(arm, _whole, "did not do all their work")

    def missed(self, arm: Arm) -> list[str]:
        """How many runs of the baseline, and of `arm`, missed the target, where some did."""
        if self.budget_s is None:
            return ["the study has no target"]
        return self._short(arm, lambda side: side.reached, "missed the target")

    def _short(self, arm: Arm, done: Callable[[Arm], list[Run]], words: str) -> list[str]:
        sides = ((side, len(side.counted) - len(done(side))) for side in (self.baseline, arm))
        return [
            f"{short} of {len(side.counted)} runs of {side.label} {words}" for side, short in sides if short
        ]

    def notes(self, arm: Arm, fixed_work: Ratio | None, to_target: Ratio | None) -> list[str]:
        """Why a ratio is missing, or is to be read with care."""
        notes = self.not_whole(arm)
        if self.budget_s is not None and to_target is None:
            notes.append(
                f"reached the target: {len(self.baseline.reached)} of {len(self.baseline.counted)} runs of "
                f"{self.baseline.label}, {len(arm.reached)} of {len(arm.counted)} of {arm.label}: "
                "no ratio of times"
            )
        for words, times in (("all its work", fixed_work), ("the target", to_target)):
            if times is not None and times.sensitive_to_outliers:
                notes.append(
                    f"time to {words}: sensitive to outliers (ratio of medians {times.ratio_of_medians:.3f})"
                )
        return notes


def rated(arm: Arm) -> list[Run]:
    """The runs that did all their work, count, and recorded how fast."""
    return [run for run in arm.complete if run.counted and (run.samples_per_s or 0) > 0]


def diverged(run: Run) -> bool:
    """Whether the run diverged: its state says so, or its last metric is no number."""
    if (run.config.get("launcher") or {}).get("timing_only"):  # nothing is learnt, so nothing can be lost
        return run.state == "diverged"
    last = run.final  # None: nothing was evaluated
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def _whole(arm: Arm) -> list[Run]:
    """Runs that did the whole schedule: neither stopped at the target nor by a limit on their time."""
    return [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]


def _all_complete(arm: Arm) -> bool:
    return len(_whole(arm)) == len(arm.counted) >= FEWEST_RUNS


def _points(arm: Arm) -> list[float]:
    finals = (run.final for run in arm.counted if not diverged(run))
    return [100 * value for value in finals if value is not None and math.isfinite(value)]


def _work(arm: Arm) -> ArmWork:
    crossings = [run.crossing for run in arm.reached if run.crossing]
    return ArmWork(
        tuple(crossing.scored_s for crossing in crossings),
        tuple(crossing.scored_samples for crossing in crossings),
    )


@dataclass(frozen=True, kw_only=True)
class ArmSpeedup:
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
class Speedups:
    """All arms of a comparison against the baseline. `against`: the arm that ratios are over.

    `against` is the baseline unless a claim names another arm; floors and bound are the baseline's. `bound`:
    what no arm can exceed. `fixed_floor`, `target_floor`: noise floors of the two headlines. `fresh_points`:
    of the final accuracy. `forbidden`: why no arm gets a verdict. `faster`: other arms of ddp that beat the
    baseline, `wrong`: that it is not the better of them. `guard`: the check against stored samples to target;
    None without a target.
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
    forbidden: tuple[str, ...]
    faster: tuple[Arm, ...]
    wrong: tuple[str, ...]
    guard: ConvergenceCheck | None

    def reasons(self, *arms: Arm) -> tuple[str, ...]:
        """Why there is no verdict between these arms, independent of their numbers."""
        reasons = self.guard.reasons(*arms) if self.guard else ()
        return (*reasons, *(busy for arm in arms if (busy := recorded.busy_reason(arm))))

    @property
    def level(self) -> float:
        return float(study_of(self.baseline.runs[0], "level", 0.95))

    def over(self, comparator: Arm) -> "Speedups | None":
        """The same with ratios over another arm; None where `speedups_of` would give None."""
        if comparator is self.baseline:
            return self
        others = _others(self.comparison, comparator)
        if not _enough([comparator]) or not _enough(others):
            return None
        return replace(self, against=comparator, lines=_lines(Method(self.comparison, comparator), others))


def all_speedups(comparisons: Iterable[Comparison], references: Sequence[Reference] = ()) -> list[Speedups]:
    """One for each comparison, as configured, of a baseline and another arm of at least three runs each.

    `references`: stored samples to target (`convergence_points.load`).
    """
    made = (speedups_of(comparison, references) for comparison in comparisons if not comparison.assumption)
    return [speedups for speedups in made if speedups is not None]


def speedups_of(comparison: Comparison, references: Sequence[Reference] = ()) -> Speedups | None:
    """None without a baseline, without an arm to compare with it, or with fewer than three runs of both."""
    baseline = baseline_of(comparison)
    if baseline is None:
        return None
    others = _others(comparison, baseline)
    same_seeds, fresh_seeds, placebos = (_of_role(comparison, role) for role in (CLOCK, FRESH, PLACEBO))
    if not _enough([baseline]) or not _enough([*others, *placebos]):
        return None
    method = Method(comparison, baseline)
    lines = _lines(method, others)
    placebo = _lines(method, placebos)[0] if placebos else None
    clock = _clock_floor(baseline, same_seeds[0], method.level) if same_seeds else None
    fresh = fresh_seeds[0] if fresh_seeds else None
    fixed_floor = _floor(clock, fresh and method.fixed_work(fresh), method.not_whole(fresh) if fresh else [])
    target_floor = _floor(clock, fresh and method.to_target(fresh), method.missed(fresh) if fresh else [])
    fresh_quality = method.quality(fresh) if fresh else None
    guard = check_convergence(comparison, baseline, references)
    weak = [guard.weak] if guard and guard.weak else []
    better = _better(lines, fixed_floor, target_floor)
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
        budget_s=method.budget_s,
        forbidden=(*weak, *_forbidden(comparison, placebo, fixed_floor, target_floor)),
        faster=tuple(arm for arm in others if arm.label in {arm.label for arm, _ in better}),
        wrong=tuple(f"{WRONG}: {arm.label} is faster in {words}" for arm, words in better),
        guard=guard,
    )


def ratios(line: ArmSpeedup) -> tuple[Ratio | None, Ratio | None]:
    """Both headlines of an arm."""
    return line.fixed_work, line.to_target


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None


def _lines(method: Method, arms: Sequence[Arm]) -> list[ArmSpeedup]:
    times = [(arm, method.fixed_work(arm), method.to_target(arm)) for arm in arms]
    fixed = _holm([fixed_work for _, fixed_work, _ in times])
    target = _holm([to_target for _, _, to_target in times])
    return [
        ArmSpeedup(
            arm=arm,
            fixed_work=fixed_work,
            to_target=to_target,
            parts=method.parts(arm),
            quality=method.quality(arm),
            diverged=any(diverged(run) for run in arm.counted),
            holm=(fixed[place], target[place]),
            notes=tuple(method.notes(arm, fixed_work, to_target)),
        )
        for place, (arm, fixed_work, to_target) in enumerate(times)
    ]


def _others(comparison: Comparison, comparator: Arm) -> list[Arm]:
    return [arm for arm in comparison.arms if arm is not comparator and not _role(arm)]


def _enough(arms: Sequence[Arm]) -> bool:
    """Whether one of `arms` has runs enough for a ratio."""
    return any(len(arm.counted) >= FEWEST_RUNS for arm in arms)


def _role(arm: Arm) -> str:
    return arm.runs[0].role


def _of_role(comparison: Comparison, role: str) -> list[Arm]:
    return [arm for arm in comparison.arms if _role(arm) == role]


def _holm(ratios: Sequence[Ratio | None]) -> list[float | None]:
    adjusted = iter(ratio.holm([known.p_no_gain for known in ratios if known is not None]))
    return [None if known is None else next(adjusted) for known in ratios]


def _clock_floor(baseline: Arm, again: Arm, level: float) -> Floor | None:
    """From each repetition's two runs with the same seeds: time per sample, up to their last evaluation."""
    first = {run.block: run for run in baseline.counted}
    pairs = [_same_part(first[run.block], run) for run in again.counted if run.block in first]
    return noise_floor.clock_floor([math.log(pair[0] / pair[1]) for pair in pairs if pair], level=level)


def _floor(clock: Floor | None, again: Ratio | None, why: Sequence[str]) -> NoiseFloor:
    """`again`: the baseline over the one with fresh seeds. `why`: what may forbid a ratio of them."""
    fresh = noise_floor.fresh_floor(again)
    return NoiseFloor(clock=clock, fresh=fresh, unknown="" if fresh else "; ".join(why))


def _same_part(first: Run, second: Run) -> tuple[float, float] | None:
    """Seconds of training a sample of both, up to the last sample count at which both were evaluated."""
    times = [{row["samples"]: row["train_s"] for row in run.evaluations} for run in (first, second)]
    common = [samples for samples in times[0].keys() & times[1].keys() if min(t[samples] for t in times) > 0]
    if common:
        return times[0][max(common)], times[1][max(common)]
    rates = [run.samples_per_s for run in (first, second)]
    return (1 / rates[0], 1 / rates[1]) if rates[0] and rates[1] else None


_HEADLINES: tuple[tuple[str, Callable[[ArmSpeedup], Ratio | None]], ...] = (
    ("time of all work", lambda line: line.fixed_work),
    ("time to target", lambda line: line.to_target),
)


def _better(lines: Sequence[ArmSpeedup], fixed: NoiseFloor, target: NoiseFloor) -> list[tuple[Arm, str]]:
    """The other arms of ddp that beat the baseline, and in what."""
    return [
        (line.arm, words)
        for (words, ratio_in), noise in zip(_HEADLINES, (fixed, target), strict=True)
        for line in lines
        if line.arm.runs[0].strategy == "ddp" and (times := ratio_in(line)) and noise.floor is not None
        if noise_floor.wrong_baseline(times.interval, noise.floor)
    ]


def _forbidden(
    comparison: Comparison, placebo: ArmSpeedup | None, fixed: NoiseFloor, target: NoiseFloor
) -> list[str]:
    """Why no arm gets a verdict: failed checks of the study."""
    reasons: list[str] = []
    for (words, ratio_in), noise in zip(_HEADLINES, (fixed, target), strict=True):
        times = placebo and ratio_in(placebo)
        if noise.floor is None or times is None:
            continue
        if noise_floor.placebo_differs(times.low, times.high, noise.floor):
            reasons.append(
                f"the placebo differs from the baseline in {words}: {times.low:.3f} to {times.high:.3f}"
            )
    invalid = {reason for run in comparison.runs if run.counted for reason in run.timing_reasons}
    return reasons + [f"times of some runs are not valid: {reason}" for reason in sorted(invalid)]
