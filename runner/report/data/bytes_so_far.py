"""What had been sent up to each evaluation: the sum of what every rank notes for itself."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ...records.json_lines import Row, surviving

LINKS = ("intra", "inter")


def with_bytes(evaluations: Sequence[Row], rows: Sequence[Row], ranks: Sequence[Sequence[Row]]) -> list[Row]:
    """`evaluations` with `payload_bytes_intra` and `payload_bytes_inter` so far, summed over ranks.

    Args:
        rows: rank 0's surviving rows, whose `start` says how many ranks there are.
        ranks: all rows of each rank's own file. What a later attempt replaced counts nothing.

    An evaluation of which a rank has no whole note (a lost line) stays as it is: no sum is
    partial.
    """
    of_nodes = [row.get("ranks_of_nodes") for row in rows if row.get("kind") == "start"]
    wanted = sum(of_nodes[-1]) if of_nodes and isinstance(of_nodes[-1], list) else 0
    found: dict[Any, list[dict[str, int]]] = defaultdict(list)
    for own in ranks:
        # By index: once for each rank, the last attempt's.
        for index, row in {row.get("index"): row for row in surviving(_notes(own))}.items():
            if row["kind"] == "evaluation" and (sent := _sent(row)) is not None:
                found[index].append(sent)
    return [_with(row, found.get(row.get("index"), []), wanted) for row in evaluations]


def _notes(rows: Sequence[Row]) -> list[Row]:
    """The rows that say where attempts begin and what was sent: of many, only they matter here."""
    return [row for row in rows if row.get("kind") in ("start", "evaluation")]


def _sent(row: Row) -> dict[str, int] | None:
    given = row.get("payload_bytes")
    if not isinstance(given, Mapping):
        return None
    known = {link: value for link in LINKS if isinstance(value := given.get(link), int)}
    return known if len(known) == len(LINKS) else None


def _with(row: Row, notes: Sequence[dict[str, int]], ranks: int) -> Row:
    if not notes or len(notes) != ranks:
        return row
    return row | {f"payload_bytes_{link}": sum(note[link] for note in notes) for link in LINKS}
