"""Which runs belong together: comparisons (one study, model, dataset) made of arms (all but seeds equal)."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .load import Run

# Keys that name, place or repeat a run and do not change what it computes.
NOT_THE_ARM = (
    *("seed", "results_dir", "study", "run.id", "run.name", "run.tag", "run.repeat", "run.arm"),
    *("dataset.root", "launcher.port", "launcher.stall_s", "launcher.wait"),
)
GROUPS = ("strategy", "model", "dataset", "optimizer", "schedule", "cluster", "launcher")


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
        """The runs that did all their work: totals and throughputs of the others would mislead."""
        return [run for run in self.runs if run.state == "finished"]

    @property
    def reached(self) -> list[Run]:
        return [run for run in self.counted if run.crossing is not None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Arms that can be set side by side: one study, one model, one dataset."""

    study: str
    model: str
    dataset: str
    arms: list[Arm]

    @cached_property
    def runs(self) -> list[Run]:
        return [run for arm in self.arms for run in arm.runs]

    @property
    def targets(self) -> list[float]:
        return sorted({run.target for run in self.runs if run.target is not None})


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config to dotted keys; lists are values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def settings(run: Run) -> dict[str, Any]:
    """The dotted config of a run without what only names, places or repeats it."""
    return {
        key: value
        for key, value in flatten(run.config).items()
        if not any(key == name or key.startswith(f"{name}.") for name in NOT_THE_ARM)
    }


def text(value: Any) -> str:
    """A config value as it is typed on the command line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """Group `runs`; the order of everything is fixed by names and seeds alone."""
    groups: dict[tuple[str, str, str], list[Run]] = defaultdict(list)
    for run in runs:
        groups[(run.study, run.name("model"), run.name("dataset"))].append(run)
    return [
        Comparison(study=study, model=model, dataset=dataset, arms=_arms(members))
        for (study, model, dataset), members in sorted(groups.items())
    ]


def _arms(runs: Sequence[Run]) -> list[Arm]:
    members: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        name = (run.config.get("run") or {}).get("arm") or ""
        members[json.dumps([run.strategy, name, sorted(settings(run).items())], default=str)].append(run)
    # The baseline first, the rest by name.
    ordered = sorted(members.items(), key=lambda item: (item[1][0].strategy != "ddp", _natural(item[0])))
    groups = [sorted(group, key=_order_in_arm) for _, group in ordered]
    labels = _labels([group[0] for group in groups])
    return [
        Arm(label=label, index=index, runs=group)
        for index, (label, group) in enumerate(zip(labels, groups, strict=True))
    ]


def _natural(text: str) -> list[str | int]:
    """Sorts 4 before 16, not after it."""
    return [int(piece) if index % 2 else piece for index, piece in enumerate(re.split("([0-9]+)", text))]


def _order_in_arm(run: Run) -> tuple[Any, ...]:
    seed = run.seed if isinstance(run.seed, int) else -1
    return (seed, str(run.seed), str((run.config.get("run") or {}).get("repeat")), run.run_id, run.place)


def _labels(firsts: Sequence[Run]) -> list[str]:
    """Strategy, then the arm's name, then what sets it apart from the others. Never two alike."""
    labels = []
    for run in firsts:
        name = (run.config.get("run") or {}).get("arm") or ""
        parts = [run.strategy if not name else f"{run.strategy} [{name}]"]
        parts += [f"{key}={text(value)}" for key, value in _apart(run, firsts).items()]
        labels.append(", ".join(parts))
    seen: dict[str, int] = defaultdict(int)
    for position, label in enumerate(labels):
        seen[label] += 1
        if seen[label] > 1:
            labels[position] = f"{label} ({seen[label]})"
    return labels


def _apart(run: Run, others: Sequence[Run]) -> dict[str, Any]:
    """Settings of `run` that differ among `others`; inside a group, among those with the same choice."""
    mine = settings(run)
    apart: dict[str, Any] = {}
    for group in GROUPS[3:]:
        if len({other.name(group) for other in others}) > 1:
            apart[group] = run.name(group)
    for key, value in mine.items():
        group = key.split(".")[0]
        peers = others
        if group in GROUPS:
            name = run.name(group)
            peers = [other for other in others if other.name(group) == name]
        if not key.endswith("._target_") and any(settings(peer).get(key) != value for peer in peers):
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


def own_settings(run: Run, common: Mapping[str, str]) -> dict[str, str]:
    """What `run` has beyond `common`, seed and arm included."""
    own = {key: text(value) for key, value in sorted(settings(run).items()) if key not in common}
    arm = (run.config.get("run") or {}).get("arm")
    return {"seed": text(run.seed)} | ({"run.arm": text(arm)} if arm else {}) | own
