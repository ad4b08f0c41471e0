"""The commands of `daso-bench`: the options and --help of each, and the call of the function that does it.

That function is imported only when its command is given: `--help` and `list` answer without torch and Hydra.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ...strategies.errors import ConfigError
from ..config import groups
from ..config.overrides import key_of
from ..machine.folders import check_folder
from ..records.run_directory import FAILED, OK


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise ConfigError: a wrong option is one sentence and exit code 2, like any other wrong request."""
        raise ConfigError(f"{message} ({self.prog} --help)")


def parser_of(command: str, about: str = "", *, codes: str = "") -> Parser:
    """The parser of a command. `about` and `codes` (exit codes) are shown by its --help."""
    return Parser(
        prog=f"daso-bench {command}",
        allow_abbrev=False,
        description=about,
        epilog=f"Exit codes: {codes}" if codes else "",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_config_dir(parser: Parser, about: str = "a folder of your own YAML files") -> None:
    """Add `--config-dir`, whose value `folder_of` takes."""
    parser.add_argument("--config-dir", metavar="DIR", help=about)


def add_dry_run(parser: Parser) -> None:
    """Add `--dry-run`, for commands that start runs."""
    parser.add_argument("--dry-run", action="store_true", help="show what would run; nothing is started")


def folder_of(text: str | None) -> Path | None:
    """The absolute folder that `--config-dir` names, None without it. Raises ConfigError if there is none."""
    if text is None:
        return None
    folder = Path(text).absolute()
    check_folder(folder, f"--config-dir={text}")
    return folder


def _list(arguments: list[str]) -> int:
    parser = parser_of("list")
    parser.add_argument("group", nargs="?", help="strategies, models, datasets, ...")
    add_config_dir(parser)
    options = parser.parse_args(arguments)
    folder = folder_of(options.config_dir)
    print(groups.listing(options.group, [folder] if folder else []))
    return OK


def _status(arguments: list[str]) -> int:
    folder = _directory("status", "a run directory, a study or a results folder", arguments)
    from ..records.display import make_console, say, states_table
    from ..studies.overview import states

    console = make_console()
    console.print(states_table(states(folder)))
    say(console, str(folder.absolute()), "dim")
    return OK


def _resume(arguments: list[str]) -> int:
    folder = _directory("resume", "a run directory, a study or a results folder", arguments)
    from ..studies.start import resume

    return resume(folder)


def _cancel(arguments: list[str]) -> int:
    folder = _directory("cancel", "a run directory, a study or a results folder", arguments)
    from ..studies.overview import cancel

    return cancel(folder)


def _evaluate(arguments: list[str]) -> int:
    folder = _directory("evaluate", "a run directory", arguments)
    from ..studies.start import evaluate

    return evaluate(folder)


def _report(arguments: list[str]) -> int:
    parser = parser_of("report")
    parser.add_argument("dir", type=Path, nargs="?", help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/report")
    parser.add_argument(
        "--diff", type=Path, nargs=2, metavar=("A", "B"), help="show what changed between two results instead"
    )
    add_config_dir(parser, "a folder whose claims and stored convergence points count too")
    options = parser.parse_args(arguments)
    if (options.dir is None) == (options.diff is None):
        raise ConfigError("report: takes a folder, or --diff and two of them (daso-bench report --help)")
    for folder in options.diff or [options.dir]:
        check_folder(folder)
    if options.diff is not None:
        if options.output is not None or options.config_dir is not None:
            raise ConfigError("report --diff: prints what changed, and takes no --output and no --config-dir")
        from ..report.diff import show_diff

        return show_diff(*options.diff)
    from ..report.build import report

    print(report(options.dir, options.output or options.dir / "report", folder_of(options.config_dir)))
    return OK


_TENSORBOARD_HELP = """\
Write the evaluations of the runs below DIR as event files for TensorBoard, each number over training samples
and over milliseconds of training time. Reads the records alone: a run that goes on does not notice.

  pip install 'daso-bench[tensorboard]'
  daso-bench tensorboard results/mission            into results/mission/tensorboard
  daso-bench tensorboard results/mission --follow   in a second shell, until all runs there have ended
"""


def _tensorboard(arguments: list[str]) -> int:
    parser = parser_of(
        "tensorboard",
        _TENSORBOARD_HELP,
        codes="0 written; 2 no run below DIR; 3 the package tensorboard is missing.",
    )
    parser.add_argument("dir", type=Path, help="a run directory, a study or a results folder")
    parser.add_argument("--output", type=Path, metavar="OUT", help="default: DIR/tensorboard")
    parser.add_argument("--follow", action="store_true", help="go on until all runs have ended")
    options = parser.parse_args(arguments)
    check_folder(options.dir)
    from ..report.tensorboard import tensorboard

    output = options.output or options.dir / "tensorboard"
    tensorboard(options.dir, output, follow=options.follow, tell=print)
    return OK


_CHECK_HELP = """\
Try strategies on small models: the contract that all must keep (ends, one model, resumes bit for bit, obeys
stop requests, equal calls on all ranks), and the same steps by real processes over gloo. A strategy may
refuse ranks: that is no failure. That the built-in strategies follow their equations is proven by the tests
of the repository (tests/conformance), not by this command.

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
    parser = parser_of(
        "check",
        _CHECK_HELP,
        codes="0 all holds; 1 something does not; 2 the request was wrong, or all was refused. "
        "With launcher=slurm: 0 nothing to mend; 1 the job failed; 2 a wrong request; 3 something is wrong.",
    )
    parser.add_argument("words", nargs="*", metavar="strategy=NAME | strategy.KEY=VALUE")
    parser.add_argument(
        "--ranks", nargs="+", default=[], metavar="R,R", help="ranks of each node; default: 1,1 2,2 2,1"
    )
    add_config_dir(parser)
    parser.add_argument("--jobs", type=int, help="processes for what runs in virtual time (default: 2)")
    options = parser.parse_intermixed_args(arguments)
    # `--ranks 2 strategy=ddp`: argparse gives the word to the option before it.
    words = [*options.words, *(word for word in options.ranks if "=" in word)]
    if any(key_of(word) == "launcher" for word in words):
        if options.ranks or options.jobs is not None:
            raise ConfigError("check launcher=...: cluster.nodes and cluster.ranks_per_node set the ranks")
        from ..doctor.slurm_check import check as check_cluster

        return check_cluster(words, config_dir=folder_of(options.config_dir), cwd=Path.cwd())
    from ..conformance.candidates import RANKS, ranks_of
    from ..conformance.check_command import check

    ranks = [ranks_of(text) for text in options.ranks if "=" not in text] or RANKS
    return check(words, ranks=ranks, config_dir=folder_of(options.config_dir), jobs=options.jobs)


_CLAIMS_HELP = """\
The claims of the papers behind the strategies: what is claimed, where that is stated and how sure it is, by
what and against what it is judged, under which conditions it was claimed (if the source states them), and the
command that tests it. Numbers of a paper's tables are yours to add, as rows: docs/claims.md shows how.

  daso-bench claims
  daso-bench claims results/mission      each with its verdict by these runs: measured, verdict, and why
  daso-bench claims --config-dir DIR     with those in DIR/claims; one with an id that is here replaces it
"""


def _claims(arguments: list[str]) -> int:
    parser = parser_of(
        "claims",
        _CLAIMS_HELP,
        codes="0 shown; 2 a file of claims, or the request, is wrong.",
    )
    parser.add_argument("directory", metavar="DIR", nargs="?", help="results to judge the claims by")
    add_config_dir(parser)
    options = parser.parse_args(arguments)
    if options.directory is not None:
        from ..report.claims.claim_tables import show_verdicts

        return show_verdicts(Path(options.directory), folder_of(options.config_dir))
    from ..report.claims.claims_list import show

    return show(folder_of(options.config_dir))


_PILOT_HELP = """\
Run the baseline of a study with seeds of its own on the validation split, which no scored run sees, and show
which target the study can set: the first value past the bend of the mean curve that nine in ten pilots
reach, on a grid as coarse as the two splits can distinguish. And for how long: twice the median time of a
pilot.

  daso-bench pilot +study=mission
  daso-bench pilot +study=mission cluster=ethernet_10g --runs 20
  daso-bench pilot +study=mission --dry-run                    what would run

With --reference the same baseline runs on the split that is scored, with seeds of their own again: how many
samples it needs to the target. A report holds later runs of the same workload against that (docs/claims.md):
a baseline that needs more is weak, an arm that needs fewer has to be explained.

  daso-bench pilot +study=mission --reference                  into results/mission_reference/convergence
  daso-bench claims results/mission --config-dir results/mission_reference
"""


def _pilot(arguments: list[str]) -> int:
    parser = parser_of(
        "pilot",
        _PILOT_HELP,
        codes="0 done; 1 a run failed; 2 the request was wrong; 3 this machine cannot do it.",
    )
    parser.add_argument("words", nargs="+", metavar="+study=NAME | KEY=VALUE")
    parser.add_argument("--runs", type=int, default=10, help="how many, 10 or more (default: %(default)s)")
    add_config_dir(parser)
    add_dry_run(parser)
    parser.add_argument("--reference", action="store_true", help="store samples to target instead")
    parser.add_argument("--output", type=Path, metavar="DIR", help="with --reference: its folder")
    options = parser.parse_intermixed_args(arguments)
    if options.output is not None and not options.reference:
        raise ConfigError(f"--output {options.output}: belongs to --reference")
    from ..studies.pilot import Asked, pilot, reference

    asked = Asked(
        words=options.words,
        runs=options.runs,
        config_dir=folder_of(options.config_dir),
        cwd=Path.cwd(),
        dry_run=options.dry_run,
    )
    return reference(asked, output=options.output) if options.reference else pilot(asked)


_TUNE_HELP = """\
Give every arm of a study the same chance of better settings: as many trials for each, at the same points,
with the same seeds, on the validation split, each for the whole schedule. Trial 0 is the default. Searched
are the peak learning rate (1/8 to 8 times the default), the warm-up (0 to a quarter of the schedule), the
weight decay (1/10 to 10 times) and at most three keys that the strategy declares. The trial that wins has the
shortest time to train.target; without a target, the best last metric.

What it leaves is a study: every arm with the study's own settings and the same arm equally tuned, for the
seeds of the study, and a report that keeps the two apart. A trial that the strategy refuses counts as failed.

  daso-bench tune +study=mission --dry-run              arms, trials, and the settings of each
  daso-bench tune +study=mission
  daso-bench tune +study=mission cluster=ethernet_10g study.arm='ddp flat,daso' --trials 8
  daso-bench --config-dir results/mission_tune +study=mission_tuned

The new study contains the options given to tune: do not repeat them. If tune was stopped, the same command
continues it.
"""


def _tune(arguments: list[str]) -> int:
    parser = parser_of(
        "tune",
        _TUNE_HELP,
        codes="0 done; 1 a run failed, the others decided; 2 the request was wrong; 3 this "
        "machine cannot do it; 130 interrupted.",
    )
    parser.add_argument("words", nargs="+", metavar="+study=NAME | KEY=VALUE")
    parser.add_argument(
        "--trials", type=int, help="of each arm, a power of two, 4 or more (default: study.tune_trials, 16)"
    )
    add_config_dir(parser)
    add_dry_run(parser)
    options = parser.parse_intermixed_args(arguments)
    from ..studies.tune import tune

    return tune(
        options.words,
        count=options.trials,
        config_dir=folder_of(options.config_dir),
        cwd=Path.cwd(),
        dry_run=options.dry_run,
    )


_DOCTOR_HELP = """\
Look at this machine, or at the allocation around this shell: what it can do, what is wrong, how to mend it.
KEY=VALUE describes the run that is planned: results_dir, launcher, launcher.port, launcher.threads_per_rank,
cluster.nodes, cluster.ranks_per_node. A whole cluster is looked at by daso-bench check launcher=slurm.

  daso-bench doctor
  daso-bench doctor launcher=slurm results_dir=/scratch/me/results
"""


def _doctor(arguments: list[str]) -> int:
    parser = parser_of(
        "doctor",
        _DOCTOR_HELP,
        codes="0 nothing to mend (notes may be shown); 2 a wrong request; 3 something is wrong.",
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_intermixed_args(arguments)
    from ..doctor.doctor_command import doctor

    return doctor(options.words, cwd=Path.cwd(), as_json=options.json)


_CALIBRATE_HELP = """\
Measure this machine with real processes, and write it as a cluster for virtual time: how long a step takes,
and how that varies; latency and rate of sums of two ranks; what sums during the backward pass cost. Then real
runs of ddp are compared with the same run in virtual time. KEY=VALUE as for a run: model, dataset,
cluster.nodes, cluster.ranks_per_node, train.global_batch_size, launcher.threads_per_rank, ...

  daso-bench calibrate cluster=one_node model=resnet18 train.global_batch_size=32
  daso-bench --config-dir calibrated launcher=simulated cluster=this_machine model=resnet18 strategy=daso
"""


def _calibrate(arguments: list[str]) -> int:
    parser = parser_of(
        "calibrate",
        _CALIBRATE_HELP,
        codes="0 written; 1 a measurement failed; 2 the request was wrong; 130 interrupted.",
    )
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--name", default="this_machine", help="of the cluster (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: the folder of --config-dir, or calibrated"
    )
    parser.add_argument("--force", action="store_true", help="replace the cluster if it is there")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    for word in options.words:
        if "=" not in word and not word.startswith("~"):
            raise ConfigError(f"{word}: must be KEY=VALUE (daso-bench calibrate --help)")
    from ..doctor.calibration.calibrate_command import calibrate

    return calibrate(
        options.words,
        name=options.name,
        output=options.output or Path(options.config_dir or "calibrated"),
        force=options.force,
        config_dir=folder_of(options.config_dir),
        cwd=Path.cwd(),
    )


_VALIDATE_HELP = """\
How far virtual time is off: compares the emulated runs below DIR with the same runs in virtual time.

  daso-bench +study=validation             makes both, 20 minutes on an idle machine
  daso-bench validate results/validation   their errors; pairs.csv and summary.json
  daso-bench validate results/overlap      of +study=overlap: do padded devices hide what real ones do?
"""


def _validate(arguments: list[str]) -> int:
    parser = parser_of(
        "validate",
        _VALIDATE_HELP,
        codes="0 all errors within their limits; 1 some are not; 2 no pair of runs below DIR.",
    )
    parser.add_argument("dir", type=Path, help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/validation")
    options = parser.parse_args(arguments)
    from ..report.simulation_errors import of_folder, overlap_in

    overlaps = overlap_in(options.dir)
    for sentence, _ in overlaps:
        print(sentence)
    if overlaps:
        return OK if all(near for _, near in overlaps) else FAILED
    errors = of_folder(options.dir, options.output or options.dir / "validation")
    if errors is None:
        raise ConfigError(
            f"{options.dir}: holds no run both emulated and in virtual time, whose checks passed "
            "(daso-bench +study=validation makes some)"
        )
    print(errors.sentence())
    print(f"emulated runs that their own checks refused, or that failed: {errors.invalid}")
    for line in errors.short:
        print(f"short: {line}")
    return FAILED if errors.short else OK


_PREPARE_HELP = """\
Get a data set ready, by this one process: fetch and unpack its files, check them, and for folders of images
write down which of them are used for what. Runs do the same before they start, except that they fetch
nothing unless dataset.download=true; ranks only read. Two at once do no harm, and one that is killed leaves
nothing that looks complete. docs/data.md has the layouts and rules.

With reader=NAME the training samples are then written one after another into one file, for runs with
reader=strided, block, node_batch or chunked_shuffle (docs/packed.md); it takes as much room as they do.

  daso-bench prepare dataset=cifar10 dataset.root=/scratch/me/data
  daso-bench prepare dataset=imagefolder dataset.root=imgs dataset.bad_files=skip
  daso-bench prepare dataset=cifar10 dataset.root=/scratch/me/data reader=node_batch
"""


def _prepare(arguments: list[str]) -> int:
    parser = parser_of(
        "prepare",
        _PREPARE_HELP,
        codes="0 ready; 2 files are missing, damaged or bad, or the request was wrong; 3 they cannot be "
        "fetched, read or written.",
    )
    parser.add_argument("words", nargs="+", metavar="dataset=NAME | dataset.KEY=VALUE | reader=NAME | ...")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    from ..studies.prepare_data import prepare

    return prepare(options.words, config_dir=folder_of(options.config_dir), cwd=Path.cwd())


def _directory(command: str, what: str, arguments: list[str]) -> Path:
    parser = parser_of(command)
    parser.add_argument("dir", type=Path, help=what)
    folder: Path = parser.parse_args(arguments).dir
    check_folder(folder)
    return folder


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _list,
    "status": _status,
    "resume": _resume,
    "cancel": _cancel,
    "evaluate": _evaluate,
    "report": _report,
    "tensorboard": _tensorboard,
    "check": _check,
    "claims": _claims,
    "pilot": _pilot,
    "tune": _tune,
    "calibrate": _calibrate,
    "validate": _validate,
    "prepare": _prepare,
    "doctor": _doctor,
}
"""Takes the words after the command; returns the exit code. Raises ConfigError, MachineError."""
