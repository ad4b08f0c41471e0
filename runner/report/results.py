"""What a report is made of: runs, comparisons, speed-ups, checks and verdicts, from run directories alone.

`daso-bench claims DIR` prints the verdicts, and the sentences of the report's page one.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..records.display import make_console, say
from . import words
from .answers import limits, recommendation, setting, undecided
from .claims import convergence_points, paper_claims
from .claims.claim_tables import claim_rows
from .claims.judge import JudgedClaim, judge
from .claims.speedups import Speedups
from .claims.study_checks import all_speedups
from .data.arms import Comparison, compare, row_of
from .data.examination import examined
from .data.load import Run, load_runs


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

    def title(self, comparison: Comparison, *, with_world: bool = True) -> str:
        """Workload and cluster, and what else sets it apart from other configured comparisons."""
        several_worlds = with_world and len({each.world for each in self.configured}) > 1
        world = words.world(comparison.world) if several_worlds else ""
        return ", ".join(filter(None, (setting(comparison), world, row_of(comparison, self.configured))))

    def anchors(self, comparisons: Collection[Comparison]) -> list[tuple[str, str]]:
        """Where the page has the commands of these comparisons: anchor and title of each."""
        return [
            (f"commands-{number}", self.title(comparison))
            for number, comparison in enumerate(self.configured, 1)
            if any(comparison is each for each in comparisons)
        ]


def results_of(directory: Path, asked: str, config_dir: Path | None) -> Results:
    """Read the runs at or below `directory`; claims and stored points also of `config_dir`.

    `asked`: the command, for messages. Raises ConfigError if there is no run, or something is wrong in
    `config_dir`.
    """
    folders = [config_dir] if config_dir else []
    runs = examined(load_runs(directory, asked))
    comparisons = compare(runs)
    speedups = all_speedups(comparisons, convergence_points.load(folders))
    judged = judge(paper_claims.load(folders), speedups, comparisons)
    return Results(runs=runs, comparisons=comparisons, speedups=speedups, judged=judged)


def show_verdicts(directory: Path, config_dir: Path | None) -> int:
    """Print every claim with its verdicts; returns the exit code. Raises ConfigError without a run."""
    results = results_of(directory, "claims", config_dir)
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("claim", "claimed", "compared", "measured", "verdict", "remarks"):
        table.add_column(header, overflow="fold")  # nothing is cut where it does not fit
    for row in claim_rows(results.judged):
        place = f" ({row['where']})" if row["where"] else ""
        compared = f"{row['arm']} against {row['comparator']}{place}"
        cells = (row["claim"], row["claimed"], compared, row["measured"], row["verdict"], row["remarks"])
        table.add_row(*map(Text, cells))
    console.print(table)
    for run in results.copied:
        say(console, run.found_again)
    for speedups in results.speedups:
        say(console, "")
        say(console, f"{speedups.comparison.study}, {results.title(speedups.comparison)}", "bold")
        sentences = [recommendation(speedups), limits(speedups), undecided(speedups, results.judged)]
        sentences += [f"{check.name} ({check.level}): {check.sentence}" for check in speedups.checks]
        for sentence in filter(None, sentences):
            say(console, f"  {sentence}")
    return 0
