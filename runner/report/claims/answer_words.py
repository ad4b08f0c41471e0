"""The answer as people read it, and as the rows of `speedups.csv`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .. import words
from ..statistics.planning import detectable
from ..statistics.ratio import SIGNIFICANT, Ratio
from .speedups import Answer, Line, evaluations

BOUND_OF = {False: "communication", True: "balance and communication"}


@dataclass(frozen=True, kw_only=True)
class Cells:
    """One arm of the table, as text."""

    label: str
    index: int
    fixed_work: str
    to_target: str
    throughput: str
    statistical: str
    quality: str
    notes: list[str]


def cells(answer: Answer) -> list[Cells]:
    """The lines of the table: arms, and last the placebo."""
    return [_cells(answer, line) for line in _all(answer)]


def sentences(answer: Answer) -> list[str]:
    """What has to be known of the numbers before they are read."""
    found = [*_floors(answer), *([said] if (said := answer.bound.sentence) else [])]
    if answer.budget_s is not None:
        found.append(
            "A run that has not reached the target counts as a failure after "
            f"{words.seconds(answer.budget_s)} of training."
        )
    if answer.guard is not None:
        found.append(answer.guard.sentence)
    better = "no verdict against it, but on claims that name it"
    found += [f"{reason[0].upper()}{reason[1:]}: {better}." for reason in answer.wrong]
    found += [f"{reason}." for reason in answer.reasons(answer.baseline)]
    return found


def speedup_rows(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """One row per arm and comparison, all numbers of the table and their intervals."""
    return [_row(answer, line) for answer in answers for line in _all(answer)]


def _all(answer: Answer) -> list[Line]:
    return [*answer.lines, *([answer.placebo] if answer.placebo else [])]


def _cells(answer: Answer, line: Line) -> Cells:
    parts = line.parts
    difference = line.quality
    points = "no interval"
    if difference is not None:
        ends = difference.interval
        points = f"{difference.difference:+.2f} [{ends.low:+.2f}, {ends.high:+.2f}]"
    return Cells(
        label=line.arm.label,
        index=line.arm.index,
        fixed_work=words.interval(line.fixed_work),
        to_target=words.interval(line.to_target),
        throughput=words.interval(parts and parts.throughput),
        statistical=words.interval(parts and parts.statistical),
        quality=points,
        notes=[*line.notes, *_remarks(answer, line)],
    )


def _remarks(answer: Answer, line: Line) -> list[str]:
    found: list[str] = []
    for said, made, p, floor in (
        ("all work", line.fixed_work, line.holm[0], answer.fixed_floor.floor),
        ("to target", line.to_target, line.holm[1], answer.target_floor.floor),
    ):
        if made is None:
            continue
        if made.low <= 1 <= made.high:
            sd = made.estimate.error * (len(line.arm.counted) / 2) ** 0.5
            least = detectable(len(line.arm.counted), sd, level=made.estimate.level) if sd > 0 else None
            could = f"; this plan could detect {least:.2f}" if least is not None else ""
            found.append(f"{said}: no detectable difference{could}")
        elif made.point > 1 and floor is not None and made.low <= 1 + floor:
            found.append(f"{said}: not above the noise floor")
        if p is not None and made.low > 1 and p > SIGNIFICANT:
            found.append(f"{said}: not after correction for all arms (Holm p = {p:.2g})")
    if line.diverged:
        found.append("a run diverged")
    if answer.guard is not None:
        found += [noted] if (noted := answer.guard.noted.get(line.arm.label)) else []
    return [*found, *answer.reasons(line.arm)]


def _floors(answer: Answer) -> list[str]:
    fixed, target = answer.fixed_floor, answer.target_floor
    missing = fixed.missing
    if missing:
        what = " and ".join(missing)
        return [
            f"No noise floor: {what} missing (study.role=same_seeds and fresh_seeds make them), "
            "so no verdict."
        ]
    assert fixed.clock is not None
    floors = {"time of all work": fixed, **({"time to target": target} if answer.budget_s else {})}
    seeds = " and ".join(
        f"{one.fresh.value:.2%} in the {said}" for said, one in floors.items() if one.fresh is not None
    )
    told = [f"same seeds {fixed.clock.value:.2%}", *([f"other seeds {seeds}"] if seeds else [])]
    found = [f"Noise floor, what two runs of the baseline itself differ by: {', '.join(told)}."]
    found += [
        f"No noise floor in the {said}, so no verdict on it: {one.unknown}."
        for said, one in floors.items()
        if one.unknown
    ]
    if fixed.biased:
        found.append("The two runs with the same seeds differ by order or slot: verdicts are provisional.")
    if fixed.fresh is not None and fixed.fresh.misses_1:
        found.append(
            "The interval of the baseline against itself with other seeds misses 1, as it does in 1 of 20."
        )
    return found


def _row(answer: Answer, line: Line) -> dict[str, Any]:
    comparison, parts, difference = answer.comparison, line.parts, line.quality
    better = answer.guard.shifts.get(line.arm.label) if answer.guard else None
    return {
        **comparison.place,
        "baseline": answer.baseline.label,
        "arm": line.arm.label,
        "placebo": line is answer.placebo,
        "runs": len(line.arm.counted),
        "level": answer.level,
        **_ratio("fixed_work", line.fixed_work, line.holm[0]),
        **_ratio("to_target", line.to_target, line.holm[1]),
        **_ratio("throughput", parts and parts.throughput, None),
        **_ratio("statistical_efficiency", parts and parts.statistical, None),
        "quality_points": difference.difference if difference else None,
        "quality_points_low": difference.interval.low if difference else None,
        "quality_points_high": difference.interval.high if difference else None,
        "evaluations_to_target": evaluations(line.arm),
        "fixed_work_noise_floor": answer.fixed_floor.floor,
        "to_target_noise_floor": answer.target_floor.floor,
        "reference": answer.guard.reference.name if answer.guard and answer.guard.reference else None,
        "fewer_samples_p": better.p if better else None,
        "fewer_samples_holm_p": better.adjusted if better else None,
        "bound": answer.bound.value,
        "bound_of": BOUND_OF[answer.bound.uneven] if answer.bound.value is not None else "unknown",
        "budget_s": answer.budget_s,
        "remarks": "; ".join([*line.notes, *_remarks(answer, line)]),
    }


def _ratio(name: str, found: Ratio | None, holm: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: found.point if found else None,
        f"{name}_low": found.low if found else None,
        f"{name}_high": found.high if found else None,
    }
    if name in ("fixed_work", "to_target"):
        row[f"{name}_bound"] = found.side if found else None
        row[f"{name}_of_medians"] = found.ratio_of_medians if found else None
        row[f"{name}_holm_p"] = holm
    return row
