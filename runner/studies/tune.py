"""`daso-bench tune`: the same search for better settings in every arm of a study, and a study of the winners.

Every arm gets the same number of trials, at the same points, with the same seeds, on the validation split and
for the whole schedule. Source: docs/method.md, "Tuning and pilot".
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.compose import compose
from ..config.schema import RunConfig, strategy_name
from ..records import display, tuning_trials
from ..records.exit_codes import FAILED, OK, WRONG_REQUEST
from ..records.json_lines import crossing, read_records, surviving, write_json
from ..records.run_directory import RunDirectory
from ..report.statistics.ratio import Times
from ..report.statistics.tuning import Trial, choose_baseline, in_common, winner
from . import start, sweep, tuned_study, tuning_plan
from .prepare_data import Preparation
from .search_space import described, space_of
from .tuned_study import Tuned
from .tuning_arms import StudyArm, arms_of
from .tuning_plan import Plan, Tuning

FILE = "tune.json"
_IDLE = ("refused", "not run", "queued")


def tune(
    words: Sequence[str],
    *,
    count: int | None,
    config_dir: Path | None,
    cwd: Path,
    dry_run: bool = False,
) -> int:
    """Tune the study that `words` ask for with `count` trials an arm, and say what came out; the exit code.

    `count`: None is `study.tune_trials`. `dry_run`: only show the trials. Raises ConfigError where the study
    cannot be tuned.
    """
    composed = compose(words, sweep=True, config_dir=config_dir)
    requests = sweep.requests(composed, cwd)
    tuning = tuning_plan.tuning_of(arms_of(composed, requests), requests, count, words)
    console = display.make_console(goes_on=True)
    for request in requests:
        if request.error is not None:
            display.say(console, f"not tuned: {request.error}", "red")
    counts = f"{len(tuning.own)} arms x {tuning.trials} trials = {len(tuning.plans)} runs"
    display.say(console, f"{counts}, seeds {tuning_trials.seeds(1)[0]} and on: {tuning.folder}", "bold")
    if dry_run:
        tuning_plan.show(console, tuning)
        return OK
    ready = Preparation(console)
    for arm in tuning.own:
        ready.check(arm.config)
    wanted = [plan.request for plan in tuning.plans]
    code = start.run_sweep(console, wanted, with_report=False, words=words, ready=ready)
    # A trial that the strategy refuses is an outcome; a run that broke down could be repeated.
    if code not in (OK, FAILED, WRONG_REQUEST):
        return code
    _refuse_idle(tuning)
    _conclude(console, tuning, config_dir)
    return FAILED if code == FAILED else OK


def _refuse_idle(tuning: Tuning) -> None:
    """Raises ConfigError where no trial of an arm has run: nothing is known of it, so nothing is written."""
    for arm in tuning.own:
        found = [outcome(plan) for plan in tuning.of(arm)]
        if all(trial.state in _IDLE for trial in found):
            raise ConfigError(
                f"{arm.name}: none of its {len(found)} trials could be started ({found[0].reason}); mend "
                "that, or leave the arm out with study.arm=NAME,NAME of the others; nothing is written"
            )


def _conclude(console: Console, tuning: Tuning, config_dir: Path | None) -> None:
    """Choose, write what came out and the study of the winners, and say so."""
    folder = tuning.folder
    outcomes = {arm.name: [outcome(plan) for plan in tuning.of(arm)] for arm in tuning.own}
    baseline = baseline_of(tuning.own, outcomes)
    tuned = [_tuned(arm, outcomes[arm.name], tuning) for arm in tuning.own]
    file = tuned_study.write(
        folder, tuning.arms, tuned, seeds=tuning.seeds, baseline=baseline, config_dir=config_dir
    )
    write_json(folder / FILE, _record(tuning, outcomes, tuned, baseline))
    _tell(console, outcomes, tuned, baseline)
    display.say(console, f"kept in {folder / FILE} and {file}")
    name = f"{tuning.base.study.name}{tuned_study.SUFFIX}"
    again = shlex.join(["daso-bench", "--config-dir", str(folder), f"+study={name}"])
    display.say(console, f"both rows, on scored seeds: {again}", "bold")


def outcome(plan: Plan) -> Trial:
    """What became of a trial, from its run directory."""
    config, path = plan.request.config, plan.request.path
    if config is None or path is None:
        return Trial(number=plan.number, state="refused", reason=str(plan.request.error))
    if not path.is_dir():
        return Trial(number=plan.number, state="not run", reason="this machine could not start it")
    directory = RunDirectory(path)
    status = directory.status()
    rows = surviving(read_records(directory.metrics).rows) if directory.metrics.exists() else []
    evaluations = [row for row in rows if row.get("kind") == "evaluation"]
    train, times = (
        config.train,
        [float(row["train_s"]) for row in rows if isinstance(row.get("train_s"), int | float)],
    )
    found = None if train.target is None else crossing(evaluations, train.target, metric=train.target_metric)
    return Trial(
        number=plan.number,
        state=str(status["status"]),
        reason=str(status.get("reason") or ""),
        crossed_s=found.scored_s if found else None,
        metric=evaluations[-1].get(train.target_metric) if evaluations else None,
        train_s=max(times, default=0.0),
    )


def baseline_of(arms: Sequence[StudyArm], outcomes: Mapping[str, Sequence[Trial]]) -> str:
    """The arm whose tuned row the others are held against; "" for none.

    Of the study's plain `ddp` arms (flat, hierarchical) the better on the tuning seeds, also where the study
    names one of them; another arm that the study names stays. Without a trial that gave a time in all of them
    the one that is named, else the first.
    """
    asked = arms[0].config.study.baseline
    named = next((arm.name for arm in arms if arm.name == asked), "")
    plain = [arm.name for arm in arms if _plain_ddp(arm.config)]
    if not plain or (named and named not in plain):
        return named
    seconds = in_common({name: outcomes[name] for name in plain})
    if not all(seconds.values()):
        return named or plain[0]
    return choose_baseline([(name, Times(tuple(times))) for name, times in seconds.items()])


def _plain_ddp(config: RunConfig) -> bool:
    strategy = config.strategy
    changes = strategy_name(config) == "ddp" and (strategy.hook != "none" or not strategy.overlap)
    return strategy_name(config) == "ddp" and not changes and strategy.algorithm != "best"


def _tuned(arm: StudyArm, outcomes: Sequence[Trial], tuning: Tuning) -> Tuned:
    won = _winner(arm, outcomes)
    settings = next((plan.settings for plan in tuning.of(arm) if won and plan.number == won.number), {})
    return Tuned(
        arm=arm,
        settings=settings,
        study={
            "tune_trials": tuning.trials,
            "tune_space": described(arm.config),
            "tune_failed": sum(trial.failed for trial in outcomes),
            "tune_device_hours": float(f"{_device_s(arm, outcomes) / 3600:.4g}"),
        },
    )


def _winner(arm: StudyArm, outcomes: Sequence[Trial]) -> Trial | None:
    return winner(outcomes, lower=arm.config.train.target_metric == "loss")


def _device_s(arm: StudyArm, outcomes: Sequence[Trial]) -> float:
    """Seconds of training times ranks."""
    return math.fsum(trial.train_s for trial in outcomes) * arm.config.cluster.ranks


def _record(
    tuning: Tuning, outcomes: Mapping[str, Sequence[Trial]], tuned: Sequence[Tuned], baseline: str
) -> dict[str, Any]:
    """What tune.json holds; fields: docs/records.md."""
    arms: dict[str, Any] = {}
    for arm, found in zip(tuning.own, tuned, strict=True):
        common, more = space_of(arm.config)
        won = _winner(arm, outcomes[arm.name])
        arms[arm.name] = {
            "space": {key.name: key.said for key in (*common, *more) if key is not None},
            "trials": [
                dataclasses.asdict(trial)
                | {
                    "settings": dict(plan.settings),
                    "run": plan.request.path.name if plan.request.path else None,
                }
                for trial, plan in zip(outcomes[arm.name], tuning.of(arm), strict=True)
            ],
            "failed": found.study["tune_failed"],
            "winner": won.number if won else None,
            "settings": dict(found.settings),
            "device_s": _device_s(arm, outcomes[arm.name]),
        }
    return {
        "of": tuning.base.study.name,
        "trials": tuning.trials,
        "seeds": tuning_trials.seeds(tuning.trials),
        "split": "validation",
        "target": tuning.base.train.target,
        "metric": tuning.base.train.target_metric,
        "baseline": baseline,
        "arms": arms,
    }


def _tell(
    console: Console,
    outcomes: Mapping[str, Sequence[Trial]],
    tuned: Sequence[Tuned],
    baseline: str,
) -> None:
    for one in tuned:
        found = outcomes[one.arm.name]
        won = _winner(one.arm, found)
        failed = sum(trial.failed for trial in found)
        what = ", ".join(f"{key}={value}" for key, value in one.settings.items()) or "the default settings"
        said = (
            f"trial {won.number} wins{_worth(won, one.arm.config)}: {what}"
            if won
            else "no trial gave a result"
        )
        more = f" ({failed} of {len(found)} trials failed)" if failed else ""
        display.say(console, f"{one.arm.name}: {said}{more}")
    if baseline:
        display.say(console, f"baseline of the tuned rows: {tuned_study.tuned_name(baseline)}")


def _worth(won: Trial, config: RunConfig) -> str:
    if won.crossed_s is not None:
        return f" with {won.crossed_s:.4g} s to the target"
    metric = "no number" if won.metric is None else f"{won.metric:.4g}"
    missed = "" if config.train.target is None else ", the target not reached"
    return f" with {config.train.target_metric} {metric}{missed}"
