"""`daso-bench`: reads the command line, hands over to the part that does it, ends with an honest exit code.

Only what every command needs is imported at the top: `--help` and `list` answer without torch and Hydra.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from .. import __version__
from ..strategies.errors import ConfigError, MachineError, nearest
from . import listing
from .overrides import key_of

OK, FAILED, WRONG_REQUEST, MACHINE, INTERRUPTED = 0, 1, 2, 3, 130

_HELP = """\
daso-bench {version}: run and compare data-parallel training strategies

  daso-bench [KEY=VALUE ...]          one run: progress, a summary, an exit code that tells the truth
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
  daso-bench report --diff A B        what changed from A to B: configuration, environment, numbers
  daso-bench check [strategy=NAME]    does a strategy do what it says? The conformance kit; also for your own
  daso-bench claims [DIR]             what the papers claim, and what tests it; with DIR: what its runs say
  daso-bench pilot +study=NAME        runs of a study's baseline that set its target and its budget
  daso-bench calibrate [KEY=VALUE]    measures this machine and writes a cluster for launcher=simulated
  daso-bench validate DIR             how far virtual time is off the emulated runs below DIR
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
A finished run is not repeated: run.repeat=1 makes a second one.

Exit codes: 0 finished; 1 a run failed, diverged, timed out or was cancelled; 2 the request was wrong;
  3 this machine cannot do it; 130 interrupted.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """A wrong option is a wrong request like any other: one sentence, exit code 2."""
        raise ConfigError(f"{message} (daso-bench --help)")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console command. Exits with the codes that --help lists."""
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except ConfigError as error:
        code = _complain(error, WRONG_REQUEST)
    except MachineError as error:
        code = _complain(error, MACHINE)
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # `daso-bench list | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = OK
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Do what `arguments` ask for; returns the exit code. Raises ConfigError, MachineError."""
    commands: dict[str, Callable[[list[str]], int]] = {
        "list": _list,
        "status": _status,
        "resume": _resume,
        "cancel": _cancel,
        "evaluate": _evaluate,
        "report": _report,
        "check": _check,
        "claims": _claims,
        "pilot": _pilot,
        "calibrate": _calibrate,
        "validate": _validate,
        "doctor": _doctor,
    }
    first = arguments[0] if arguments else ""
    if first in commands:
        return commands[first](list(arguments[1:]))
    options = _options(arguments)
    if options.help:
        print(help_text())
        return OK
    if options.version:
        print(f"daso-bench {__version__}")
        return OK
    for word in options.words:
        if "=" not in word and not word.startswith("~"):
            near = nearest(word, commands)
            hint = f"; did you mean `daso-bench {near}`?" if near else ""
            raise ConfigError(f"{word}: neither a command ({', '.join(commands)}) nor KEY=VALUE{hint}")
    from .start import dry_run, start

    many = options.multirun or any(key_of(word) == "study" for word in options.words)
    go = dry_run if options.dry_run else start
    return go(options.words, many=many, config_dir=_folder(options.config_dir), cwd=Path.cwd())


def help_text() -> str:
    """What `--help` prints; the choices are read from conf/."""
    choices = ""
    for group in listing.GROUPS:
        names = [entry.name for entry in listing.entries(group)]
        shown = names if len(names) <= listing.MANY else [*_some(names), f"... ({len(names)} in all)"]
        name = "+study" if group == "study" else group
        lines = textwrap.wrap(", ".join(shown), 105, break_on_hyphens=False)
        choices += "".join(
            f"  {word:<10} {line}\n" for word, line in zip_longest([name], lines, fillvalue="")
        )
    plurals = ", ".join(listing.plural(group) for group in listing.GROUPS)
    return _HELP.format(version=__version__, plurals=plurals, choices=choices).rstrip()


def _some(names: Sequence[str]) -> list[str]:
    known = ("small_cnn", "mlp", "resnet18", "resnet50", "vgg16")
    return [name for name in known if name in names] or list(names[:5])


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="daso-bench", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--config-dir")
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    return parser.parse_intermixed_args(arguments)


def _list(arguments: list[str]) -> int:
    parser = _Parser(prog="daso-bench list", allow_abbrev=False)
    parser.add_argument("group", nargs="?", help="strategies, models, datasets, ...")
    parser.add_argument("--config-dir", help="a folder of your own YAML files")
    options = parser.parse_args(arguments)
    folder = _folder(options.config_dir)
    print(listing.listing(options.group, [folder] if folder else []))
    return OK


def _status(arguments: list[str]) -> int:
    folder = _directory("status", "a run directory, a study or a results folder", arguments)
    from .display import make_console, say, states_table
    from .overview import states

    console = make_console()
    console.print(states_table(states(folder)))
    say(console, str(folder.absolute()), "dim")
    return OK


def _resume(arguments: list[str]) -> int:
    folder = _directory("resume", "a run directory, a study or a results folder", arguments)
    from .start import resume

    return resume(folder)


