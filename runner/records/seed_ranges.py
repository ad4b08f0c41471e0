"""Seed ranges of a study: scored runs share no seed with runs that set targets, tune or measure noise.

Scored runs have seeds below `SEEDS`, one per repetition, the same for all arms. Each other use has a range of
that size, and the number within it is the repetition.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ...datasets.stream_seeds import stream_seed
from ...strategies.errors import ConfigError

SEEDS = 10**6
FRESH, PILOT, TRIAL = SEEDS, 2 * SEEDS, 3 * SEEDS  # where the ranges of the other uses begin
REFERENCE = 4 * SEEDS  # of runs whose samples to target are stored (conf/convergence)
REPEATS = ("same_seeds", "placebo")  # roles that in virtual time without jitter repeat a run of the baseline


def trial_seeds(trials: int) -> list[int]:
    """The seed of each trial of `daso-bench tune`, the same for all arms."""
    return [TRIAL + number for number in range(trials)]


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


def repetition_of(seed: Any) -> Any:
    """The repetition of a run with this seed; a value that is no integer is returned as it is."""
    return seed % SEEDS if isinstance(seed, int) and not isinstance(seed, bool) else seed


def block_of(seed: Any, role: str) -> Any:
    """The block of a study that a run is in: its seed; that of the first for a second baseline with fresh."""
    return repetition_of(seed) if role == "fresh_seeds" else seed


def phase_of(seed: int) -> float:
    """The offset of a repetition's evaluations between two marks, in [0, 1): random, the same for all arms.

    A fixed grid would favour the arm that crosses the target just before one of its marks.
    """
    return round(stream_seed(repetition_of(seed), "phase") / 2**63 * 0.9999, 4)
