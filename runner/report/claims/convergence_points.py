"""Reference convergence points, the samples a baseline needed to its target, and the check against them.

The files are those of conf/convergence, and of `convergence/` in a folder of the user's own. A file names
model, data, target and settings, key by key. `daso-bench pilot +study=NAME --reference` writes one. The check
finds a baseline that needs more samples than one of any stored settings, one that learnt nothing, and arms
that need fewer samples than the baseline with their own settings. Source: docs/method.md, "Validity and
guard"; the tests are in `runner/report/statistics/noise_floor.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ....strategies.errors import ConfigError
from ...config import groups
from ...records.trees import dump_yaml, flatten
from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run, number
from ..statistics.noise_floor import Shift, shifts_of
from ..statistics.welch import Times
from .arm_speedup import diverged
from .paper_claims import read_keys

FOLDER = "convergence"
FEWEST_STORED = 10
GROUPS = ("model", "dataset", "optimizer", "schedule")
TRAIN = (
    *("epochs", "max_steps", "global_batch_size", "short_batch", "precision", "clip_norm"),
    *("target", "target_metric", "eval_split", "eval_every_samples"),
)
"""Of `train`: what decides how many samples a target takes, and how a crossing is seen."""
SAME_TASK = ("model.", "dataset.", "train.target", "train.global_batch_size", "train.eval_split")
"""Beginnings of the keys in which runs agree that have the same task, whatever their other settings."""
ABOVE_CHANCE = 3.0  # standard errors of an accuracy that is better than chance
_KEYS = ("workload", "samples", "missed", "command", "date")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Stored points of one workload, dotted key -> value.

    `samples`: scored samples to target of each run, in the order of their seeds; a run that missed the target
    is listed with all it used, and is counted in `missed`. Raises ConfigError for fewer than 10 runs, a
    number that is not positive and finite, or more misses than runs.
    """

    name: str
    workload: Mapping[str, Any]
    samples: tuple[float, ...]
    missed: int
    command: str
    date: str

    def __post_init__(self) -> None:
        if len(self.samples) < FEWEST_STORED:
            raise ConfigError(f"samples: {len(self.samples)} runs; must be {FEWEST_STORED} or more")
        for value in self.samples:
            if (number(value) or 0.0) <= 0:
                raise ConfigError(f"samples={value}: must be numbers above 0")
        if type(self.missed) is not int or not 0 <= self.missed <= len(self.samples):
            raise ConfigError(f"missed={self.missed}: must be from 0 to {len(self.samples)}, the runs")


