"""`daso-bench pilot`: runs of a study's baseline, on seeds that no scored run has, for the whole schedule.

Pilots, on the validation split, give the target that the study can set, and its duration. With `--reference`
the baseline runs as it is scored, and how many samples its target takes is stored as a file. Source:
docs/method.md, "Validity and guard" and "Tuning and pilot".
"""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.compose import Request
from ..config.load import requests
from ..config.parts import StudyInfo
from ..config.run_config import RunConfig
from ..records import display
from ..records.json_lines import write_json
from ..records.run_directory import OK
from ..records.study_plan import PILOT, REFERENCE, phase_of
from ..report.claims import convergence_points
from ..report.claims.convergence_points import (
    FEWEST_STORED,
    FOLDER,
    Reference,
    samples_to_target,
    workload_of,
)
from ..report.data.load import load_run
from ..training.data_errors import data_errors
from . import start
from .plan import PlannedRun, plan_of
from .planned_power import baseline_among, power_sentences
from .prepare_data import Preparation
from .search_space import with_settings

PILOT_SUFFIX, REFERENCE_SUFFIX = "_pilot", "_reference"
FEWEST_PILOTS = 10


def pilot(
    words: Sequence[str],
    *,
    runs: int,
    reference: bool,
    output: Path | None,
    config_dir: Path | None,
    cwd: Path,
    dry_run: bool = False,
) -> int:
    """Run the baseline of the study that `words` name, `runs` times, and keep the result; the exit code.

    Without `reference` the result is a target and a budget, else the samples to the target; these go into
    `output`/convergence/<study>.yaml, by default `output` is the folder of the runs. Raises ConfigError for
    too few runs, for a study without a baseline or for a cluster, and where `pilots` or `scored` refuse it.
    """
    what, fewest, derive = (
        ("references", FEWEST_STORED, scored) if reference else ("pilots", FEWEST_PILOTS, pilots)
    )
    if runs < fewest:
        raise ConfigError(f"--runs {runs}: must be {fewest} or more")
    asked = requests(words, sweep=True, config_dir=config_dir, cwd=cwd)
    base = baseline_of(asked)
    refuse_external(base, what)
    plan = plan_of([Request(words=tuple(words), config=config) for config in derive(base, runs)])
    console = display.make_console(goes_on=True)
    configs = [request.config for request in asked if request.config is not None]
    if dry_run:
        return start.show_plan(console, plan, many=True, power=power_sentences(configs, config_dir))
    ready = Preparation(console)
    ready.check(base)  # one run alone has no use
    code = start.run_sweep(console, plan, with_report=False, ready=ready)
    if code != OK:
        return code
    if reference:
        _keep_reference(console, base, plan.runs, words, output)
    else:
        target = _keep_target(console, base, plan.runs, words)
        configs = [with_settings(config, {"train.target": target}) for config in configs]
    for sentence in power_sentences(configs, config_dir):
        display.say(console, sentence)
    return OK


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


def _keep_target(
    console: Console, base: RunConfig, runs: Sequence[PlannedRun], words: Sequence[str]
) -> float:
    """Choose a target and a budget, keep them in a file, and show them; returns the target."""
    with data_errors(base.dataset):
        data = base.dataset.load()
    done = [load_run(run.path, run.path.name) for run in runs]
    curves = [[value for _, value in run.points("samples")] for run in done]
    spent = [run.train_s or 0.0 for run in done]
    target = choose(curves, spent, len(data.split("validation")), len(data.split("test")))
    file = base.results_dir / f"{base.study.name}{PILOT_SUFFIX}" / "pilot.json"
    write_json(file, dataclasses.asdict(target) | {"runs": len(runs), "of": base.study.name})
    display.say(console, f"target {target.value:g}: {target.reached:.0%} of the pilots reached it", "bold")
    display.say(console, f"  the mean curve bends at {target.knee:.4f}; targets in steps of {target.step:g}")
    display.say(console, f"budget {target.budget_s:.4g} s: twice the median time of a pilot", "bold")
    display.say(console, f"  kept in {file}")
    override = [f"train.target={target.value:g}", f"train.max_seconds={target.budget_s:.4g}"]
    display.say(console, f"  use it: daso-bench {shlex.join([*words, *override])}")
    return target.value


