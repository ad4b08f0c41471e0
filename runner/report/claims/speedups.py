"""Speed-ups of a comparison: times as fast as the baseline, with intervals, noise floors and checks.

Computed from run directories alone. The baseline is `study.baseline` or the first arm with `ddp`; second
baselines (`study.role`) give the noise floors, the placebo shows whether the whole study can be trusted.
Source: docs/method.md, "Statistics of ratios" and "Noise floor".
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...records.target_crossing import Crossing
from .. import words
from ..checks.check import Check
from ..data.arms import Arm, Comparison, per_sample
from ..data.load import Run
from ..statistics import quality, reached
from ..statistics.model_error import ModelError, model_error
from ..statistics.noise_floor import Floor, NoiseFloor, clock_floor, fresh_floor, model_floor, placebo_differs
from ..statistics.slow_runs import typical
from ..statistics.verdict import Bound
from ..statistics.welch import (
    FEWEST_RUNS,
    Estimate,
    Ratio,
    Times,
    exponential,
    holm,
    welch,
    with_model_error,
    with_pairs,
)
from ..target import baseline_of, budget_s, study_of, way
from .bounds import bound_of, ceiling_of
from .convergence_points import ConvergenceCheck, Reference, check_convergence
from .fairness import FairnessRow, fairness

NOISE_ROLES = ("same_seeds", "fresh_seeds", "placebo")  # `study.role` of arms that show the noise
WORK = ("time of all work", "time to target")  # what `ratios` and `floors` are of
EQUAL = 1e-4  # relative: metrics of one trajectory differ by the rounding of sums in another order


@dataclass(frozen=True, kw_only=True)
class ArmSpeedup:
    """One arm against the baseline. A ratio is the baseline's time over the arm's; None where there is none.

    `throughput`, `statistical`: the factors of `to_target`, None unless all runs of both reached the target.
    `quality`: final accuracy, arm minus baseline, in points. `holm`, `holm_loss`: one-sided p of "no gain"
    and of "no loss" in fixed work and in time to target, adjusted for all arms of the comparison;
    `holm_points_lost`: of "no loss" of the final metric. `slow`: which slow runs of both arms the ratios
    leave out, and what the ratio of all runs is, in sentences. `notes`: why something is missing.
    """

    arm: Arm
    fixed_work: Ratio | None
    to_target: Ratio | None
    throughput: Ratio | None
    statistical: Ratio | None
    quality: Estimate | None
    diverged: bool
    holm: tuple[float | None, float | None]
    holm_loss: tuple[float | None, float | None]
    holm_points_lost: float | None
    slow: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Speedups:
    """All arms of a comparison against the baseline. `against`: the arm that ratios are over.

    `against` is the baseline unless a claim names another arm; floors and bound are the baseline's. `bound`:
    what no arm can exceed. `fixed_floor`, `target_floor`: noise floors of the two headlines. `fresh_points`:
    of the final accuracy. `budget_s`: see `target.budget_s`. `forbidden`: why no arm gets a verdict.
    `ledgers`: by label, the fairness table of each other arm with `against`, second baselines included.
    `faster`: other arms of ddp that beat the baseline, `wrong`: that it is not the better of them. `guard`:
    the check against stored samples to target; None without a target. `checks`: the strip of page one, see
    `checks/all_checks.py`.
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
    ledgers: Mapping[str, list[FairnessRow]]
    checks: tuple[Check, ...] = ()

    def not_comparable(self, arm: Arm) -> str:
        """Why no ratio of `arm` may be read, in at most four words; "" if it may."""
        labels = (arm.label, self.baseline.label)
        return next((c.forbids[name] for c in self.checks for name in labels if name in c.forbids), "")

    @property
    def baselines(self) -> list[str]:
        """Labels of the baseline and of the second ones, which give the noise that every verdict rests on."""
        roles = [arm.label for arm in self.comparison.arms if arm.runs[0].role in NOISE_ROLES]
        return [self.baseline.label, *roles]

    @property
    def exploratory(self) -> str:
        """Why the verdicts are exploratory, in one sentence; "" if they are not."""
        return next((check.exploratory for check in self.checks if check.exploratory), "")

    def reasons(self, *arms: Arm) -> tuple[str, ...]:
        """Why the guard allows no verdict between these arms, independent of their numbers."""
        return self.guard.reasons(*arms) if self.guard else ()

    def ceiling(self, arm: Arm, *, to_target: bool = False) -> Bound:
        """What `arm` cannot exceed by its own schedule, in all work or up to the target."""
        return ceiling_of(self.bound, arm, to_target=to_target)

    @property
    def shown(self) -> list[ArmSpeedup]:
        """The lines of tables and figures: arms, and last the placebo."""
        return [*self.lines, *([self.placebo] if self.placebo else [])]

    @property
    def level(self) -> float:
        return level_of(self.baseline)

    def over(self, comparator: Arm) -> "Speedups | None":
        """The same with ratios over another arm; None where `speedups_of` would give None."""
        if comparator is self.baseline:
            return self
        others = _others(self.comparison, comparator)
        if not _enough([comparator]) or not _enough(others):
            return None
        lines = _lines(comparator, others, self.budget_s)
        return replace(self, against=comparator, lines=lines, ledgers=_ledgers(comparator, others))


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
    others, budget = _others(comparison, baseline), budget_s(comparison)
    same_seeds, fresh_seeds, placebos = (
        next((arm for arm in comparison.arms if arm.runs[0].role == role), None) for role in NOISE_ROLES
    )
    if not _enough([baseline]) or not _enough([*others, *([placebos] if placebos else [])]):
        return None
    lines = _lines(baseline, others, budget)
    placebo = _lines(baseline, [placebos], budget)[0] if placebos else None
    clock = _clock_floor(baseline, same_seeds) if same_seeds else None
    if comparison.world == "simulated":
        errors = [error for line in lines if (error := error_of_model(baseline, line.arm))]
        clock = model_floor(errors, clock, baseline.jitters)
    fixed_floor = target_floor = NoiseFloor(clock=clock, fresh=None)
    fresh_quality = None
    if fresh_seeds:
        fixed_floor = _floor(clock, fixed_work(baseline, fresh_seeds), _not_whole(baseline, fresh_seeds))
        reached = [(arm, arm.reached) for arm in (baseline, fresh_seeds)]
        missed = ["the study has no target"] if budget is None else _fewer(reached, "missed the target")
        target_floor = _floor(clock, to_target(baseline, fresh_seeds, budget), missed)
        fresh_quality = final_quality(baseline, fresh_seeds)
    floors = (fixed_floor.floor, target_floor.floor)
    faster = [
        (line.arm, words)
        for place, words in enumerate(WORK)
        for line in lines
        if line.arm.runs[0].strategy == "ddp" and (ratio := ratios(line)[place])
        if (floor := floors[place]) is not None and ratio.low > 1 + floor
    ]
    guard = check_convergence(comparison, baseline, references)
    weak = [guard.weak] if guard and guard.weak else []
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
        forbidden=(*weak, *_different(placebo, floors), *_untimed(comparison)),
        faster=tuple(arm for arm in others if any(arm is other for other, _ in faster)),
        wrong=tuple(f"wrong baseline: {arm.label} is faster in {words}" for arm, words in faster),
        guard=guard,
        ledgers=_ledgers(baseline, comparison.arms),
    )


