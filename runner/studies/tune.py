"""`daso-bench tune`: the same search for better settings in every arm of a study, and a study of the winners.

Every arm gets the same number of trials, at the same points, with the same seeds, on the validation split and
for the whole schedule. Source: docs/method.md, "Tuning and pilot".
"""

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.compose import Request
from ..config.load import requests
from ..config.parts import RunInfo, check_trials
from ..config.run_config import RunConfig
from ..records import display
from ..records.json_lines import write_json
from ..records.run_directory import FAILED, OK, WRONG_REQUEST
from ..records.study_plan import TRIAL, check_fair, phase_of, trial_seeds
from ..report.data.load import load_run
from ..report.statistics.welch import Times
from . import start
from .pilot import derived_run, refuse_external
from .plan import StudyPlan, plan_of
from .prepare_data import Preparation
from .search_space import described, settings_of, sobol_points, space_of, with_settings
from .tuned_study import SUFFIX as TUNED_SUFFIX
from .tuned_study import StudyArm, arms_of, tuned_name, write_study

FILE, SUFFIX = "tune.json", "_tune"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial: what it changes, the run that shows what that is worth, and how that run ended.

    `state`: of the run, `refused`, or "" before it. `reason`: why there is no result. `crossed_s`: scored
    crossing time, seconds of T_train, None without one. `metric`: of the last evaluation. `train_s`: seconds
    of T_train used.
    """

    number: int
    settings: Mapping[str, Any]
    request: Request
    state: str = ""
    reason: str = ""
    crossed_s: float | None = None
    metric: float | None = None
    train_s: float = 0.0

    @property
    def failed(self) -> bool:
        """True of a run without a result, a diverged one included."""
        return self.state != "finished"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A study that is to be tuned, with `count` trials of each arm in `searched`.

    `arms`: all of it, second baselines and placebo included. `seeds`: of the scored runs. `trials`: by arm.
    """

    arms: Sequence[StudyArm]
    searched: Sequence[StudyArm]
    count: int
    seeds: Sequence[int]
    trials: Mapping[str, Sequence[Trial]]

    @property
    def base(self) -> RunConfig:
        return self.searched[0].config

    @property
    def folder(self) -> Path:
        """Where the trials and their result go."""
        return self.base.results_dir / f"{self.base.study.name}{SUFFIX}"


Results = Mapping[str, Sequence[Trial]]  # by arm, its trials with their results, in their order


def tune(
    words: Sequence[str], *, count: int | None, config_dir: Path | None, cwd: Path, dry_run: bool = False
) -> int:
    """Tune the study that `words` ask for with `count` trials an arm, and show the result; the exit code.

    `count`: None is `study.tune_trials`. `dry_run`: only show the trials. Raises ConfigError where the study
    cannot be tuned.
    """
    asked = requests(words, sweep=True, config_dir=config_dir, cwd=cwd)
    tuning = tuning_of(arms_of(asked), asked, count, words)
    console = display.make_console(goes_on=True)
    for request in asked:
        if request.error is not None:
            display.say(console, f"not tuned: {request.error}", "red")
    arms, total = len(tuning.searched), len(tuning.searched) * tuning.count
    counts = f"{arms} arms x {tuning.count} trials = {total} runs"
    display.say(console, f"{counts}, seeds {TRIAL} and on: {tuning.folder}", "bold")
    plan = plan_of([trial.request for trials in tuning.trials.values() for trial in trials])
    if dry_run:
        show_trials(console, tuning, plan)
        return OK
    ready = Preparation(console)
    for arm in tuning.searched:
        ready.check(arm.config)
    code = start.run_sweep(console, plan, with_report=False, words=words, ready=ready)
    # A trial that the strategy refuses counts; a run that the machine broke off can be repeated.
    if code not in (OK, FAILED, WRONG_REQUEST):
        return code
    results = {arm: [with_result(trial) for trial in trials] for arm, trials in tuning.trials.items()}
    _check_started(results)
    _write_results(console, tuning, results, config_dir)
    return FAILED if code == FAILED else OK


