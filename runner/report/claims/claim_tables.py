"""Speed-ups, verdicts and fairness as text: `daso-bench claims DIR`, and rows of the CSV tables."""

from collections.abc import Iterable, Mapping
from typing import Any

from .. import words
from ..data.arms import EQUALLY
from ..statistics.several_arms import EACH_SIDE
from ..statistics.welch import Ratio
from . import bounds
from .fairness import FairnessRow, in_words
from .judge import JudgedClaim
from .paper_claims import gain_words
from .speedups import ArmSpeedup, Speedups, evaluations, smallest_gain


def sentences(speedups: Speedups) -> list[str]:
    """What a reader has to know before the numbers: floors, bound, budget, checks."""
    lines = [*_floors(speedups), *([bound] if (bound := bounds.in_words(speedups.bound)) else [])]
    if speedups.budget_s is not None:
        lines.append(
            "A run that has not reached the target counts as a failure after "
            f"{words.seconds(speedups.budget_s)} of training."
        )
    if speedups.guard is not None:
        lines.append(speedups.guard.sentence)
    better = "no verdict against it, but on claims that name it"
    lines += [f"{reason[0].upper()}{reason[1:]}: {better}." for reason in speedups.wrong]
    return lines + [f"{reason}." for reason in speedups.reasons(speedups.baseline)]


def speedup_rows(studied: Iterable[Speedups]) -> list[dict[str, Any]]:
    """One row per arm and comparison, all numbers of the table and their intervals."""
    return [_row(speedups, line) for speedups in studied for line in speedups.shown]


def speedup_remarks(speedups: Speedups, line: ArmSpeedup) -> list[str]:
    """What a reader of an arm's ratios has to know: why some are missing, and which of them say little."""
    remarks = list(line.notes)
    floors = (speedups.fixed_floor.floor, speedups.target_floor.floor)
    for place, (work, ratio) in enumerate((("all work", line.fixed_work), ("to target", line.to_target))):
        floor = floors[place]
        if ratio is None:
            continue
        if ratio.low <= 1 <= ratio.high:
            could = (
                f"; this plan could detect {smallest_gain(ratio, 0.0):.2f}" if ratio.estimate.error else ""
            )
            remarks.append(f"{work}: no detectable difference{could}")
        elif ratio.point > 1 and floor is not None and ratio.low <= 1 + floor:
            remarks.append(f"{work}: not above the noise floor")
        p = line.holm[place] if ratio.low > 1 else line.holm_loss[place] if ratio.high < 1 else None
        if p is not None and p > EACH_SIDE:
            remarks.append(f"{work}: not after correction for all arms (Holm p = {p:.2g})")
    if any(ratio and ratio.same_trajectory for ratio in (line.fixed_work, line.to_target)):
        remarks.append("same trajectory as the baseline: compared seed by seed")
    if line.diverged:
        remarks.append("a run diverged")
    unequal = in_words(speedups.ledgers[line.arm.label])
    return [*remarks, *line.slow, *speedups.reasons(line.arm), *([unequal] if unequal else [])]


def _floors(speedups: Speedups) -> list[str]:
    fixed, target = speedups.fixed_floor, speedups.target_floor
    missing = fixed.missing
    if missing:
        what = " and ".join(missing)
        roles = "study.role=same_seeds and fresh_seeds make them"
        return [f"No noise floor: {what} missing ({roles}), so no verdict."]
    assert fixed.clock is not None
    floors = {"time of all work": fixed, **({"time to target": target} if speedups.budget_s else {})}
    fresh = [f"{floor.fresh.value:.2%} in the {work}" for work, floor in floors.items() if floor.fresh]
    modelled = speedups.comparison.world == "simulated"
    parts = [
        f"{'typical model error of virtual time' if modelled else 'same seeds'} {fixed.clock.value:.2%}",
        *([f"other seeds {' and '.join(fresh)}"] if fresh else []),
    ]
    what = "" if modelled else ", what two runs of the baseline itself differ by"
    lines = [f"Noise floor{what}: {', '.join(parts)}."]
    lines += [
        f"No noise floor in the {work}, so no verdict on it: {floor.unknown}."
        for work, floor in floors.items()
        if floor.unknown
    ]
    if fixed.biased:
        lines.append("The two runs with the same seeds differ by order or slot: verdicts are provisional.")
    if fixed.fresh is not None and fixed.fresh.misses_1:
        lines.append(
            "The interval of the baseline against itself with other seeds misses 1, as it does in 1 of 20."
        )
    return lines


