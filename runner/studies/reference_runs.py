"""`daso-bench pilot --reference`: runs of a baseline that say how many samples its target takes, as a file.

Source: docs/method.md, "Validity and guard".
"""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ...strategies.errors import ConfigError
from ..config.load import to_plain
from ..config.schema import RunConfig
from ..records import display
from ..records.json_lines import crossing, read_records, surviving
from ..records.run_directory import RunDirectory
from ..records.seed_ranges import REFERENCE, phase_of
from ..report.claims import convergence_points
from ..report.claims.convergence_points import FEWEST_RUNS, FOLDER, Reference, workload_of
from . import sweep
from .side_runs import Asked, beside, run_baseline

SUFFIX = "_reference"


def reference(asked: Asked, *, output: Path | None) -> int:
    """Run the baseline of a study as it is scored, and store what came out; returns the exit code.

    `output`: the folder that gets `convergence/<study>.yaml`; None: that of the runs. Raises ConfigError
    where the study has no baseline or no target, or is for a cluster.
    """

    def tell(console: Console, base: RunConfig, wanted: Sequence[sweep.Request]) -> None:
        command = shlex.join(["daso-bench", "pilot", *asked.words, "--reference", "--runs", str(asked.runs)])
        found = read(wanted, base.study.name, command)
        _store(console, base, found, output or base.results_dir / f"{base.study.name}{SUFFIX}")

    return run_baseline(asked, what="references", fewest=FEWEST_RUNS, derive=scored, tell=tell)


def scored(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` as it is scored, its whole schedule, with seeds that no scored run, pilot or trial has.

    Raises ConfigError without a target.
    """
    if base.train.target is None:
        raise ConfigError("train.target=null: a reference tells how many samples a target takes; give one")
    # As in a study: where the evaluations lie is drawn for each repetition, if at all.
    seeds = [REFERENCE + number for number in range(runs)]
    return [beside(base, SUFFIX, seed=seed, phase=phase_of(seed)) for seed in seeds]


def read(wanted: Sequence[sweep.Request], name: str, command: str) -> Reference:
    """The points from the runs' records. Raises ConfigError where a run recorded no samples."""
    samples: list[float] = []
    missed = 0
    config: RunConfig | None = None
    for request in wanted:
        assert request.config is not None
        assert request.path is not None
        config = request.config
        rows = surviving(read_records(RunDirectory(request.path).metrics).rows)
        target = config.train.target
        assert target is not None, "asked for before the runs"
        found = crossing(rows, target, metric=config.train.target_metric)
        used = [float(row["samples"]) for row in rows if row.get("samples")]
        if found is None and not used:
            raise ConfigError(f"{request.path}: recorded no samples; remove it and run it again")
        samples.append(found.scored_samples if found else max(used))
        missed += found is None
    assert config is not None, "10 runs or more"
    return Reference(
        name=name,
        workload=workload_of(to_plain(config)),
        samples=tuple(samples),
        missed=missed,
        command=command,
        date=datetime.now(UTC).date().isoformat(),
    )


def _store(console: Console, base: RunConfig, found: Reference, folder: Path) -> None:
    file = folder / FOLDER / f"{base.study.name}.yaml"
    classes = (str(found.workload[f"{group}._target_"]) for group in ("model", "dataset"))
    what = " on ".join(path.rpartition(".")[2] for path in classes)
    runs = len(found.samples)
    convergence_points.write(file, found, f"Samples that ddp needs to its target: {what}, {runs} runs")
    reached = runs - found.missed
    display.say(console, f"{reached} of {runs} runs reached {base.train.target:g}; kept in {file}", "bold")
    for command in ("claims", "report"):
        display.say(console, f"  use it: daso-bench {command} DIR --config-dir {shlex.quote(str(folder))}")
