"""One arm against the baseline: ratios of times, their factors, and the difference of the final metric.

Source: docs/method.md, "Statistics of ratios", "Slow runs" and "Model error of virtual time".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...records.target_crossing import Crossing
from .. import words
from ..data.arms import Arm, per_sample
from ..data.load import Run
from ..statistics import quality
from ..statistics.model_error import ModelError, model_error
from ..statistics.run_times import typical
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
from ..target import study_of, way

EQUAL = 1e-4  # relative: metrics of one trajectory differ by the rounding of sums in another order


@dataclass(frozen=True)
class ArmTime:
    """A time that runs of an arm have. `runs`: those of an arm that have it; `times`: theirs.

    `without`: what the other runs did.
    """

    name: str
    runs: Callable[[Arm], list[Run]]
    times: Callable[[list[Run]], Times]
    without: str

    def of(self, arm: Arm) -> Times:
        return self.times(self.runs(arm))

    def missing(self, *arms: Arm) -> list[str]:
        """How many counted runs of each arm have no such time, where some have none."""
        return [
            f"{short} of {len(arm.counted)} runs of {arm.label} {self.without}"
            for arm in arms
            if (short := len(arm.counted) - len(self.runs(arm)))
        ]

    def slow(self, base: Arm, arm: Arm) -> list[str]:
        """A sentence on the slow runs that the ratio leaves out, if there are any."""
        slow: list[str] = []
        for side in (base, arm):
            seconds = self.of(side).seconds
            slow += [
                f"seed {self.runs(side)[place].seed} of {side.label} "
                f"({seconds[place] / median(seconds):.2f} times the median of its arm)"
                for place in typical(self.of(side))[1]
            ]
        every = words.interval(welch(self.of(base), self.of(arm), level=level_of(base)))
        return (
            [f"{self.name} without slow runs: {words.listed(slow)}; with all runs: {every}"] if slow else []
        )


def rated(arm: Arm) -> list[Run]:
    """The runs that did all their work, count, and recorded how fast."""
    return [run for run in arm.complete if (run.samples_per_s or 0) > 0]


ALL_WORK = ArmTime(
    "time of all work",
    # Neither stopped at the target nor by a limit on their time.
    lambda arm: [run for run in arm.complete if run.stop == "budget" and run.train_s],
    lambda runs: Times(tuple(run.train_s for run in runs if run.train_s)),
    "did not do all their work",
)
TO_TARGET = ArmTime(
    "time to target",
    lambda arm: arm.reached,
    lambda runs: way(runs, math.inf),
    "missed the target",
)
WORK = (ALL_WORK.name, TO_TARGET.name)  # what `ratios` and the noise floors are of


@dataclass(frozen=True, kw_only=True)
class ArmSpeedup:
    """One arm against the baseline. A ratio is the baseline's time over the arm's; None where there is none.

    `throughput`, `statistical`: the factors of `to_target`, None unless all runs of both reached the target.
    `quality`: final accuracy, arm minus baseline, in points. `holm`, `holm_loss`: one-sided p of "no gain"
    and of "no loss" in fixed work and in time to target, adjusted for all arms of the comparison;
    `holm_points_lost`: of "no loss" of the final metric. `notes`: why a ratio is missing, which slow runs of
    both arms the ratios leave out, and what the ratio of all runs is.
    """

    arm: Arm
    fixed_work: Ratio | None
    to_target: Ratio | None
    throughput: Ratio | None
    statistical: Ratio | None
    quality: Estimate | None
    diverged: bool
    notes: tuple[str, ...]
    holm: tuple[float | None, ...] = (None, None)
    holm_loss: tuple[float | None, ...] = (None, None)
    holm_points_lost: float | None = None


def arm_speedups(base: Arm, arms: Sequence[Arm], budget: float | None) -> list[ArmSpeedup]:
    """All `arms` against `base`, p adjusted for all of them. `budget`: see `target.budget_s`."""
    lines = [_line(base, arm, budget) for arm in arms]
    columns = list(zip(*map(ratios, lines), strict=True))
    gains = [_holm([ratio and ratio.p_no_gain for ratio in column]) for column in columns]
    losses = [_holm([ratio and ratio.p_not_below(1.0) for ratio in column]) for column in columns]
    points_lost = _holm([line.quality and line.quality.p_not_below(0.0) for line in lines])
    adjusted = zip(lines, zip(*gains, strict=True), zip(*losses, strict=True), points_lost, strict=True)
    return [replace(line, holm=p, holm_loss=q, holm_points_lost=lost) for line, p, q, lost in adjusted]


def _line(base: Arm, arm: Arm, budget: float | None) -> ArmSpeedup:
    fixed, target = fixed_work(base, arm), to_target(base, arm, budget)
    throughput, statistical = _parts(base, arm)
    notes = ALL_WORK.missing(base, arm)
    if budget is not None and target is None:
        notes += TO_TARGET.missing(base, arm)
    if fixed:
        notes += ALL_WORK.slow(base, arm)
    if target and not target.side:
        notes += TO_TARGET.slow(base, arm)
    return ArmSpeedup(
        arm=arm,
        fixed_work=fixed,
        to_target=target,
        throughput=throughput,
        statistical=statistical,
        quality=final_quality(base, arm),
        diverged=any(map(diverged, arm.counted)),
        notes=tuple(notes),
    )


def _holm(known: Sequence[float | None]) -> list[float | None]:
    adjusted = iter(holm([p for p in known if p is not None]))
    return [None if p is None else next(adjusted) for p in known]


def ratios(line: ArmSpeedup) -> tuple[Ratio | None, Ratio | None]:
    """Both headlines of an arm."""
    return line.fixed_work, line.to_target


def level_of(arm: Arm) -> float:
    """`study.level` of the intervals."""
    return float(study_of(arm.runs[0], "level", 0.95))


def fixed_work(base: Arm, arm: Arm) -> Ratio | None:
    """Of T_train of the whole schedule; None unless all runs of both did it, three or more."""
    if ALL_WORK.missing(base, arm):
        return None
    return _ratio(base, arm, [typical(ALL_WORK.of(side))[0] for side in (base, arm)])


def rates(base: Arm, arm: Arm) -> Ratio | None:
    """Of seconds a sample, over the runs of both that did all their work."""
    return _ratio(base, arm, [typical(per_sample(rated(side)))[0] for side in (base, arm)])


def to_target(base: Arm, arm: Arm, budget: float | None) -> Ratio | None:
    """Of the scored crossing times, runs that missed the target at the budget; None without one."""
    if budget is None or any(len(side.counted) < FEWEST_RUNS for side in (base, arm)):
        return None
    return _ratio(base, arm, [typical(way(side.counted, budget))[0] for side in (base, arm)])


def _ratio(base: Arm, arm: Arm, times: Sequence[Times], *, modelled: bool = True) -> Ratio | None:
    """Of `times`, with pairs where both arms have the same seeds and all of them a time.

    In virtual time it has its model error, unless `times` are samples, which nothing models.
    """
    ratio = welch(*times, level=level_of(base))
    if ratio is None:
        return None
    pairs = list(zip(base.counted, arm.counted, strict=False))
    seeds = [[run.seed for run in each.counted] for each in (base, arm)]
    same_seeds = seeds[0] == seeds[1] and len(set(map(str, seeds[0]))) == len(pairs)
    if same_seeds and not ratio.side and {len(each.seconds) for each in times} == {len(pairs)}:
        ratio = with_pairs(ratio, *times, same_trajectory=_same_trajectory(pairs))
    error = error_of_model(base, arm) if modelled else None
    return with_model_error(ratio, error) if error else ratio


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


def _same_trajectory(pairs: Sequence[tuple[Run, Run]]) -> bool:
    """Whether runs of one seed are one computation in other times: the same samples, evaluated alike.

    Evaluations that are the same for all seeds show nothing of that. Where only clocks run (`timing_only`)
    the samples decide. `pairs`: baseline and arm of each seed.
    """
    if any(base.samples != arm.samples for base, arm in pairs):
        return False
    if all(run.timing_only for pair in pairs for run in pair):
        return True
    first, *others = (base for base, _ in pairs)
    return not any(_alike(first, other) for other in others) and all(_alike(*pair) for pair in pairs)


def _alike(first: Run, second: Run) -> bool:
    """Whether both were evaluated at the same samples, once or more, with the same results up to rounding."""
    points = [run.points("samples") for run in (first, second)]
    return 0 < len(points[0]) == len(points[1]) and all(
        a == b and math.isclose(x, y, rel_tol=EQUAL) for (a, x), (b, y) in zip(*points, strict=True)
    )


def _parts(base: Arm, arm: Arm) -> tuple[Ratio | None, Ratio | None]:
    """(X_arm / X_base, S_base / S_arm) to the target, of the runs behind the ratio of times.

    The points are ratios of geometric means, so that their product is exactly the ratio of times. The
    interval of that is not theirs: it is `welch` on crossing times, with the grid variance.
    """
    if TO_TARGET.missing(base, arm):
        return None, None
    crossings: list[list[Crossing]] = []
    for side in (base, arm):
        slow = typical(TO_TARGET.of(side))[1]
        met = [run.crossing for run in side.reached if run.crossing]
        crossings.append([crossing for place, crossing in enumerate(met) if place not in slow])
    samples = [Times(tuple(float(met.scored_samples) for met in side)) for side in crossings]
    seconds = [Times(tuple(met.scored_s / met.scored_samples for met in side)) for side in crossings]
    return _ratio(base, arm, seconds), _ratio(base, arm, samples, modelled=False)


def smallest_gain(ratio: Ratio, floor: float) -> float:
    """The true ratio that this study calls a gain with 80 % power: its interval lies above 1 + `floor`."""
    return (1 + floor) * exponential(ratio.estimate.detectable)


def final_quality(base: Arm, arm: Arm) -> Estimate | None:
    """Of the final accuracies, arm minus baseline, in points; without runs that diverged."""
    finals = [[run.final for run in side.counted if not diverged(run)] for side in (base, arm)]
    points = [
        [100 * value for value in side if value is not None and math.isfinite(value)] for side in finals
    ]
    return quality.difference(*points, level=level_of(base))


def diverged(run: Run) -> bool:
    """Whether the run diverged: its state says so, or its last metric is no number."""
    last = None if run.timing_only else run.final  # None: nothing was evaluated, or nothing is learnt
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None
