"""The parts of a run: the keys below `train`, `run` and `study`, and all parts together.

A part checks the ranges of its own keys; what two parts do not allow together: `checks.py`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...datasets.dataset import Dataset
from ...datasets.sampler import Sampler
from ...models.spec import Model
from ...strategies.base import Strategy
from ...strategies.errors import ConfigError, above, at_least, one_of, within
from ...strategies.progress import Plan
from ...strategies.topology import Topology
from . import tasks
from .cluster import ClusterConfig
from .launchers import LauncherConfig
from .optimizers import Optimizer
from .reader_config import NoReader, ReaderConfig
from .schedules import Schedule
from .typed import part_name

STOPS = ("budget", "confirmed", "first")
EVAL_SPLITS = ("test", "validation")
EVAL_MODES = ("auto", "inline", "deferred")
SHORT_BATCHES = ("join", "keep", "drop")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp64")
ROLES = ("", "same_seeds", "fresh_seeds", "placebo", "one_core")
TRIALS, FEWEST_TRIALS = 16, 4  # of each arm, when a study is tuned


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Budget, evaluation, target and arithmetic of a run. Sizes are global: over all ranks."""

    epochs: int = 12
    max_steps: int | None = None
    max_seconds: float | None = None
    global_batch_size: int = 64
    short_batch: str = "join"
    target: float | None = None
    target_metric: str = "accuracy"
    stop: str = "budget"
    eval_every_samples: int | None = None
    eval_phase: float = 0.0
    eval_split: str = "test"
    eval_mode: str = "auto"
    eval_copies_mib: float = 4096.0
    checkpoint_every_samples: int | str | None = "auto"
    precision: str = "fp32"
    channels_last: bool = False
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    accumulate: int = 1

    def __post_init__(self) -> None:
        at_least("train.epochs", self.epochs, 1)
        at_least("train.global_batch_size", self.global_batch_size, 1)
        at_least("train.accumulate", self.accumulate, 1)
        for key in ("max_steps", "eval_every_samples"):
            if getattr(self, key) is not None:
                at_least(f"train.{key}", getattr(self, key), 1)
        for key in ("max_seconds", "clip_norm"):
            if getattr(self, key) is not None:
                above(f"train.{key}", getattr(self, key), 0)
        within("train.eval_phase", self.eval_phase, 0, 1)
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"train.label_smoothing={self.label_smoothing}: must be >= 0 and < 1")
        one_of("train.stop", self.stop, STOPS)
        one_of("train.eval_split", self.eval_split, EVAL_SPLITS)
        one_of("train.eval_mode", self.eval_mode, EVAL_MODES)
        one_of("train.short_batch", self.short_batch, SHORT_BATCHES)
        above("train.eval_copies_mib", self.eval_copies_mib, 0)
        one_of("train.precision", self.precision, PRECISIONS)
        self._check_target()
        self._check_checkpoints()

    def _check_target(self) -> None:
        if self.target is not None and self.target_metric != "loss" and not 0 < self.target <= 1:
            raise ConfigError(f"train.target={self.target}: must be above 0 and at most 1 (0.95 for 95 %)")
        if self.target is not None and self.target_metric == "loss":
            above("train.target", self.target, 0)
        if self.target is None and self.stop != "budget":
            raise ConfigError(f"train.stop={self.stop}: needs a train.target to stop at")

    def _check_checkpoints(self) -> None:
        every = self.checkpoint_every_samples
        if isinstance(every, str) and every != "auto":
            raise ConfigError(f"train.checkpoint_every_samples={every}: must be auto, a number or null")
        if isinstance(every, int):
            at_least("train.checkpoint_every_samples", every, 1)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Labels of a run. `arm` and `repeat` are part of its identity, `name` and `tag` are for people."""

    name: str = ""
    tag: str = ""
    arm: str = ""
    repeat: int = 0

    def __post_init__(self) -> None:
        at_least("run.repeat", self.repeat, 0)


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """The study a run belongs to, its folder below `results_dir`; and the run's place in the study's sets.

    `assumption`: the departure from what the study assumes otherwise; "" for none. `baseline`: the arm that
    the others are compared with; "": the first with `ddp`. `role`: a second baseline, which measures how much
    two equal arms differ, with the same seeds (`same_seeds`, the first `same_seeds_share` of the schedule) or
    with others (`fresh_seeds`); the `placebo`; or one process on one core alone (`one_core`). `level`: of
    the intervals of ratios.

    `tune_trials`: trials of each arm with `daso-bench tune`. It writes the other keys into the study of the
    winners: `tuned`, the arm whose tuned settings this one has, "" for the study's own settings;
    `tune_space`, what was searched of all arms; `tune_failed`, trials without a result; `tune_device_hours`.
    """

    name: str = "runs"
    arm: str = ""
    assumption: str = ""
    size: str = ""
    baseline: str = ""
    role: str = ""
    same_seeds_share: float = 0.2
    level: float = 0.95
    tune_trials: int = TRIALS
    tuned: str = ""
    tune_space: str = ""
    tune_failed: int = 0
    tune_device_hours: float = 0.0

    def __post_init__(self) -> None:
        one_of("study.role", self.role, ROLES)
        check_trials(self.tune_trials)
        above("study.same_seeds_share", self.same_seeds_share, 0)
        within("study.same_seeds_share", self.same_seeds_share, 0, 1)
        above("study.level", self.level, 0.5)
        within("study.level", self.level, 0.5, 0.999)
        if self.name in ("", ".", "..") or "/" in self.name or "\0" in self.name:
            raise ConfigError(
                f"study.name={self.name}: must be the name of one folder (not empty, no slash); "
                "where studies go is results_dir"
            )


def check_trials(trials: int, key: str = "study.tune_trials") -> None:
    """Raises ConfigError unless `trials` is a power of two, 4 or more: other numbers of points are uneven."""
    if trials < FEWEST_TRIALS or trials & (trials - 1):
        raise ConfigError(f"{key}={trials}: must be a power of two, {FEWEST_TRIALS} or more")


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """All parts of one run. `strategy` is an instance of `strategy_class.Config`."""

    strategy_class: type[Strategy]
    strategy: Any
    model: Model
    dataset: Dataset
    optimizer: Optimizer
    schedule: Schedule
    cluster: ClusterConfig
    launcher: LauncherConfig
    train: TrainConfig
    seed: int
    run: RunInfo
    study: StudyInfo
    results_dir: Path
    reader: ReaderConfig = field(default_factory=NoReader)

    @property
    def strategy_name(self) -> str:
        """The strategy's name for people: its `name` if it has one, else the name of its file."""
        return part_name(self.strategy_class)

    def task(self, classes: int) -> tasks.Task:
        """The task on data of so many classes. Raises ConfigError where they are too few for the target."""
        tasks.check_top5(self.train.target_metric, classes)
        kind = tasks.kind_of(self.dataset.task, "dataset")
        return kind(classes=classes, label_smoothing=self.train.label_smoothing)

    def plan(self) -> Plan:
        """The plan that the strategy checks, as far as it is known before the data are loaded."""
        train, sampler = self.train, self.sampler()
        per_epoch = None if sampler is None else sampler.steps_per_epoch
        steps = None if per_epoch is None else per_epoch * train.epochs
        if train.max_steps is not None:
            steps = train.max_steps if steps is None else min(steps, train.max_steps)
        topology = Topology.of(self.cluster.ranks_of_nodes)
        return Plan(topology, train.epochs, train.global_batch_size, per_epoch, steps)

    def sampler(self) -> Sampler | None:
        """How an epoch is cut; None while the number of samples is not known. Raises ConfigError."""
        samples = self.dataset.info().samples
        if samples is None:
            return None
        try:
            return Sampler(
                samples["train"],
                self.train.global_batch_size,
                self.cluster.ranks,
                0,
                short_batch=self.train.short_batch,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error
