"""Markdown and LaTeX: names come back as they were, numbers are readable, missing is not NaN."""

import math
import re

import pytest
from markdown_it import MarkdownIt  # comes with rich

from daso_bench.runner.report.tables import LATEX_SIGNS, latex, markdown, shown

NAMES = [
    *("None", "NA", "_x", "_x_", "$x$", "a|b", "a\\|b", "<b>", "&lt;", "nan", "x,y", '"q"', "\\frac", "名前"),
    *("new\nline", "*x*", "[x]", "[x](y)", "`x`", "~~x~~", "a\\", "100 %", "#1", "{x}", "a^b", "a--b", "''"),
    ",,",
]


def from_markdown(text: str) -> list[list[str]]:
    """The cells of the one table in `text`, as a reader's program sees them."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            rows.append([])
        if token.type == "inline":
            pieces = [{"html_inline": "\n"}.get(one.type, one.content) for one in token.children or []]
            assert {one.type for one in token.children or []} <= {"text", "text_special", "html_inline"}
            rows[-1].append("".join(pieces))
    return rows


def from_latex(cell: str) -> str:
    """What LaTeX prints for a cell, for the escapes that this project writes and no others."""
    signs: dict[str, str] = {escape: sign for sign, escape in LATEX_SIGNS.items()} | {"{}": ""}
    escapes = sorted(signs, key=len, reverse=True)
    pieces: list[str] = re.findall("|".join([*map(re.escape, escapes), "(?s:.)"]), cell)
    assert not {"\\", "&", "%", "$", "#", "_", "^", "~", "{", "}", "<", ">", "|"} & {
        p for p in pieces if p not in signs
    }
    return "".join(str(signs.get(piece, piece)) for piece in pieces)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_survives_in_markdown(name: str) -> None:
    found = from_markdown(markdown([{"arm": name, "a|b_c": 1.5, "last": name}]))
    assert found == [["arm", "a|b_c", "last"], [name, "1.5", name]]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_survives_in_latex(name: str) -> None:
    lines = latex([{"arm": name, "x_y": 1.5}]).splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lr}", r"\hline"]
    assert lines[3] == r"arm & x\_y \\"
    cell, _, number = lines[5].partition(" & ")
    assert from_latex(cell) == name.replace("\n", " ")
    assert number == r"1.5 \\"


@pytest.mark.parametrize("name", ["[x]", "*", "*x"])
def test_a_name_is_not_taken_for_part_of_the_line_end_before_it(name: str) -> None:
    rows = latex([{"arm": "first"}, {"arm": name}])
    assert not re.search(r"\\\\\s*[\[*]", rows)


@pytest.mark.parametrize("name", ["a--b", "---", ",,"])
def test_signs_side_by_side_are_not_joined(name: str) -> None:
    cell = latex([{"arm": name}]).splitlines()[5]
    assert not re.search("--|,,", cell)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((None, ""), ("None", "None"), (True, "yes"), (False, "no"), (12645696, "12645696"), (0, "0")),
        *((2.709315861, "2.70932"), (12645696.4, "12645696"), (1234567.0, "1234567"), (0.5, "0.5")),
        *((0.00012345678, "0.000123457"), (999999.4, "999999")),
        *((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")),
    ],
)
def test_cells(value: object, said: str) -> None:
    assert shown(value) == said


def test_a_column_of_numbers_stands_right_and_gaps_do_not_change_that() -> None:
    rows = [
        {"n": 1, "name": "a", "gone": None, "yes": True},
        {"n": None, "name": "1", "gone": None, "yes": False},
    ]
    assert r"\begin{tabular}{rlll}" in latex(rows)
    assert markdown(rows).splitlines()[1] == "|---:|---|---|---|"
    assert markdown(rows).splitlines()[3] == "|  | 1 |  | no |"


def test_without_rows_there_is_nothing() -> None:
    assert (markdown([]), latex([])) == ("", "")


def test_what_cannot_be_printed_is_replaced() -> None:
    assert "a\N{REPLACEMENT CHARACTER}b" in markdown([{"x": "a\x1bb"}])
    assert "a\N{REPLACEMENT CHARACTER}b" in latex([{"x": "a\x00b"}])
