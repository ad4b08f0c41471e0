"""Several workloads of one world together: a mean of ratios for each arm, and performance profiles.

Source: the measuring rules (time to accuracy), "statistics", across workloads; the arithmetic is in
`runner/scoring/workloads.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..scoring.ratio import Times
from ..scoring.workloads import FEWEST_WORKLOADS, Aggregate, geometric_mean_of_ratios, performance_profile
from . import words
from .answer import Answer
from .arms import Arm, Comparison
from .means import target_mean, train_mean
from .target import way

ALL_WORK, TO_TARGET = "time of all work", "time to target"
Place = tuple[str, str, str, bool]  # study, world, size, tuned
TAUS = tuple(1 + number / 50 for number in range(151))  # 1 to 4


@dataclass(frozen=True, kw_only=True)
class Across:
    """Four workloads or more of one world and size; `study` is "" where they are of several studies.

    `tuned`: whether all arms are equally tuned. `workloads`: name -> its answer.
    """

    study: str
    world: str
    size: str
    tuned: bool
    workloads: dict[str, Answer]

    @property
    def title(self) -> str:
        """What it is over, in words."""
        tuned = "equally tuned" if self.tuned else ""
        return ", ".join(part for part in (self.study, words.world(self.world), self.size, tuned) if part)

    @property
    def comparisons(self) -> list[Comparison]:
        return [one.comparison for one in self.workloads.values()]

    @property
    def level(self) -> float:
        return next(iter(self.workloads.values())).level

    @cached_property
    def arms(self) -> dict[str, int]:
        """Label -> index of the look: baselines first, then arms, in the order of the page."""
        of_all = list(self.workloads.values())
        found = {one.baseline.label: one.baseline.index for one in of_all}
        return found | {line.arm.label: line.arm.index for one in of_all for line in one.lines}

    @property
    def measure(self) -> str:
        """What the profile is of: time to target where every workload has one."""
        targets = all(one.comparison.targets for one in self.workloads.values())
        return TO_TARGET if targets else ALL_WORK

    @cached_property
    def profile(self) -> dict[str, list[float]]:
        """Share of workloads on which an arm takes at most τ times the fastest one's time, for each τ."""
        mean = target_mean if self.measure == TO_TARGET else _whole_mean
        times = {name: {arm.label: mean(arm) for arm in _own(one)} for name, one in self.workloads.items()}
        # An arm that one workload lacks is within τ of nothing there.
        return performance_profile(times, TAUS)

    @cached_property
    def means(self) -> dict[tuple[str, str], tuple[Aggregate | None, list[str]]]:
        """(arm, measure) -> the geometric mean over all workloads, and the workloads that rule it out."""
        found: dict[tuple[str, str], tuple[Aggregate | None, list[str]]] = {}
        baselines = {one.baseline.label for one in self.workloads.values()}
        for label in self.arms:
            if label in baselines:
                continue
            for measure in (ALL_WORK, *([TO_TARGET] if self.measure == TO_TARGET else [])):
                pairs = {name: _pair(one, label, measure) for name, one in self.workloads.items()}
                made = geometric_mean_of_ratios(pairs, level=self.level)
                found[label, measure] = (made, [name for name, pair in pairs.items() if pair is None])
        return found


def across(answers: Iterable[Answer]) -> list[Across]:
    """One for each study, world and size with four workloads or more; else over all studies together.

    A workload is a model on a data set. Over several studies it must be there once only.
    """
    by_study: dict[Place, list[Answer]] = defaultdict(list)
    by_world: dict[Place, list[Answer]] = defaultdict(list)
    for one in answers:
        c = one.comparison
        by_study[c.study, c.world, c.size, c.tuned].append(one)
        by_world["", c.world, c.size, c.tuned].append(one)
    found = [_across(place, members) for place, members in by_study.items()]
    done = {(one.world, one.size, one.tuned) for one in found if one is not None}
    others = [_across(place, members) for place, members in by_world.items() if place[1:] not in done]
    return [one for one in (*found, *others) if one is not None]


def across_rows(found: Iterable[Across]) -> list[dict[str, Any]]:
    """One row per arm and measure: the mean ratio over all workloads, or which of them rule it out."""
    return [
        {
            "study": one.study,
            "world": one.world,
            "size": one.size,
            "arm": arm,
            "measure": measure,
            "workloads": len(one.workloads),
            "level": one.level,
            "ratio": made.point if made else None,
            "ratio_low": made.interval.low if made else None,
            "ratio_high": made.interval.high if made else None,
            "without": "; ".join(without),
        }
        for one in found
        for (arm, measure), (made, without) in one.means.items()
    ]


def profile_rows(found: Iterable[Across]) -> list[dict[str, Any]]:
    """The profile at every τ at which an arm's share changes, and at both ends."""
    return [
        {
            "study": one.study,
            "world": one.world,
            "size": one.size,
            "measure": one.measure,
            "arm": arm,
            "tau": tau,
            "share": share,
        }
        for one in found
        for arm, shares in one.profile.items()
        for place, (tau, share) in enumerate(zip(TAUS, shares, strict=True))
        if place in (0, len(TAUS) - 1) or share != shares[place - 1]
    ]


def mean_words(made: Aggregate | None, without: Sequence[str]) -> str:
    """`1.25 [1.1, 1.4]`, or which workloads have no time."""
    if made is not None:
        return f"{made.point:.3f} [{made.interval.low:.3f}, {made.interval.high:.3f}]"
    return f"no mean: no time on {', '.join(without)}"


def _across(place: Place, members: Sequence[Answer]) -> Across | None:
    named = {f"{one.comparison.model} on {one.comparison.dataset}": one for one in members}
    if len(named) < len(members) or len(named) < FEWEST_WORKLOADS:
        return None
    study, world, size, tuned = place
    return Across(study=study, world=world, size=size, tuned=tuned, workloads=named)


def _own(one: Answer) -> list[Arm]:
    return [one.baseline, *(line.arm for line in one.lines)]


def _whole_mean(arm: Arm) -> float | None:
    return train_mean(arm) if len(arm.complete) == len(arm.counted) else None


def _pair(one: Answer, label: str, measure: str) -> tuple[Times, Times] | None:
    """Times of baseline and arm; None where a run of either has none, or the workload lacks the arm."""
    line = next((line for line in one.lines if line.arm.label == label), None)
    if line is None:
        return None
    if measure == ALL_WORK:
        if line.fixed_work is None:
            return None
        return _whole(one.baseline), _whole(line.arm)
    if one.budget_s is None or min(len(one.baseline.counted), len(line.arm.counted)) < 2:
        return None
    sides = [way(arm.counted, one.budget_s) for arm in (one.baseline, line.arm)]
    if not all(side.all_reached for side in sides):
        return None
    base, other = (Times(side.seconds) for side in sides)
    return base, other


def _whole(arm: Arm) -> Times:
    return Times(tuple(run.train_s for run in arm.complete if run.train_s))
