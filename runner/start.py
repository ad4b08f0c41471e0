"""The commands that start runs: one, a sweep, what is left of one; and a look at what would be started."""

import shlex
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from rich.console import Console

from ..strategies.errors import ConfigError, MachineError
from . import display, estimate, far, local, similarity_words, study_plan, sweep
from .compose import compose
from .emulated.venue import venue_of
from .environment import commit_of, threads_per_rank
from .handler import Handler
from .overrides import key_of
from .overview import runs_below
from .run_directory import RunDirectory
from .schema import RunConfig, dump, load, to_plain
from .supervisor import Event
from .verdict import Outcome

ALL_RANKS = "daso_bench.runner.simulated_worker:run_all"  # all ranks in one process
_PACKAGE = Path(__file__).resolve().parent.parent


def start(words: Sequence[str], *, many: bool, config_dir: Path | None, cwd: Path) -> int:
    """Run what `words` ask for: one run, or with `many` a sweep. Relative paths count from `cwd`.

    Returns the exit code. Raises ConfigError, MachineError where nothing could be started.
    """
    console = display.make_console()
    composed = compose(words, sweep=many, config_dir=config_dir)
    wanted = sweep.requests(composed, cwd)
    given_away = far.elsewhere(request.config for request in wanted)
    if given_away is None:
        local.warm()  # the processes load torch while this one looks at the requests
    if many:
        with_report = any(key_of(word) == "study" for word in words)
        if given_away is not None:
            return _give_away(console, given_away, wanted, with_report=with_report, words=words)
        return run_sweep(console, wanted, with_report=with_report, words=words)
    config = _only(wanted)
    display.say(console, wanted[0].title, "bold")
    if given_away is not None:
        return _give_away(console, given_away, wanted, with_report=False)
    if config.launcher.far:  # a requeued batch script says its command again
        directory, ending = sweep.run_or_resume(config, _starter(console))
    else:
        directory, ending = sweep.run_one(config, _starter(console))
    _tell_end(console, directory, ending)
    return ending.exit_code


def resume(folder: Path) -> int:
    """Go on with the run at `folder`, or all below it that are not finished; returns the exit code."""
    console = display.make_console()
    runs = runs_below(folder)
    if len(runs) == 1 and runs[0].state() == "finished":
        raise ConfigError(f"run {runs[0].run_id} is {runs[0].status()['status']} already: {runs[0].path}")
    left = [(run, load(run.config)) for run in runs if run.state() != "finished"]
    away = [(run, config) for run, config in left if far.elsewhere([config]) is not None]
    code = 0
    for handler in dict.fromkeys(far.elsewhere([config]) for _, config in away):
        assert handler is not None
        mine = [(run, config) for run, config in away if far.elsewhere([config]) is handler]
        code = handler.give(mine, console) or code
    here = [run for run in left if run not in away]
    if not here:
        return code
    local.warm()
    return _resume_here(console, here) or code


def _resume_here(console: Console, runs: Sequence[tuple[RunDirectory, RunConfig]]) -> int:
    starter, code = _starter(console), 0
    for run, config in runs:
        display.say(console, f"{run.run_id}: goes on", "bold")
        try:
            run.cancel_file.unlink(missing_ok=True)
            ending = starter(run, config)
        except (ConfigError, MachineError) as error:
            if len(runs) == 1:
                raise
            display.say(console, f"{run.run_id}: {error}", "red")
            code = code or (2 if isinstance(error, ConfigError) else 3)
            continue
        _tell_end(console, run, ending)
        if ending.exit_code == sweep.INTERRUPTED:
            return ending.exit_code
        code = ending.exit_code or code
    return code


def evaluate(folder: Path) -> int:
    """Evaluate the newest checkpoint of the run at `folder` in this process and print what came out."""
    from .rank import evaluate as evaluate_checkpoint

    run = RunDirectory.open(folder)
    for key, value in evaluate_checkpoint(run.path).items():
        print(f"{key}: {value}")
    return 0


