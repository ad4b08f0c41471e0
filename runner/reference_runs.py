"""`daso-bench pilot --reference`: runs of a baseline that say how many samples its target takes, as a file.

Source: the measuring rules (time to accuracy), "validity, fairness ledger, guard".
"""

import dataclasses
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ..strategies.errors import ConfigError
from . import convergence, display, start, sweep
from .compose import compose
from .convergence import FEWEST_RUNS, FOLDER, Reference, workload_of
from .pilot import baseline_of
from .records import crossing, read_records, surviving
from .repetitions import REFERENCE, phase_of
from .run_directory import RunDirectory
from .schema import RunConfig, StudyInfo, to_plain

SUFFIX = "_reference"


def reference(
    words: Sequence[str], *, runs: int, output: Path | None, config_dir: Path | None, cwd: Path
) -> int:
    """Run the baseline of the study that `words` ask for, and store what came out; returns the exit code.

    `output`: the folder that gets `convergence/<study>.yaml`; None: that of the runs. Raises ConfigError
    where the study has no baseline or no target, or is for a cluster.
    """
    if runs < FEWEST_RUNS:
        raise ConfigError(f"--runs {runs}: must be {FEWEST_RUNS} or more")
    base = baseline_of(sweep.requests(compose(words, sweep=True, config_dir=config_dir), cwd))
    if base.train.target is None:
        raise ConfigError("train.target=null: a reference tells how many samples a target takes; give one")
    if base.launcher.far:
        raise ConfigError(
            f"launcher={base.launcher.name}: references are waited for; run them where ranks start at once "
            "(launcher=local or simulated), or inside an allocation"
        )
    wanted = [sweep.Request(tuple(words), config) for config in scored(base, runs)]
    console = display.make_console()
    code = start.run_sweep(console, wanted, with_report=False)
    if code:
        return code
    command = shlex.join(["daso-bench", "pilot", *words, "--reference", "--runs", str(runs)])
    found = read(wanted, base.study.name, command)
    folder = output or base.results_dir / f"{base.study.name}{SUFFIX}"
    file = folder / FOLDER / f"{base.study.name}.yaml"
    classes = (str(found.workload[f"{group}._target_"]) for group in ("model", "dataset"))
    what = " on ".join(path.rpartition(".")[2] for path in classes)
    convergence.write(file, found, f"Samples that ddp needs to its target: {what}, {runs} runs")
    reached = len(found.samples) - found.missed
    display.say(console, f"{reached} of {runs} runs reached {base.train.target:g}; kept in {file}", "bold")
    display.say(console, f"  use it: daso-bench claims DIR --config-dir {shlex.quote(str(folder))}")
    return 0


def scored(base: RunConfig, runs: int) -> list[RunConfig]:
    """`base` as it is scored, its whole schedule, with seeds that no scored run, pilot or trial has."""
    study = StudyInfo(name=f"{base.study.name}{SUFFIX}", arm=base.study.arm, size=base.study.size)
    found: list[RunConfig] = []
    for number in range(runs):
        seed = REFERENCE + number
        # As in a study: where the evaluations lie is drawn for each repetition, if at all.
        phase = phase_of(seed) if base.train.eval_phase else 0.0
        train = dataclasses.replace(base.train, stop="budget", max_seconds=None, eval_phase=phase)
        found.append(dataclasses.replace(base, seed=seed, train=train, study=study))
    return found


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
