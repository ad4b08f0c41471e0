"""Reference convergence points, the samples a baseline needed to its target, and the check against them.

The files are those of conf/convergence, and of `convergence/` in a folder of the user's own. A file names the
workload, key by key: it applies to runs that agree in all of them. `daso-bench pilot +study=NAME --reference`
writes one. The check finds a weak baseline, and arms that need fewer samples than they should. Source:
docs/method.md, "Validity and guard"; the tests are in `runner/report/statistics/noise_floor.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....strategies.errors import ConfigError
from ...config import groups
from ...records.trees import dump_yaml, flatten
from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import number
from ..statistics import noise_floor
from ..statistics.noise_floor import Shift
from ..statistics.welch import Times
from .paper_claims import read_keys

FOLDER = "convergence"
FEWEST_RUNS = 10
GROUPS = ("model", "dataset", "optimizer", "schedule")
TRAIN = (
    *("epochs", "max_steps", "global_batch_size", "short_batch", "precision", "clip_norm"),
    *("target", "target_metric", "eval_split", "eval_every_samples"),
)
"""Of `train`: what decides how many samples a target takes, and how a crossing is seen."""
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
        if len(self.samples) < FEWEST_RUNS:
            raise ConfigError(f"samples: {len(self.samples)} runs; must be {FEWEST_RUNS} or more")
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
    flat = flatten(trees)
    return {key: flat[key] for key in sorted(flat) if key != "dataset.root"}


def match(config: Mapping[str, Any], references: Sequence[Reference]) -> Reference | None:
    """The reference of the workload of a run with this configuration; of several the last."""
    workload = workload_of(config)
    return next((each for each in reversed(references) if each.workload == workload), None)


def load(folders: Sequence[Path] = ()) -> list[Reference]:
    """The shipped references, then those in `convergence/` below each of `folders`.

    Raises ConfigError: a file is no such file; names it, the key, the value and what is allowed.
    """
    files = (file for folder in (groups.CONF, *folders) for file in sorted((folder / FOLDER).glob("*.yaml")))
    return [read(file) for file in files]


def read(file: Path) -> Reference:
    """The reference of one file. Raises ConfigError."""
    tree = read_keys(file, _KEYS)
    try:
        for key, kind, allowed in (
            ("workload", dict, "keys and values"),
            ("samples", list, "a list of numbers"),
        ):
            if not isinstance(tree[key], kind):
                raise ConfigError(f"{key}={tree[key]}: must be {allowed}")
        texts = {key: str(tree[key]) for key in ("command", "date")}
        samples = tuple(tree["samples"])
        return Reference(
            name=file.stem, workload=tree["workload"], samples=samples, missed=tree["missed"], **texts
        )
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

    `reference`: None where none is stored for this workload; then nothing is checked. `weak`: why the
    baseline is too weak, "" if it is not. By arm's label: `shifts`, how much better than the points it is;
    `flagged`, why it needs fewer samples than it should.
    """

    reference: Reference | None = None
    weak: str = ""
    shifts: Mapping[str, Shift] = field(default_factory=dict)
    flagged: Mapping[str, str] = field(default_factory=dict)

    def reasons(self, *arms: Arm) -> tuple[str, ...]:
        """Why there is no verdict between these arms."""
        return tuple(self.flagged[arm.label] for arm in arms if arm.label in self.flagged)

    @property
    def sentence(self) -> str:
        """With which reference the samples were compared."""
        if self.reference is None:
            return "No stored reference for this workload: whether the baseline is weak is not known."
        stored = f"{len(self.reference.samples)} stored runs of {self.reference.name} ({self.reference.date})"
        return f"Samples to target were held against {stored}."


def check_convergence(
    comparison: Comparison, baseline: Arm, references: Sequence[Reference]
) -> ConvergenceCheck | None:
    """None without a target. Second baselines and the placebo are left out: no verdict is about them.

    A run that missed the target enters with all samples it used, as it does in a reference: it needs at least
    so many.
    """
    if len(comparison.targets) != 1:
        return None
    reference = match(baseline.runs[0].config, references)
    if reference is None:
        return ConvergenceCheck()
    stored = Times(reference.samples)
    samples = {arm.label: _samples(arm) for arm in comparison.arms if not arm.runs[0].role}
    shifts = noise_floor.any_better(stored, {label: each for label, each in samples.items() if each.seconds})
    of_baseline = samples[baseline.label]
    worse = noise_floor.worse(stored, of_baseline) if of_baseline.seconds else None
    weak = f"weak baseline: {_needs(baseline.label, worse, reference)})" if worse and worse.flagged else ""
    flagged = {
        label: f"{label} needs fewer samples than it should, flagged until explained: "
        f"{_needs(label, shift, reference)}; {shift.adjusted:.2g} after correction for "
        f"{words.count(len(shifts), 'arm')})"
        for label, shift in shifts.items()
        if shift.flagged
    }
    return ConvergenceCheck(reference=reference, weak=weak, shifts=shifts, flagged=flagged)


def _needs(label: str, shift: Shift, reference: Reference) -> str:
    """Up to the p of this test alone; the bracket is still open."""
    times = math.exp(shift.log_shift)
    stored = f"the stored runs of {reference.name}"
    return f"{label} needs {times:.3f} times the samples of {stored} (p = {shift.p:.2g}"


def _samples(arm: Arm) -> Times:
    """Samples to target of each counted run, of those that missed it all they used."""
    samples = [run.crossing.scored_samples if run.crossing else run.samples for run in arm.counted]
    return Times(tuple(float(value) for value in samples if value))
