"""Which runs belong together: comparisons (one kind of work and world) made of arms (all but seeds equal)."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...records.trees import flatten
from ..statistics.welch import Times
from .load import Run, value_at
from .metric import Metric
from .run_files import text

# Keys that name, place or repeat a run and do not change what it computes.
NOT_THE_ARM = (
    *("seed", "results_dir", "study", "run.id", "run.name", "run.tag", "run.repeat", "run.arm"),
    *("dataset.root", "reader.path", "launcher.port", "launcher.stall_s", "launcher.wait"),
    "train.eval_phase",
)
BELOW = tuple(f"{name}." for name in NOT_THE_ARM)
GROUPS = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "cluster", "launcher")
ONE_CORE = "one_core"
WORLDS = {
    "local": "local processes, real time",
    "local/modelled": "local processes in real time; links are modelled, operations held back",
    "emulated/modelled": "emulated: real processes and time; links are modelled, operations held back",
    "emulated/kernel": "emulated: real processes, traffic and time; the kernel shapes the links",
    "simulated": "simulated: real gradients, the time of a modelled cluster",
}
EQUALLY, OWN = "equally tuned", "paper's settings"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A strategy with its settings. `index` picks colour, line and marker, the same in every figure."""

    label: str
    index: int
    runs: list[Run]

    @property
    def counted(self) -> list[Run]:
        return [run for run in self.runs if run.counted]

    @property
    def complete(self) -> list[Run]:
        """The runs that count and did all their work: totals and throughputs of the others would mislead."""
        return [run for run in self.counted if run.state == "finished"]

    @property
    def jitters(self) -> bool:
        """Whether its steps have jitter in virtual time."""
        return self.runs[0].jitters

    @property
    def reached(self) -> list[Run]:
        return [run for run in self.counted if run.crossing is not None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms that can be set side by side: all but they is the same. `assumption`: "" as configured.

    `tuned`: whether all arms are equally tuned; else they have the study's own settings.
    """

    study: str
    model: str
    dataset: str
    world: str
    size: str
    assumption: str
    arms: list[Arm]
    tuned: bool = False

    @property
    def place(self) -> dict[str, str]:
        """The columns that every row about it begins with."""
        return {name: getattr(self, name) for name in ("study", "model", "dataset", "world", "size")}

    @cached_property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def metric(self) -> Metric:
        """What all its runs are judged by."""
        return self.runs[0].judged_by

    @property
    def world_in_words(self) -> str:
        """Where the numbers come from: real, emulated or virtual time."""
        if all(value_at(run.config, "launcher", "timing_only") for run in self.runs):
            return "simulated: no training, the time of a modelled cluster alone"
        return WORLDS.get(self.world, self.world)

    @property
    def targets(self) -> list[float]:
        return sorted({run.target for run in self.runs if run.target is not None})


def per_sample(runs: Iterable[Run]) -> Times:
    """Seconds a sample, of the runs that recorded how many they did."""
    return Times(tuple(1 / run.samples_per_s for run in runs if run.samples_per_s))


def row_of(comparison: Comparison, comparisons: Iterable[Comparison]) -> str:
    """Whether the settings of a comparison are tuned or the paper's; "" if `comparisons` has one kind."""
    if len({candidate.tuned for candidate in comparisons}) < 2:
        return ""
    return EQUALLY if comparison.tuned else OWN


def walk(comparisons: Iterable[Comparison]) -> list[tuple[Comparison, Arm, Run]]:
    """Every run with its arm and comparison, in reading order."""
    return [(c, arm, run) for c in comparisons for arm in c.arms for run in arm.runs]


def who(comparison: Comparison, arm: Arm, run: Run) -> dict[str, Any]:
    """The columns that every row about a run begins with."""
    row = {"assumption": comparison.assumption, "arm": arm.label, "run_id": run.run_id, "seed": run.seed}
    return {**comparison.place, **row}


def shown(comparison: Comparison) -> Comparison:
    """Without twins, placebos and runs of one core, which are no arms, unless there are no others."""
    beside = [arm for arm in comparison.arms if not arm.runs[0].role]
    return replace(comparison, arms=beside) if 0 < len(beside) < len(comparison.arms) else comparison


def settings(run: Run) -> dict[str, Any]:
    """The dotted config of a run without what only names, places or repeats it."""
    return {
        key: value
        for key, value in flatten(run.config).items()
        if key not in NOT_THE_ARM and not key.startswith(BELOW)
    }


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Group `runs`, copies of the baseline's left out; the order is fixed by names and seeds alone."""
    groups: dict[tuple[str, str, str, str, str, str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if run.repeats_baseline:
            continue
        workload = (run.study, run.name("model"), run.name("dataset"), run.world)
        kind = "tuned" if run.tuned else ""
        groups[*workload, run.size, run.assumption, kind, run.judged_by.key].append(run)
    places = sorted(groups, key=lambda place: [natural(name) for name in place])
    arms = [_arms(groups[place]) for place in places]
    labels = dict.fromkeys(label for labelled in arms for label in labelled)
    looks = {label: index for index, label in enumerate(labels)}
    return [
        Comparison(
            study=study,
            model=model,
            dataset=dataset,
            world=world,
            size=size,
            assumption=assumption,
            arms=[Arm(label=label, index=looks[label], runs=members) for label, members in labelled.items()],
            tuned=bool(tuned),
        )
        for (study, model, dataset, world, size, assumption, tuned, _), labelled in zip(
            places, arms, strict=True
        )
    ]


def _arms(runs: Sequence[Run]) -> dict[str, list[Run]]:
    named = all(run.arm_name for run in runs)
    members: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        apart = json.dumps([run.strategy, _name(run), sorted(settings(run).items())], default=str)
        members[run.strategy, run.arm_name if named else "", apart].append(run)
    # The baseline first, the rest by name.
    ordered = sorted(members, key=lambda key: (key[0] != "ddp", natural(key[1]), natural(key[2])))
    groups = [sorted(members[key], key=_order_in_arm) for key in ordered]
    firsts = [group[0] for group in groups]
    labels = [_label(run, firsts, named=named) for run in firsts]
    # Numbered where two are alike.
    earlier = [labels[:place].count(label) for place, label in enumerate(labels)]
    unlike = [f"{label} ({n + 1})" if n else label for label, n in zip(labels, earlier, strict=True)]
    return dict(zip(unlike, groups, strict=True))


def _label(run: Run, firsts: Sequence[Run], *, named: bool) -> str:
    """The study's name of an arm, or strategy and `run.arm`; then what sets it apart from its namesakes."""
    others = [other for other in firsts if not named or other.arm_name == run.arm_name]
    if named and len(others) == 1:
        return run.arm_name
    start, name = run.arm_name if named else run.strategy, _name(run)
    apart = [f"{key}={text(value)}" for key, value in _apart(run, others).items()]
    return ", ".join([f"{start} [{name}]" if name else start, *apart])


def natural(text: str) -> list[str | int]:
    """Sorts 4 before 16, not after it."""
    return [int(piece) if index % 2 else piece for index, piece in enumerate(re.split("([0-9]+)", text))]


def _order_in_arm(run: Run) -> tuple[Any, ...]:
    seed = run.seed if isinstance(run.seed, int) else -1
    return (seed, str(run.seed), str(value_at(run.config, "run", "repeat")), run.run_id, run.place)


def _name(run: Run) -> str:
    return str(value_at(run.config, "run", "arm") or "")


def _apart(run: Run, others: Sequence[Run]) -> dict[str, Any]:
    """Settings of `run` that differ among `others`; inside a group, among those with the same choice."""
    of_run, of_place = settings(run), {other.place: settings(other) for other in others}
    chosen = {group: {other.name(group) for other in others} for group in GROUPS[3:]}
    apart: dict[str, Any] = {group: run.name(group) for group, names in chosen.items() if len(names) > 1}
    for key, value in of_run.items():
        group = key.split(".")[0]
        peers = [other for other in others if group not in GROUPS or other.name(group) == run.name(group)]
        if not key.endswith("._target_") and any(of_place[peer.place].get(key) != value for peer in peers):
            apart[key] = value
    return apart


def common_settings(runs: Sequence[Run]) -> dict[str, str]:
    """Dotted keys with one value in all `runs`."""
    flats = [settings(run) for run in runs]
    return {
        key: text(value)
        for key, value in sorted(flats[0].items())
        if all(key in flat and flat[key] == value for flat in flats)
    }
