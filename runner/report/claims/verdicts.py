"""`daso-bench claims DIR`: each claim with what the runs below a folder say of it."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...records.display import make_console, say
from ..data.arms import compare, row_of
from ..data.load import load_runs
from ..sections.efficiency import matrix
from . import convergence_points
from .answer_words import sentences
from .claims_table import gain_words
from .judge import judge
from .judged import Judged
from .paper_claims import load
from .speedups import answers
from .verdict_words import remarks, workload

_COLUMNS = ("claim", "claimed", "compared", "measured", "verdict", "remarks")


def show_verdicts(directory: Path, config_dir: Path | None) -> int:
    """Print every claim with its verdicts; returns the exit code. Raises ConfigError without a run."""
    folders = [config_dir] if config_dir else []
    runs = load_runs(directory, "claims")
    comparisons = compare(runs)
    found = answers(comparisons, convergence_points.load(folders))
    judged = judge(load(folders), found, comparisons)
    console = make_console()
    console.print(table(judged))
    for run in runs:
        if run.copies:
            say(console, run.found_again)
    for one in found:
        comparison = one.comparison
        row = row_of(comparison, [other.comparison for other in found])
        title = f"{comparison.study}: {comparison.model} on {comparison.dataset} {comparison.size}".rstrip()
        say(console, "")
        say(console, f"{title}, {row}" if row else title, "bold")
        for sentence in (*sentences(one), *(f"No verdicts: {reason}." for reason in one.forbidden)):
            say(console, f"  {sentence}")
        cores = matrix(one.comparison)
        if cores is not None:
            say(console, f"  {cores.sentence}")
    return 0


def table(judged: list[Judged]) -> Table:
    """A line per claim, arm and configuration."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for header in _COLUMNS:
        made.add_column(header, overflow="fold")  # nothing is cut where it does not fit
    for one in judged:
        compared = f"{one.arm} against {one.comparator}"
        place = workload(one)
        cells = (
            one.claim.id,
            gain_words(one.claim),
            f"{compared} ({place})" if place else compared,
            one.measured,
            one.verdict.word,
            "; ".join(remarks(one)),
        )
        made.add_row(*(Text(cell) for cell in cells))
    return made
