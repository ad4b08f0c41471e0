"""Check "records intact": whether a run's records agree with each other, and no ratio is impossible."""

from ..claims.arm_speedup import ArmSpeedup, ratios
from ..claims.recorded import paced
from ..claims.speedups import Speedups
from ..data.examination import ROUNDING
from ..data.load import value_at
from .check import Check, Level

NAME = "records intact"
MEASURED = 0.1  # by which compute times of equal work may differ between runs on real machines


def check(study: Speedups) -> Check:
    """Red where a run's records contradict each other, or an arm is faster than its bound; its arm is grey.

    Runs that only lost a line are amber: damage is no contradiction.
    """
    forbids: dict[str, str] = {}
    details: list[str] = []
    for arm in study.comparison.arms:
        distrusted = [run for run in arm.runs if run.distrusted]
        if distrusted:
            forbids[arm.label] = f"{len(distrusted)} of {len(arm.runs)} distrusted"
            details += [f"{arm.label}, {run.run_id}: {'; '.join(run.distrusted)}" for run in distrusted]
    for line in study.lines:
        if words := _impossible(study, line):
            forbids.setdefault(line.arm.label, "faster than possible")
            details.append(words)
    details += [run.found_again for run in study.comparison.runs if run.copies]
    runs = study.comparison.runs
    bad = sum(bool(run.distrusted) for run in runs)
    damaged = sum(bool(run.damage) for run in runs)
    level: Level = "red" if forbids else "amber" if damaged else "green"
    sentence = "the records of every run agree with each other"
    if bad:
        sentence = f"{bad} of {len(runs)} runs have records that contradict each other"
    elif forbids:
        sentence = f"faster than any arm can be: {', '.join(forbids)}"
    elif damaged:
        sentence = f"{damaged} of {len(runs)} runs have damaged records"
    return Check(name=NAME, level=level, sentence=sentence, details=tuple(details), forbids=forbids)


def _impossible(study: Speedups, line: ArmSpeedup) -> str:
    """That an arm did its work, or a sample, in less time than the baseline needs without communication.

    Only where nothing but communication can be saved: devices that are alike, and the same ranks. The whole
    interval has to lie above the bound and its error: of two baselines' times, or of compute times that are
    measured and no input.
    """
    bound, (fixed, _), sides = study.bound, ratios(line), (study.baseline.runs[0], line.arm.runs[0])
    alike = len({str(value_at(run.config, "cluster", "ranks_per_node")) for run in sides}) == 1
    if fixed is None or bound.limit is None or bound.of != "communication" or not alike:
        return ""
    # Recorded times and their bound have the same model: its error is no excuse.
    fixed = fixed.simulated
    error = ROUNDING if all(map(paced, sides)) else max(study.fixed_floor.floor or 0.0, MEASURED)
    if fixed.low <= bound.limit * (1 + error):
        return ""
    return (
        f"{line.arm.label} is {fixed.point:.3f} times as fast, above the bound {bound.limit:.3f}: "
        "the time of its runs, or that of the baseline's, is wrong"
    )
