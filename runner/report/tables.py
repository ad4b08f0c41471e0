"""Tables as CSV files; those that are printed as Markdown and LaTeX too, with their special signs escaped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..records.json_lines import encode
from .words import printable

# Page generators look for HTML and entities before anything else: these are named, not escaped.
MARKDOWN_SIGNS = {"<": "&lt;", ">": "&gt;", "&": "&amp;", **{sign: f"\\{sign}" for sign in "\\`*_[]|$~"}}


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One header, one line per row; a missing value is empty, NaN is `NaN`, infinity is `Infinity`."""
    cells = [{key: encode(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    frame.where(frame.notna(), None).to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of GitHub's Markdown with a column for each key of the rows, of which there is at least one."""
    signs = str.maketrans(MARKDOWN_SIGNS | {"\n": "<br>"})
    lines = [list(rows[0]), *(row.values() for row in rows)]
    head, *body = [f"| {' | '.join(printable(cell).translate(signs) for cell in cells)} |" for cells in lines]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body]) + "\n"


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """A tabular with the rules of the package booktabs; a cell is one line."""
    cells = [{key: printable(" ".join(cell.split("\n"))) for key, cell in row.items()} for row in rows]
    return pd.DataFrame(cells).to_latex(index=False, escape=True)