def dry_run(words: Sequence[str], *, many: bool, config_dir: Path | None, cwd: Path) -> int:
    """Show what `start` would do, in its order; no process is started and nothing is written."""
    console = display.make_console()
    wanted = sweep.requests(compose(words, sweep=many, config_dir=config_dir), cwd)
    if not many:
        _only(wanted)
    order = sweep.arrange(wanted)
    for number, request in enumerate(order, 1):
        count = f"[{number}/{len(order)}] " if many else ""
        if request.config is None or request.path is None:
            display.say(console, f"{count}refused: {request.error}", "red")
            continue
        display.say(console, f"{count}{request.title}", "bold")
        display.say(console, f"  directory  {request.path}")
        display.say(console, f"  processes  {_processes(request.config)}")
        for line in [*far.describe(request.config), *similarity_words.lines(request.config)]:
            display.say(console, f"             {line}")
        display.say(console, f"  would      {_intent(RunDirectory(request.path), many)}")
    configs = [request.config for request in order if request.config is not None]
    found = estimate.from_finished(configs)
    for line in [display.estimated(found) if found else "", estimate.at_most(estimate.left(configs))]:
        if line:
            display.say(console, line)
    first = next(iter(configs), None)
    if first is not None:
        display.say(console, f"configuration{' of the first' if many else ''}:", "dim")
        display.say(console, dump(first).rstrip())
    return 2 if any(request.error for request in order) else 0


def _only(wanted: Sequence[sweep.Request]) -> RunConfig:
    (request,) = wanted
    if request.config is None:
        raise request.error or ConfigError("nothing to run")
    return request.config


def run_sweep(
    console: Console, wanted: Sequence[sweep.Request], *, with_report: bool, words: Sequence[str] = ()
) -> int:
    """Run them here, in an order fair to the arms, and tell how it goes; returns the exit code.

    `words`: what was asked for, kept in the plan of the study.
    """

    def tell(text: str) -> None:
        display.say(console, text)

    order = sweep.arrange(wanted)
    _tell_refused(console, order)
    commit = cache(lambda: commit_of(_PACKAGE)[0])
    _declare(order, words, commit)
    pace = estimate.Pace(_tell_estimate(console, order))
    results = sweep.run_all(order, _paced(_starter(console, tell_end=True), pace), tell, commit, pace.left_s)
    _tell_sweep(console, results)
    code = sweep.exit_code(results)
    for folder in dict.fromkeys(r.request.path.parent for r in results if r.request.path is not None):
        if with_report and code != sweep.INTERRUPTED:
            _build_report(console, folder)
        else:
            tell(f"report: daso-bench report {shlex.quote(str(folder))}")
    return code


def _declare(order: Sequence[sweep.Request], words: Sequence[str], commit: Callable[[], str | None]) -> None:
    configs = [request.config for request in order if request.config is not None]
    study_plan.declare(configs, words, unix=time.time(), commit=commit)


def _tell_estimate(console: Console, order: Sequence[sweep.Request]) -> float | None:
    """Say how long the runs will take; seconds of each, None if nothing is known or only a few are left."""
    configs = [request.config for request in order if request.config is not None]
    to_do = estimate.left(configs)
    if not to_do:
        return None
    found = estimate.from_finished(configs)
    if found is None and len(to_do) >= estimate.MANY:
        with console.status("trying how long a run takes, with a few steps"):
            found = estimate.from_trial(configs, _run_trial)
    if found is not None:
        display.say(console, display.estimated(found), "bold")
    return found.each_s if found else None


def _run_trial(directory: RunDirectory, config: RunConfig) -> bool:
    ending = _launch(directory, config, lambda event: None)
    if ending.exit_code == sweep.INTERRUPTED:
        raise KeyboardInterrupt
    return ending.status == "finished"


def _paced(start_run: sweep.Start, pace: estimate.Pace) -> sweep.Start:
    def start_and_time(directory: RunDirectory, config: RunConfig) -> sweep.Ending:
        begin = time.monotonic()
        ending = start_run(directory, config)
        pace.took(time.monotonic() - begin)
        return ending

    return start_and_time


def _tell_refused(console: Console, order: Sequence[sweep.Request]) -> bool:
    """Say which requests are refused; whether any is. Raises ConfigError if all are."""
    refused = [request for request in order if request.error is not None]
    if len(refused) == len(order):
        raise ConfigError("\n".join(dict.fromkeys(str(request.error) for request in refused)))
    for text in dict.fromkeys(f"refused: {request.error}" for request in refused):
        display.say(console, text, "red")
    return bool(refused)


