"""What a run is called, and its place in a study: the keys below `run` and `study`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...strategies.errors import ConfigError, above, at_least, one_of, within

ROLES = ("", "same_seeds", "fresh_seeds", "placebo", "one_core")
INTERVALS = ("welch", "paired")
TRIALS, FEWEST_TRIALS = 16, 4  # of each arm, when a study is tuned


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
    the others are held against; "": the first with `ddp`. `role`: a second baseline that tells how much two
    equal arms differ, with the same seeds (`same_seeds`, the first `same_seeds_share` of the schedule) or
    with others (`fresh_seeds`); the `placebo`; or one process on one core alone (`one_core`). `interval` and
    `level`: of ratios.

    `tune_trials`: what `daso-bench tune` tries of each arm. It writes the others, into the arms of the study
    that it makes: `tuned`, the arm whose tuned settings this one has, "" for the study's own settings;
    `tune_space`, what was searched of all arms; `tune_failed`, trials without a result; `tune_device_hours`.
    """

    name: str = "runs"
    arm: str = ""
    assumption: str = ""
    size: str = ""
    baseline: str = ""
    role: str = ""
    same_seeds_share: float = 0.2
    interval: str = "welch"
    level: float = 0.95
    tune_trials: int = TRIALS
    tuned: str = ""
    tune_space: str = ""
    tune_failed: int = 0
    tune_device_hours: float = 0.0

    def __post_init__(self) -> None:
        one_of("study.role", self.role, ROLES)
        check_trials(self.tune_trials)
        one_of("study.interval", self.interval, INTERVALS)
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


def check_fair(
    trials: Mapping[str, int], tuning_seeds: Collection[int], scored_seeds: Collection[int]
) -> None:
    """Raises ConfigError unless every arm had the same number of trials and no tuning seed is scored."""
    if len(set(trials.values())) > 1:
        counts = ", ".join(f"{arm} {count}" for arm, count in trials.items())
        raise ConfigError(f"study.tune_trials: {counts}; must be equal for all arms")
    shared = sorted(set(tuning_seeds) & set(scored_seeds))
    if shared:
        raise ConfigError(f"seeds {shared} were tuned on and are scored: choose others for one of the two")
