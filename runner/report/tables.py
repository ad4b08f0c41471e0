"""Tables as CSV, Markdown and LaTeX. In the last two, signs with a meaning of their own are escaped."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..records.json_lines import encode

# Page generators look for HTML and entities before anything else: these are named, not escaped.
MARKDOWN_SIGNS = {"<": "&lt;", ">": "&gt;", "&": "&amp;", **{sign: f"\\{sign}" for sign in "\\`*_[]|$~"}}
LATEX_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    '"': r"\textquotedbl{}",
    # In the old font encoding these three print as other signs.
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row they would belong to the \\ before it.
    "[": "{[}",
    "*": "{*}",
}
# A cell is one line.
MARKDOWN = str.maketrans({**MARKDOWN_SIGNS, "\n": "<br>"})
LATEX = str.maketrans({**LATEX_SIGNS, "\n": " "})
LATEX_HEAD = (
    "% For names: \\usepackage[T1]{fontenc}; for scripts beyond Latin LuaLaTeX or XeLaTeX and a font."
)


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The CSV file `path`, and beside it the same table in Markdown (.md) and LaTeX (.tex)."""
    write_csv(path, rows)
    path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    path.with_suffix(".tex").write_text(latex(rows), encoding="utf-8")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One header, one line per row; a missing value is empty, NaN is `NaN`, infinity is `Infinity`."""
    cells = [{key: encode(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    frame.where(frame.notna(), None).to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def shown(value: Any) -> str:
    """A cell as people read it: six significant digits, no powers of ten where they can be had without.

    Missing is empty; NaN and infinity are words.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """A table of GitHub's Markdown with a column for each key of the first row; "" without rows."""
    if not rows:
        return ""
    names = list(rows[0])
    rule = ["---:" if _numeric(rows, name) else "---" for name in names]
    lines = [_markdown_row(names), f"|{'|'.join(rule)}|"]
    lines += [_markdown_row([shown(row[name]) for name in names]) for row in rows]
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[dict[str, Any]]) -> str:
    """A plain tabular, no package needed, with a column for each key of the first row; "" without rows."""
    if not rows:
        return ""
    names = list(rows[0])
    columns = "".join("r" if _numeric(rows, name) else "l" for name in names)
    lines = [LATEX_HEAD, f"\\begin{{tabular}}{{{columns}}}", r"\hline", _latex_row(names), r"\hline"]
    lines += [_latex_row([shown(row[name]) for name in names]) for row in rows]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def _numeric(rows: Sequence[dict[str, Any]], name: str) -> bool:
    """Whether the column holds numbers alone, as far as it holds anything."""
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_printable(cell).translate(MARKDOWN) for cell in cells)} |"


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_unligatured(_printable(cell).translate(LATEX)) for cell in cells) + r" \\"


def _unligatured(text: str) -> str:
    """`text` with no two dashes or commas side by side, which print as one sign."""
    for sign in "-,":
        while sign * 2 in text:
            text = text.replace(sign * 2, f"{sign}{{}}{sign}")
    return text


def _printable(text: str) -> str:
    """`text` with the replacement character for what cannot be printed, ends of lines apart."""
    if text.isprintable():
        return text
    return "".join(s if s.isprintable() or s == "\n" else "\N{REPLACEMENT CHARACTER}" for s in text)
