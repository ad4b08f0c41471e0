"""Does the order of the arms depend on assumptions? Their times under each of them, at every size."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .data.arms import Arm, Comparison, natural
from .data.load import Run
from .data.means import geometric_mean
from .data.metric import target_words
from .ranking import AS_CONFIGURED, Times, at, lasting_words, ranking_words, tiers

VALIDITY = "simulated: "  # how the label begins that says what modelled times rest on


@dataclass(frozen=True, kw_only=True)
class Measure:
    """The number compared: its name, what to know of it, and the unit behind its seconds."""

    name: str
    said: str
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An arm under one assumption: the geometric mean over `runs` runs in seconds, or None and why."""

    runs: int
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """One size of a study. `arms`: label and index of the look, `arms[0]` is the baseline."""

    size: str
    assumptions: list[str]
    arms: dict[str, int]
    measure: Measure
    points: dict[tuple[str, str], Point]
    runs: list[Run]
    labels: dict[str, list[str]]

    @property
    def baseline(self) -> str:
        """What the others are relative to: the first arm of ddp, or the first arm if there is none."""
        return next(iter(self.arms))

    def relative(self, arm: str, assumption: str) -> float | None:
        """How many times as fast as the baseline `arm` is; None if either has no time."""
        own, base = self.points[arm, assumption].seconds, self.points[self.baseline, assumption].seconds
        return None if own is None or base is None else base / own

    @cached_property
    def times(self) -> Times:
        """The arms that have a time everywhere: those that can be ranked."""
        found: dict[str, dict[str, float]] = {}
        for arm in self.arms:
            times = {assumption: self.points[arm, assumption].seconds for assumption in self.assumptions}
            whole = {assumption: value for assumption, value in times.items() if value is not None}
            if len(whole) == len(times):
                found[arm] = whole
        return found

    @property
    def ranked(self) -> bool:
        """Whether some arms have an order."""
        return len(tiers(self.times)) > 1

    @property
    def ranking(self) -> str:
        """The tiers in words, fastest first."""
        return ranking_words(self.times)

    @property
    def unranked(self) -> list[str]:
        """Why an arm is not ranked, a sentence for each that is not."""
        found = []
        for arm in self.arms:
            missing: dict[str, list[str]] = defaultdict(list)
            for assumption in self.assumptions:
                if why := self.points[arm, assumption].why:
                    missing[why].append(assumption)
            if missing:
                said = [f"{why} {at('under', assumptions)}" for why, assumptions in missing.items()]
                found.append(f"{arm}: {'; '.join(said)}")
        return found

    @property
    def shared_labels(self) -> list[str]:
        """What modelled times rest on, and the labels that all arms have."""
        every = dict.fromkeys(label for labels in self.labels.values() for label in labels)
        return [
            label
            for label in every
            if label.startswith(VALIDITY) or all(label in labels for labels in self.labels.values())
        ]

    def own_labels(self, arm: str) -> list[str]:
        """The other labels of an arm's runs."""
        return [label for label in self.labels[arm] if label not in self.shared_labels]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """A study with assumptions, in one world. `plain`: sizes that were run as configured only."""

    study: str
    model: str
    dataset: str
    world: str
    tables: list[SizeTable]
    plain: list[str]

    @property
    def runs(self) -> list[Run]:
        return [run for table in self.tables for run in table.runs]

    @property
    def extrapolated(self) -> int:
        """How many of the runs model more ranks than their cluster's numbers were ever tested for."""
        return sum(
            any(label.startswith(f"{VALIDITY}extrapolated") for label in run.labels) for run in self.runs
        )

    @property
    def lasting(self) -> str:
        """What holds over all sizes and assumptions, in words."""
        return lasting_words({table.size: table.times for table in self.tables})