def _ledgers(comparator: Arm, arms: Iterable[Arm]) -> dict[str, list[FairnessRow]]:
    return {arm.label: fairness(comparator.runs, arm.runs) for arm in arms if arm is not comparator}


def ratios(line: ArmSpeedup) -> tuple[Ratio | None, Ratio | None]:
    """Both headlines of an arm."""
    return line.fixed_work, line.to_target


def level_of(arm: Arm) -> float:
    """`study.level` of the intervals."""
    return float(study_of(arm.runs[0], "level", 0.95))


def fixed_work(base: Arm, arm: Arm) -> Ratio | None:
    """Of T_train of the whole schedule; None unless all runs of both did it, three or more."""
    if any(len(_whole(side)) < len(side.counted) for side in (base, arm)):
        return None
    times = [typical(_work(side))[0] for side in (base, arm)]
    return _of_times(welch(*times, level=level_of(base)), base, arm, times)


def rates(base: Arm, arm: Arm) -> Ratio | None:
    """Of seconds a sample, over the runs of both that did all their work."""
    times = [typical(per_sample(rated(side)))[0] for side in (base, arm)]
    return _of_times(welch(*times, level=level_of(base)), base, arm, times)


def to_target(base: Arm, arm: Arm, budget: float | None) -> Ratio | None:
    """Of the scored crossing times, runs that missed the target at the budget; None without one."""
    if budget is None or not _enough([base]) or not _enough([arm]):
        return None
    ways = [way(side.counted, budget) for side in (base, arm)]
    made = reached.compare(*ways, level=level_of(base))
    return _of_times(made, base, arm, [reached.to_judge(side) for side in ways])


