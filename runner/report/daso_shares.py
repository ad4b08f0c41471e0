"""What each cause can explain of DASO's 34 %, from the runs of `+study=paper_daso`: docs/daso_34_percent.md.

`python -m daso_bench.runner.report.daso_shares DIR` prints the tables in Markdown.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .load import Run, find_runs, load_run

CLAIMED, PART = 0.34, 0.05  # of the training time
EPOCHS = {"daso blocking": 8, "daso B=4": 28, "daso B=2": 27, "daso B=1": 27}  # of 90, with a flat loss
EPOCHS_16_BITS = {
    "daso blocking in 16 bits": 8,
    **{arm: n for arm, n in EPOCHS.items() if arm != "daso blocking"},
}
UNCOVERED = "ddp without overlap"  # nothing beside its backward pass costs it time
TUNED = ("ddp", "ddp by nodes", "ddp in slices")  # the fastest one is the baseline


@dataclass(frozen=True)
class Cause:
    """What DASO is compared with: the fastest of `baselines`.

    epochs: of a whole run of DASO by arm. normed: BatchNorm takes part, DASO's over a node.
    """

    baselines: tuple[str, ...]
    epochs: Mapping[str, int] = field(default_factory=lambda: EPOCHS)
    normed: bool = False


CAUSES = {
    "C and W: communication, waiting": Cause(TUNED),
    "the same, blocking epochs in 16 bits": Cause(TUNED, EPOCHS_16_BITS),
    "the same, both in 16 bits": Cause(("ddp in 16 bits",), EPOCHS_16_BITS),
    "O: no overlap": Cause((UNCOVERED,)),
    "M: TF32": Cause(("ddp in TF32",)),
    "B: BatchNorm over all": Cause(("ddp with BatchNorm over all",), normed=True),
    "A: O, M and B": Cause(("ddp with all three",), normed=True),
}
NORMED = "daso B=4 with BatchNorm over a node"
ALONE = "a step alone"  # of that arm, without communication and waiting


@dataclass(frozen=True)
class Point:
    """A workload at one size under one assumption."""

    model: str
    size: str
    assumption: str


Times = Mapping[str, float]
"""By arm: seconds a sample in the steady state."""


def times(runs: Iterable[Run]) -> dict[Point, dict[str, float]]:
    """Of every arm with finished runs of two lengths: seconds of training over samples of what one has more.

    What begins and ends a run, the average of `finish` above all, is in both and cancels. `ALONE` is the part
    of `UNCOVERED`'s time that computes. An arm with runs of one length only has no time.
    """
    lengths: dict[Point, dict[str, dict[int, float]]] = {}
    for run in runs:
        samples = round(run.samples or 0)
        if run.study == "paper_daso" and run.state == "finished" and run.train_s and samples:
            arms = lengths.setdefault(Point(run.name("model"), run.size, run.assumption), {})
            seconds = {run.arm_name: run.train_s}
            if run.arm_name == UNCOVERED and "compute" in run.parts_s:
                seconds[ALONE] = run.parts_s["compute"]
            for arm, whole in seconds.items():
                by_samples = arms.setdefault(arm, {})
                if samples in by_samples:
                    raise ValueError(f"{run.place}: a second run of {arm!r} with {samples} samples")
                by_samples[samples] = whole
    return {
        point: {arm: rate for arm, runs in arms.items() if (rate := steady(runs)) is not None}
        for point, arms in lengths.items()
    }


def steady(seconds_of_samples: Mapping[int, float]) -> float | None:
    """Seconds a sample between the end of the shortest and of the longest run; None if there is but one."""
    short, long = min(seconds_of_samples), max(seconds_of_samples)
    if short == long:
        return None
    return (seconds_of_samples[long] - seconds_of_samples[short]) / (long - short)


def daso(arms: Times, epochs: Mapping[str, int] = EPOCHS, *, normed: bool = False) -> float:
    """Seconds a sample of a whole run of DASO.

    With `normed` BatchNorm over a node adds to every step what it adds at B = 4: it is waited for.
    """
    whole = sum(number * arms[arm] for arm, number in epochs.items()) / sum(epochs.values())
    return whole + (arms[NORMED] - arms["daso B=4"] if normed else 0.0)


def reduction(arms: Times, name: str) -> float | None:
    """r_run of a cause; None where an arm was not run."""
    cause = CAUSES[name]
    if not {*cause.baselines, *cause.epochs, *([NORMED] if cause.normed else [])} <= arms.keys():
        return None
    return 1 - daso(arms, cause.epochs, normed=cause.normed) / min(arms[arm] for arm in cause.baselines)


def of_a_step(arms: Times, arm: str) -> float | None:
    """r of one kind of DASO's steps; None where an arm was not run."""
    if not {arm, *TUNED} <= arms.keys():
        return None
    return 1 - arms[arm] / min(arms[baseline] for baseline in TUNED)


def bound(arms: Times) -> float | None:
    """r_max: what the fastest baseline spends beside computing."""
    if not {*TUNED, ALONE} <= arms.keys():
        return None
    return 1 - arms[ALONE] / min(arms[arm] for arm in TUNED)


def verdict(found: float) -> str:
    """By the rules of part 5."""
    if found >= CLAIMED:
        return "explains the claim alone"
    return "explains a part" if found >= PART else "nothing to speak of"


def tables(found: Mapping[Point, Times]) -> str:
    """For each workload: causes by size with their range over assumptions; kinds of steps; assumptions."""
    lines = []
    for model in dict.fromkeys(point.model for point in found):
        sizes = {point.size for point in found if point.model == model}
        sizes = sorted(sizes, key=lambda size: int(size.split()[0]))
        head = " | ".join(sizes) + " |\n|---|" + "---|" * len(sizes)
        lines += [f"**{model}**", "", f"| | {head}"]
        for cause in CAUSES:
            cells = [_cell(found, model, size, cause) for size in sizes]
            lines.append(f"| {cause} | " + " | ".join(cells) + " |")
        lines += ["", f"| r of a step, as configured | {head}"]
        for arm in dict.fromkeys([*EPOCHS, *EPOCHS_16_BITS]):
            rs = [of_a_step(found.get(Point(model, size, ""), {}), arm) for size in sizes]
            lines.append(f"| {arm} | " + " | ".join("–" if r is None else f"{r:.1%}" for r in rs) + " |")
        lines += ["", f"| r_run of C and W (r_max), under | {head}"]
        for assumption in sorted({point.assumption for point in found if point.model == model}):
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