def tuning_of(
    arms: Sequence[StudyArm], requests: Sequence[Request], count: int | None, words: Sequence[str]
) -> Tuning:
    """The trials for the arms of a study's `requests`, `count` of each; None: `study.tune_trials`.

    Raises ConfigError where nothing is to be tuned, where it would be unfair, and for a cluster.
    """
    searched = [arm for arm in arms if not arm.role]
    if not searched:
        raise ConfigError(
            "study.role: all arms are second baselines or the placebo; there is nothing to tune"
        )
    refuse_external(searched[0].config, "trials")
    number = searched[0].config.study.tune_trials if count is None else count
    check_trials(number, "study.tune_trials" if count is None else "--trials")
    scored = (r.config.seed for r in requests if r.config is not None and not r.config.study.role)
    seeds = list(dict.fromkeys(scored))
    check_fair({arm.name: number for arm in searched}, trial_seeds(number), seeds)
    trials = trials_of(searched, number, words)
    return Tuning(arms=arms, searched=searched, count=number, seeds=seeds, trials=trials)


def trials_of(arms: Sequence[StudyArm], count: int, words: Sequence[str] = ()) -> dict[str, list[Trial]]:
    """`count` trials of each arm, by its name."""
    points = sobol_points(arms[0].config.study.name, count)
    return {
        arm.name: [
            Trial(number=number, settings=settings, request=_request(arm, number, settings, words))
            for number, settings in enumerate(settings_of(space_of(arm.config), points))
        ]
        for arm in arms
    }


def _request(arm: StudyArm, number: int, settings: Mapping[str, Any], words: Sequence[str]) -> Request:
    seed = TRIAL + number
    trial_words = (*words, f"study.arm={arm.name}", *(f"{key}={value}" for key, value in settings.items()))
    try:
        changed = with_settings(arm.config, settings)
        run = derived_run(changed, SUFFIX, seed=seed, phase=phase_of(seed), eval_split="validation")
        run = dataclasses.replace(
            run, run=RunInfo(name=f"trial {number}"), study=dataclasses.replace(run.study, arm=arm.name)
        )
    except ConfigError as error:
        return Request(words=trial_words, error=ConfigError(f"{arm.name}, trial {number}: {error}"))
    return Request(words=trial_words, config=run)


def show_trials(console: Console, tuning: Tuning, plan: StudyPlan) -> None:
    """Show the settings of each trial and what would be done with it, then how long all will take."""
    runs = {run.path: run for run in plan.runs}
    for arm in tuning.searched:
        display.say(console, arm.name, "bold")
        for trial in tuning.trials[arm.name]:
            settings = " ".join(f"{key}={value}" for key, value in trial.settings.items())
            path, error = trial.request.path, trial.request.error
            would = f"refused: {error}" if path is None else start.intent(runs[path], many=True)
            display.say(console, f"  {trial.number}  {settings or 'the default settings'}  {would}")
    start.show_time(console, plan)


def with_result(trial: Trial) -> Trial:
    """The trial with its result, from its run directory."""
    config, path = trial.request.config, trial.request.path
    if config is None or path is None:
        return dataclasses.replace(trial, state="refused", reason=str(trial.request.error))
    if not path.is_dir():
        return dataclasses.replace(trial, state="not run", reason="this machine could not start it")
    run = load_run(path, path.name)
    return dataclasses.replace(
        trial,
        state=run.state,
        reason=run.reason,
        crossed_s=run.to_target_s,
        metric=run.points("samples")[-1][1] if run.evaluations else None,
        train_s=run.train_s or 0.0,
    )


def _check_started(results: Results) -> None:
    """Raises ConfigError where no trial of an arm has run."""
    for arm, trials in results.items():
        if all(trial.state in ("refused", "not run", "queued") for trial in trials):
            raise ConfigError(
                f"{arm}: none of its {len(trials)} trials could be started ({trials[0].reason}); mend "
                "that, or leave the arm out with study.arm=NAME,NAME of the others; nothing is written"
            )


def winner(trials: Sequence[Trial], *, lower: bool = False) -> Trial | None:
    """The trial with the smallest crossing time; where none crossed, with the best last metric.

    One that crossed is better than all that did not; of equals the first. None if all failed. `lower`: the
    metric is a loss.
    """

    def rank(trial: Trial) -> tuple[bool, float]:
        if trial.crossed_s is not None:
            return False, trial.crossed_s
        if trial.metric is None or math.isnan(trial.metric):
            return True, math.inf
        return True, trial.metric if lower else -trial.metric

    return min((trial for trial in trials if not trial.failed), key=rank, default=None)


