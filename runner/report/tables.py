"""Tables as CSV files; those for a paper as LaTeX too, with their special signs escaped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..records.json_lines import encode
from .words import printable


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One header, one line per row; a missing value is empty, NaN is `NaN`, infinity is `Infinity`."""
    cells = [{key: encode(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    frame.where(frame.notna(), None).to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """A tabular with the rules of the package booktabs; a cell is one line."""
    cells = [{key: printable(" ".join(cell.split("\n"))) for key, cell in row.items()} for row in rows]
    return pd.DataFrame(cells).to_latex(index=False, escape=True)
