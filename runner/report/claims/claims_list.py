"""`daso-bench claims`: all claims of the papers for people, with the command that tests each."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...config import groups
from ...records.display import make_console, say
from .paper_claims import OTHER_COMPARATORS, Claim, gain_words, in_words, load, row_words

KEY_WIDTH = len("conditions") + 2


def show(config_dir: Path | None) -> int:
    """Print all claims, also of `claims/` in `config_dir`; returns the exit code. Raises ConfigError."""
    folders = [config_dir] if config_dir else []
    claims, console = load(folders), make_console()
    reference = ""
    for claim in claims:
        if claim.paper.reference != reference:
            reference = claim.paper.reference
            say(console, reference, "bold")
        console.print(claim_table(claim))
        # Outside of the table, whose lines are broken: a command stays one piece to copy.
        say(console, f"{'test it':<{KEY_WIDTH}}{command(claim, folders)}")
        say(console, "")
    return 0


def claim_table(claim: Claim) -> Table:
    """One claim: a line for each of its parts, and for each row of the paper's tables."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=0)
    table.add_column(style="dim", no_wrap=True, min_width=KEY_WIDTH)
    table.add_column(overflow="fold")  # what does not fit goes on in the next line
    for key, value in lines(claim):
        table.add_row(Text(key), Text(value))
    return table


def lines(claim: Claim) -> Iterator[tuple[str, str]]:
    """The parts of a claim: name and text of each."""
    yield "claim", claim.id
    yield "says", claim.says
    yield "gain", gain_words(claim)
    yield "judged by", in_words(claim.headline)
    yield "against", against(claim)
    yield "stated in", f"{claim.source} (certainty: {claim.certainty})"
    yield "conditions", claim.conditions.words
    for row in claim.rows:
        yield "row", f"{row.source}: {row_words(row)}; conditions: {row.conditions.words}"


def against(claim: Claim) -> str:
    """The comparator, explained where its name is no strategy."""
    words = OTHER_COMPARATORS.get(claim.comparator)
    return claim.comparator if words is None else f"{claim.comparator}: {words}"


def command(claim: Claim, folders: Sequence[Path] = ()) -> str:
    """The command that tests `claim`; "not there yet" after it where no folder has the study."""
    needed = [folder for folder in folders if _study(folder, claim).is_file()]
    needed += [folder for folder in folders if folder not in needed and claim.file.is_relative_to(folder)]
    options = [word for folder in needed for word in ("--config-dir", str(folder))]
    typed = shlex.join(["daso-bench", *options, f"+study={claim.study}"])
    there = any(_study(folder, claim).is_file() for folder in (groups.CONF, *folders))
    return typed if there else f"{typed}  (not there yet)"


def _study(folder: Path, claim: Claim) -> Path:
    return folder / "study" / f"{claim.study}.yaml"