def baseline_of(arms: Sequence[StudyArm], results: Results) -> str:
    """The arm that the tuned rows are compared with; "" for none.

    Of the study's plain `ddp` arms (flat, hierarchical) the better on the tuning seeds, also where the study
    names one of them; another arm that the study names stays. Without a trial that gave a time in all of them
    the one that is named, else the first.
    """
    asked = arms[0].config.study.baseline
    named = asked if asked in [arm.name for arm in arms] else ""
    ddp = {arm.name: arm.config.strategy for arm in arms if arm.config.strategy_name == "ddp"}
    plain = [name for name, d in ddp.items() if d.hook == "none" and d.overlap]
    if not plain or (named and named not in plain):
        return named
    seconds = common_times({name: results[name] for name in plain})
    if not all(seconds.values()):
        return named or plain[0]
    # The smallest geometric mean, the first of equals.
    return min(seconds, key=lambda name: math.fsum(Times(tuple(seconds[name])).logs))


def common_times(results: Results) -> dict[str, list[float]]:
    """By arm the seconds of the trials that gave a time in every arm, so that all have the same seeds and
    points: crossing times if some trial crossed everywhere, else the time of the whole schedule.
    """
    for field in ("crossed_s", "train_s"):
        times = [
            [None if trial.failed else getattr(trial, field) for trial in trials]
            for trials in results.values()
        ]
        complete = [number for number, row in enumerate(zip(*times, strict=True)) if all(row)]
        if complete:
            return {
                arm: [float(seconds[number] or 0) for number in complete]
                for arm, seconds in zip(results, times, strict=True)
            }
    return {arm: [] for arm in results}


def _write_results(console: Console, tuning: Tuning, results: Results, config_dir: Path | None) -> None:
    folder, train = tuning.folder, tuning.base.train
    baseline = baseline_of(tuning.searched, results)
    records = {arm.name: _record(arm, results[arm.name]) for arm in tuning.searched}
    study_keys = {
        arm.name: {
            "tune_trials": tuning.count,
            "tune_space": described(arm.config),
            "tune_failed": records[arm.name]["failed"],
            "tune_device_hours": float(f"{records[arm.name]['device_s'] / 3600:.4g}"),
        }
        for arm in tuning.searched
    }
    file = write_study(
        folder,
        tuning.arms,
        {name: record["settings"] for name, record in records.items()},
        study_keys,
        seeds=tuning.seeds,
        baseline=baseline,
        config_dir=config_dir,
    )
    record = {
        "of": tuning.base.study.name,
        "trials": tuning.count,
        "seeds": trial_seeds(tuning.count),
        "split": "validation",
        "target": train.target,
        "metric": train.target_metric,
        "baseline": baseline,
        "arms": records,
    }
    write_json(folder / FILE, record)
    for arm in tuning.searched:
        _show_winner(console, arm, records[arm.name])
    if baseline:
        display.say(console, f"baseline of the tuned rows: {tuned_name(baseline)}")
    display.say(console, f"kept in {folder / FILE} and {file}")
    name = f"{tuning.base.study.name}{TUNED_SUFFIX}"
    command = shlex.join(["daso-bench", "--config-dir", str(folder), f"+study={name}"])
    display.say(console, f"both rows, on scored seeds: {command}", "bold")


def _record(arm: StudyArm, trials: Sequence[Trial]) -> dict[str, Any]:
    """What tune.json holds of an arm; fields: docs/records.md."""
    won = winner(trials, lower=arm.config.train.target_metric == "loss")
    recorded = ("number", "state", "reason", "crossed_s", "metric", "train_s")
    return {
        "space": {key.name: key.words for key in space_of(arm.config) if key is not None},
        "trials": [
            {
                **{name: getattr(trial, name) for name in recorded},
                "settings": dict(trial.settings),
                "run": trial.request.path.name if trial.request.path else None,
            }
            for trial in trials
        ],
        "failed": sum(trial.failed for trial in trials),
        "winner": won.number if won else None,
        "settings": dict(won.settings) if won else {},
        "device_s": math.fsum(trial.train_s for trial in trials) * arm.config.cluster.ranks,
    }


def _show_winner(console: Console, arm: StudyArm, record: Mapping[str, Any]) -> None:
    words = "no trial gave a result"
    if record["winner"] is not None:
        won = record["trials"][record["winner"]]
        train, worth = arm.config.train, f"{won['crossed_s'] or 0:.4g} s to the target"
        if won["crossed_s"] is None:
            metric = "no number" if won["metric"] is None else f"{won['metric']:.4g}"
            missed = "" if train.target is None else ", the target not reached"
            worth = f"{train.target_metric} {metric}{missed}"
        settings = ", ".join(f"{key}={value}" for key, value in record["settings"].items())
        words = f"trial {won['number']} wins with {worth}: {settings or 'the default settings'}"
    failures = f" ({record['failed']} of {len(record['trials'])} trials failed)" if record["failed"] else ""
    display.say(console, f"{arm.name}: {words}{failures}")