def _give_away(
    console: Console,
    handler: Handler,
    wanted: Sequence[sweep.Request],
    *,
    with_report: bool,
    words: Sequence[str] | None = None,
) -> int:
    """Hand the runs to another program: Slurm's queue, or the user's torchrun. `words`: a sweep's."""
    order = sweep.arrange(wanted)
    refused = _tell_refused(console, order)
    if words is not None:
        _declare(order, words, lambda: commit_of(_PACKAGE)[0])
    most = estimate.at_most(estimate.left(r.config for r in order if r.config is not None))
    if most:
        display.say(console, most)
    code = 2 if refused else 0
    runs: list[tuple[RunDirectory, RunConfig]] = []
    for request in order:
        if request.config is None or request.path is None:
            continue
        run = RunDirectory(request.path)
        state = run.state()
        if state == "finished":
            display.say(console, f"{request.title}: skipped: {run.status()['status']} already: {run.path}")
            continue
        status = run.status() if state == "queued" else {}
        if state == "new" or (state == "queued" and not status["attempts"] and not status.get("job")):
            run = RunDirectory.create(to_plain(request.config), request.config.results_dir)
        elif state == "resumable" or state == "queued":
            run.renew(to_plain(request.config))
        runs.append((run, request.config))
    code = (handler.give(runs, console) if runs else 0) or code
    folders = list(dict.fromkeys(run.path.parent for run, _ in runs))
    if with_report and handler.waits([config for _, config in runs]):
        for folder in folders:
            _build_report(console, folder)
    return code


def _starter(console: Console, *, tell_end: bool = False) -> sweep.Start:
    def start_run(directory: RunDirectory, config: RunConfig) -> sweep.Ending:
        with display.progress(console, directory.run_id) as on_event:
            ending = _launch(directory, config, on_event)
        if ending.exit_code and ending.details:
            display.say(console, ending.details.rstrip(), "dim")
        if tell_end:
            display.say(console, f"  {display.one_line(directory.status())}")
        return ending

    return start_run


def _launch(directory: RunDirectory, config: RunConfig, on_event: Callable[[Event], None]) -> Outcome:
    """Run it here and now: processes or virtual ranks of this machine, or the allocation around us."""
    launcher = config.launcher
    if launcher.far:
        return far.launch_here(directory, config, on_event)
    virtual = launcher.name == "simulated"
    return local.launch(
        directory,
        ranks=1 if virtual else config.cluster.ranks,
        entry=ALL_RANKS if virtual else local.ENTRY,
        threads="auto" if isinstance(launcher.threads_per_rank, str) else launcher.threads_per_rank,
        venue=venue_of(config),
        stall_s=launcher.stall_s,
        on_event=on_event,
    )


def _tell_end(console: Console, directory: RunDirectory, ending: sweep.Ending) -> None:
    console.print(display.run_table(directory.status()))
    display.say(console, f"run directory: {directory.path}")
    if ending.status in ("failed", "cancelled", "timed_out"):
        display.say(console, f"go on with: daso-bench resume {shlex.quote(str(directory.path))}")


def _tell_sweep(console: Console, results: Sequence[sweep.Result]) -> None:
    done = [r.request.path for r in results if r.request.path is not None and r.word in ("ran", "skipped")]
    if done:
        console.print(display.runs_table([(path.name, RunDirectory(path).status()) for path in done]))
    failures = sweep.failures(results)
    if failures:
        display.say(console, f"{len(failures)} of {len(results)} did not end in a result:", "red")
    for result in failures:
        word = result.ending.status if result.ending else result.word
        display.say(console, f"  {word}: {result.request.title}: {result.reason or 'no reason given'}")
        if result.request.path is not None:
            display.say(console, f"    {result.request.path}")


def _build_report(console: Console, folder: Path) -> None:
    from .report.build import report

    try:
        display.say(console, f"report: {report(folder, folder / 'report')}", "bold")
    except ConfigError as error:  # the runs have told already why there is nothing to report
        display.say(console, f"no report: {error}", "red")


def _processes(config: RunConfig) -> str:
    launcher = config.launcher
    threads = launcher.threads_per_rank
    if launcher.name == "simulated":
        return f"1, for {_ranks(config)} in virtual time"
    if launcher.far:
        return f"{_ranks(config)}, started by {launcher.name}"
    each = threads_per_rank("auto" if isinstance(threads, str) else threads, config.cluster.ranks)
    return f"{_ranks(config)}, {each} threads each, {launcher.name}"


def _ranks(config: RunConfig) -> str:
    nodes = config.cluster.ranks_of_nodes
    shape = f"{len(nodes)} x {nodes[0]}" if len(set(nodes)) == 1 else " + ".join(map(str, nodes))
    return f"{config.cluster.ranks} ranks on {len(nodes)} nodes ({shape})"


def _intent(directory: RunDirectory, many: bool) -> str:
    state = directory.state()
    if state in ("new", "queued"):
        return "run"
    if state == "resumable" and many:
        return "go on with it"
    if state == "resumable":
        return f"refuse: begun and not finished (daso-bench resume {shlex.quote(str(directory.path))})"
    if state == "finished" and many:
        return "skip: finished already"
    return f"refuse: {'finished already' if state == 'finished' else 'it is being run'}"
