"""One arm against the baseline: ratios of times, their factors, and the difference of the final metric.

Source: docs/method.md, "Statistics of ratios", "Slow runs" and "Model error of virtual time".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

WORK = ("time of all work", "time to target")  # what `ratios` and the noise floors are of
EQUAL = 1e-4  # relative: metrics of one trajectory differ by the rounding of sums in another order


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
    holm: tuple[float | None, float | None]
    holm_loss: tuple[float | None, float | None]
    holm_points_lost: float | None
    notes: tuple[str, ...]


def arm_speedups(base: Arm, arms: Sequence[Arm], budget: float | None) -> list[ArmSpeedup]:
    """All `arms` against `base`, p adjusted for all of them. `budget`: see `target.budget_s`."""
    fixed = [fixed_work(base, arm) for arm in arms]
    target = [to_target(base, arm, budget) for arm in arms]
    points = [final_quality(base, arm) for arm in arms]
    gains = [_holm([ratio and ratio.p_no_gain for ratio in column]) for column in (fixed, target)]
    losses = [_holm([ratio and ratio.p_not_below(1.0) for ratio in column]) for column in (fixed, target)]
    points_lost = _holm([found and found.p_not_below(0.0) for found in points])
    lines: list[ArmSpeedup] = []
    for place, arm in enumerate(arms):
        throughput, statistical = _parts(base, arm)
        notes = not_whole(base, arm)
        if budget is not None and target[place] is None:
            notes += missed(base, arm)
        lines.append(
            ArmSpeedup(
                arm=arm,
                fixed_work=fixed[place],
                to_target=target[place],
                throughput=throughput,
                statistical=statistical,
                quality=points[place],
                diverged=any(diverged(run) for run in arm.counted),
                holm=(gains[0][place], gains[1][place]),
                holm_loss=(losses[0][place], losses[1][place]),
                holm_points_lost=points_lost[place],
                notes=(*notes, *_slow(base, arm, fixed[place], target[place])),
            )
        )
    return lines


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
    if any(len(whole(side)) < len(side.counted) for side in (base, arm)):
        return None
    return _of_times(base, arm, [typical(_work(side))[0] for side in (base, arm)])


def rates(base: Arm, arm: Arm) -> Ratio | None:
    """Of seconds a sample, over the runs of both that did all their work."""
    return _of_times(base, arm, [typical(per_sample(rated(side)))[0] for side in (base, arm)])


def to_target(base: Arm, arm: Arm, budget: float | None) -> Ratio | None:
    """Of the scored crossing times, runs that missed the target at the budget; None without one."""
    if budget is None or any(len(side.counted) < FEWEST_RUNS for side in (base, arm)):
        return None
    return _of_times(base, arm, [typical(way(side.counted, budget))[0] for side in (base, arm)])


def _of_times(base: Arm, arm: Arm, times: Sequence[Times]) -> Ratio | None:
    ratio = welch(*times, level=level_of(base))
    return ratio and _of_model(ratio, base, arm, times)


def _of_model(ratio: Ratio, base: Arm, arm: Arm, times: Sequence[Times]) -> Ratio:
    """`ratio` of `times` with pairs, and in virtual time with its model error."""
    error = error_of_model(base, arm)
    ratio = _paired(ratio, base, arm, times)
    return with_model_error(ratio, error) if error else ratio


def _paired(ratio: Ratio, base: Arm, arm: Arm, times: Sequence[Times]) -> Ratio:
    """`ratio` of `times` with pairs, if both sides have the same seeds and all of them have a time."""
    sides = base.counted, arm.counted
    if ratio.side or not _same_seeds(*sides) or {len(side.seconds) for side in times} != {len(sides[0])}:
        return ratio
    return with_pairs(ratio, *times, same_trajectory=_same_trajectory(*sides))


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


def _same_trajectory(base: Sequence[Run], arm: Sequence[Run]) -> bool:
    """Whether runs of one seed are one computation in other times: the same samples, evaluated alike.

    Evaluations that are the same for all seeds show nothing of that. Where only clocks run (`timing_only`)
    the samples decide. `base`, `arm`: of the same seeds, in their order.
    """
    if any(b.samples != a.samples for b, a in zip(base, arm, strict=True)):
        return False
    if all(timing_only(run) for run in (*base, *arm)):
        return True
    told_apart = not any(_alike(base[0], other) for other in base[1:])
    return told_apart and all(_alike(b, a) for b, a in zip(base, arm, strict=True))


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
    """(X_arm / X_base, S_base / S_arm) to the target, of the runs behind the ratio of times.

    The points are ratios of geometric means, so that their product is exactly the ratio of times. The
    interval of that is not theirs: it is `welch` on crossing times, with the grid variance.
    """
    if any(len(side.reached) < len(side.counted) for side in (base, arm)):
        return None, None
    crossings = [_typical_crossings(side) for side in (base, arm)]
    samples = [Times(tuple(float(met.scored_samples) for met in side)) for side in crossings]
    seconds = [Times(tuple(met.scored_s / met.scored_samples for met in side)) for side in crossings]
    statistical = welch(*samples, level=level_of(base))
    return _of_times(base, arm, seconds), statistical and _paired(statistical, base, arm, samples)


def _typical_crossings(arm: Arm) -> list[Crossing]:
    _, slow = typical(_way_times(arm))
    met = [run.crossing for run in arm.reached if run.crossing]
    return [crossing for place, crossing in enumerate(met) if place not in slow]


def _slow(base: Arm, arm: Arm, of_work: Ratio | None, of_target: Ratio | None) -> list[str]:
    """A sentence on each ratio that leaves out slow runs."""
    kinds = [(WORK[0], whole, _work)] if of_work else []
    if of_target and not of_target.side:
        kinds.append((WORK[1], lambda arm: arm.reached, _way_times))
    sentences: list[str] = []
    for work, runs_of, times_of in kinds:
        times = [times_of(side) for side in (base, arm)]
        slow = [
            f"seed {runs_of(side)[place].seed} of {side.label} "
            f"({each.seconds[place] / median(each.seconds):.2f} times the median of its arm)"
            for side, each in zip((base, arm), times, strict=True)
            for place in typical(each)[1]
        ]
        if slow:
            every = words.interval(welch(*times, level=level_of(base)))
            sentences.append(f"{work} without slow runs: {words.listed(slow)}; with all runs: {every}")
    return sentences


def smallest_gain(ratio: Ratio, floor: float) -> float:
    """The true ratio that this study calls a gain with 80 % power: its interval lies above 1 + `floor`."""
    return (1 + floor) * exponential(ratio.estimate.detectable)


def final_quality(base: Arm, arm: Arm) -> Estimate | None:
    """Of the final accuracies, arm minus baseline, in points; without runs that diverged."""
    return quality.difference(_points(base), _points(arm), level=level_of(base))


def _points(arm: Arm) -> list[float]:
    finals = (run.final for run in arm.counted if not diverged(run))
    return [100 * value for value in finals if value is not None and math.isfinite(value)]


def diverged(run: Run) -> bool:
    """Whether the run diverged: its state says so, or its last metric is no number."""
    last = None if timing_only(run) else run.final  # None: nothing was evaluated, or nothing is learnt
    return run.state == "diverged" or (last is not None and not math.isfinite(last))


def timing_only(run: Run) -> bool:
    """Whether only the clocks ran: nothing is learnt."""
    return bool((run.config.get("launcher") or {}).get("timing_only"))


def evaluations(arm: Arm) -> float | None:
    """Evaluations up to and with the crossing, of the median run that reached the target."""
    counts = [run.crossing.index + 1 for run in arm.reached if run.crossing]
    return median(counts) if counts else None


def rated(arm: Arm) -> list[Run]:
    """The runs that did all their work, count, and recorded how fast."""
    return [run for run in arm.complete if run.counted and (run.samples_per_s or 0) > 0]


def whole(arm: Arm) -> list[Run]:
    """Runs that did the whole schedule: neither stopped at the target nor by a limit on their time."""
    return [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]


def _work(arm: Arm) -> Times:
    """T_train of the runs that did the whole schedule."""
    return Times(tuple(run.train_s for run in whole(arm) if run.train_s))


def _way_times(arm: Arm) -> Times:
    """Scored crossing times of the runs that reached the target."""
    return way(arm.reached, math.inf)


def not_whole(*arms: Arm) -> list[str]:
    """How many counted runs of each arm did not do all their work, where some did not."""
    return _fewer(arms, whole, "did not do all their work")


def missed(*arms: Arm) -> list[str]:
    """How many counted runs of each arm missed the target, where some did."""
    return _fewer(arms, lambda arm: arm.reached, "missed the target")


def _fewer(arms: Sequence[Arm], runs_of: Callable[[Arm], list[Run]], what: str) -> list[str]:
    return [
        f"{short} of {len(arm.counted)} runs of {arm.label} {what}"
        for arm in arms
        if (short := len(arm.counted) - len(runs_of(arm)))
    ]