def workload_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration (config.yaml as a tree) a reference must agree with, dotted, sorted."""
    train = config.get("train")
    trees = {group: config.get(group) for group in GROUPS}
    trees["train"] = {key: train.get(key) for key in TRAIN} if isinstance(train, Mapping) else None
    return {key: value for key, value in sorted(flatten(trees).items()) if key != "dataset.root"}


def match(config: Mapping[str, Any], references: Sequence[Reference]) -> Reference | None:
    """The reference of the workload of a run with this configuration; of several the last."""
    workload = workload_of(config)
    return next((each for each in reversed(references) if each.workload == workload), None)


def of_same_task(config: Mapping[str, Any], references: Sequence[Reference]) -> list[Reference]:
    """The references of the same model, data, target, metric and batch, with any other settings."""
    task = _task(workload_of(config))
    return [each for each in references if _task(each.workload) == task]


def _task(workload: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in workload.items() if key.startswith(SAME_TASK)}


def load(folders: Sequence[Path] = ()) -> list[Reference]:
    """The shipped references, then those in `convergence/` below each of `folders`.

    Raises ConfigError: a file is no such file; names it, the key, the value and what is allowed.
    """
    return [*_shipped(), *(reference for folder in folders for reference in _of_folder(folder))]


@cache
def _shipped() -> tuple[Reference, ...]:
    return _of_folder(groups.CONF)


def _of_folder(folder: Path) -> tuple[Reference, ...]:
    return tuple(read(file) for file in sorted((folder / FOLDER).glob("*.yaml")))


def read(file: Path) -> Reference:
    """The reference of one file. Raises ConfigError."""
    tree = read_keys(file, _KEYS)
    try:
        if not isinstance(tree["workload"], dict):
            raise ConfigError(f"workload={tree['workload']}: must be keys and values")
        if not isinstance(tree["samples"], list):
            raise ConfigError(f"samples={tree['samples']}: must be a list of numbers")
        fields: dict[str, Any] = {**tree, "samples": tuple(tree["samples"])}
        fields |= {key: str(tree[key]) for key in ("command", "date")}
        return Reference(name=file.stem, **fields)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def write(file: Path, reference: Reference, first_line: str) -> None:
    """Write it with a comment above. Raises ConfigError if the file cannot be written."""
    tree = {key: getattr(reference, key) for key in _KEYS} | {"samples": list(reference.samples)}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {first_line}\n{dump_yaml(tree)}", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; choose another --output") from error


@dataclass(frozen=True, kw_only=True)
class ConvergenceCheck:
    """The arms of a comparison against the stored points.

    `reference`: that of these settings, None where none is stored. `known`: all of the same task. `weak`: why
    the baseline is too weak; "" if it is not. `shifts`: by label of an arm, how much better than `reference`.
    """

    reference: Reference | None = None
    known: Sequence[Reference] = ()
    weak: str = ""
    shifts: Mapping[str, Shift] = field(default_factory=dict)

    @property
    def flagged(self) -> dict[str, str]:
        """By label of an arm: that it needs fewer samples than it should."""
        return {
            label: f"{_needs(label, shift, self.reference)}: fewer than it should, flagged until explained"
            for label, shift in self.shifts.items()
            if self.reference and shift.flagged
        }


def check_convergence(
    comparison: Comparison, baseline: Arm, references: Sequence[Reference]
) -> ConvergenceCheck:
    """Without one target nothing is compared. No verdict is about second baselines and the placebo: they are
    left out.

    A run that missed the target enters with all samples it used, as it does in a reference: it needs at least
    so many.
    """
    if len(comparison.targets) != 1:
        return ConvergenceCheck()
    config = baseline.runs[0].config
    reference, known = match(config, references), of_same_task(config, references)
    arms = [arm for arm in comparison.arms if not arm.runs[0].role]
    samples = {
        arm.label: Times(tuple(recorded)) for arm in arms if (recorded := samples_to_target(arm.counted))
    }
    pairs = [(Times(reference.samples), each) for each in samples.values()] if reference else []
    return ConvergenceCheck(
        reference=reference,
        known=known,
        weak=_weak(baseline, samples[baseline.label], known) if baseline.label in samples else "",
        shifts=dict(zip(samples, shifts_of(pairs, sign=-1.0), strict=False)),
    )


def _weak(baseline: Arm, samples: Times, known: Sequence[Reference]) -> str:
    """That the baseline needs more samples than the best stored settings, and which they are; or ""."""
    worse = worse_than_known(samples, known)
    if worse is None:
        return ""
    better, shift = worse
    own = workload_of(baseline.runs[0].config)
    other = [f"{key}={value}" for key, value in better.workload.items() if own.get(key) != value]
    having = f", which have {', '.join(other)}" if other else ""
    return f"weak baseline: {_needs(baseline.label, shift, better)}{having}"


def worse_than_known(samples: Times, known: Sequence[Reference]) -> tuple[Reference, Shift] | None:
    """The reference that a baseline with these samples to target is worse than by most, if significantly.

    p is corrected by Holm for all references in `known`: the best of many is good by chance as well.
    """
    shifts = shifts_of((Times(each.samples), samples) for each in known)
    found = [pair for pair in zip(known, shifts, strict=True) if pair[1].flagged]
    return max(found, key=lambda pair: pair[1].log_shift, default=None)


def learnt_nothing(baseline: Arm) -> str:
    """Why no claim on times can rest on this baseline: no run reached the target, or all are at chance."""
    runs = baseline.counted
    if runs and runs[0].target is not None and not baseline.reached:
        return f"none of the {words.count(len(runs), 'run')} of {baseline.label} reached the target"
    if runs and all(at_chance(run) for run in runs):
        return f"no run of {baseline.label} is better than chance"
    return ""


def at_chance(run: Run) -> bool:
    """Whether the last model is no better than guessing; False where that is not known.

    Guessing has an accuracy of 1 / classes (top5: 5 / classes); a model is better from three standard errors
    of an accuracy on. A loss or metric that is no number is no better.
    """
    if run.timing_only:  # nothing is to be learnt
        return False
    if diverged(run):
        return True
    last, classes = run.final, number(run.summary.get("classes"))
    guesses = {"accuracy": 1, "top5": 5}.get(run.judged_by.key)
    if last is None or not classes or guesses is None or guesses >= classes:
        return False
    chance, count = guesses / classes, number(run.evaluations[-1].get("count")) if run.evaluations else None
    error = math.sqrt(chance * (1 - chance) / count) if count else 0.0
    return last <= chance + ABOVE_CHANCE * error


def _needs(label: str, shift: Shift, reference: Reference) -> str:
    times = f"{math.exp(shift.log_shift):.3f} times the samples of the stored runs of {reference.name}"
    return f"{label} needs {times} (corrected p = {shift.adjusted:.2g})"


def samples_to_target(runs: Iterable[Run]) -> list[float]:
    """Of each run that recorded any: those up to its crossing, and where it missed the target all it used."""
    samples = (run.crossing.scored_samples if run.crossing else run.samples for run in runs)
    return [float(value) for value in samples if value]
