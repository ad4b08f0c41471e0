"""The commands of `daso-bench`: the options and --help of each, and the call of the function that does it.

That function is imported only when its command is given: `--help` and `list` answer without torch and Hydra.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...strategies.errors import ConfigError
from ..config import groups
from ..config.overrides import key_of
from ..machine.folders import check_folder
from ..records.run_directory import OK

EXIT_CODES = (
    "0 done; 1 a run or a check failed; 2 the request was wrong; 3 this machine cannot do it; 130 interrupted"
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise ConfigError: a wrong option is one sentence and exit code 2, like any other wrong request."""
        raise ConfigError(f"{message} ({self.prog} --help)")

    def values(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The options by name, words and options in any order; `config_dir` as of `folder_of`."""
        options = vars(self.parse_intermixed_args(arguments))
        if "config_dir" in options:
            options["config_dir"] = folder_of(options["config_dir"])
        return options


def parser_of(command: str, about: str = "", *, words: str = "", some: bool = False) -> Parser:
    """The parser of a command; `about` is shown by its --help.

    `words`: what its KEY=VALUE words may be, `some`: at least one. Such a command takes --config-dir, too.
    """
    parser = Parser(
        prog=f"daso-bench {command}",
        allow_abbrev=False,
        description=about,
        epilog=f"Exit codes: {EXIT_CODES}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if words:
        parser.add_argument("words", nargs="+" if some else "*", metavar=words)
        add_config_dir(parser)
    return parser


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


def _directory(command: str, what: str, arguments: list[str]) -> Path:
    parser = parser_of(command)
    parser.add_argument("dir", type=Path, help=what)
    folder: Path = parser.parse_args(arguments).dir
    check_folder(folder)
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
    parser.add_argument("dir", type=Path, help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/report")
    add_config_dir(parser, "a folder whose claims and stored convergence points count too")
    options = parser.parse_args(arguments)
    check_folder(options.dir)
    from ..report.build import report

    print(report(options.dir, options.output or options.dir / "report", folder_of(options.config_dir)))
    return OK


_TENSORBOARD_HELP = """\
Write the evaluations of the runs below DIR as event files for TensorBoard, each number over training samples
and over milliseconds of training time. While runs go on, type it again for what is new. Needs
pip install 'daso-bench[tensorboard]'.
"""


def _tensorboard(arguments: list[str]) -> int:
    parser = parser_of("tensorboard", _TENSORBOARD_HELP)
    parser.add_argument("dir", type=Path, help="a run directory, a study or a results folder")
    parser.add_argument("--output", type=Path, metavar="OUT", help="default: DIR/tensorboard")
    options = parser.parse_args(arguments)
    from ..report.tensorboard import tensorboard

    tensorboard(options.dir, options.output or options.dir / "tensorboard")
    return OK


_CHECK_HELP = """\
Try strategies on small models: the contract that all must keep (ends, one model, resumes bit for bit, obeys
stop requests, equal calls on all ranks), and the same steps by real processes over gloo. A strategy may
refuse ranks: that is no failure.

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
    parser = parser_of("check", _CHECK_HELP, words="strategy=NAME | strategy.KEY=VALUE")
    parser.add_argument(
        "--ranks", nargs="+", default=[], metavar="R,R", help="ranks of each node; default: 1,1 2,2 2,1"
    )
    parser.add_argument("--jobs", type=int, help="processes for what runs in virtual time (default: 2)")
    options = parser.parse_intermixed_args(arguments)
    # `--ranks 2 strategy=ddp`: argparse gives the word to the option before it.
    words = [*options.words, *(word for word in options.ranks if "=" in word)]
    if any(key_of(word) == "launcher" for word in words):
        if options.ranks or options.jobs is not None:
            raise ConfigError("check launcher=...: cluster.nodes and cluster.ranks_per_node set the ranks")
        from ..doctor.slurm_check import check as check_cluster

        return check_cluster(words, config_dir=folder_of(options.config_dir), cwd=Path.cwd())
    from ..conformance.check_command import RANKS, check, ranks_of

    ranks = [ranks_of(text) for text in options.ranks if "=" not in text] or RANKS
    return check(words, ranks=ranks, config_dir=folder_of(options.config_dir), jobs=options.jobs)


_CLAIMS_HELP = """\
The claims of the papers behind the strategies: what is claimed, where that is stated, by what and against
what it is judged, under which conditions it was claimed, and the command that tests it (docs/claims.md).

  daso-bench claims
  daso-bench claims results/mission      each with its verdict by these runs: measured, verdict, and why
  daso-bench claims --config-dir DIR     with those in DIR/claims; one with an id that is here replaces it
"""


def _claims(arguments: list[str]) -> int:
    parser = parser_of("claims", _CLAIMS_HELP)
    parser.add_argument("directory", metavar="DIR", nargs="?", help="results to judge the claims by")
    add_config_dir(parser)
    options = parser.parse_args(arguments)
    if options.directory is not None:
        from ..report.results import show_verdicts

        return show_verdicts(Path(options.directory), folder_of(options.config_dir))
    from ..report.claims.paper_claims import show

    return show(folder_of(options.config_dir))


_PILOT_HELP = """\
Run the baseline of a study with seeds of its own on the validation split, and show which target and which
budget the study can set (docs/method.md). With --reference it runs on the split that is scored, and the
samples it needs to the target are stored, for reports to compare later runs with (docs/claims.md).

  daso-bench pilot +study=mission cluster=ethernet_10g --runs 20
  daso-bench pilot +study=mission --reference                  into results/mission_reference/convergence
  daso-bench claims results/mission --config-dir results/mission_reference
"""


def _pilot(arguments: list[str]) -> int:
    parser = parser_of("pilot", _PILOT_HELP, words="+study=NAME | KEY=VALUE", some=True)
    add_dry_run(parser)
    parser.add_argument("--runs", type=int, default=10, help="how many, 10 or more (default: %(default)s)")
    parser.add_argument("--reference", action="store_true", help="store samples to target instead")
    parser.add_argument("--output", type=Path, metavar="DIR", help="with --reference: its folder")
    options = parser.values(arguments)
    if options["output"] is not None and not options["reference"]:
        raise ConfigError(f"--output {options['output']}: belongs to --reference")
    from ..studies.pilot import pilot

    return pilot(cwd=Path.cwd(), **options)


_TUNE_HELP = """\
Search better settings for every arm of a study: the same number of trials, points and seeds for each, on the
validation split (docs/method.md). Searched are the peak learning rate (1/8 to 8 times the default), the
warm-up (0 to a quarter of the schedule), the weight decay (1/10 to 10 times) and at most three keys that the
strategy declares. The result is a study: every arm with its own settings and with the tuned ones.

  daso-bench tune +study=mission --dry-run              arms, trials, and the settings of each
  daso-bench tune +study=mission cluster=ethernet_10g study.arm='ddp flat,daso' --trials 8
  daso-bench --config-dir results/mission_tune +study=mission_tuned

The new study contains the options given to tune: do not repeat them. The same command continues a tune that
was stopped.
"""


def _tune(arguments: list[str]) -> int:
    parser = parser_of("tune", _TUNE_HELP, words="+study=NAME | KEY=VALUE", some=True)
    add_dry_run(parser)
    about = "of each arm, a power of two, 4 or more (default: study.tune_trials, 16)"
    parser.add_argument("--trials", type=int, dest="count", metavar="TRIALS", help=about)
    options = parser.values(arguments)
    from ..studies.tune import tune

    return tune(cwd=Path.cwd(), **options)


_DOCTOR_HELP = """\
Look at this machine, or at the allocation around this shell: what it can do, what is wrong, how to mend it.
KEY=VALUE says where and how runs are to start: results_dir, launcher. A whole cluster is looked at by
daso-bench check launcher=slurm.

  daso-bench doctor
  daso-bench doctor launcher=slurm results_dir=/scratch/me/results
"""


def _doctor(arguments: list[str]) -> int:
    parser = parser_of("doctor", _DOCTOR_HELP)
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", dest="as_json", help="for machines")
    options = parser.values(arguments)
    from ..doctor.doctor_command import doctor

    return doctor(cwd=Path.cwd(), **options)


_CALIBRATE_HELP = """\
Measure this machine with real processes, and write it as a cluster for virtual time: how long a step takes,
and how that varies; latency and rate of sums of two ranks; what sums during the backward pass cost. Then real
runs of ddp are compared with the same run in virtual time. KEY=VALUE as for a run: model, dataset,
cluster.nodes, cluster.ranks_per_node, train.global_batch_size, launcher.threads_per_rank, ...

  daso-bench calibrate cluster=one_node model=resnet18 train.global_batch_size=32
  daso-bench --config-dir calibrated launcher=simulated cluster=this_machine model=resnet18 strategy=daso

With links=FILE nothing is measured: the output of nccl-tests (all_reduce_perf -b 8 -e 1G -f 2) gives latency
and rate of the links, cluster=NAME all other numbers.

  daso-bench calibrate links=all_reduce.txt cluster=a100_hdr --name my_cluster
"""


def _calibrate(arguments: list[str]) -> int:
    parser = parser_of("calibrate", _CALIBRATE_HELP, words="KEY=VALUE")
    parser.add_argument("--name", default="this_machine", help="of the cluster (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="default: the folder of --config-dir, or calibrated"
    )
    parser.add_argument("--force", action="store_true", help="replace the cluster if it is there")
    options = parser.values(arguments)
    options["output"] = options["output"] or options["config_dir"] or Path("calibrated")
    from ..doctor.calibrate_command import calibrate

    return calibrate(cwd=Path.cwd(), **options)


_VALIDATE_HELP = """\
How far virtual time is off: compares the emulated runs below DIR with the same runs in virtual time.

  daso-bench +study=validation             makes both, 20 minutes on an idle machine
  daso-bench validate results/validation   their errors, and pairs.csv
"""


def _validate(arguments: list[str]) -> int:
    parser = parser_of("validate", _VALIDATE_HELP)
    parser.add_argument("dir", type=Path, help="a study or a results folder")
    parser.add_argument("--output", type=Path, help="default: DIR/validation")
    options = parser.parse_args(arguments)
    from ..report.simulation_errors import show_errors

    return show_errors(options.dir, options.output or options.dir / "validation")


_PREPARE_HELP = """\
Get a data set ready: fetch, unpack and check its files, and for folders of images write down which of them
are used for what (docs/data.md). Runs do the same before they start, but fetch only with
dataset.download=true. With reader=NAME the training samples are then written into one file, for runs with
that reader (docs/packed.md).

  daso-bench prepare dataset=cifar10 dataset.root=/scratch/me/data
  daso-bench prepare dataset=imagefolder dataset.root=imgs dataset.bad_files=skip
  daso-bench prepare dataset=cifar10 dataset.root=/scratch/me/data reader=node_batch
"""


def _prepare(arguments: list[str]) -> int:
    parser = parser_of(
        "prepare", _PREPARE_HELP, words="dataset=NAME | dataset.KEY=VALUE | reader=NAME | ...", some=True
    )
    options = parser.values(arguments)
    from ..studies.prepare_data import prepare

    return prepare(cwd=Path.cwd(), **options)


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