def _row(speedups: Speedups, line: ArmSpeedup) -> dict[str, Any]:
    comparison, difference = speedups.comparison, line.quality
    better = speedups.guard.shifts.get(line.arm.label) if speedups.guard else None
    return {
        **comparison.place,
        "baseline": speedups.baseline.label,
        "arm": line.arm.label,
        "placebo": line is speedups.placebo,
        "runs": len(line.arm.counted),
        "level": speedups.level,
        **_ratio("fixed_work", line.fixed_work, line.holm[0]),
        **_ratio("to_target", line.to_target, line.holm[1]),
        **_ratio("throughput", line.throughput),
        **_ratio("statistical_efficiency", line.statistical),
        "quality_points": difference.difference if difference else None,
        "quality_points_low": difference.interval.low if difference else None,
        "quality_points_high": difference.interval.high if difference else None,
        "evaluations_to_target": evaluations(line.arm),
        "fixed_work_noise_floor": speedups.fixed_floor.floor,
        "to_target_noise_floor": speedups.target_floor.floor,
        "reference": speedups.guard.reference.name if speedups.guard and speedups.guard.reference else None,
        "fewer_samples_p": better.p if better else None,
        "fewer_samples_holm_p": better.adjusted if better else None,
        "bound": speedups.bound.value,
        "bound_of": speedups.bound.of if speedups.bound.value is not None else "unknown",
        "budget_s": speedups.budget_s,
        "remarks": "; ".join(speedup_remarks(speedups, line)),
    }


def _ratio(name: str, ratio: Ratio | None, holm: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: ratio.point if ratio else None,
        f"{name}_low": ratio.low if ratio else None,
        f"{name}_high": ratio.high if ratio else None,
    }
    if name in ("fixed_work", "to_target"):
        row[f"{name}_bound"] = ratio.side if ratio else None
        row[f"{name}_holm_p"] = holm
    if name == "to_target":
        row["interval_kind"] = ("paired" if ratio.same_trajectory else "Welch") if ratio else None
        row["to_target_other_low"] = ratio.other.low if ratio and ratio.other else None
        row["to_target_other_high"] = ratio.other.high if ratio and ratio.other else None
    return row


def remarks(judged: JudgedClaim) -> list[str]:
    """What is printed after the word: remarks, reasons, and how many runs would decide."""
    lines = [*judged.verdict.remarks, *judged.verdict.reasons]
    if judged.verdict.smallest_n is not None:
        lines.append(f"{judged.verdict.smallest_n} runs an arm would decide in 4 of 5 studies")
    elif judged.verdict.word == "inconclusive":
        lines.append("no number of runs up to 100 would decide in 4 of 5 studies")
    return lines


def workload(measured: JudgedClaim | Speedups) -> str:
    """Where it was measured: study, model, data, world and size; and whether with equally tuned arms."""
    comparison = measured.comparison
    if comparison is None:
        return ""
    parts = [
        comparison.study,
        f"{comparison.model} on {comparison.dataset}",
        comparison.world,
        comparison.size,
        EQUALLY if comparison.tuned else "",
    ]
    return ", ".join(part for part in parts if part)


def claim_rows(all_judged: Iterable[JudgedClaim]) -> list[dict[str, Any]]:
    """One row per claim, arm and configuration."""
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
            "remarks": "; ".join(remarks(judged)),
        }
        for judged in all_judged
    ]


def fairness_tables(
    studied: Iterable[Speedups], all_judged: Iterable[JudgedClaim]
) -> dict[tuple[str, str, str], list[FairnessRow]]:
    """The fairness table of each pair of arms, by workload, comparator and arm.

    Pairs are every arm with the baseline of its study, and those that claims are about.
    """
    tables = {
        (workload(study), study.against.label, label): table
        for study in studied
        for label, table in study.ledgers.items()
    }
    for judged in all_judged:
        if judged.fairness is not None:
            tables[workload(judged), judged.comparator, judged.arm] = judged.fairness
    return tables


def fairness_rows(
    tables: Mapping[tuple[str, str, str], Iterable[FairnessRow]],
) -> list[dict[str, Any]]:
    """Every row of every fairness table."""
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
