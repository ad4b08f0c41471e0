"""Evaluations of runs as TensorBoard event files: `daso-bench tensorboard`.

Only what lies in the run directories is read, by a process of its own: no clock of a run notices it. Each
number stands there twice: over training samples, and over milliseconds of training time (T_train).
"""

from itertools import product
from pathlib import Path

from ...strategies.errors import MachineError
from . import words
from .data.load import load_runs

NUMBERS = (
    *("accuracy", "top5", "miou", "pixel_accuracy"),  # as far as the run's task has them
    *("loss", "train_loss", "learning_rate", "samples_per_s"),
)


def tensorboard(directory: Path, output: Path) -> None:
    """Write `output`/<run>/ for every run at or below `directory`, in place of what it held before.

    Raises:
        ConfigError: no run is there.
        MachineError: the package tensorboard is missing.
    """
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise MachineError(
            "tensorboard: the package tensorboard is not installed; pip install 'daso-bench[tensorboard]'"
        ) from error
    runs = load_runs(directory, "tensorboard")
    for run in runs:
        # A run that is `directory` itself lies below the output by its name.
        place = run.folder.relative_to(directory) if run.folder != directory else run.folder.absolute().name
        for file in (output / place).glob("events.out.tfevents.*"):
            file.unlink()
        writer = SummaryWriter(log_dir=str(output / place))
        for row in run.evaluations:
            unix_s = (run.started_unix or 0.0) + row["train_s"]
            steps = {"samples": int(row["samples"]), "training ms": round(1000 * row["train_s"])}
            for name, (axis, step) in product(NUMBERS, steps.items()):
                if isinstance(row.get(name), int | float):  # NaN and infinity are values, null is none
                    writer.add_scalar(f"{name}/over {axis}", float(row[name]), step, walltime=unix_s)
        writer.close()
    rows = sum(len(run.evaluations) for run in runs)
    print(f"{words.count(len(runs), 'run')}, {words.count(rows, 'row')}: tensorboard --logdir {output}")
