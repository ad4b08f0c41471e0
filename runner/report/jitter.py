"""Does the ranking depend on jitter? Comparisons that differ in the jitter of step times alone, side by side.

Source: the measuring rules (time to accuracy), "study design": the headline is repeated without jitter and
with jitter of equal deviation and other tails; a ranking that changes depends on jitter.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from . import words
from .arms import Arm, Comparison, settings
from .load import Run
from .ranking import MARGIN

SHAPES = {
    "none": "without jitter",
    "gaussian": "with Gaussian jitter",
    "lognormal": "with log-normal jitter",
    "student_t3": "with heavy-tailed jitter",
}
DEPENDS = "depends on jitter"
_KEYS = ("cluster.device.jitter", "cluster.device.jitter_cv")
ALL_WORK, TO_TARGET = "time of all work", "time to target"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The arms by one measure: seconds (geometric means over runs) by arm, then by shape of the jitter.

    `without`: arms that have no time under some shape, and why. `turns`: pairs whose order is another one
    under another shape, by 1 % of the time or more under both: (faster, slower, where, where it is not).
    """

    measure: str
    times: Mapping[str, Mapping[str, float]]
    without: Mapping[str, str]
    turns: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]

    def ranked(self, shape: str) -> list[tuple[str, float]]:
        """Arms and their seconds under this shape, fastest first."""
        found = [(arm, of_arm[shape]) for arm, of_arm in self.times.items()]
        return sorted(found, key=lambda pair: (pair[1], pair[0]))

    @property
    def sentence(self) -> str:
        """Whether it depends on jitter, and which arms change places."""
        start = f"{self.measure[0].upper()}{self.measure[1:]}"
        if len(self.times) < 2:
            return f"{start}: fewer than two arms have a time under every jitter, so nothing can be said."
        if not self.turns:
            return f"{start}: no two arms change places."
        said = [
            f"{first} is faster than {second} {words.listed([SHAPES.get(one, one) for one in here])}, slower "
            f"{words.listed([SHAPES.get(one, one) for one in there])}"
            for first, second, here, there in self.turns
        ]
        return f"{start}: the ranking {DEPENDS}: {'; '.join(said)}."


@dataclass(frozen=True, kw_only=True)
class Jittered:
    """Comparisons that differ in jitter alone, by its shape. `cv`: deviation of a step over its mean."""

    cv: float
    members: Mapping[str, Comparison]
    orders: tuple[Order, ...]

    @property
    def first(self) -> Comparison:
        return next(iter(self.members.values()))

    @property
    def size(self) -> str:
        """The size that all have in common; "" where the sizes are the jitter."""
        sizes = {comparison.size for comparison in self.members.values()}
        return self.first.size if len(sizes) == 1 else ""

    @property
    def missing(self) -> list[str]:
        """The shapes that the rules ask for and nobody ran."""
        return [SHAPES[shape] for shape in ("none", "gaussian", "student_t3") if shape not in self.members]


def jittered(comparisons: Iterable[Comparison]) -> list[Jittered]:
    """One for each deviation of the jitter under which otherwise equal comparisons lie."""
    groups: dict[str, dict[tuple[str, float], Comparison]] = defaultdict(dict)
    for comparison in comparisons:
        shape = _shape(comparison)
        if shape is not None:
            groups[_alike(comparison)].setdefault(shape, comparison)
    found = []
    for members in groups.values():
        for cv in sorted({cv for shape, cv in members if shape != "none"}):
            own = {
                shape: members[shape, at] for shape, at in _ordered(members) if at == cv or shape == "none"
            }
            if len(own) > 1:
                found.append(_jittered(cv, own))
    return found


def jitter_rows(found: Iterable[Jittered]) -> list[dict[str, Any]]:
    """One row per measure, shape and arm: its time, its place, and whether its place depends on jitter."""
    return [
        {
            "study": (c := one.first).study,
            "model": c.model,
            "dataset": c.dataset,
            "world": c.world,
            "size": one.members[shape].size,
            "assumption": one.members[shape].assumption,
            "jitter": shape,
            "jitter_cv": one.cv if shape != "none" else 0.0,
            "measure": order.measure,
            "arm": arm,
            "seconds": seconds,
            "place": place,
            "depends_on_jitter": any(arm in turn[:2] for turn in order.turns),
        }
        for one in found
        for order in one.orders
        for shape in one.members
        for place, (arm, seconds) in enumerate(order.ranked(shape), 1)
    ]


