"""`daso-bench claims`: the ledger of claims for people, with the command that tests each."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...config import groups
from ...records.display import make_console, say
from .paper_claims import OTHER_COMPARATORS, Claim, Row, load

KEY_WIDTH = len("conditions") + 2
_WORDS = {  # of headlines and directions
    "fixed_work": "time of the same complete schedule, with quality that is not worse",
    "time_to_target": "time to a target",
    "efficiency": "computing efficiency",
    "quality": "final quality",
    "quality_at_time": "quality at equal training time",
    "not_worse": "not worse",
}


def show(config_dir: Path | None) -> int:
    """Print all claims, also of `claims/` in `config_dir`; returns the exit code. Raises ConfigError."""
    folders = [config_dir] if config_dir else []
    claims, console = load(folders), make_console()
    reference = ""
    for claim in claims:
        if claim.paper.reference != reference:
            reference = claim.paper.reference
            say(console, reference, "bold")
        console.print(table(claim))
        # Outside of the table, whose lines are broken: a command stays one piece to copy.
        say(console, f"{'test it':<{KEY_WIDTH}}{command(claim, folders)}")
        say(console, "")
    return 0


def table(claim: Claim) -> Table:
    """One claim: a line for each of its parts, and for each row of the paper's tables."""
    made = Table(show_header=False, box=None, pad_edge=False, padding=0)
    made.add_column(style="dim", no_wrap=True, min_width=KEY_WIDTH)
    made.add_column(overflow="fold")  # what does not fit goes on in the next line
    for key, value in lines(claim):
        made.add_row(Text(key), Text(value))
    return made


def lines(claim: Claim) -> Iterator[tuple[str, str]]:
    """The parts of a claim: what each is, and what it says."""
    yield "claim", claim.id
    yield "says", claim.says
    yield "gain", gain_words(claim)
    yield "judged by", _word(claim.headline)
    yield "against", against(claim)
    yield "stated in", f"{claim.source} (certainty: {claim.certainty})"
    yield "conditions", claim.conditions.words
    for row in claim.rows:
        yield "row", f"{row.source}: {row_words(row)}; conditions: {row.conditions.words}"


def gain_words(claim: Claim) -> str:
    """`up to 1.515 times (34 % less time)`, `20 times`, `faster, no number`."""
    if claim.gain is None:
        return f"{_word(str(claim.direction))}, no number"
    return ("up to " if claim.quantifier == "up_to" else "") + _times(claim.gain, claim.less_time)


def row_words(row: Row) -> str:
    """As `gain_words`, of one row."""
    return f"{row.points:+g} points" if row.gain is None else _times(row.gain, row.less_time)


def against(claim: Claim) -> str:
    """The comparator, and what it is where its name does not say."""
    words = OTHER_COMPARATORS.get(claim.comparator)
    return claim.comparator if words is None else f"{claim.comparator}: {words}"


def command(claim: Claim, folders: Sequence[Path] = ()) -> str:
    """What to type to test `claim`. A study that no folder has is said not to be there yet."""
    mine = [folder for folder in folders if _study(folder, claim).is_file()]
    mine += [folder for folder in folders if folder not in mine and claim.file.is_relative_to(folder)]
    words = [word for folder in mine for word in ("--config-dir", str(folder))]
    typed = shlex.join(["daso-bench", *words, f"+study={claim.study}"])
    there = any(_study(folder, claim).is_file() for folder in (groups.CONF, *folders))
    return typed if there else f"{typed}  (not there yet)"


def _study(folder: Path, claim: Claim) -> Path:
    return folder / "study" / f"{claim.study}.yaml"


def _times(gain: float, less_time: float | None) -> str:
    shown = f"{gain:.4g} times"
    return shown if less_time is None else f"{shown} ({100 * less_time:.4g} % less time)"


def _word(name: str) -> str:
    return _WORDS.get(name, name)
