"""What would be started, for --dry-run: no process is started and nothing is written."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError, MachineError
from ..config.compose import compose
from ..config.load import dump
from ..config.reader_config import PackedReader
from ..config.schema import RunConfig
from ..launch.launcher import launcher_of
from ..records import display
from ..records.outcome import OK, WRONG_REQUEST
from ..records.run_directory import RunDirectory
from ..training.packed.packed_set import look_at
from . import duration, sweep

RUN, GO_ON = "run", "go on with it"
STARTED = (RUN, GO_ON)


def dry_run(words: Sequence[str], *, many: bool, config_dir: Path | None, cwd: Path) -> int:
    """Show what `start.start` would do, in its order; returns the exit code."""
    wanted = sweep.requests(compose(words, sweep=many, config_dir=config_dir), cwd)
    if not many:
        sweep.only(wanted)
    return show(display.make_console(), wanted, many=many)


def show(console: Console, wanted: Sequence[sweep.Request], *, many: bool) -> int:
    """Show each run, how long all will take, and the first one's configuration; returns the exit code.

    `many`: the runs of a sweep, which skips what is finished.
    """
    order, refused = sweep.arrange(wanted), False
    for number, request in enumerate(order, 1):
        count = f"[{number}/{len(order)}] " if many else ""
        if request.config is None or request.path is None:
            display.say(console, f"{count}refused: {request.error}", "red")
            continue
        display.say(console, f"{count}{request.title}", "bold")
        display.say(console, f"  directory  {request.path}")
        for line, text in enumerate(launcher_of(request.config).describe(request.config)):
            display.say(console, f"  {'' if line else 'processes':<9}  {text}")
        would, trouble = intent(RunDirectory(request.path), many=many), None
        if would in STARTED:
            trouble = packed_trouble(request.config)
        refused = refused or trouble is not None
        display.say(console, f"  would      {would if trouble is None else f'refuse: {trouble}'}")
    configs = [request.config for request in order if request.config is not None]
    tell_time(console, configs)
    first = next(iter(configs), None)
    if first is not None:
        display.say(console, f"configuration{' of the first' if many else ''}:", "dim")
        display.say(console, dump(first).rstrip())
    return WRONG_REQUEST if refused or any(request.error for request in order) else OK


def packed_trouble(config: RunConfig) -> str | None:
    """Why the run would not start for its packed file, as far as that goes without loading the data set."""
    if not isinstance(config.reader, PackedReader):
        return None
    try:
        look_at(config.dataset, config.reader, config.cluster.nodes)
    except (ConfigError, MachineError) as error:
        return str(error)
    return None


def tell_time(console: Console, configs: Sequence[RunConfig]) -> None:
    """Say how long the runs will take, as far as that is known before any is started."""
    to_do = duration.left(configs)
    found = duration.from_finished(configs)
    if found is not None:
        display.say(console, str(found))
    most = duration.at_most(to_do)
    if most:
        display.say(console, most)


def intent(directory: RunDirectory, *, many: bool) -> str:
    """What would be done with this run."""
    state = directory.state()
    if state in ("new", "queued"):
        return RUN
    if state == "resumable" and many:
        return GO_ON
    if state == "resumable":
        return f"refuse: begun and not finished (daso-bench resume {shlex.quote(str(directory.path))})"
    if state == "finished" and many:
        return "skip: finished already"
    return f"refuse: {'finished already' if state == 'finished' else 'it is being run'}"
