"""The commands that start runs: one run, a sweep, `--dry-run` of both, `resume`, `evaluate`."""

import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError, MachineError
from .. import PACKAGE
from ..config.load import dump, load, requests
from ..config.overrides import key_of
from ..config.reader_config import PackedReader
from ..config.run_config import RunConfig
from ..launch import local
from ..launch.launcher import Launcher, external_launcher, launcher_of
from ..machine.environment import commit_of
from ..records import display
from ..records.run_directory import INTERRUPTED, OK, WRONG_REQUEST, Outcome, RunDirectory
from ..training.data_errors import can_go_on
from ..training.packed_set import look_at
from . import run_plan
from .overview import runs_below
from .plan import PlannedRun, StudyPlan, declare, plan_of
from .planned_power import power_sentences
from .prepare_data import Preparation

RUN, GO_ON = "run", "go on with it"


def start(words: Sequence[str], *, multirun: bool, config_dir: Path | None, cwd: Path) -> int:
    """Run what `words` name: one run, or with `multirun` or a study a sweep.

    Relative paths count from `cwd`. Returns the exit code. Raises ConfigError, MachineError where nothing
    could be started.
    """
    of_study = _names_a_study(words)
    many = multirun or of_study
    asked = requests(words, sweep=many, config_dir=config_dir, cwd=cwd)
    external = external_launcher(request.config for request in asked)
    if external is None:
        local.warm()  # the processes load torch while this one looks at the requests
    plan, console = plan_of(asked), display.make_console(goes_on=True)
    if many and external is None:
        return run_sweep(console, plan, with_report=of_study, words=words, config_dir=config_dir)
    if not many:
        display.say(console, plan.only.title, "bold")
    if external is not None:
        asked_for = words if many else None
        return _hand_over(
            console, external, plan, words=asked_for, with_report=of_study, config_dir=config_dir
        )
    run, ready = plan.only, Preparation(console)
    _say_remarks(console, run.config)
    # A requeued batch script repeats its command.
    resume = run.config.launcher.external
    directory, outcome = run_plan.run_one(run, _starter(console, ready), ready.check, resume=resume)
    _show_end(console, directory, outcome)
    return outcome.exit_code


def dry_run(words: Sequence[str], *, multirun: bool, config_dir: Path | None, cwd: Path) -> int:
    """Show what `start` would do, in its order, and start nothing; returns the exit code."""
    many = multirun or _names_a_study(words)
    plan = plan_of(requests(words, sweep=many, config_dir=config_dir, cwd=cwd))
    if not many:
        _ = plan.only
    power = power_sentences([run.config for run in plan.runs], config_dir) if many else ()
    return show_plan(display.make_console(), plan, many=many, power=power)


def _names_a_study(words: Sequence[str]) -> bool:
    return any(key_of(word) == "study" for word in words)


def show_plan(console: Console, plan: StudyPlan, *, many: bool, power: Sequence[str] = ()) -> int:
    """Show each run, how long all will take, and the first one's configuration; returns the exit code.

    `many`: the runs of a sweep, which skips what is finished. `power`: what they can detect.
    """
    total, wrong = len(plan.runs) + len(plan.refused), bool(plan.refused)
    for number, run in enumerate(plan.runs, 1):
        display.say(console, (f"[{number}/{total}] " if many else "") + run.title, "bold")
        display.say(console, f"  directory  {run.path}")
        with suppress(MachineError):  # `would` says it
            for line, text in enumerate(launcher_of(run.config).describe(run.config)):
                display.say(console, f"  {'' if line else 'processes':<9}  {text}")
        would = intent(run, many=many)
        if would in (RUN, GO_ON) and (trouble := trouble_of(run.config)) is not None:
            would, wrong = f"refuse: {trouble}", True
        display.say(console, f"  would      {would}")
    for number, request in enumerate(plan.refused, len(plan.runs) + 1):
        display.say(console, f"[{number}/{total}] refused: {request.error}", "red")
    if plan.left_out:
        display.say(console, plan.left_out)
    show_time(console, plan)
    for sentence in power:
        display.say(console, sentence)
    if plan.runs:
        display.say(console, f"configuration{' of the first' if many else ''}:", "dim")
        display.say(console, dump(plan.runs[0].config).rstrip())
    return WRONG_REQUEST if wrong else OK


def trouble_of(config: RunConfig) -> str | None:
    """Why the run would not start, for its memory or its packed file, without loading the data set."""
    try:
        if config.launcher.virtual:
            launcher_of(config).refuse(config)
        if isinstance(config.reader, PackedReader):
            look_at(config.dataset, config.reader, config.cluster.nodes)
    except (ConfigError, MachineError) as error:
        return str(error)
    return None