def scored(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` as it is scored, its whole schedule, with seeds that no scored run, pilot or trial has.

    Raises ConfigError without a target.
    """
    if base.train.target is None:
        raise ConfigError("train.target=null: a reference is the number of samples to a target; give one")
    # As in a study: each repetition has its own random phase of the evaluations, if any.
    seeds = [REFERENCE + number for number in range(runs)]
    return [derived_run(base, REFERENCE_SUFFIX, seed=seed, phase=phase_of(seed)) for seed in seeds]


def _keep_reference(
    console: Console, base: RunConfig, runs: Sequence[PlannedRun], words: Sequence[str], output: Path | None
) -> None:
    """Write the samples that each run needed to its target, and show where. Raises ConfigError."""
    target = base.train.target
    assert target is not None, "`scored` refuses a run without"
    done = [load_run(run.path, run.path.name) for run in runs]
    samples = samples_to_target(done)
    if len(samples) < len(runs):
        raise ConfigError(f"{runs[0].path.parent}: a run recorded no samples; remove it and run it again")
    missed = sum(run.crossing is None for run in done)
    name, count = base.study.name, len(runs)
    stored = Reference(
        name=name,
        workload=workload_of(runs[-1].config.tree),
        samples=tuple(samples),
        missed=missed,
        command=shlex.join(["daso-bench", "pilot", *words, "--reference", "--runs", str(count)]),
        date=datetime.now(UTC).date().isoformat(),
    )
    folder = output or base.results_dir / f"{name}{REFERENCE_SUFFIX}"
    file = folder / FOLDER / f"{name}.yaml"
    convergence_points.write(file, stored, f"Samples that ddp needs to its target, {count} runs of {name}")
    display.say(console, f"{count - missed} of {count} runs reached {target:g}; kept in {file}", "bold")
    for command in ("claims", "report"):
        display.say(console, f"  use it: daso-bench {command} DIR --config-dir {shlex.quote(str(folder))}")


def baseline_of(requests: Sequence[Request]) -> RunConfig:
    """The baseline's first run: the arm that the study names, else the first with `ddp`."""
    baseline = baseline_among(request.config for request in requests if request.config is not None)
    if baseline is None:
        refused = next((str(request.error) for request in requests if request.error is not None), "")
        raise ConfigError(
            refused or "the study has no baseline: no run of strategy=ddp, and no study.baseline"
        )
    return baseline


def derived_run(base: RunConfig, suffix: str, *, seed: int, phase: float, **train: Any) -> RunConfig:
    """`base` with this seed, its whole schedule and other values of `train`, in the study <name><suffix>.

    `phase`: of the evaluations, where the study draws one at all.
    """
    drawn = phase if base.train.eval_phase else 0.0
    whole = dataclasses.replace(base.train, stop="budget", max_seconds=None, eval_phase=drawn, **train)
    own = base.study
    name, rate = f"{own.name}{suffix}", own.samples_per_s
    study = StudyInfo(name=name, arm=own.arm, size=own.size, samples_per_s=rate)
    return dataclasses.replace(base, seed=seed, train=whole, study=study)


def refuse_external(config: RunConfig, what: str) -> None:
    """Raises ConfigError where `what`, which is waited for, would go to a queue."""
    if config.launcher.external:
        raise ConfigError(
            f"launcher={config.launcher.name}: {what} are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Target and budget of a study, as a share of correct samples.

    `knee`: accuracy at which the mean curve bends; `reached`: share of the pilots that reached the target;
    `step`: of the grid. `budget_s`: seconds of T_train after which a run is a failure.
    """

    value: float
    knee: float
    step: float
    reached: float
    budget_s: float


def choose(curves: Sequence[Sequence[float]], train_s: Sequence[float], validation: int, test: int) -> Target:
    """From each pilot's accuracies (shares, at the same sample counts) and its T_train in seconds.

    `validation`, `test`: samples of the two splits. Raises ConfigError for fewer than 10 pilots or 3
    evaluations that all have, or if no value of the grid is reached. Source: docs/method.md, "Tuning and
    pilot".
    """
    if len(curves) < FEWEST_PILOTS:
        raise ConfigError(f"{len(curves)} pilot runs: must be {FEWEST_PILOTS} or more")
    marks = min(len(curve) for curve in curves)
    if marks < 3:
        raise ConfigError(
            f"{marks} evaluations that all pilots have: must be 3 or more (train.eval_every_samples)"
        )
    mean = [fmean(values) for values in zip(*curves, strict=False)]
    # The knee lies highest above the line from the first to the last point.
    rise = (mean[-1] - mean[0]) / (marks - 1)
    knee = max(enumerate(mean), key=lambda point: point[1] - mean[0] - rise * point[0])[1]
    step = grid_step(knee, validation, test)
    best = sorted((max(curve) for curve in curves), reverse=True)
    nine_in_ten = best[math.ceil(0.9 * len(best)) - 1]  # so many pilots reach this
    place = min(math.ceil(knee / step - 1e-9), math.floor(nine_in_ten / step + 1e-9))
    if place < 1:
        raise ConfigError(
            f"nine in ten pilots reach {nine_in_ten:.4g} only: no value of a grid of {step:g} is below"
        )
    value = round(place * step, 10)
    return Target(
        value=value,
        knee=knee,
        step=step,
        reached=sum(top >= value - 1e-12 for top in best) / len(best),
        budget_s=2 * median(train_s),
    )


def grid_step(accuracy: float, validation: int, test: int) -> float:
    """√(p(1-p)(1/M_v + 1/M_t)) up to the next of 1, 2, 2.5, 5 times a power of ten; at least 0.001."""
    if min(validation, test) < 1:
        raise ConfigError(f"splits of {validation} and {test} samples: must be 1 or more each")
    p = min(max(accuracy, 0.0), 1.0)
    error = max(1e-3, math.sqrt(p * (1 - p) * (1 / validation + 1 / test)))
    power_of_ten = 10.0 ** math.floor(math.log10(error))
    steps = (nice * power_of_ten for nice in (1.0, 2.0, 2.5, 5.0, 10.0))
    return next(round(step, 12) for step in steps if step >= error * (1 - 1e-9))