def error_of_model(base: Arm, arm: Arm) -> ModelError | None:
    """The model error of the arm's ratios of times; None in real time and of the baseline with fresh seeds.

    One for all its ratios of times: samples to the target come from real gradients, only the time of a sample
    is modelled.
    """
    if arm.runs[0].world != "simulated" or arm.runs[0].role == "fresh_seeds":
        return None
    plain = welch(per_sample(base.counted), per_sample(arm.counted))
    return model_error(
        arm.runs[0].strategy,
        base.runs[0].strategy,
        plain.estimate.difference if plain else None,
        level=level_of(base),
    )


def same_trajectory(base: Sequence[Run], arm: Sequence[Run]) -> bool:
    """Whether runs of one seed are one computation in other times: the same samples, evaluated alike.

    Evaluations that are the same for all seeds show nothing of that. Where only clocks run (`timing_only`)
    the samples decide. `base`, `arm`: in the order of seeds.
    """
    if not _same_seeds(base, arm) or any(b.samples != a.samples for b, a in zip(base, arm, strict=True)):
        return False
    if all((run.config.get("launcher") or {}).get("timing_only") for run in (*base, *arm)):
        return True
    told_apart = not any(_alike(base[0], other) for other in base[1:])
    return told_apart and all(_alike(b, a) for b, a in zip(base, arm, strict=True))


def smallest_gain(ratio: Ratio, floor: float) -> float:
    """The true ratio that this study calls a gain with 80 % power: its interval lies above 1 + `floor`."""
    return (1 + floor) * exponential(ratio.estimate.detectable)


def final_quality(base: Arm, arm: Arm) -> Estimate | None:
    """Of the final accuracies, arm minus baseline, in points; without runs that diverged."""
    return quality.difference(_points(base), _points(arm), level=level_of(base))


def rated(arm: Arm) -> list[Run]:
    """The runs that did all their work, count, and recorded how fast."""
    return [run for run in arm.complete if run.counted and (run.samples_per_s or 0) > 0]


def diverged(run: Run) -> bool:
    """Whether the run diverged: its state says so, or its last metric is no number."""
    if (run.config.get("launcher") or {}).get("timing_only"):  # nothing is learnt, so nothing can be lost
        return run.state == "diverged"
    last = run.final  # None: nothing was evaluated
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None


