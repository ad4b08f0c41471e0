"""Which runs belong together: comparisons (one kind of work and world) made of arms (all but seeds equal)."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from ...records.trees import below, flatten_known
from .. import words
from ..statistics.welch import Times
from .load import Run, text, value_at
from .metric import Metric

# Keys that name, place or repeat a run and do not change what it computes.
NOT_THE_ARM = (
    *("seed", "results_dir", "study", "run.id", "run.name", "run.tag", "run.repeat", "run.arm"),
    *("dataset.root", "reader.path", "launcher.port", "launcher.stall_s", "launcher.wait"),
    "train.eval_phase",
)
GROUPS = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "cluster", "launcher")
ONE_CORE = "one_core"
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
    def reached(self) -> list[Run]:
        return [run for run in self.counted if run.crossing is not None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms that can be compared: all else is the same. `assumption`: "" as configured.

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
        if self.world != "simulated":
            return words.world(self.world)
        untrained = all(run.timing_only for run in self.runs)
        numbers = "no training" if untrained else f"real gradients {computed_on(self.runs)}".strip()
        return f"simulated: {numbers}, the time of a modelled cluster"

    @property
    def targets(self) -> list[float]:
        return sorted({run.target for run in self.runs if run.target is not None})


def computed_on(runs: Iterable[Run]) -> str:
    """`on NVIDIA H200` or `on CPU`: what computed virtual ranks; "" where nothing did, or ranks are real."""
    devices = sorted({run.computed_on for run in runs if run.computed_on})
    return f"on {words.listed(devices)}" if devices else ""


def per_sample(runs: Iterable[Run]) -> Times:
    """Seconds a sample, of the runs that recorded how many they did."""
    return Times(tuple(1 / run.samples_per_s for run in runs if run.samples_per_s))


def row_of(comparison: Comparison, comparisons: Iterable[Comparison]) -> str:
    """Whether the settings of a comparison are tuned or the paper's; "" if `comparisons` has one kind."""
    if len({candidate.tuned for candidate in comparisons}) < 2:
        return ""
    return EQUALLY if comparison.tuned else OWN


def shown(comparison: Comparison) -> Comparison:
    """Without second baselines, placebos and runs of one core, unless there are no other arms."""
    arms = [arm for arm in comparison.arms if not arm.runs[0].role]
    return replace(comparison, arms=arms) if arms else comparison


def settings(run: Run) -> dict[str, Any]:
    """The dotted config of a run without what only names, places or repeats it."""
    return {key: value for key, value in flatten_known(run.config).items() if not below(key, NOT_THE_ARM)}


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Group `runs`, copies of the baseline's left out; the order is fixed by names and seeds alone."""
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        if not run.repeats_baseline:
            groups[*_place(run).values(), run.judged_by.key].append(run)
    together = [groups[key] for key in sorted(groups, key=lambda key: [natural(str(part)) for part in key])]
    labelled = [_arms(members) for members in together]
    looks = {label: index for index, label in enumerate(dict.fromkeys(chain(*labelled)))}
    return [
        Comparison(
            **_place(members[0]),
            arms=[Arm(label=label, index=looks[label], runs=own) for label, own in arms.items()],
        )
        for members, arms in zip(together, labelled, strict=True)
    ]


def _place(run: Run) -> dict[str, Any]:
    """The fields of the comparison that a run belongs to."""
    return {
        "study": run.study,
        "model": run.name("model"),
        "dataset": run.name("dataset"),
        "world": run.world,
        "size": run.size,
        "assumption": run.assumption,
        "tuned": bool(run.tuned),
    }


def _arms(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each arm by its label."""
    named = all(run.arm_name for run in runs)
    members: dict[tuple[bool, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        same = json.dumps([run.strategy, run.own_name, sorted(settings(run).items())], default=str)
        members[run.strategy != "ddp", run.arm_name if named else "", same].append(run)
    # The baseline first, the rest by name.
    ordered = sorted(members, key=lambda key: (key[0], natural(key[1]), natural(key[2])))
    groups = [sorted(members[key], key=_order_in_arm) for key in ordered]
    firsts = [group[0] for group in groups]
    arms: dict[str, list[Run]] = {}
    seen: Counter[str] = Counter()
    for first, group in zip(firsts, groups, strict=True):
        label = _label(first, firsts, named=named)
        seen[label] += 1
        arms[f"{label} ({seen[label]})" if seen[label] > 1 else label] = group
    return arms


def _label(run: Run, firsts: Sequence[Run], *, named: bool) -> str:
    """The study's name of an arm, or strategy and `run.arm`; then the settings that set it apart."""
    others = [other for other in firsts if not named or other.arm_name == run.arm_name]
    if named and len(others) == 1:
        return run.arm_name
    start = run.arm_name if named else run.strategy
    flats = {other.place: settings(other) for other in others}
    different: dict[str, Any] = {
        group: run.name(group) for group in GROUPS[3:] if len({other.name(group) for other in others}) > 1
    }
    for key, value in flats[run.place].items():
        # The settings of a group are compared with those of the same choice.
        group = key.split(".")[0]
        peers = [other for other in others if group not in GROUPS or other.name(group) == run.name(group)]
        if not key.endswith("._target_") and any(flats[peer.place].get(key) != value for peer in peers):
            different[key] = value
    start += f" [{run.own_name}]" if run.own_name else ""
    return ", ".join([start, *(f"{key}={text(value)}" for key, value in different.items())])


def natural(text: str) -> list[str | int]:
    """Sorts 4 before 16, not after it."""
    return [int(piece) if index % 2 else piece for index, piece in enumerate(re.split("([0-9]+)", text))]


def _order_in_arm(run: Run) -> tuple[Any, ...]:
    seed = run.seed if isinstance(run.seed, int) else -1
    return (seed, str(run.seed), str(value_at(run.config, "run", "repeat")), run.run_id, run.place)
