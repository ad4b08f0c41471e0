"""What a report is made of: runs, comparisons, speed-ups, checks and verdicts, from run directories alone."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from . import words
from .checks import baseline_strength, fair, modelled_time, noise, planned_runs, record_integrity
from .checks.check import Check
from .claims import convergence_points, paper_claims
from .claims.judge import JudgedClaim, judge
from .claims.speedups import Speedups, all_speedups
from .data.arms import Comparison, compare, row_of
from .data.examination import examined
from .data.load import Run, load_runs

CHECKS: tuple[Callable[[Speedups], Check], ...] = (
    record_integrity.check,  # first: a run that counts in no number makes its arm unequal too
    fair.check,
    planned_runs.check,
    baseline_strength.check,
    noise.check,
    modelled_time.check,
)
"""In the order of the strip on page one."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """What all sections are made of. `speedups` and `judged`: ratios and verdicts of the comparisons."""

    runs: list[Run]
    comparisons: list[Comparison]
    speedups: list[Speedups]
    judged: list[JudgedClaim]

    @cached_property
    def configured(self) -> list[Comparison]:
        """The comparisons as configured: those under an assumption belong to the section `sensitivity`."""
        return [comparison for comparison in self.comparisons if not comparison.assumption]

    @property
    def studies(self) -> list[str]:
        """The names of all studies, sorted."""
        return sorted({run.study for run in self.runs})

    @property
    def untimed(self) -> list[tuple[str, int]]:
        """Each reason why times are not to be trusted, with the number of runs that give it."""
        return sorted(Counter(reason for run in self.runs for reason in run.timing_reasons).items())

    @property
    def trouble(self) -> list[Run]:
        """Runs that did not finish or cannot be trusted."""
        return [run for run in self.runs if run.state != "finished" or run.invalid or run.distrusted]

    @property
    def copied(self) -> list[Run]:
        """Runs whose directory was found more than once."""
        return [run for run in self.runs if run.copies]

    @property
    def damage(self) -> list[str]:
        """A sentence for each place of the records that could not be read."""
        return [sentence for run in self.runs for sentence in run.damage]

    @cached_property
    def titles(self) -> list[str]:
        """The title of each configured comparison, in their order."""
        worlds, sizes = {c.world for c in self.configured}, {c.size for c in self.configured}
        return [
            ", ".join(
                [
                    f"{comparison.model} on {comparison.dataset}",
                    *([words.world(comparison.world)] if len(worlds) > 1 else []),
                    *([comparison.size] if len(sizes) > 1 and comparison.size else []),
                    *([row] if (row := row_of(comparison, self.configured)) else []),
                ]
            )
            for comparison in self.configured
        ]

    def anchors(self, comparisons: Iterable[Comparison]) -> list[tuple[str, str]]:
        """Where the page has the commands of these comparisons: anchor and title of each."""
        places = {id(comparison) for comparison in comparisons}
        return [
            (f"commands-{number}", title)
            for number, (comparison, title) in enumerate(zip(self.configured, self.titles, strict=True), 1)
            if id(comparison) in places
        ]


def results_of(directory: Path, asked: str, config_dir: Path | None) -> Results:
    """Read the runs at or below `directory`; claims and stored points also of `config_dir`.

    `asked`: the command, for messages. Raises ConfigError if there is no run, or something is wrong in
    `config_dir`.
    """
    folders = [config_dir] if config_dir else []
    runs = examined(load_runs(directory, asked))
    comparisons = compare(runs)
    studies = all_speedups(comparisons, convergence_points.load(folders))
    speedups = [replace(study, checks=tuple(check(study) for check in CHECKS)) for study in studies]
    judged = judge(paper_claims.load(folders), speedups, comparisons)
    return Results(runs=runs, comparisons=comparisons, speedups=speedups, judged=judged)