def show_time(console: Console, plan: StudyPlan) -> None:
    """Show how long the runs will take, as far as that is known before any is started."""
    estimate = run_plan.estimate(plan.runs)
    if words := run_plan.virtual_work(plan.runs) if estimate is None else estimate[0]:
        display.say(console, words)
    if limit := run_plan.slurm_limit(plan.runs):
        display.say(console, limit)


def intent(run: PlannedRun, *, many: bool) -> str:
    """What would be done with this run."""
    state = run.state
    if state in ("new", "queued"):
        return RUN
    if state == "resumable" and many:
        return GO_ON
    if state == "resumable":
        return f"refuse: begun and not finished (daso-bench resume {shlex.quote(str(run.path))})"
    if state == "finished" and many:
        return "skip: finished already"
    return f"refuse: {'finished already' if state == 'finished' else 'it is being run'}"


def resume(folder: Path) -> int:
    """Go on with the run at `folder`, or all below it that are not finished; returns the exit code."""
    console = display.make_console(goes_on=True)
    runs = runs_below(folder)
    if len(runs) == 1 and runs[0].state() == "finished":
        raise ConfigError(f"run {runs[0].run_id} is {runs[0].status()['status']} already: {runs[0].path}")
    left = [(run, load(run.config)) for run in runs if run.state() != "finished"]
    if not left:
        display.say(console, f"nothing to do: {len(runs)} runs, all finished")
    away = [(run, config) for run, config in left if launcher_of(config).hands_over(config)]
    code = OK
    for launcher in dict.fromkeys(launcher_of(config) for _, config in away):
        mine = [(run, config) for run, config in away if launcher_of(config) is launcher]
        code = launcher.hand_over(mine, console) or code
    here = [run for run in left if run not in away]
    if not here:
        return code
    local.warm()
    ready = Preparation(console)
    starter = _starter(console, ready)
    for run, config in here:
        display.say(console, f"{run.run_id}: goes on", "bold")
        try:
            run.cancel_file.unlink(missing_ok=True)
            ready.check(config)
            outcome = starter(run, config)
        except (ConfigError, MachineError) as error:
            if len(here) == 1:
                raise
            display.say(console, f"{run.run_id}: {error}", "red")
            code = code or run_plan.not_run(error).exit_code
            continue
        _show_end(console, run, outcome)
        if outcome.exit_code == INTERRUPTED:
            return outcome.exit_code
        code = outcome.exit_code or code
    return code


def evaluate(folder: Path) -> int:
    """Evaluate the newest checkpoint of the run at `folder` in this process and print the numbers."""
    from ..launch.rank import evaluate as evaluate_checkpoint

    for key, value in evaluate_checkpoint(RunDirectory.open(folder).path).items():
        print(f"{key}: {value}")
    return OK


def run_sweep(
    console: Console,
    plan: StudyPlan,
    *,
    with_report: bool,
    words: Sequence[str] = (),
    config_dir: Path | None = None,
    ready: Preparation | None = None,
) -> int:
    """Run the plan here, in its order, and show the progress; returns the exit code.

    `words`: what was asked for, kept in the plan of the study. `config_dir`: see `report`. `ready`: of data
    that have been looked at already.
    """
    tell = partial(display.say, console)
    _show_refused(console, plan)
    _say_remarks(console, plan.runs[0].config)
    declare(plan.runs, words, unix=time.time(), commit=lambda: commit_of(PACKAGE)[0])
    ready = ready or Preparation(console)
    estimate = run_plan.estimate(plan.runs)
    if estimate is not None:
        display.say(console, estimate[0], "bold")
    each_s = None if estimate is None else estimate[1]
    start_run = _starter(console, ready, show_end=True)
    results = run_plan.run_all(plan, start_run, tell, each_s, ready.check)
    _show_sweep(console, results)
    code = run_plan.exit_code(results)
    for folder in dict.fromkeys(r.request.path.parent for r in results if r.request.path is not None):
        if with_report and code != INTERRUPTED:
            _build_report(console, folder, config_dir)
        else:
            tell(f"report: daso-bench report {shlex.quote(str(folder))}")
    return code


def _say_remarks(console: Console, config: RunConfig) -> None:
    for remark in launcher_of(config).remarks(config):
        display.say(console, remark)


