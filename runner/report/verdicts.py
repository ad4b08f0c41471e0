"""`daso-bench claims DIR`: each claim with what the runs below a folder say of it."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...strategies.errors import ConfigError
from ..claims import load
from ..claims_table import gain_words
from ..display import make_console, say
from .answer import answers
from .answer_words import sentences
from .arms import compare
from .judge import Judged, judge
from .load import find_runs, load_run
from .verdict_words import remarks, workload

_COLUMNS = ("claim", "claimed", "compared", "measured", "verdict", "remarks")


def show_verdicts(directory: Path, config_dir: Path | None) -> int:
    """Print every claim with its verdicts; returns the exit code. Raises ConfigError without a run."""
    runs = [load_run(path, path.name) for path in find_runs(directory)]
    if not runs:
        raise ConfigError(f"claims {directory}: no run directory in it (a folder with status.json)")
    found = answers(compare(runs))
    judged = judge(load([config_dir] if config_dir else []), found)
    console = make_console()
    console.print(table(judged))
    for one in found:
        comparison = one.comparison
        say(console, "")
        say(
            console,
            f"{comparison.study}: {comparison.model} on {comparison.dataset} {comparison.size}".rstrip(),
            "bold",
        )
        for sentence in (*sentences(one), *(f"No verdicts: {reason}." for reason in one.forbidden)):
            say(console, f"  {sentence}")
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
