"""`daso-bench pilot`: runs of a study's baseline that say which target it can aim at, and for how long."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.schema import RunConfig
from ..records import display
from ..records.json_lines import read_records, surviving, write_json
from ..records.run_directory import RunDirectory
from ..records.seed_ranges import PILOT, phase_of
from ..report.statistics.planning import FEWEST_PILOTS, Target, choose
from ..training.data_errors import data_told
from . import sweep
from .side_runs import Asked, beside, run_baseline

FILE, SUFFIX = "pilot.json", "_pilot"


def pilot(asked: Asked) -> int:
    """Run the pilots of a study, and say what came out; returns the exit code.

    Raises ConfigError where the study has no baseline, aims at another metric than accuracy, or is for a
    cluster.
    """

    def tell(console: Console, base: RunConfig, wanted: Sequence[sweep.Request]) -> None:
        with data_told(base.dataset):
            data = base.dataset.load()
        target = read(wanted, len(data.split("validation")), len(data.split("test")))
        folder = base.results_dir / f"{base.study.name}{SUFFIX}"
        write_json(folder / FILE, dataclasses.asdict(target) | {"runs": asked.runs, "of": base.study.name})
        _tell(console, target, folder, asked.words)

    return run_baseline(asked, what="pilots", fewest=FEWEST_PILOTS, derive=pilots, tell=tell)


def pilots(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` on the validation split, its whole schedule, with seeds that no scored run has.

    Raises ConfigError for a target of another metric than accuracy.
    """
    metric = base.train.target_metric
    if metric != "accuracy":
        raise ConfigError(
            f"train.target_metric={metric}: a pilot sets targets of accuracy alone; take "
            "train.target_metric=accuracy where the data set has it, else set train.target by hand"
        )
    # All evaluate at the same marks, so that their curves can be averaged.
    phase = phase_of(PILOT)
    return [
        beside(base, SUFFIX, seed=PILOT + number, phase=phase, eval_split="validation", target=None)
        for number in range(runs)
    ]


def read(wanted: Sequence[sweep.Request], validation: int, test: int) -> Target:
    """The target from the pilots' records; `validation`, `test`: samples of the splits."""
    curves: list[list[float]] = []
    spent: list[float] = []
    for path in (request.path for request in wanted if request.path is not None):
        rows = surviving(read_records(RunDirectory(path).metrics).rows)
        curves.append([float(row["accuracy"]) for row in rows if row.get("kind") == "evaluation"])
        spent.append(float(next(row["train_s"] for row in reversed(rows) if row.get("kind") == "summary")))
    return choose(curves, spent, validation, test)


def _tell(console: Console, target: Target, folder: Path, words: Sequence[str]) -> None:
    display.say(console, f"target {target.value:g}: {target.reached:.0%} of the pilots reached it", "bold")
    display.say(console, f"  the mean curve bends at {target.knee:.4f}; targets in steps of {target.step:g}")
    display.say(console, f"budget {target.budget_s:.4g} s: twice the median time of a pilot", "bold")
    display.say(console, f"  kept in {folder / FILE}")
    override = [f"train.target={target.value:g}", f"train.max_seconds={target.budget_s:.4g}"]
    display.say(console, f"  use it: daso-bench {shlex.join([*words, *override])}")
