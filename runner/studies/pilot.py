"""`daso-bench pilot`: runs of a study's baseline, on seeds that no scored run has, for the whole schedule.

Pilots, on the validation split, give the target that the study can set, and its duration. With `--reference`
the baseline runs as it is scored, and how many samples its target takes is stored as a file. Source:
docs/method.md, "Validity and guard" and "Tuning and pilot".
"""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.load import Request, requests, to_plain
from ..config.parts import StudyInfo
from ..config.run_config import RunConfig
from ..records import display
from ..records.json_lines import crossing, read_records, surviving, write_json
from ..records.run_directory import OK
from ..records.seed_ranges import PILOT, REFERENCE, phase_of
from ..report.claims import convergence_points
from ..report.claims.convergence_points import FEWEST_RUNS, FOLDER, Reference, workload_of
from ..report.statistics.planning import FEWEST_PILOTS, Target, choose
from ..training.data_errors import data_errors
from . import start
from .plan import PlannedRun, plan_of
from .prepare_data import Preparation

FILE, PILOT_SUFFIX, REFERENCE_SUFFIX = "pilot.json", "_pilot", "_reference"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed: the words of the study, `runs` of its baseline, and whether only to show them."""

    words: Sequence[str]
    runs: int
    config_dir: Path | None
    cwd: Path
    dry_run: bool = False


def pilot(asked: Asked) -> int:
    """Run the pilots of a study, and show the result; returns the exit code.

    Raises ConfigError where the study has no baseline, aims at another metric than accuracy, or is for a
    cluster.
    """

    def conclude(console: Console, base: RunConfig, runs: Sequence[PlannedRun]) -> None:
        with data_errors(base.dataset):
            data = base.dataset.load()
        target = read_pilots(runs, len(data.split("validation")), len(data.split("test")))
        folder = base.results_dir / f"{base.study.name}{PILOT_SUFFIX}"
        write_json(folder / FILE, dataclasses.asdict(target) | {"runs": asked.runs, "of": base.study.name})
        _show_target(console, target, folder, asked.words)

    return run_baseline(asked, what="pilots", fewest=FEWEST_PILOTS, derive=pilots, conclude=conclude)


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
        derived_run(
            base, PILOT_SUFFIX, seed=PILOT + number, phase=phase, eval_split="validation", target=None
        )
        for number in range(runs)
    ]


def read_pilots(runs: Sequence[PlannedRun], validation: int, test: int) -> Target:
    """The target from the pilots' records; `validation`, `test`: samples of the splits."""
    curves: list[list[float]] = []
    spent: list[float] = []
    for run in runs:
        rows = surviving(read_records(run.directory.metrics).rows)
        curves.append([float(row["accuracy"]) for row in rows if row.get("kind") == "evaluation"])
        spent.append(float(next(row["train_s"] for row in reversed(rows) if row.get("kind") == "summary")))
    return choose(curves, spent, validation, test)


def _show_target(console: Console, target: Target, folder: Path, words: Sequence[str]) -> None:
    display.say(console, f"target {target.value:g}: {target.reached:.0%} of the pilots reached it", "bold")
    display.say(console, f"  the mean curve bends at {target.knee:.4f}; targets in steps of {target.step:g}")
    display.say(console, f"budget {target.budget_s:.4g} s: twice the median time of a pilot", "bold")
    display.say(console, f"  kept in {folder / FILE}")
    override = [f"train.target={target.value:g}", f"train.max_seconds={target.budget_s:.4g}"]
    display.say(console, f"  use it: daso-bench {shlex.join([*words, *override])}")


def reference(asked: Asked, *, output: Path | None) -> int:
    """Run the baseline of a study as it is scored, and store the result; returns the exit code.

    `output`: the folder that gets `convergence/<study>.yaml`; None: that of the runs. Raises ConfigError
    where the study has no baseline or no target, or is for a cluster.
    """

    def conclude(console: Console, base: RunConfig, runs: Sequence[PlannedRun]) -> None:
        command = shlex.join(["daso-bench", "pilot", *asked.words, "--reference", "--runs", str(asked.runs)])
        reference = read_references(runs, base.study.name, command)
        _store(console, base, reference, output or base.results_dir / f"{base.study.name}{REFERENCE_SUFFIX}")

    return run_baseline(asked, what="references", fewest=FEWEST_RUNS, derive=scored, conclude=conclude)