def _lines(base: Arm, arms: Sequence[Arm], budget: float | None) -> list[ArmSpeedup]:
    times = [(arm, fixed_work(base, arm), to_target(base, arm, budget)) for arm in arms]
    columns = [[fixed for _, fixed, _ in times], [target for _, _, target in times]]
    gains = [_holm([ratio.p_no_gain if ratio else None for ratio in column]) for column in columns]
    losses = [_holm([ratio.p_not_below(1.0) if ratio else None for ratio in column]) for column in columns]
    points = [final_quality(base, arm) for arm in arms]
    points_lost = _holm([found.p_not_below(0.0) if found else None for found in points])
    lines = []
    for place, (arm, of_work, of_target) in enumerate(times):
        throughput, statistical = _parts(base, arm)
        notes = _not_whole(base, arm)
        if budget is not None and of_target is None:
            notes.append(
                f"reached the target: {len(base.reached)} of {len(base.counted)} runs of {base.label}, "
                f"{len(arm.reached)} of {len(arm.counted)} of {arm.label}: no ratio of times"
            )
        lines.append(
            ArmSpeedup(
                arm=arm,
                fixed_work=of_work,
                to_target=of_target,
                throughput=throughput,
                statistical=statistical,
                quality=points[place],
                holm_points_lost=points_lost[place],
                diverged=any(diverged(run) for run in arm.counted),
                holm=(gains[0][place], gains[1][place]),
                holm_loss=(losses[0][place], losses[1][place]),
                slow=_slow(base, arm, of_work, of_target),
                notes=tuple(notes),
            )
        )
    return lines


def _of_times(ratio: Ratio | None, base: Arm, arm: Arm, times: Sequence[Times]) -> Ratio | None:
    """`ratio` of `times` with pairs where the seeds are the same, in virtual time with its model error."""
    if ratio is None:
        return None
    sides = base.counted, arm.counted
    if not ratio.side and _same_seeds(*sides) and {len(side.seconds) for side in times} == {len(sides[0])}:
        ratio = with_pairs(ratio, *times, same_trajectory=same_trajectory(*sides))
    error = error_of_model(base, arm)
    return with_model_error(ratio, error) if error else ratio


def _same_seeds(base: Sequence[Run], arm: Sequence[Run]) -> bool:
    seeds = [[run.seed for run in side] for side in (base, arm)]
    return seeds[0] == seeds[1] and len(set(map(str, seeds[0]))) == len(seeds[0])


def _alike(first: Run, second: Run) -> bool:
    """Whether both were evaluated at the same samples, once or more, with the same results up to rounding."""
    points = [run.points("samples") for run in (first, second)]
    return 0 < len(points[0]) == len(points[1]) and all(
        a == b and math.isclose(x, y, rel_tol=EQUAL) for (a, x), (b, y) in zip(*points, strict=True)
    )


def _parts(base: Arm, arm: Arm) -> tuple[Ratio | None, Ratio | None]:
    """(X_arm / X_base, S_base / S_arm) to the target.

    The points are ratios of geometric means, so that their product is exactly the ratio of times. The
    interval of that is not theirs: it is `welch` on crossing times, with the grid variance.
    """
    if any(len(side.reached) < len(side.counted) for side in (base, arm)):
        return None, None
    crossings = [_typical_crossings(side) for side in (base, arm)]
    samples = [Times(tuple(float(met.scored_samples) for met in side)) for side in crossings]
    seconds = [Times(tuple(met.scored_s / met.scored_samples for met in side)) for side in crossings]
    level = level_of(base)
    throughput = _of_times(welch(*seconds, level=level), base, arm, seconds)
    statistical = welch(*samples, level=level)
    if statistical and same_trajectory(base.counted, arm.counted):
        statistical = with_pairs(statistical, *samples, same_trajectory=True)
    return throughput, statistical


def _typical_crossings(arm: Arm) -> list[Crossing]:
    """The crossings behind the ratio of times, so that its factors are of the same runs."""
    _, slow = typical(_way_times(arm))
    met = [run.crossing for run in arm.reached if run.crossing]
    return [crossing for place, crossing in enumerate(met) if place not in slow]


def _holm(known: Sequence[float | None]) -> list[float | None]:
    adjusted = iter(holm([p for p in known if p is not None]))
    return [None if p is None else next(adjusted) for p in known]


def _slow(base: Arm, arm: Arm, of_work: Ratio | None, of_target: Ratio | None) -> tuple[str, ...]:
    """A sentence on each ratio that leaves out slow runs."""
    sentences = []
    if of_work is not None:
        sides = [(side, _work(side), _whole(side)) for side in (base, arm)]
        sentences += _left_out(WORK[0], sides)
    if of_target is not None and not of_target.side:
        sides = [(side, _way_times(side), side.reached) for side in (base, arm)]
        sentences += _left_out(WORK[1], sides)
    return tuple(sentences)


def _left_out(work: str, sides: Sequence[tuple[Arm, Times, list[Run]]]) -> list[str]:
    """`sides`: arm, times of all runs, and the runs in the same order."""
    slow = [
        f"seed {runs[place].seed} of {arm.label} "
        f"({times.seconds[place] / median(times.seconds):.2f} times the median of its arm)"
        for arm, times, runs in sides
        for place in typical(times)[1]
    ]
    if not slow:
        return []
    every = welch(*(times for _, times, _ in sides), level=level_of(sides[0][0]))
    runs = "a slow run" if len(slow) == 1 else "slow runs"
    return [f"{work} without {runs}, {words.listed(slow)}; with all runs: {words.interval(every)}"]


def _work(arm: Arm) -> Times:
    """T_train of the runs that did the whole schedule."""
    return Times(tuple(run.train_s for run in _whole(arm) if run.train_s))


def _way_times(arm: Arm) -> Times:
    """Scored crossing times of the runs that reached the target."""
    return reached.at_budget(way(arm.reached, math.inf))


def _whole(arm: Arm) -> list[Run]:
    """Runs that did the whole schedule: neither stopped at the target nor by a limit on their time."""
    return [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]


def _points(arm: Arm) -> list[float]:
    finals = (run.final for run in arm.counted if not diverged(run))
    return [100 * value for value in finals if value is not None and math.isfinite(value)]


def _not_whole(*arms: Arm) -> list[str]:
    return _fewer([(arm, _whole(arm)) for arm in arms], "did not do all their work")


def _fewer(arms: Iterable[tuple[Arm, list[Run]]], what: str) -> list[str]:
    """How many of the runs of each arm are not among those beside it, where some are not; `what` they did."""
    return [
        f"{short} of {len(arm.counted)} runs of {arm.label} {what}"
        for arm, runs in arms
        if (short := len(arm.counted) - len(runs))
    ]


def _others(comparison: Comparison, comparator: Arm) -> list[Arm]:
    return [arm for arm in comparison.arms if arm is not comparator and not arm.runs[0].role]


def _enough(arms: Sequence[Arm]) -> bool:
    """Whether one of `arms` has runs enough for a ratio."""
    return any(len(arm.counted) >= FEWEST_RUNS for arm in arms)


def _clock_floor(baseline: Arm, again: Arm) -> Floor | None:
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


def _floor(clock: Floor | None, again: Ratio | None, why: Sequence[str]) -> NoiseFloor:
    """`again`: the baseline over the one with fresh seeds. `why`: what may forbid a ratio of them."""
    fresh = fresh_floor(again)
    return NoiseFloor(clock=clock, fresh=fresh, unknown="" if fresh else "; ".join(why))


def _different(placebo: ArmSpeedup | None, floors: Sequence[float | None]) -> list[str]:
    """In what the placebo differs from the baseline by more than the noise floor."""
    pairs = zip(WORK, ratios(placebo) if placebo else (None, None), floors, strict=True)
    return [
        f"the placebo differs from the baseline in {words}: {ratio.low:.3f} to {ratio.high:.3f}"
        for words, ratio, floor in pairs
        if ratio is not None and floor is not None and placebo_differs(ratio.low, ratio.high, floor)
    ]


def _untimed(comparison: Comparison) -> list[str]:
    invalid = {reason for run in comparison.runs if run.counted for reason in run.timing_reasons}
    return [f"times of some runs are not valid: {reason}" for reason in sorted(invalid)]