def _show_refused(console: Console, plan: StudyPlan) -> None:
    """Show which requests are refused, and which runs are left out. Raises ConfigError if all are refused."""
    errors = dict.fromkeys(str(request.error) for request in plan.refused)
    if not plan.runs:
        raise ConfigError("\n".join(errors))
    for error in errors:
        display.say(console, f"refused: {error}", "red")
    if plan.left_out:
        display.say(console, plan.left_out)


def _hand_over(
    console: Console,
    launcher: Launcher,
    plan: StudyPlan,
    *,
    words: Sequence[str] | None = None,
    with_report: bool = False,
    config_dir: Path | None = None,
) -> int:
    """Hand the runs to Slurm's queue or to the user's torchrun. `words`: of a sweep."""
    _show_refused(console, plan)
    if words is not None:
        declare(plan.runs, words, unix=time.time(), commit=lambda: commit_of(PACKAGE)[0])
    if limit := run_plan.slurm_limit(plan.runs):
        display.say(console, limit)
    code = WRONG_REQUEST if plan.refused else OK
    runs: list[tuple[RunDirectory, RunConfig]] = []
    ready = Preparation(console)
    for run in plan.runs:
        try:
            directory = _directory_of(run, ready)
        except (ConfigError, MachineError) as error:
            run.directory.refuse(str(error))
            if words is None:
                raise
            display.say(console, f"{run.title}: {error}", "red")
            code = max(code, run_plan.not_run(error).exit_code)
            continue
        if directory is None:
            status = run.directory.status()["status"]
            display.say(console, f"{run.title}: skipped: {status} already: {run.path}")
        else:
            runs.append((directory, run.config))
    code = (launcher.hand_over(runs, console) if runs else 0) or code
    folders = list(dict.fromkeys(directory.path.parent for directory, _ in runs))
    if with_report and launcher.waits([config for _, config in runs]):
        for folder in folders:
            _build_report(console, folder, config_dir)
    return code


def _directory_of(run: PlannedRun, ready: Preparation) -> RunDirectory | None:
    """The folder of a run that is handed over, its data ready; None for a finished one.

    Raises ConfigError, MachineError where it cannot be run; then there is no new folder.
    """
    config, directory, state = run.config, run.directory, run.state
    launcher_of(config).refuse(config)
    if state == "finished":
        return None
    ready.check(config)
    status = directory.status() if state == "queued" else {}
    if state == "new" or (state == "queued" and not status["attempts"] and not status.get("job")):
        directory = run.create_directory()
    elif state == "resumable" or state == "queued":
        directory.renew(config.tree)
    ready.record(directory, config)
    return directory


def _starter(console: Console, ready: Preparation, *, show_end: bool = False) -> run_plan.Start:
    def start_run(directory: RunDirectory, config: RunConfig) -> Outcome:
        try:
            ready.record(directory, config)
            with display.progress(console, directory.run_id) as on_event:
                outcome = launcher_of(config).run(directory, config, on_event)
        except (ConfigError, MachineError) as error:
            directory.refuse(str(error))
            raise
        if outcome.exit_code and outcome.details:
            display.say(console, outcome.details.rstrip(), "dim")
        if show_end:
            display.say(console, f"  {display.one_line(directory.status())}")
        return outcome

    return start_run


def _show_end(console: Console, directory: RunDirectory, outcome: Outcome) -> None:
    console.print(display.run_table(directory.status()))
    display.say(console, f"run directory: {directory.path}")
    if outcome.status in ("failed", "cancelled", "timed_out") and can_go_on(outcome.reason):
        display.say(console, f"go on with: daso-bench resume {shlex.quote(str(directory.path))}")


def _show_sweep(console: Console, results: Sequence[run_plan.Result]) -> None:
    done = [r.request.path for r in results if r.request.path is not None and r.done]
    if done:
        console.print(display.runs_table([(path.name, RunDirectory(path).status()) for path in done]))
    failures = run_plan.failures(results)
    if failures:
        display.say(console, f"{len(failures)} of {len(results)} did not end in a result:", "red")
    for result in failures:
        outcome = result.outcome
        reason = outcome.reason or "no reason given"
        display.say(console, f"  {outcome.status}: {result.request.title}: {reason}")
        if result.request.path is not None:
            display.say(console, f"    {result.request.path}")


def _build_report(console: Console, folder: Path, config_dir: Path | None) -> None:
    from ..report.build import report

    try:
        display.say(console, f"report: {report(folder, folder / 'report', config_dir)}", "bold")
    except (ConfigError, MachineError) as error:  # the runs have shown it already, or the disk is full
        display.say(console, f"no report: {error}", "red")