def scored(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` as it is scored, its whole schedule, with seeds that no scored run, pilot or trial has.

    Raises ConfigError without a target.
    """
    if base.train.target is None:
        raise ConfigError("train.target=null: a reference is the number of samples to a target; give one")
    # As in a study: each repetition has its own random phase of the evaluations, if any.
    seeds = [REFERENCE + number for number in range(runs)]
    return [derived_run(base, REFERENCE_SUFFIX, seed=seed, phase=phase_of(seed)) for seed in seeds]


def read_references(runs: Sequence[PlannedRun], name: str, command: str) -> Reference:
    """The points from the runs' records. Raises ConfigError where a run recorded no samples."""
    samples: list[float] = []
    missed = 0
    for run in runs:
        rows = surviving(read_records(run.directory.metrics).rows)
        target, metric = run.config.train.target, run.config.train.target_metric
        assert target is not None, "asked for before the runs"
        crossed = crossing(rows, target, metric=metric)
        used = [float(row["samples"]) for row in rows if row.get("samples")]
        if crossed is None and not used:
            raise ConfigError(f"{run.path}: recorded no samples; remove it and run it again")
        samples.append(crossed.scored_samples if crossed else max(used))
        missed += crossed is None
    return Reference(
        name=name,
        workload=workload_of(to_plain(runs[-1].config)),
        samples=tuple(samples),
        missed=missed,
        command=command,
        date=datetime.now(UTC).date().isoformat(),
    )


def _store(console: Console, base: RunConfig, reference: Reference, folder: Path) -> None:
    file = folder / FOLDER / f"{base.study.name}.yaml"
    classes = (str(reference.workload[f"{group}._target_"]) for group in ("model", "dataset"))
    what = " on ".join(path.rpartition(".")[2] for path in classes)
    runs = len(reference.samples)
    convergence_points.write(file, reference, f"Samples that ddp needs to its target: {what}, {runs} runs")
    reached = runs - reference.missed
    display.say(console, f"{reached} of {runs} runs reached {base.train.target:g}; kept in {file}", "bold")
    for command in ("claims", "report"):
        display.say(console, f"  use it: daso-bench {command} DIR --config-dir {shlex.quote(str(folder))}")


def run_baseline(
    asked: Asked,
    *,
    what: str,
    fewest: int,
    derive: Callable[[RunConfig, int], list[RunConfig]],
    conclude: Callable[[Console, RunConfig, Sequence[PlannedRun]], None],
) -> int:
    """Run what `derive` makes of the study's baseline, then `conclude`; returns the exit code.

    `what`: the runs in a word, for messages. Raises ConfigError for fewer runs than `fewest`, and where the
    study has no baseline or is for a cluster, or where `derive` or the data refuse it.
    """
    if asked.runs < fewest:
        raise ConfigError(f"--runs {asked.runs}: must be {fewest} or more")
    base = baseline_of(requests(asked.words, sweep=True, config_dir=asked.config_dir, cwd=asked.cwd))
    refuse_external(base, what)
    words = tuple(asked.words)
    plan = plan_of([Request(words=words, config=config) for config in derive(base, asked.runs)])
    console = display.make_console(goes_on=True)
    if asked.dry_run:
        return start.show_plan(console, plan, many=True)
    ready = Preparation(console)
    ready.check(base)  # one run alone has no use
    code = start.run_sweep(console, plan, with_report=False, ready=ready)
    if code == OK:
        conclude(console, base, plan.runs)
    return code


def baseline_of(requests: Sequence[Request]) -> RunConfig:
    """The baseline's first run: the arm that the study names, else the first with `ddp`."""
    configs = [request.config for request in requests if request.config is not None]
    arms = [config for config in configs if not config.study.role]
    named = [config for config in arms if config.study.baseline and config.study.arm == config.study.baseline]
    baselines = named or [config for config in arms if config.strategy_name == "ddp"]
    if not baselines:
        refused = next((str(request.error) for request in requests if request.error is not None), "")
        raise ConfigError(
            refused or "the study has no baseline: no run of strategy=ddp, and no study.baseline"
        )
    return baselines[0]


def derived_run(base: RunConfig, suffix: str, *, seed: int, phase: float, **train: Any) -> RunConfig:
    """`base` with this seed, its whole schedule and other values of `train`, in the study <name><suffix>.

    `phase`: of the evaluations, where the study draws one at all.
    """
    drawn = phase if base.train.eval_phase else 0.0
    whole = dataclasses.replace(base.train, stop="budget", max_seconds=None, eval_phase=drawn, **train)
    study = StudyInfo(name=f"{base.study.name}{suffix}", arm=base.study.arm, size=base.study.size)
    return dataclasses.replace(base, seed=seed, train=whole, study=study)


def refuse_external(config: RunConfig, what: str) -> None:
    """Raises ConfigError where `what`, which is waited for, would go to a queue."""
    if config.launcher.external:
        raise ConfigError(
            f"launcher={config.launcher.name}: {what} are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )
