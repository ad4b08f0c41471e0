"""The plan of a study: `plan.jsonl` with the runs that were declared, and the seeds of its runs.

`plan.jsonl` in the study's folder has one row for each stage: which runs, when, with which baseline and
targets. The front end writes it before its first run starts. Fields: docs/records.md.

Scored runs share no seed with runs that set targets, tune or measure noise: their seeds are below `SEEDS`,
one per repetition, the same for all arms. Each other use has a range of that size, and the number within it
is the repetition.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.stream_seeds import stream_seed
from ...strategies.errors import ConfigError
from .json_lines import read_records
from .target_crossing import is_number

FILE = "plan.jsonl"
PLAN_SCHEMA_VERSION = 1
SEEDS = 10**6
FRESH, PILOT, TRIAL = SEEDS, 2 * SEEDS, 3 * SEEDS  # where the ranges of the other uses begin
REFERENCE = 4 * SEEDS  # of runs whose samples to target are stored (conf/convergence)
REPEATS = ("same_seeds", "placebo")  # roles that in virtual time without jitter repeat a run of the baseline


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What one command declared. `unix`: s since 1970; `runs`: their ids; `targets`: None for no target."""

    unix: float
    baseline: str
    level: float | None
    targets: tuple[float | None, ...]
    runs: tuple[str, ...]


def stages_of(folder: Path) -> list[Stage]:
    """The stages in their order; [] without a plan, nothing from broken lines."""
    try:
        rows = read_records(folder / FILE).rows
    except OSError:
        return []
    return [stage for row in rows if (stage := _stage(row))]


def _stage(row: Mapping[str, Any]) -> Stage | None:
    """None for a row without a time."""
    unix, level = row.get("unix"), row.get("level")
    targets, runs = (
        value if isinstance(value := row.get(name), list) else [] for name in ("targets", "runs")
    )
    if unix is None or not is_number(unix):
        return None
    return Stage(
        unix=unix,
        baseline=str(row.get("baseline") or ""),
        level=level if is_number(level) else None,
        targets=tuple(value for value in targets if value is None or is_number(value)),
        runs=tuple(run for run in runs if isinstance(run, str)),
    )


# ------------------------------------------------------------------ seeds


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
