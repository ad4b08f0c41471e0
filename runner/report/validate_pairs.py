"""The pairs of emulated and simulated runs of a folder, and what virtual time is off by."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..records.json_lines import write_json
from .data.load import Run, find_runs, load_run, without_copies
from .simulation_errors import SUMMARY, Pair, Validation, validate
from .tables import write_csv

OVERLAP_LIMIT = 0.05  # between the shares of exposed communication of real and padded computing


def of_folder(folder: Path, output: Path) -> Validation | None:
    """Compare the runs below `folder`; pairs.csv and summary.json go into `output`. None without a pair."""
    pairs, invalid = pairs_of(_runs(folder))
    if not pairs:
        return None
    found = validate(pairs, invalid)
    output.mkdir(parents=True, exist_ok=True)
    write_csv(output / "pairs.csv", [asdict(pair) for pair in pairs])
    write_json(output / SUMMARY, asdict(found))
    return found


@dataclass(frozen=True, kw_only=True)
class Twins:
    """A strategy with devices as they are and with padded ones.

    Shares: of training, exposed communication. Seconds: of computing a step.
    """

    arm: str
    real_share: float
    padded_share: float
    real_compute_s: float
    padded_compute_s: float

    @property
    def short(self) -> bool:
        """Whether the shares are too far apart."""
        return abs(self.real_share - self.padded_share) > OVERLAP_LIMIT

    def sentence(self) -> str:
        """In one sentence."""
        return (
            f"{self.arm}: exposed {self.real_share:.1%} of training with devices as they are, "
            f"{self.padded_share:.1%} with padded ones; computing {self.real_compute_s * 1e3:.4g} and "
            f"{self.padded_compute_s * 1e3:.4g} ms a step"
            + (f"; short: at most {OVERLAP_LIMIT:.0%} apart" if self.short else "")
        )


def twins_of(runs: Iterable[Run]) -> list[Twins]:
    """The runs of `+study=overlap` whose checks passed, by arm."""
    found: dict[str, dict[str, Run]] = defaultdict(dict)
    for run in runs:
        if run.counted and run.size in ("real", "padded") and run.train_s:
            found[run.arm_name or run.strategy][run.size] = run
    return [
        Twins(
            arm=arm,
            real_share=_exposed(both["real"]),
            padded_share=_exposed(both["padded"]),
            real_compute_s=_compute_s(both["real"]),
            padded_compute_s=_compute_s(both["padded"]),
        )
        for arm, both in sorted(found.items())
        if len(both) == 2
    ]


def twins_in(folder: Path) -> list[Twins]:
    """`twins_of` the runs below `folder`."""
    return twins_of(_runs(folder))


def _runs(folder: Path) -> list[Run]:
    return without_copies(load_run(path, str(path.relative_to(folder))) for path in find_runs(folder))


def _exposed(run: Run) -> float:
    assert run.train_s
    return run.parts_s.get("exposed", 0.0) / run.train_s


def _compute_s(run: Run) -> float:
    return run.parts_s.get("compute", 0.0) / max(1, run.summary.get("steps") or 1)


def pairs_of(runs: Iterable[Run]) -> tuple[list[Pair], int]:
    """The pairs among `runs` in order of configuration and arm, and how many emulated runs gave no time."""
    found: dict[tuple[str, str, str, str], dict[str, Run]] = defaultdict(dict)
    invalid = 0
    for run in runs:
        emulated = run.world.startswith("emulated")
        # What is refused at its start ends as failed, and has no summary to be invalid by.
        if run.invalid or (emulated and run.state not in ("finished", "running", "queued")):
            invalid += 1
        elif run.state == "finished" and run.train_s and run.summary.get("steps"):
            world = "simulated" if run.world == "simulated" else "emulated"
            found[run.study, run.size, run.arm_name or run.strategy, str(run.seed)][world] = run
    pairs = []
    for (study, configuration, arm, seed), both in found.items():
        if len(both) == 2:
            emulated, simulated = both["emulated"], both["simulated"]
            crossings = emulated.crossing, simulated.crossing
            reached = all(crossing is not None for crossing in crossings)
            pairs.append(
                Pair(
                    study=study,
                    configuration=configuration,
                    arm=arm,
                    seed=seed,
                    emulated_step_s=_step_s(emulated),
                    simulated_step_s=_step_s(simulated),
                    emulated_target_s=crossings[0].scored_s if reached and crossings[0] else None,
                    simulated_target_s=crossings[1].scored_s if reached and crossings[1] else None,
                )
            )
    return sorted(pairs, key=lambda pair: (pair.study, pair.configuration, pair.arm, pair.seed)), invalid


def _step_s(run: Run) -> float:
    """Seconds of training a step. A rank at its own pace has steps of its own: samples tell."""
    assert run.train_s is not None, "pairs are made of runs with times"
    samples, batch = run.samples, run.config["train"]["global_batch_size"]
    return run.train_s / (samples / batch) if samples else run.train_s / run.summary["steps"]
