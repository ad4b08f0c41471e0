"""`daso-bench tune`: the same search for better settings in every arm of a study, and a study of the winners.

Every arm gets the same number of trials, at the same points, with the same seeds, on the validation split and
for the whole schedule. Source: the measuring rules (time to accuracy), "study design", tuning is a cost.
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..strategies.errors import ConfigError
from . import display, start, sweep, trials, tuning_study
from .compose import compose
from .records import crossing, read_records, surviving, write_json
from .repetitions import phase_of
from .run_directory import RunDirectory
from .schema import RunConfig, RunInfo, StudyInfo, strategy_name
from .scoring import search
from .scoring.guard import choose_baseline
from .scoring.ratio import Times
from .scoring.search import Trial
from .scoring.tuning import check_fair
from .tuning_arms import StudyArm, arms_of
from .tuning_space import changed, described, space_of
from .tuning_study import Tuned

FILE, SUFFIX = "tune.json", "_tune"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A trial of an arm: what it changes, and the run that shows what that is worth, or why there is none."""

    arm: StudyArm
    number: int
    settings: Mapping[str, Any]
    request: sweep.Request


def tune(words: Sequence[str], *, count: int | None, config_dir: Path | None, cwd: Path) -> int:
    """Tune the study that `words` ask for with `count` trials an arm, and say what came out; the exit code.

    `count`: None is `study.tune_trials`. Raises ConfigError where the study cannot be tuned.
    """
    composed = compose(words, sweep=True, config_dir=config_dir)
    requests = sweep.requests(composed, cwd)
    arms = arms_of(composed, requests)
    own = [arm for arm in arms if not arm.role]
    if not own:
        raise ConfigError(
            "study.role: all arms are second baselines or the placebo; there is nothing to tune"
        )
    base = own[0].config
    if base.launcher.far:
        raise ConfigError(
            f"launcher={base.launcher.name}: trials are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )
    number = base.study.tune_trials if count is None else count
    trials.check_trials(number, "study.tune_trials" if count is None else "--trials")
    seeds = list(
        dict.fromkeys(r.config.seed for r in requests if r.config is not None and not r.config.study.role)
    )
    check_fair({arm.name: number for arm in own}, trials.seeds(number), seeds)
    plans = planned(own, number, words)
    folder = base.results_dir / f"{base.study.name}{SUFFIX}"
    console = display.make_console()
    for request in requests:
        if request.error is not None:
            display.say(console, f"not tuned: {request.error}", "red")
    runs = f"{len(own)} arms x {number} trials = {len(plans)} runs, seeds {trials.seeds(number)[0]} and on"
    display.say(console, f"{runs}: {folder}", "bold")
    code = start.run_sweep(console, [plan.request for plan in plans], with_report=False, words=words)
    if code not in (0, 1, 2):
        return code
    outcomes = {arm.name: [outcome(plan) for plan in plans if plan.arm is arm] for arm in own}
    baseline = baseline_of(own, outcomes)
    tuned = [_tuned(arm, outcomes[arm.name], plans, number) for arm in own]
    file = tuning_study.write(folder, arms, tuned, seeds=seeds, baseline=baseline, config_dir=config_dir)
    write_json(folder / FILE, _record(base, own, outcomes, plans, tuned, baseline, number))
    _tell(console, outcomes, tuned, baseline, folder)
    display.say(console, f"kept in {folder / FILE} and {file}")
    again = ["daso-bench", "--config-dir", str(folder), f"+study={base.study.name}{tuning_study.SUFFIX}"]
    display.say(console, f"both rows, on scored seeds: {shlex.join(again)}", "bold")
    # A trial that the strategy refuses is an outcome; a run that broke down could be repeated.
    return 1 if code == 1 else 0


def planned(arms: Sequence[StudyArm], number: int, words: Sequence[str] = ()) -> list[Plan]:
    """The trials of all arms, trial by trial, the order of the arms moved on by one from trial to trial."""
    points = search.coordinates(arms[0].config.study.name, number)
    changes = {arm.name: search.settings(*space_of(arm.config), points) for arm in arms}
    found: list[Plan] = []
    for trial, seed in enumerate(trials.seeds(number)):
        turn = trial % len(arms)
        for arm in [*arms[turn:], *arms[:turn]]:
            settings = changes[arm.name][trial]
            found.append(
                Plan(
                    arm=arm,
                    number=trial,
                    settings=settings,
                    request=_request(arm, trial, seed, settings, words),
                )
            )
    return found


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
    seconds = search.in_common({name: outcomes[name] for name in plain})
    if not all(seconds.values()):
        return named or plain[0]
    return choose_baseline([(name, Times(tuple(times))) for name, times in seconds.items()])


def _plain_ddp(config: RunConfig) -> bool:
    strategy = config.strategy
    changes = strategy_name(config) == "ddp" and (strategy.hook != "none" or not strategy.overlap)
    return strategy_name(config) == "ddp" and not changes and strategy.algorithm != "best"


def _request(
    arm: StudyArm, trial: int, seed: int, settings: Mapping[str, Any], words: Sequence[str]
) -> sweep.Request:
    base = arm.config
    train = dataclasses.replace(
        base.train,
        eval_split="validation",
        stop="budget",
        max_seconds=None,
        eval_phase=phase_of(seed) if base.train.eval_phase else 0.0,
    )
    study = StudyInfo(name=f"{base.study.name}{SUFFIX}", arm=arm.name, size=base.study.size)
    told = (*words, f"study.arm={arm.name}", *(f"{key}={value}" for key, value in settings.items()))
    try:
        run = changed(base, settings)
        run = dataclasses.replace(
            run, seed=seed, train=train, study=study, run=RunInfo(name=f"trial {trial}")
        )
    except ConfigError as error:
        return sweep.Request(told, None, ConfigError(f"{arm.name}, trial {trial}: {error}"))
    return sweep.Request(told, run)


def _tuned(arm: StudyArm, outcomes: Sequence[Trial], plans: Sequence[Plan], number: int) -> Tuned:
    won = _winner(arm, outcomes)
    settings = next((p.settings for p in plans if p.arm is arm and won and p.number == won.number), {})
    return Tuned(
        arm=arm,
        settings=settings,
        study={
            "tune_trials": number,
            "tune_space": described(arm.config),
            "tune_failed": sum(trial.failed for trial in outcomes),
            "tune_device_hours": float(f"{_device_s(arm, outcomes) / 3600:.4g}"),
        },
    )


def _winner(arm: StudyArm, outcomes: Sequence[Trial]) -> Trial | None:
    return search.winner(outcomes, lower=arm.config.train.target_metric == "loss")


def _device_s(arm: StudyArm, outcomes: Sequence[Trial]) -> float:
    """Seconds of training times ranks."""
    return math.fsum(trial.train_s for trial in outcomes) * arm.config.cluster.ranks


def _record(
    base: RunConfig,
    own: Sequence[StudyArm],
    outcomes: Mapping[str, Sequence[Trial]],
    plans: Sequence[Plan],
    tuned: Sequence[Tuned],
    baseline: str,
    number: int,
) -> dict[str, Any]:
    """What tune.json holds; fields: docs/records.md."""
    arms: dict[str, Any] = {}
    for arm, found in zip(own, tuned, strict=True):
        common, more = space_of(arm.config)
        mine = [plan for plan in plans if plan.arm is arm]
        won = _winner(arm, outcomes[arm.name])
        arms[arm.name] = {
            "space": {key.name: key.said for key in (*common, *more) if key is not None},
            "trials": [
                dataclasses.asdict(trial)
                | {
                    "settings": dict(plan.settings),
                    "run": plan.request.path.name if plan.request.path else None,
                }
                for trial, plan in zip(outcomes[arm.name], mine, strict=True)
            ],
            "failed": found.study["tune_failed"],
            "winner": won.number if won else None,
            "settings": dict(found.settings),
            "device_s": _device_s(arm, outcomes[arm.name]),
        }
    return {
        "of": base.study.name,
        "trials": number,
        "seeds": trials.seeds(number),
        "split": "validation",
        "target": base.train.target,
        "metric": base.train.target_metric,
        "baseline": baseline,
        "arms": arms,
    }


def _tell(
    console: Console,
    outcomes: Mapping[str, Sequence[Trial]],
    tuned: Sequence[Tuned],
    baseline: str,
    folder: Path,
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
        display.say(console, f"baseline of the tuned rows: {tuning_study.tuned_name(baseline)}")


def _worth(won: Trial, config: RunConfig) -> str:
    if won.crossed_s is not None:
        return f" with {won.crossed_s:.4g} s to the target"
    metric = "no number" if won.metric is None else f"{won.metric:.4g}"
    missed = "" if config.train.target is None else ", the target not reached"
    return f" with {config.train.target_metric} {metric}{missed}"