def _cancel(arguments: list[str]) -> int:
    folder = _directory("cancel", "a run directory, a study or a results folder", arguments)
    from .cancel import cancel

    return cancel(folder)


def _evaluate(arguments: list[str]) -> int:
    folder = _directory("evaluate", "a run directory", arguments)
    from .start import evaluate

    return evaluate(folder)


def _report(arguments: list[str]) -> int:
    parser = _Parser(prog="daso-bench report", allow_abbrev=False)
    parser.add_argument("dir", type=Path, nargs="?", help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/report")
    parser.add_argument(
        "--diff", type=Path, nargs=2, metavar=("A", "B"), help="say what changed between two results instead"
    )
    options = parser.parse_args(arguments)
    if (options.dir is None) == (options.diff is None):
        raise ConfigError("report: takes a folder, or --diff and two of them (daso-bench report --help)")
    for folder in options.diff or [options.dir]:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
    if options.diff is not None:
        if options.output is not None:
            raise ConfigError("report --diff: prints what changed, and takes no --output")
        from .report.diff import show_diff

        return show_diff(*options.diff)
    from .report.build import report

    print(report(options.dir, options.output or options.dir / "report"))
    return OK


_CHECK_HELP = """\
Try strategies on small models: the contract that all must keep (ends, one model, resumes bit for bit, hears
wishes, traffic and time as stated), the update rule against a second implementation, identities between
strategies, and the same steps by real processes over gloo. A strategy may refuse ranks: that is no failure.

  daso-bench check                                   all built-in strategies
  daso-bench check strategy=daso,ddp                 some
  daso-bench check strategy=daso strategy.wait_batches=0
  daso-bench check strategy=mine --config-dir DIR    your own (DIR/strategy/mine.yaml names its class)
  daso-bench check strategy=mine --ranks 3 2,2,1     on one node of 3 ranks, and on nodes of 2, 2 and 1

With launcher=slurm a short job looks at the cluster instead: cores, devices, clocks and folders of its ranks,
links and sums between them, and the contract of ddp and daso (or those named) over that network.

  daso-bench check launcher=slurm cluster.nodes=4 cluster.ranks_per_node=2
"""


def _check(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench check",
        allow_abbrev=False,
        description=_CHECK_HELP,
        epilog="Exit codes: 0 all holds; 1 something does not; 2 the request was wrong, or all was refused. "
        "With launcher=slurm: 0 nothing to mend; 1 the job failed; 2 a wrong request; 3 something found.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="strategy=NAME | strategy.KEY=VALUE")
    parser.add_argument(
        "--ranks", nargs="+", default=[], metavar="R,R", help="ranks of each node; default: 1,1 2,2 2,1"
    )
    parser.add_argument("--config-dir", help="a folder of your own YAML files")
    parser.add_argument("--jobs", type=int, help="processes for what runs in virtual time (default: 2)")
    options = parser.parse_intermixed_args(arguments)
    # `--ranks 2 strategy=ddp`: argparse gives the word to the option before it.
    words = [*options.words, *(word for word in options.ranks if "=" in word)]
    if any(key_of(word) == "launcher" for word in words):
        if options.ranks or options.jobs is not None:
            raise ConfigError("check launcher=...: cluster.nodes and cluster.ranks_per_node say which ranks")
        from .slurm.check import check as check_cluster

        return check_cluster(words, config_dir=_folder(options.config_dir), cwd=Path.cwd())
    from .conformance.candidates import RANKS, ranks_of
    from .conformance.command import check

    ranks = [ranks_of(text) for text in options.ranks if "=" not in text] or RANKS
    return check(words, ranks=ranks, config_dir=_folder(options.config_dir), jobs=options.jobs)


_CLAIMS_HELP = """\
The claims of the papers behind the strategies: what is claimed, where that is stated and how sure it is, by
what and against what it is judged, under which conditions it was claimed (as far as the source says), and the
command that tests it. Numbers of a paper's tables are yours to add, as rows: docs/claims.md shows how.

  daso-bench claims
  daso-bench claims results/mission      each with what these runs say of it: measured, verdict, and why
  daso-bench claims --config-dir DIR     with those in DIR/claims; one with an id that is here replaces it
"""


def _claims(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench claims",
        allow_abbrev=False,
        description=_CLAIMS_HELP,
        epilog="Exit codes: 0 told; 2 a file of claims, or the request, is wrong.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", nargs="?", help="results to judge the claims by")
    parser.add_argument("--config-dir", help="a folder of your own YAML files")
    options = parser.parse_args(arguments)
    if options.directory is not None:
        from .report.verdicts import show_verdicts

        return show_verdicts(Path(options.directory), _folder(options.config_dir))
    from .claims_table import show

    return show(_folder(options.config_dir))


_PILOT_HELP = """\
Run the baseline of a study with seeds of its own on the validation split, which no scored run sees, and say
at what target the study can aim: the first value past the bend of the mean curve that nine in ten pilots
reach, on a grid as coarse as the two splits can tell apart. And for how long: twice the median time of a
pilot.

  daso-bench pilot +study=mission
  daso-bench pilot +study=mission cluster=ethernet_10g --runs 20
"""


def _pilot(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench pilot",
        allow_abbrev=False,
        description=_PILOT_HELP,
        epilog="Exit codes: 0 told; 1 a run failed; 2 the request was wrong; 3 this machine cannot do it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="+study=NAME | KEY=VALUE")
    parser.add_argument("--runs", type=int, default=10, help="how many, 10 or more (default: %(default)s)")
    parser.add_argument("--config-dir", help="a folder of your own YAML files")
    options = parser.parse_intermixed_args(arguments)
    from .pilot import pilot

    return pilot(options.words, runs=options.runs, config_dir=_folder(options.config_dir), cwd=Path.cwd())


_DOCTOR_HELP = """\
Look at this machine, or at the allocation around this shell: what it can do, what is wrong, how to mend it.
KEY=VALUE says what is meant to run: results_dir, launcher, launcher.port, launcher.threads_per_rank,
cluster.nodes, cluster.ranks_per_node. A whole cluster is looked at by daso-bench check launcher=slurm.

  daso-bench doctor
  daso-bench doctor launcher=slurm results_dir=/scratch/me/results
"""


def _doctor(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench doctor",
        allow_abbrev=False,
        description=_DOCTOR_HELP,
        epilog="Exit codes: 0 nothing to mend (notes may be told); 2 a wrong request; 3 something found.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_intermixed_args(arguments)
    from .doctor.command import doctor

    return doctor(options.words, cwd=Path.cwd(), as_json=options.json)


_CALIBRATE_HELP = """\
Measure this machine with real processes, and write it as a cluster for virtual time: how long a step takes,
and how that varies; latency and rate of sums of two ranks; what sums beside the backward pass cost. Then real
runs of ddp are compared with the same run in virtual time. KEY=VALUE as for a run: model, dataset,
cluster.nodes, cluster.ranks_per_node, train.global_batch_size, launcher.threads_per_rank, ...

  daso-bench calibrate cluster=one_node model=resnet18 train.global_batch_size=32
  daso-bench --config-dir calibrated launcher=simulated cluster=this_machine model=resnet18 strategy=daso
"""


def _calibrate(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench calibrate",
        allow_abbrev=False,
        description=_CALIBRATE_HELP,
        epilog="Exit codes: 0 written; 1 a measurement failed; 2 the request was wrong; 130 interrupted.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--name", default="this_machine", help="of the cluster (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: the folder of --config-dir, or calibrated"
    )
    parser.add_argument("--force", action="store_true", help="replace the cluster if it is there")
    parser.add_argument("--config-dir", help="a folder of your own YAML files")
    options = parser.parse_intermixed_args(arguments)
    for word in options.words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word}: must be KEY=VALUE (daso-bench calibrate --help)")
    from .calibration.command import calibrate

    return calibrate(
        options.words,
        name=options.name,
        output=options.output or Path(options.config_dir or "calibrated"),
        force=options.force,
        config_dir=_folder(options.config_dir),
        cwd=Path.cwd(),
    )


_VALIDATE_HELP = """\
How far virtual time is off: compares the emulated runs below DIR with the same runs in virtual time.

  daso-bench +study=validation             makes both, 20 minutes on an idle machine
  daso-bench validate results/validation   their errors; pairs.csv and summary.json
  daso-bench validate results/overlap      of +study=overlap: do padded devices hide what real ones do?
"""


def _validate(arguments: list[str]) -> int:
    parser = _Parser(
        prog="daso-bench validate",
        allow_abbrev=False,
        description=_VALIDATE_HELP,
        epilog="Exit codes: 0 all errors within their limits; 1 some are not; 2 no pair of runs below DIR.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", type=Path, help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/validation")
    options = parser.parse_args(arguments)
    from .report.validate import of_folder, twins_in

    twins = twins_in(options.dir)
    for one in twins:
        print(one.sentence())
    if twins:
        return FAILED if any(one.short for one in twins) else OK
    found = of_folder(options.dir, options.output or options.dir / "validation")
    if found is None:
        raise ConfigError(
            f"{options.dir}: holds no run both emulated and in virtual time, whose checks passed "
            "(daso-bench +study=validation makes some)"
        )
    print(found.sentence())
    print(f"emulated runs that their own checks refused: {found.invalid}")
    for line in found.short:
        print(f"short: {line}")
    return FAILED if found.short else OK


def _directory(command: str, what: str, arguments: list[str]) -> Path:
    parser = _Parser(prog=f"daso-bench {command}", allow_abbrev=False)
    parser.add_argument("dir", type=Path, help=what)
    folder: Path = parser.parse_args(arguments).dir
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    return folder


def _folder(text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise ConfigError(f"--config-dir={text}: no such folder")
    return folder


def _complain(error: object, code: int) -> int:
    print(f"daso-bench: {error}", file=sys.stderr)
    return code