def _shape(comparison: Comparison) -> tuple[str, float] | None:
    """Shape and deviation that all runs share; None where they do not."""
    found = {_jitter(run) for run in comparison.runs}
    return found.pop() if len(found) == 1 else None


def _jitter(run: Run) -> tuple[str, float]:
    known = settings(run)
    shape, cv = (known.get(key) for key in _KEYS)
    if not isinstance(shape, str) or not isinstance(cv, int | float) or cv == 0 or shape == "none":
        return "none", 0.0
    return shape, float(cv)


def _alike(comparison: Comparison) -> str:
    """What two comparisons that differ in jitter alone have in common: all settings but it and the arms'."""
    first = comparison.arms[0].runs[0]
    rest = _without_jitter(first)
    place = (comparison.study, comparison.model, comparison.dataset, comparison.world, comparison.tuned)
    return json.dumps([*place, sorted(rest.items())], default=str)


def _without_jitter(run: Run) -> dict[str, Any]:
    return {key: value for key, value in settings(run).items() if key not in _KEYS}


def _ordered(members: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """No jitter first, then as the shapes are listed."""
    known = list(SHAPES)
    return sorted(members, key=lambda one: (known.index(one[0]) if one[0] in known else len(known), one))


def _jittered(cv: float, members: Mapping[str, Comparison]) -> Jittered:
    measures = [(ALL_WORK, _whole_s)]
    if all(comparison.targets for comparison in members.values()):
        measures.append((TO_TARGET, _target_s))
    orders = tuple(_order(measure, seconds, members) for measure, seconds in measures)
    return Jittered(cv=cv, members=members, orders=orders)


def _order(
    measure: str, seconds_of: Callable[[Arm], float | None], members: Mapping[str, Comparison]
) -> Order:
    arms = {shape: {arm.label: arm for arm in c.arms if not arm.runs[0].role} for shape, c in members.items()}
    labels = dict.fromkeys(label for of_shape in arms.values() for label in of_shape)
    times: dict[str, dict[str, float]] = {}
    without: dict[str, str] = {}
    for label in labels:
        own = [of_shape[label] for of_shape in arms.values() if label in of_shape]
        seconds = [seconds_of(arm) for arm in own]
        if len(own) < len(arms) or None in seconds:
            without[label] = "no time under every jitter"
        elif not _equal(own):
            without[label] = "other settings or seeds under another jitter"
        else:
            times[label] = {
                shape: value for shape, value in zip(arms, seconds, strict=True) if value is not None
            }
    return Order(measure=measure, times=times, without=without, turns=_turns(times, list(members)))


def _equal(arms: Sequence[Arm]) -> bool:
    """Whether one arm's runs under each jitter differ in it alone, seed by seed."""
    repeats = [sorted(str(_repeat(run)) for run in arm.counted) for arm in arms]
    rest = [_without_jitter(arm.runs[0]) for arm in arms]
    return all(one == repeats[0] for one in repeats) and all(one == rest[0] for one in rest)


def _repeat(run: Run) -> tuple[Any, Any]:
    return run.seed, (run.config.get("run") or {}).get("repeat")


def _turns(
    times: Mapping[str, Mapping[str, float]], shapes: Sequence[str]
) -> tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]:
    found = []
    for one, other in combinations(times, 2):
        faster = tuple(shape for shape in shapes if times[other][shape] >= MARGIN * times[one][shape])
        slower = tuple(shape for shape in shapes if times[one][shape] >= MARGIN * times[other][shape])
        if faster and slower:
            # The order without jitter, or of the first shape that has one, is told first.
            turned = shapes.index(slower[0]) < shapes.index(faster[0])
            found.append((other, one, slower, faster) if turned else (one, other, faster, slower))
    return tuple(found)


def _whole_s(arm: Arm) -> float | None:
    """Seconds of the whole schedule, of runs that all did it."""
    whole = [run for run in arm.complete if run.counted and run.stop == "budget" and run.train_s]
    return _mean([run.train_s for run in whole]) if len(whole) == len(arm.counted) else None


def _target_s(arm: Arm) -> float | None:
    """Scored seconds to the target, of runs that all reached it."""
    if len(arm.reached) < len(arm.counted):
        return None
    return _mean([run.crossing.scored_s for run in arm.reached if run.crossing])


def _mean(seconds: Sequence[float | None]) -> float | None:
    """Geometric, of one or more; one run on a clock without noise is all there is to it."""
    known = [value for value in seconds if value is not None and value > 0]
    if not known or len(known) < len(seconds):
        return None
    return math.exp(math.fsum(math.log(value) for value in known) / len(known))
