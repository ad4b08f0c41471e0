"""`daso-bench pilot`: runs of a study's baseline that say which target it can aim at, and for how long."""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ..strategies.errors import ConfigError
from . import display, start, sweep
from .compose import compose
from .records import read_records, surviving, write_json
from .repetitions import PILOT, phase_of
from .run_directory import RunDirectory
from .schema import RunConfig, StudyInfo, strategy_name
from .scoring.pilot import FEWEST_PILOTS, Target, choose

FILE, SUFFIX = "pilot.json", "_pilot"


def pilot(words: Sequence[str], *, runs: int, config_dir: Path | None, cwd: Path) -> int:
    """Run the pilots of the study that `words` ask for, and say what came out; returns the exit code.

    Raises ConfigError where the study has no baseline, aims at another metric than accuracy, or is for a
    cluster.
    """
    if runs < FEWEST_PILOTS:
        raise ConfigError(f"--runs {runs}: must be {FEWEST_PILOTS} or more")
    base = baseline_of(sweep.requests(compose(words, sweep=True, config_dir=config_dir), cwd))
    if base.launcher.far:
        raise ConfigError(
            f"launcher={base.launcher.name}: pilots are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )
    wanted = [sweep.Request(tuple(words), config) for config in pilots(base, runs)]
    console = display.make_console()
    code = start.run_sweep(console, wanted, with_report=False)
    if code:
        return code
    data = base.dataset.load()
    target = read(wanted, len(data.split("validation")), len(data.split("test")))
    folder = base.results_dir / f"{base.study.name}{SUFFIX}"
    write_json(folder / FILE, dataclasses.asdict(target) | {"runs": runs, "of": base.study.name})
    _tell(console, target, folder, words)
    return 0


def baseline_of(requests: Sequence[sweep.Request]) -> RunConfig:
    """The baseline's first run: the arm that the study names, else the first with `ddp`."""
    configs = [request.config for request in requests if request.config is not None]
    own = [config for config in configs if not config.study.role]
    named = [config for config in own if config.study.baseline and config.study.arm == config.study.baseline]
    found = named or [config for config in own if strategy_name(config) == "ddp"]
    if not found:
        refused = next((str(request.error) for request in requests if request.error is not None), "")
        raise ConfigError(
            refused or "the study has no baseline: no run of strategy=ddp, and no study.baseline"
        )
    if found[0].train.target_metric != "accuracy":
        raise ConfigError("train.target_metric=loss: a pilot sets targets of accuracy")
    return found[0]


def pilots(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` on the validation split, its whole schedule, with seeds that no scored run has."""
    train = dataclasses.replace(
        base.train, eval_split="validation", target=None, stop="budget", max_seconds=None
    )
    study = StudyInfo(name=f"{base.study.name}{SUFFIX}", arm=base.study.arm, size=base.study.size)
    return [
        dataclasses.replace(
            base,
            seed=PILOT + number,
            train=dataclasses.replace(train, eval_phase=phase_of(PILOT) if train.eval_phase else 0.0),
            study=study,
        )
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
    below, above = target.neighbours
    display.say(console, f"target {target.value:g}: {target.reached:.0%} of the pilots reached it", "bold")
    display.say(
        console,
        f"  the mean curve bends at {target.knee:.4f}; grid of {target.step:g}, its neighbours are {below:g} "
        f"and {above:g}",
    )
    display.say(console, f"budget {target.budget_s:.4g} s: twice the median time of a pilot", "bold")
    display.say(console, f"  kept in {folder / FILE}")
    override = [f"train.target={target.value:g}", f"train.max_seconds={target.budget_s:.4g}"]
    display.say(console, f"  use it: daso-bench {shlex.join([*words, *override])}")
