"""The planning tables in Markdown: `python tests/runner/report/statistics/planning_tables.py`.

Tables A to D, and how often each verdict comes out, from the formulas that score real studies.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from simulated_studies import (
    Shares,
    crossing_coverages,
    log_sd,
    noisy_crossings,
    shares,
    simulate,
    welch_coverage,
)

from daso_bench.runner.report.statistics.planning import POWER, detectable, power

CVS = (0.03, 0.05, 0.10)
VALUES = (1.1, 1.25, 1.515)
RUNS = (5, 10)
_A_ROWS = ((3, 0.05), (5, 0.03), (5, 0.05), (5, 0.10), (10, 0.05), (20, 0.05))


def runs_needed(ratio: float, cv: float) -> int:
    """Runs per arm with which a true gain of `ratio` times shows at 80 % power; `cv`: of times, a share."""
    return next(runs for runs in count(2) if power(math.log(ratio), log_sd(cv), runs) >= POWER)


def markdown(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its title above it."""
    lines = [f"## {title}", "", *(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)), ""]
    return "\n".join(lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def table_a(repetitions: int) -> str:
    def rows() -> Iterator[list[str]]:
        for runs, cv in _A_ROWS:
            covered, half_width = welch_coverage(runs, cv, repetitions)
            yield [f"{runs}, {percent(cv, 0)}", percent(covered), f"±{percent(half_width)}"]

    head = ["n per arm, CV", "Welch coverage", "median half-width"]
    return markdown("A: coverage of intervals", head, rows())


def table_b() -> str:
    gains, plans = (1.05, 1.10, 1.20, 1.50), (3, 5, 10)
    rows = [
        [
            percent(cv, 0),
            *(str(runs_needed(gain, cv)) for gain in gains),
            *(f"{detectable(runs, log_sd(cv)):.2f}" for runs in plans),
        ]
        for cv in CVS
    ]
    head = ["CV", *(f"{gain:.2f}×" for gain in gains), *(f"detectable with n = {runs}" for runs in plans)]
    return markdown("B: runs per arm for 80 % power (Welch, two-sided 5 %)", head, rows)


def table_c(repetitions: int) -> str:
    def rows() -> Iterator[list[str]]:
        for evaluations in (20, 30, 40, 100):
            found = [noisy_crossings(evaluations, noise, repetitions) for noise in (0.0, 0.2, 0.5)]
            cells = [found[0][0], *(midpoint for _, midpoint in found)]
            yield [str(evaluations), *(f"{mean:.3f} ± {sd:.3f}" for mean, sd in cells)]

    head = ["evaluations before the crossing", "stamp / true, no noise", "midpoint / true, no noise"]
    return markdown("C: scored over true crossing", [*head, "noise 0.2 points", "0.5 points"], rows())


def table_d(repetitions: int) -> str:
    def rows() -> Iterator[list[str]]:
        for evaluations in (20, 30):
            for runs in RUNS:
                wide = crossing_coverages(evaluations, runs, (0.02, 0.03, 0.05, 0.10), repetitions)
                narrow = crossing_coverages(evaluations, runs, (0.01,), repetitions)
                ranges = [f"{100 * min(cells):.1f}–{percent(max(cells))}" for cells in (wide, narrow)]
                yield [f"{evaluations}, {runs}", *ranges]

    head = ["evaluations, n", "worst to best, CV 2–10 %", "CV 1 %"]
    return markdown("D: coverage of the ratio of crossing times", head, rows())


def nine(value: float, runs: int, repetitions: int) -> dict[tuple[float, float], Shares]:
    """(CV, true gain) -> shares, at the gains 1, (1+c)/2 and c of the operating characteristics."""
    studies = {cv: simulate(runs, cv, repetitions) for cv in CVS}
    gains = (1.0, (1 + value) / 2, value)
    return {(cv, gain): shares(studies[cv], value, gain) for cv in CVS for gain in gains}


def table_verdicts(repetitions: int) -> str:
    def rows() -> Iterator[list[str]]:
        for value in VALUES:
            for runs in RUNS:
                cells = nine(value, runs, repetitions)
                at = [[cells[cv, gain] for gain in (1.0, (1 + value) / 2, value)] for cv in CVS]
                said = [
                    f"{100 * a.contradicted:.0f} / {100 * b.partly:.0f} / {100 * c.reproduced:.0f}"
                    for a, b, c in at
                ]
                wrong = percent(max(cell.wrong for cell in cells.values()))
                yield [f"{value:g}, {runs}", *said, wrong]

    head = ["c, n", *(f"CV {percent(cv, 0)}" for cv in CVS), "largest P(wrong)"]
    title = "Verdicts: % contradicted at g = 1 / partly at (1+c)/2 / reproduced at c"
    return markdown(title, head, rows())


def table_quality() -> str:
    rows = [[f"{sd:.1f}", *(percent(power(0.5, sd, runs), 0) for runs in RUNS)] for sd in (0.2, 0.3, 0.5)]
    head = ["sd between seeds, points", *(f"n = {runs}" for runs in RUNS)]
    return markdown("Power of “no loss” when there is none, margin 0.5 points", head, rows)


def main(arguments: list[str]) -> int:
    """Print all tables; returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=20_000, help="simulated studies per cell")
    repetitions = parser.parse_args(arguments).repetitions
    if repetitions < 1:
        parser.error(f"--repetitions={repetitions}: must be >= 1")
    print(f"{repetitions:,} studies per cell, seeds fixed\n", flush=True)
    print(table_a(repetitions), flush=True)
    print(table_b(), flush=True)
    print(table_c(repetitions), flush=True)
    print(table_d(repetitions), flush=True)
    print(table_verdicts(repetitions), flush=True)
    print(table_quality(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
