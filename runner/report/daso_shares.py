"""What each cause can explain of DASO's 34 %, from the runs of `+study=paper_daso`: docs/daso_34_percent.md.

`python -m daso_bench.runner.report.daso_shares DIR` prints the tables in Markdown.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .load import Run, find_runs, load_run

CLAIMED, PART = 0.34, 0.05  # of the training time
EPOCHS = {"daso blocking": 8, "daso B=4": 28, "daso B=2": 27, "daso B=1": 27}  # of 90, with a flat loss
TUNED = ("ddp", "ddp by nodes")  # the faster one is the baseline
CAUSES = {
    "C and W: communication, waiting": (*TUNED,),
    "O: no overlap": ("ddp without overlap",),
    "M: TF32": ("ddp in TF32",),
}
"""What the baseline is."""
ALONE = "a step alone"  # of ddp, without communication and waiting


@dataclass(frozen=True)
class Point:
    """A workload at one size under one assumption."""

    model: str
    size: str
    assumption: str


Times = Mapping[str, float]
"""By arm: seconds a sample."""


def times(runs: Iterable[Run]) -> dict[Point, dict[str, float]]:
    """Of every finished run of the study: training time over samples; and of ddp's the part that computes."""
    found: dict[Point, dict[str, float]] = {}
    for run in runs:
        if run.study == "paper_daso" and run.state == "finished" and run.train_s and run.samples:
            point = Point(run.name("model"), run.size, run.assumption)
            arms = found.setdefault(point, {})
            if run.arm_name in arms:
                raise ValueError(f"{run.place}: a second run of {run.arm_name!r} at {point}")
            arms[run.arm_name] = run.train_s / run.samples
            if run.arm_name == "ddp" and "compute" in run.parts_s:
                arms[ALONE] = run.parts_s["compute"] / run.samples
    return found


def daso(arms: Times) -> float:
    """Seconds a sample of a whole run of DASO."""
    return sum(epochs * arms[arm] for arm, epochs in EPOCHS.items()) / sum(EPOCHS.values())


def reduction(arms: Times, cause: str) -> float | None:
    """r_run of a cause; None where an arm was not run."""
    baselines = CAUSES[cause]
    if not {*baselines, *EPOCHS} <= arms.keys():
        return None
    return 1 - daso(arms) / min(arms[arm] for arm in baselines)


def bound(arms: Times) -> float | None:
    """r_max: what the faster baseline spends beside computing."""
    if not {*TUNED, ALONE} <= arms.keys():
        return None
    return 1 - arms[ALONE] / min(arms[arm] for arm in TUNED)


def verdict(found: float) -> str:
    """By the rules of part 5."""
    if found >= CLAIMED:
        return "explains the claim alone"
    return "explains a part" if found >= PART else "nothing to speak of"


def tables(found: Mapping[Point, Times]) -> str:
    """For each workload: causes by size with their range over assumptions; and every assumption's numbers."""
    lines = []
    for model in dict.fromkeys(point.model for point in found):
        sizes = {point.size for point in found if point.model == model}
        sizes = sorted(sizes, key=lambda size: int(size.split()[0]))
        head = " | ".join(sizes) + " |\n|---|" + "---|" * len(sizes)
        lines += [f"**{model}**", "", f"| | {head}"]
        for cause in CAUSES:
            cells = [_cell(found, model, size, cause) for size in sizes]
            lines.append(f"| {cause} | " + " | ".join(cells) + " |")
        lines += ["", f"| r_run of C and W (r_max), under | {head}"]
        for assumption in dict.fromkeys(point.assumption for point in found if point.model == model):
            cells = []
            for size in sizes:
                arms = found.get(Point(model, size, assumption), {})
                r, most = reduction(arms, next(iter(CAUSES))), bound(arms)
                cells.append("–" if r is None or most is None else f"{r:.1%} ({most:.1%})")
            lines.append(f"| {assumption or 'as configured'} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _cell(found: Mapping[Point, Times], model: str, size: str, cause: str) -> str:
    by_assumption = {
        point.assumption: r
        for point, arms in found.items()
        if (point.model, point.size) == (model, size) and (r := reduction(arms, cause)) is not None
    }
    if "" not in by_assumption:
        return "not run"
    low, high = min(by_assumption.values()), max(by_assumption.values())
    base = by_assumption[""]
    return f"{base:.1%} ({low:.1%} to {high:.1%}): {verdict(base)}"


def main(arguments: list[str]) -> None:
    """Print the tables of the runs below a folder."""
    folder = Path(arguments[0])
    print(tables(times(load_run(path, path.name) for path in find_runs(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
