"""Speed-ups, verdicts and fairness as rows of the CSV tables."""

from collections.abc import Iterable
from typing import Any

from ..data.arms import EQUALLY
from ..statistics.welch import Ratio
from .arm_speedup import ArmSpeedup, evaluations
from .fairness import FairnessRow
from .judge import JudgedClaim
from .paper_claims import gain_words
from .speedups import Speedups


def speedup_rows(studied: Iterable[Speedups]) -> list[dict[str, Any]]:
    """One row per arm and comparison, all numbers of the table and their intervals."""
    return [_row(speedups, line) for speedups in studied for line in speedups.shown]


def _row(speedups: Speedups, line: ArmSpeedup) -> dict[str, Any]:
    stored, target, bound, points = speedups.convergence, line.to_target, speedups.bound, line.quality
    better, other = stored.shifts.get(line.arm.label), target.other if target else None
    return {
        **speedups.comparison.place,
        "baseline": speedups.baseline.label,
        "arm": line.arm.label,
        "placebo": line is speedups.placebo,
        "runs": len(line.arm.counted),
        "level": speedups.level,
        **ratio_columns("fixed_work", line.fixed_work),
        "fixed_work_bound": line.fixed_work and line.fixed_work.side,
        "fixed_work_holm_p": line.holm[0],
        **ratio_columns("to_target", target),
        "to_target_bound": target and target.side,
        "to_target_holm_p": line.holm[1],
        "interval_kind": target and ("paired" if target.same_trajectory else "Welch"),
        "to_target_other_low": other and other.low,
        "to_target_other_high": other and other.high,
        **ratio_columns("throughput", line.throughput),
        **ratio_columns("statistical_efficiency", line.statistical),
        "quality_points": points and points.difference,
        "quality_points_low": points and points.interval.low,
        "quality_points_high": points and points.interval.high,
        "evaluations_to_target": evaluations(line.arm),
        "fixed_work_noise_floor": speedups.fixed_floor.floor,
        "to_target_noise_floor": speedups.target_floor.floor,
        "reference": stored.reference and stored.reference.name,
        "fewer_samples_p": better and better.p,
        "fewer_samples_holm_p": better and better.adjusted,
        "bound": bound.value,
        "bound_of": bound.of if bound.value is not None else "unknown",
        "budget_s": speedups.budget_s,
        "remarks": "; ".join(line.notes),
    }


def ratio_columns(name: str, ratio: Ratio | None) -> dict[str, float | None]:
    """A ratio and the ends of its interval."""
    ends = (ratio.point, ratio.low, ratio.high) if ratio else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def workload(measured: JudgedClaim | Speedups) -> str:
    """Where it was measured: study, model, data, world and size; and whether with equally tuned arms."""
    comparison = measured.comparison
    if comparison is None:
        return ""
    data = f"{comparison.model} on {comparison.dataset}"
    tuned = EQUALLY if comparison.tuned else ""
    return ", ".join(filter(None, (comparison.study, data, comparison.world, comparison.size, tuned)))


def claim_rows(all_judged: Iterable[JudgedClaim]) -> list[dict[str, Any]]:
    """One row per claim, arm and configuration; `remarks`: with reasons, and how many runs would decide."""
    return [
        {
            "claim": judged.claim.id,
            "says": judged.claim.says,
            "claimed": gain_words(judged.claim),
            "headline": judged.claim.headline,
            "certainty": judged.claim.certainty,
            "where": workload(judged),
            "arm": judged.arm,
            "comparator": judged.comparator,
            "measured": judged.measured,
            "verdict": judged.verdict.word,
            "remarks": "; ".join((*judged.verdict.remarks, *judged.verdict.reasons, *_needed(judged))),
        }
        for judged in all_judged
    ]


def _needed(judged: JudgedClaim) -> list[str]:
    if judged.verdict.smallest_n is not None:
        return [f"{judged.verdict.smallest_n} runs an arm would decide in 4 of 5 studies"]
    if judged.verdict.word == "inconclusive":
        return ["no number of runs up to 100 would decide in 4 of 5 studies"]
    return []


def fairness_rows(
    studied: Iterable[Speedups], all_judged: Iterable[JudgedClaim] = ()
) -> list[dict[str, Any]]:
    """The fairness tables of every arm with its baseline, and of the pairs that claims are about."""
    tables: dict[tuple[str, str, str], Iterable[FairnessRow]] = {
        (workload(study), study.against.label, label): table
        for study in studied
        for label, table in study.ledgers.items()
    }
    for judged in all_judged:
        if judged.fairness is not None:
            tables[workload(judged), judged.comparator, judged.arm] = judged.fairness
    return [
        {
            "where": where,
            "baseline": baseline,
            "arm": arm,
            "quantity": row.quantity,
            "of_baseline": row.baseline,
            "of_arm": row.arm,
            "equal": "not recorded" if row.equal is None else row.equal,
            "own_of_the_strategy": row.own,
            "forbids_a_verdict": row.forbids,
            "why": row.sentence if row.forbids else "",
        }
        for (where, baseline, arm), table in tables.items()
        for row in table
    ]
