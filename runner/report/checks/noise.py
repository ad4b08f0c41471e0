"""Check "noise": what two runs of the baseline differ by, and the smallest gain that this study can show."""

from ..claims.arm_speedup import WORK, ratios, smallest_gain
from ..claims.speedups import Speedups
from .check import Check


def check(study: Speedups) -> Check:
    """Amber where a noise floor is missing, or where runs with the same seeds differ by more than chance."""
    floors = (study.fixed_floor, study.target_floor)[: 1 if study.budget_s is None else 2]
    wrong, least, details = list[str](), list[str](), list[str]()
    for place, (work, floor) in enumerate(zip(WORK, floors, strict=False)):
        if floor.floor is None:
            missing = f"the baseline was not run again ({' and '.join(floor.missing)})"
            wrong.append(f"no noise floor of the {work}: {floor.unknown or missing}")
            continue
        if floor.biased:
            wrong.append(f"{work}: two runs with the same seeds differ by more than chance")
        details.append(f"Noise floor of the {work}: {100 * floor.floor:.2g} %.")
        gains = {
            line.arm.label: smallest_gain(ratio, floor.floor)
            for line in study.lines
            if (ratio := ratios(line)[place])
        }
        if gains:
            least.append(f"{min(gains.values()):.2f}\N{MULTIPLICATION SIGN} in the {work}")
        details += [
            f"{label}: a gain below {gain:.2f} in the {work} would not show." for label, gain in gains.items()
        ]
    shown = f"a gain below {' or '.join(least)} would not show" if least else details[0] if details else ""
    sentence = "; ".join([*dict.fromkeys(wrong), *([shown] if shown else [])])
    return Check(name="noise", level="amber" if wrong else "green", sentence=sentence, details=tuple(details))
