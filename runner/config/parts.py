"""The keys below `train`, `run` and `study`; a part checks the ranges of its own keys."""

from dataclasses import dataclass

from ...strategies.errors import ConfigError, above, at_least, one_of, within

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
    the intervals of ratios. `samples_per_s`: training samples a second of the device that computes a run in
    virtual time; with it `--dry-run` estimates the hours of a study of which no run has finished.

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
    samples_per_s: float | None = None
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
        if self.samples_per_s is not None:
            above("study.samples_per_s", self.samples_per_s, 0)
        if self.name in ("", ".", "..") or "/" in self.name or "\0" in self.name:
            raise ConfigError(
                f"study.name={self.name}: must be the name of one folder (not empty, no slash); "
                "where studies go is results_dir"
            )


def check_trials(trials: int, key: str = "study.tune_trials") -> None:
    """Raises ConfigError unless `trials` is a power of two, 4 or more: other numbers of points are uneven."""
    if trials < FEWEST_TRIALS or trials & (trials - 1):
        raise ConfigError(f"{key}={trials}: must be a power of two, {FEWEST_TRIALS} or more")
