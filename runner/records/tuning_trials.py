"""How many settings `daso-bench tune` tries of each arm, and with which seeds: the same for all arms."""

from ...strategies.errors import ConfigError
from .seed_ranges import TRIAL

TRIALS = 16  # `study.tune_trials`
FEWEST_TRIALS = 4


def check_trials(trials: int, key: str = "study.tune_trials") -> None:
    """Raises ConfigError unless `trials` is a power of two, 4 or more: other numbers of points are uneven."""
    if trials < FEWEST_TRIALS or trials & (trials - 1):
        raise ConfigError(f"{key}={trials}: must be a power of two, {FEWEST_TRIALS} or more")


def seeds(trials: int) -> list[int]:
    """The seed of each trial: none that a scored run has."""
    return [TRIAL + number for number in range(trials)]