def sensitivities(comparisons: Iterable[Comparison]) -> list[Sensitivity]:
    """One for each study, model, dataset and world with runs under assumptions; empty if none has."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Comparison]]] = {}
    for c in comparisons:
        sizes = groups.setdefault((c.study, c.model, c.dataset, c.world), {})
        sizes.setdefault(c.size, []).append(c)
    found = []
    for (study, model, dataset, world), sizes in groups.items():
        plain = [size for size, members in sizes.items() if not any(c.assumption for c in members)]
        tables = [size_table(size, members) for size, members in sizes.items() if size not in plain]
        if tables:
            found.append(
                Sensitivity(
                    study=study, model=model, dataset=dataset, world=world, tables=tables, plain=plain
                )
            )
    return found


def size_table(size: str, comparisons: Sequence[Comparison]) -> SizeTable:
    """The times at one size; `comparisons` are those of its assumptions."""
    runs = [run for comparison in comparisons for run in comparison.runs]
    everywhere = [arm for comparison in comparisons for arm in comparison.arms]
    # As in the comparisons, the baseline first, also if it ran under assumptions only.
    ordered = sorted(everywhere, key=lambda arm: arm.runs[0].strategy != "ddp")
    arms = {arm.label: arm.index for arm in ordered}
    there = {(arm.label, c.assumption): arm for c in comparisons for arm in c.arms}
    assumptions = sorted({AS_CONFIGURED} | {c.assumption for c in comparisons}, key=natural)
    measure = _measure(runs)
    repeats = {_repeat(run) for run in runs}
    return SizeTable(
        size=size,
        assumptions=assumptions,
        arms=arms,
        measure=measure,
        points={
            (label, assumption): _point(there.get((label, assumption)), measure, repeats)
            for label in arms
            for assumption in assumptions
        },
        runs=runs,
        labels={label: _labels([arm for arm in everywhere if arm.label == label]) for label in arms},
    )


def sensitivity_rows(sensitivities: Iterable[Sensitivity]) -> list[dict[str, Any]]:
    """One row per size, assumption and arm. `relative`: times as fast as the baseline arm."""
    return [
        {
            "study": one.study,
            "model": one.model,
            "dataset": one.dataset,
            "world": one.world,
            "size": table.size,
            "assumption": assumption,
            "arm": arm,
            "runs": table.points[arm, assumption].runs,
            "seconds": table.points[arm, assumption].seconds,
            "relative": table.relative(arm, assumption),
            "measure": table.measure.name,
        }
        for one in sensitivities
        for table in one.tables
        for assumption in table.assumptions
        for arm in table.arms
    ]


TARGET = "time to target"
TRAIN = "training time"
PER_SAMPLE = "training time per sample"
NOTHING = "no common measure"
OTHER_SEEDS = "not all of the seeds that others have finished"


def _measure(runs: Sequence[Run]) -> Measure:
    targets = {None if run.target is None else (run.metric, run.target) for run in runs}
    if len(targets) > 1:
        return Measure(name=NOTHING, said="Runs have different targets: nothing is compared.")
    (target,) = targets
    if target is not None:
        return Measure(name=TARGET, said=f"Compared is the scored time to {target_words(*target)}.")
    done = sorted({run.samples for run in runs if run.state == "finished" and run.samples})
    if len(done) > 1:
        span = f"{done[0]:,.0f} to {done[-1]:,.0f}"
        return Measure(
            name=PER_SAMPLE,
            said=f"Compared is the training time per sample: the runs trained on {span} samples.",
            unit=" a sample",
        )
    work = f"{done[0]:,.0f} samples in every run" if done else "no run finished"
    return Measure(name=TRAIN, said=f"Compared is the training time of equal work: {work}.")


def _repeat(run: Run) -> tuple[Any, Any]:
    """Which repetition a run is: arms are compared over the same ones."""
    return run.seed, (run.config.get("run") or {}).get("repeat")


def _point(arm: Arm | None, measure: Measure, repeats: set[tuple[Any, Any]]) -> Point:
    if measure.name == NOTHING:
        return Point(runs=0, seconds=None, why="no target in common with the other runs")
    if measure.name == TARGET:
        if arm is None or not arm.counted:
            return Point(runs=0, seconds=None, why="no finished run")
        if len(arm.reached) < len(arm.counted):
            return Point(runs=len(arm.counted), seconds=None, why="not all runs reached the target")
        if {_repeat(run) for run in arm.reached} != repeats:
            return Point(runs=len(arm.reached), seconds=None, why=OTHER_SEEDS)
        return _mean([run.crossing.scored_s for run in arm.reached if run.crossing])
    if arm is None or not arm.complete:
        return Point(runs=0, seconds=None, why="no finished run")
    if {_repeat(run) for run in arm.complete} != repeats:
        return Point(runs=len(arm.complete), seconds=None, why=OTHER_SEEDS)
    return _mean([_train_s(run, measure) for run in arm.complete])


def _train_s(run: Run, measure: Measure) -> float | None:
    if measure.name == TRAIN or run.train_s is None:
        return run.train_s
    return run.train_s / run.samples if run.samples else None


def _mean(values: Sequence[float | None]) -> Point:
    (first, *others) = values
    value = geometric_mean(values) if others else first
    if value is None or not (math.isfinite(value) and value > 0):
        return Point(runs=len(values), seconds=None, why="no time recorded")
    return Point(runs=len(values), seconds=value)


def _labels(arms: Sequence[Arm]) -> list[str]:
    return list(dict.fromkeys(label for arm in arms for run in arm.runs for label in run.labels))
