"""What `daso-bench tune` will run: the trials of every arm of a study; and a look at them beforehand."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError
from ..config.schema import RunConfig
from ..config.study import RunInfo
from ..records import display
from ..records import tuning_trials as trials
from ..records.run_directory import RunDirectory
from ..records.seed_ranges import phase_of
from ..report.statistics import tuning
from . import dry_run, sweep
from .search_space import changed, space_of, value_of
from .side_runs import beside, refuse_far
from .tuning_arms import StudyArm

SUFFIX = "_tune"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A trial of an arm: what it changes, and the run that shows what that is worth, or why there is none."""

    arm: StudyArm
    number: int
    settings: Mapping[str, Any]
    request: sweep.Request


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A study that is to be tuned.

    `arms`: all of it, second baselines and placebo included; `own`: those that get `trials` trials each, by
    `plans`. `seeds`: of the scored runs.
    """

    arms: Sequence[StudyArm]
    own: Sequence[StudyArm]
    trials: int
    seeds: Sequence[int]
    plans: Sequence[Plan]

    @property
    def base(self) -> RunConfig:
        return self.own[0].config

    @property
    def folder(self) -> Path:
        """Where the trials go, and what they come to."""
        return self.base.results_dir / f"{self.base.study.name}{SUFFIX}"

    def of(self, arm: StudyArm) -> list[Plan]:
        return [plan for plan in self.plans if plan.arm is arm]


def tuning_of(
    arms: Sequence[StudyArm], requests: Sequence[sweep.Request], count: int | None, words: Sequence[str]
) -> Tuning:
    """The plan for the arms of a study's `requests`, with `count` trials each; None: `study.tune_trials`.

    Raises ConfigError where nothing is to be tuned, where it would be unfair, and for a cluster.
    """
    own = [arm for arm in arms if not arm.role]
    if not own:
        raise ConfigError(
            "study.role: all arms are second baselines or the placebo; there is nothing to tune"
        )
    refuse_far(own[0].config, "trials")
    number = own[0].config.study.tune_trials if count is None else count
    trials.check_trials(number, "study.tune_trials" if count is None else "--trials")
    scored = (r.config.seed for r in requests if r.config is not None and not r.config.study.role)
    seeds = list(dict.fromkeys(scored))
    tuning.check_fair({arm.name: number for arm in own}, trials.seeds(number), seeds)
    return Tuning(arms=arms, own=own, trials=number, seeds=seeds, plans=planned(own, number, words))


def planned(arms: Sequence[StudyArm], number: int, words: Sequence[str] = ()) -> list[Plan]:
    """The trials of all arms, trial by trial, the order of the arms moved on by one from trial to trial."""
    points = tuning.coordinates(arms[0].config.study.name, number)
    changes = {arm.name: tuning.settings(*space_of(arm.config), points) for arm in arms}
    found: list[Plan] = []
    for trial, seed in enumerate(trials.seeds(number)):
        turn = trial % len(arms)
        for arm in [*arms[turn:], *arms[:turn]]:
            settings = changes[arm.name][trial]
            request = _request(arm, trial, seed, settings, words)
            found.append(Plan(arm=arm, number=trial, settings=settings, request=request))
    return found


def show(console: Console, tuning: Tuning) -> None:
    """A table of each arm with the settings of its trials, then how long all will take."""
    for arm in tuning.own:
        plans = tuning.of(arm)
        console.print(_table(arm, plans))
        for plan in plans:
            if plan.request.error is not None:
                display.say(console, f"refused: {plan.request.error}", "red")
        display.say(console, "")
    configs = [plan.request.config for plan in tuning.plans if plan.request.config is not None]
    dry_run.tell_time(console, configs)


def _table(arm: StudyArm, plans: Sequence[Plan]) -> Table:
    keys = list(dict.fromkeys(key for plan in plans for key in plan.settings))
    made = Table(
        title=arm.name, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for header in ("trial", *keys, "would"):
        made.add_column(header, overflow="fold")  # nothing is cut where it does not fit
    for plan in plans:
        values = [_text(plan.settings.get(key, value_of(arm.config, key))) for key in keys]
        made.add_row(*(Text(cell) for cell in (str(plan.number), *values, _intent(plan))))
    return made


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _intent(plan: Plan) -> str:
    path = plan.request.path
    return "count as failed: refused" if path is None else dry_run.intent(RunDirectory(path), many=True)


def _request(
    arm: StudyArm, trial: int, seed: int, settings: Mapping[str, Any], words: Sequence[str]
) -> sweep.Request:
    told = (*words, f"study.arm={arm.name}", *(f"{key}={value}" for key, value in settings.items()))
    try:
        other = changed(arm.config, settings)
        run = beside(other, SUFFIX, seed=seed, phase=phase_of(seed), eval_split="validation")
        run = dataclasses.replace(
            run, run=RunInfo(name=f"trial {trial}"), study=dataclasses.replace(run.study, arm=arm.name)
        )
    except ConfigError as error:
        return sweep.Request(told, None, ConfigError(f"{arm.name}, trial {trial}: {error}"))
    return sweep.Request(told, run)
