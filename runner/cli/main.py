"""`daso-bench`: parses the command line, calls the command, and exits with its exit code.

Only what every command needs is imported at the top: `--help` and `list` answer without torch and Hydra.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from ... import __version__
from ...strategies.errors import ConfigError, MachineError, nearest
from ..config import groups
from ..machine.signals import interrupt_remembered, raise_if_interrupted
from ..records.run_directory import INTERRUPTED, MACHINE, OK, WRONG_REQUEST
from .commands import COMMANDS, Parser, add_config_dir, add_dry_run, folder_of

_HELP = """\
daso-bench {version}: run and compare data-parallel training strategies

  daso-bench [KEY=VALUE ...]          one run: progress, a summary, and an exit code
  daso-bench -m KEY=A,B KEY=0,1,2     a sweep: every combination, arms interleaved, finished runs skipped
  daso-bench +study=NAME [KEY=VALUE]  a named sweep and its report
  daso-bench --dry-run ...            what would run, where, with which values; nothing is started

  daso-bench list [GROUP]             what can be chosen; GROUP is one of
                                      {plurals}
  daso-bench status DIR               how the runs below DIR are
  daso-bench resume DIR               go on with what is not finished below DIR
  daso-bench cancel DIR               end what runs or waits below DIR; resume takes it up again
  daso-bench evaluate DIR             the newest checkpoint of the run DIR, evaluated in one process
  daso-bench report DIR [--output OUT]  OUT/index.html, tables and figures of the runs below DIR
  daso-bench tensorboard DIR          event files for TensorBoard
  daso-bench check [strategy=NAME]    does a strategy keep the contract? The conformance kit; for yours too
  daso-bench claims [DIR]             what the papers claim, and what tests it; with DIR: its verdicts
  daso-bench pilot +study=NAME        runs of a study's baseline that set its target and its budget
  daso-bench tune +study=NAME         the same search for better settings in every arm; a study of the winners
  daso-bench calibrate [KEY=VALUE]    measures this machine and writes a cluster for launcher=simulated
  daso-bench validate DIR             how far virtual time is off the emulated runs below DIR
  daso-bench prepare dataset=NAME     fetches, unpacks and checks a data set's files, before runs need them
  daso-bench doctor [KEY=VALUE]       what this machine can do, what is wrong, how to mend it

Examples
  daso-bench                                       ddp on small handwritten digits, 2 virtual nodes x 2 ranks
  daso-bench strategy=daso model=resnet50
  daso-bench cluster.nodes=3 cluster.ranks_per_node=[2,1,1] train.target=0.95
  daso-bench -m strategy=ddp,daso seed=0,1,2 study.name=first
  daso-bench run.name=Zürich 'run.tag=lr=0.1 #2'   names, tags and folders are text, whatever they look like
  daso-bench 'run.name="Zürich #1"'                quoting them yourself, inside the shell's quotes, works too

Choices (KEY=NAME)
{choices}
Values: seed, results_dir, run.name/tag/arm/repeat, study.name, train.epochs, train.global_batch_size,
  train.target, train.eval_every_samples, ...; --dry-run shows all of them as they would be.

Options
  -m, --multirun        sweep over the values separated by commas
  --dry-run             show, do not run
  --config-dir DIR      a folder of your own YAML files, laid out like conf/ (strategy/mine.yaml, ...)
  --version, -h, --help

A run goes to results_dir/study.name/<run id>; relative paths count from where you type the command.
A finished run is not repeated: run.repeat=1 makes a second one. Of a key that is given twice the last counts.

Exit codes: 0 finished; 1 a run failed, diverged, timed out or was cancelled; 2 the request was wrong;
  3 this machine cannot do it; 130 interrupted.
"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console command. Exits with the codes that --help lists."""
    try:
        with interrupt_remembered():
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except ConfigError as error:
        code = _complain(error, WRONG_REQUEST)
    except MachineError as error:
        code = _complain(error, MACHINE)
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `daso-bench list | head`: head has ended
        code = OK
    except OSError as error:
        reason = error.strerror or str(error)
        code = _complain(f"{error.filename}: {reason}" if error.filename else reason, MACHINE)
    try:
        sys.stdout.flush()
    except OSError:  # stdout does not accept it: Python would write it again at exit, with a traceback
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """As `run`; raises KeyboardInterrupt also if an import dropped it or raised another error instead."""
    try:
        code = run(arguments)
    except Exception:
        raise_if_interrupted()
        raise
    if code == OK:
        raise_if_interrupted()
    return code


def run(arguments: Sequence[str]) -> int:
    """Run the command that `arguments` name; returns the exit code. Raises ConfigError, MachineError."""
    first = arguments[0] if arguments else ""
    if first in COMMANDS:
        return COMMANDS[first](list(arguments[1:]))
    options = _options(arguments)
    if options.help:
        print(help_text())
        return OK
    if options.version:
        print(f"daso-bench {__version__}")
        return OK
    for word in options.words:
        if "=" not in word and not word.startswith("~"):
            near = nearest(word, COMMANDS)
            hint = f"; did you mean `daso-bench {near}`?" if near else ""
            raise ConfigError(f"{word}: neither a command ({', '.join(COMMANDS)}) nor KEY=VALUE{hint}")
    folder, cwd = folder_of(options.config_dir), Path.cwd()
    from ..studies.start import dry_run, start

    if options.dry_run:
        return dry_run(options.words, multirun=options.multirun, config_dir=folder, cwd=cwd)
    return start(options.words, multirun=options.multirun, config_dir=folder, cwd=cwd)


def help_text() -> str:
    """What `--help` prints; the choices are read from conf/."""
    choices = ""
    for group in groups.GROUPS:
        names = list(groups.entries(group))
        if len(names) > groups.MANY:
            known = ("small_cnn", "mlp", "resnet18", "resnet50", "vgg16")
            some = [name for name in known if name in names] or names[:5]
            names = [*some, f"... ({len(names)} in all)"]
        name = "+study" if group == "study" else group
        lines = textwrap.wrap(", ".join(names), 105, break_on_hyphens=False)
        choices += "".join(
            f"  {word:<10} {line}\n" for word, line in zip_longest([name], lines, fillvalue="")
        )
    plurals = textwrap.wrap(", ".join(groups.plural(group) for group in groups.GROUPS), 80)
    return _HELP.format(version=__version__, plurals=f"\n{38 * ' '}".join(plurals), choices=choices).rstrip()


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="daso-bench", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    add_dry_run(parser)
    add_config_dir(parser)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser.parse_intermixed_args(arguments)


def _complain(error: object, code: int) -> int:
    print(f"daso-bench: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
