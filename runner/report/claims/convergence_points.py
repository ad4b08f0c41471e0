"""Reference convergence points: how many samples a baseline needed to its target, as files.

Those of conf/convergence, and of `convergence/` in a folder of the user's own. A file names the workload, key
by key: it speaks of runs that agree in all of them. `daso-bench pilot +study=NAME --reference` writes one.
Source: docs/method.md, "Validity and guard".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ....strategies.errors import ConfigError, nearest
from ...config import groups
from ...records.trees import dump_yaml, flatten

FOLDER = "convergence"
FEWEST_RUNS = 10
GROUPS = ("model", "dataset", "optimizer", "schedule")
TRAIN = (
    *("epochs", "max_steps", "global_batch_size", "short_batch", "precision", "clip_norm"),
    *("target", "target_metric", "eval_split", "eval_every_samples"),
)
"""Of `train`: what decides how many samples a target takes, and how a crossing is seen."""
_LEFT_OUT = ("dataset.root",)  # where the data lies
_KEYS = ("workload", "samples", "missed", "command", "date")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Stored points of one workload, dotted key -> value.

    `samples`: scored samples to target of each run, in the order of their seeds; a run that missed the target
    stands there with all it used, and is counted in `missed`. Raises ConfigError for fewer than 10 runs, a
    number that is not positive and finite, or more misses than runs.
    """

    name: str
    workload: Mapping[str, Any]
    samples: tuple[float, ...]
    missed: int
    command: str
    date: str

    def __post_init__(self) -> None:
        if len(self.samples) < FEWEST_RUNS:
            raise ConfigError(f"samples: {len(self.samples)} runs; must be {FEWEST_RUNS} or more")
        for value in self.samples:
            usable = isinstance(value, int | float) and not isinstance(value, bool)
            if not usable or not (math.isfinite(value) and value > 0):
                raise ConfigError(f"samples={value}: must be numbers above 0")
        if type(self.missed) is not int or not 0 <= self.missed <= len(self.samples):
            raise ConfigError(f"missed={self.missed}: must be from 0 to {len(self.samples)}, the runs")


def workload_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration (config.yaml as a tree) a reference must agree with, dotted, sorted."""
    train = config.get("train")
    trees = {group: config.get(group) for group in GROUPS}
    trees["train"] = {key: train.get(key) for key in TRAIN} if isinstance(train, Mapping) else None
    flat = flatten(trees)
    return {key: flat[key] for key in sorted(flat) if key not in _LEFT_OUT}


def match(config: Mapping[str, Any], references: Sequence[Reference]) -> Reference | None:
    """The reference of the workload of a run with this configuration; of several the last."""
    own = workload_of(config)
    return next((one for one in reversed(references) if one.workload == own), None)


def load(folders: Sequence[Path] = ()) -> list[Reference]:
    """The shipped references, then those in `convergence/` below each of `folders`.

    Raises ConfigError: a file is no such file; names it, the key, the value and what is allowed.
    """
    files = (file for folder in (groups.CONF, *folders) for file in sorted((folder / FOLDER).glob("*.yaml")))
    return [read(file) for file in files]


def read(file: Path) -> Reference:
    """The reference of one file. Raises ConfigError."""
    try:
        return _reference(file.stem, yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read: {' '.join(str(error).split())}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def write(file: Path, reference: Reference, first_line: str) -> None:
    """Write it with a comment above. Raises ConfigError if the file cannot be written."""
    tree = {
        "workload": dict(reference.workload),
        "samples": list(reference.samples),
        "missed": reference.missed,
        "command": reference.command,
        "date": reference.date,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {first_line}\n{dump_yaml(tree)}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; choose another --output") from error


def _reference(name: str, tree: Any) -> Reference:
    if not isinstance(tree, dict):
        raise ConfigError(f"must hold the keys {', '.join(_KEYS)}")
    for key in tree:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            hint = f" (did you mean {near}?)" if near else ""
            raise ConfigError(f"{key}: unknown key{hint}; known: {', '.join(_KEYS)}")
    for key in _KEYS:
        if tree.get(key) is None:
            raise ConfigError(f"{key}: must be given")
    for key, kind in (("workload", dict), ("samples", list)):
        if not isinstance(tree[key], kind):
            word = "keys and values" if kind is dict else "a list of numbers, one a run"
            raise ConfigError(f"{key}={tree[key]}: must be {word}")
    return Reference(
        name=name,
        workload={str(key): value for key, value in tree["workload"].items()},
        samples=tuple(tree["samples"]),
        missed=tree["missed"],
        command=str(tree["command"]),
        date=str(tree["date"]),
    )
