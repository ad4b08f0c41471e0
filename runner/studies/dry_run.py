"""What would be started, for --dry-run: no process is started and nothing is written."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError, MachineError
from ..config.load import dump, requests
from ..config.reader_config import PackedReader
from ..config.schema import RunConfig
from ..launch.launcher import launcher_of
from ..records import display
from ..records.outcome import OK, WRONG_REQUEST
from ..training.packed.packed_set import look_at
from . import duration
from .plan import PlannedRun, StudyPlan, plan_of

RUN, GO_ON = "run", "go on with it"
STARTED = (RUN, GO_ON)


def dry_run(words: Sequence[str], *, many: bool, config_dir: Path | None, cwd: Path) -> int:
    """Show what `start.start` would do, in its order; returns the exit code."""
    plan = plan_of(requests(words, sweep=many, config_dir=config_dir, cwd=cwd))
    if not many:
        _ = plan.only
    return show(display.make_console(), plan, many=many)


def show(console: Console, plan: StudyPlan, *, many: bool) -> int:
    """Show each run, how long all will take, and the first one's configuration; returns the exit code.

    `many`: the runs of a sweep, which skips what is finished.
    """
    total, wrong = len(plan.runs) + len(plan.refused), bool(plan.refused)
    for number, run in enumerate(plan.runs, 1):
        display.say(console, (f"[{number}/{total}] " if many else "") + run.title, "bold")
        display.say(console, f"  directory  {run.path}")
        for line, text in enumerate(launcher_of(run.config).describe(run.config)):
            display.say(console, f"  {'' if line else 'processes':<9}  {text}")
        would = intent(run, many=many)
        if would in STARTED and (trouble := packed_trouble(run.config)) is not None:
            would, wrong = f"refuse: {trouble}", True
        display.say(console, f"  would      {would}")
    for number, request in enumerate(plan.refused, len(plan.runs) + 1):
        display.say(console, f"[{number}/{total}] refused: {request.error}", "red")
    tell_time(console, plan)
    if plan.runs:
        display.say(console, f"configuration{' of the first' if many else ''}:", "dim")
        display.say(console, dump(plan.runs[0].config).rstrip())
    return WRONG_REQUEST if wrong else OK


def packed_trouble(config: RunConfig) -> str | None:
    """Why the run would not start for its packed file, as far as that goes without loading the data set."""
    if not isinstance(config.reader, PackedReader):
        return None
    try:
        look_at(config.dataset, config.reader, config.cluster.nodes)
    except (ConfigError, MachineError) as error:
        return str(error)
    return None


def tell_time(console: Console, plan: StudyPlan) -> None:
    """Show how long the runs will take, as far as that is known before any is started."""
    estimate = duration.from_finished(plan.runs)
    if estimate is not None:
        display.say(console, str(estimate))
    most = duration.at_most(duration.left(plan.runs))
    if most:
        display.say(console, most)


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
