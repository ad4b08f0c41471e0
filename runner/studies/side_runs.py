"""Runs beside the scored ones of a study: its pilots, its references, the trials of its tuning.

All of them do the whole schedule, with seeds that no scored run has, in a study of their own.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.compose import compose
from ..config.schema import RunConfig, strategy_name
from ..config.study import StudyInfo
from ..records import display
from ..records.outcome import OK
from . import dry_run, start, sweep
from .prepare_data import Preparation


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was typed: the words of the study, `runs` of its baseline, and whether only to show them."""

    words: Sequence[str]
    runs: int
    config_dir: Path | None
    cwd: Path
    dry_run: bool = False


def run_baseline(
    asked: Asked,
    *,
    what: str,
    fewest: int,
    derive: Callable[[RunConfig, int], list[RunConfig]],
    tell: Callable[[Console, RunConfig, list[sweep.Request]], None],
) -> int:
    """Run what `derive` makes of the study's baseline, then `tell` what came out; returns the exit code.

    `what`: the runs in a word, for messages. Raises ConfigError for fewer runs than `fewest`, and where the
    study has no baseline or is for a cluster, or where `derive` or the data refuse it.
    """
    if asked.runs < fewest:
        raise ConfigError(f"--runs {asked.runs}: must be {fewest} or more")
    jobs = compose(asked.words, sweep=True, config_dir=asked.config_dir)
    base = baseline_of(sweep.requests(jobs, asked.cwd))
    refuse_far(base, what)
    wanted = [sweep.Request(tuple(asked.words), config) for config in derive(base, asked.runs)]
    console = display.make_console(goes_on=True)
    if asked.dry_run:
        return dry_run.show(console, wanted, many=True)
    ready = Preparation(console)
    ready.check(base)  # they are worth nothing without one another
    code = start.run_sweep(console, wanted, with_report=False, ready=ready)
    if code == OK:
        tell(console, base, wanted)
    return code


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
    return found[0]


def beside(base: RunConfig, suffix: str, *, seed: int, phase: float, **train: Any) -> RunConfig:
    """`base` with this seed, its whole schedule and other values of `train`, in the study <name><suffix>.

    `phase`: of the evaluations, where the study draws one at all.
    """
    drawn = phase if base.train.eval_phase else 0.0
    whole = dataclasses.replace(base.train, stop="budget", max_seconds=None, eval_phase=drawn, **train)
    study = StudyInfo(name=f"{base.study.name}{suffix}", arm=base.study.arm, size=base.study.size)
    return dataclasses.replace(base, seed=seed, train=whole, study=study)


def refuse_far(config: RunConfig, what: str) -> None:
    """Raises ConfigError where `what`, which is waited for, would go to a queue."""
    if config.launcher.external:
        raise ConfigError(
            f"launcher={config.launcher.name}: {what} are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )
