"""`daso-bench claims DIR`: every claim with its verdicts, and the sentences of the report's page one."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ..records.display import make_console, say
from .answers import limits, recommendation
from .claims.claim_tables import claim_rows
from .claims.core_efficiency import Matrix, matrix
from .claims.judge import JudgedClaim
from .data.arms import row_of
from .results import results_of


def show_verdicts(directory: Path, config_dir: Path | None) -> int:
    """Print every claim with its verdicts; returns the exit code. Raises ConfigError without a run."""
    results = results_of(directory, "claims", config_dir)
    console = make_console()
    console.print(verdict_table(results.judged))
    for run in results.copied:
        say(console, run.found_again)
    for speedups in results.speedups:
        comparison = speedups.comparison
        row = row_of(comparison, [other.comparison for other in results.speedups])
        say(console, "")
        say(console, f"{comparison.study}, {row}" if row else comparison.study, "bold")
        checks = (f"{check.name} ({check.level}): {check.sentence}" for check in speedups.checks)
        for sentence in filter(None, (recommendation(speedups), limits(speedups), *checks)):
            say(console, f"  {sentence}")
        cores = matrix(comparison)
        if isinstance(cores, Matrix):
            say(console, f"  {cores.sentence}")
    return 0


def verdict_table(all_judged: Sequence[JudgedClaim]) -> Table:
    """A line per claim, arm and configuration."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("claim", "claimed", "compared", "measured", "verdict", "remarks"):
        table.add_column(header, overflow="fold")  # nothing is cut where it does not fit
    for row in claim_rows(all_judged):
        place = f" ({row['where']})" if row["where"] else ""
        compared = f"{row['arm']} against {row['comparator']}{place}"
        cells = (row["claim"], row["claimed"], compared, row["measured"], row["verdict"], row["remarks"])
        table.add_row(*map(Text, cells))
    return table
