"""Budget, evaluation, target and arithmetic of a run: the keys below `train`."""

from dataclasses import dataclass

from ...strategies.errors import ConfigError, above, at_least, one_of, within

STOPS = ("budget", "confirmed", "first")
EVAL_SPLITS = ("test", "validation")
EVAL_MODES = ("auto", "inline", "deferred")
SHORT_BATCHES = ("join", "keep", "drop")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp64")


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
    compile: bool = False
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
            raise ConfigError(
                f"train.target={self.target}: must be above 0 and at most 1 (a share, 0.95 for 95 %)"
            )
        if self.target is not None and self.target_metric == "loss":
            above("train.target", self.target, 0)
        if self.target is None and self.stop != "budget":
            raise ConfigError(f"train.stop={self.stop}: needs a train.target to stop at")

    def _check_checkpoints(self) -> None:
        every = self.checkpoint_every_samples
        if isinstance(every, str) and every != "auto":
            raise ConfigError(
                f"train.checkpoint_every_samples={every}: must be auto, a number of samples or null"
            )
        if isinstance(every, int):
            at_least("train.checkpoint_every_samples", every, 1)
