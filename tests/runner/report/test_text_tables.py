"""Names of arms come back as they were from CSV, LaTeX, the page and the figures."""

from pathlib import Path

import pytest
from matplotlib.text import Text
from sharing import Make, table
from test_report import Text as PageText

from daso_bench.runner.report.build import latex, report
from daso_bench.runner.report.plots.curves import curves
from daso_bench.runner.report.plots.pictures import drawing
from daso_bench.runner.report.plots.saving_lanes import lanes
from daso_bench.runner.report.results import results_of
from daso_bench.runner.report.sections.answer import AnswerSection
from daso_bench.runner.report.sections.details import DetailsSection

NAMES = [
    *("NA", "_x", "$x$", "a|b", "a\\|b", "<b>", "&lt;", "nan", "x,y", '"q"', "\\frac", "名前"),
    *("new\nline", "*x*", "[x](y)", "`x`", "~~x~~", "a\\", "100 %", "#1", "{x}", "a^b"),
]


def test_signs_with_a_meaning_are_escaped_in_latex() -> None:
    lines = latex([{"a_b": "new\nline & 100 % #1 $x$ {a}^~\x1b", "c": "[x]"}]).splitlines()
    assert lines[:3] == [r"\begin{tabular}{ll}", r"\toprule", r"a\_b & c \\"]
    assert lines[4] == (
        "new line \\& 100 \\% \\#1 \\$x\\$ \\{a\\}\\textasciicircum \\textasciitilde "
        "\N{REPLACEMENT CHARACTER} & [x] \\\\"
    )


@pytest.mark.usefixtures("undrawn")
def test_names_survive_in_csv_on_the_page_and_in_figures(make_run: Make, tmp_path: Path) -> None:
    for seed in range(3):
        make_run(tmp_path / "runs", "ddp", seed, place={"arm": "None"})
        for number, name in enumerate(NAMES):
            make_run(tmp_path / "runs", "daso", seed, place={"arm": name}, train_s=20.0 + seed + number)
    page = PageText(report(tmp_path / "runs", tmp_path / "out").read_text())
    assert ("b", {}) not in page.tags
    for name in ["None", *NAMES]:
        assert page.text.count(name) > 2, name
    results = results_of(tmp_path / "runs", "test", None)
    plots = [plot for kind in (AnswerSection, DetailsSection) for plot in kind(results).plots()]
    assert all(name in plot.alternative for name in NAMES for plot in plots)
    for file, names in (("runs", {"None", *NAMES}), ("speedups", set(NAMES)), ("paper", set(NAMES))):
        assert {row["arm"] for row in table(tmp_path / "out" / f"{file}.csv")} == names
    with drawing("test"):
        for figure in (curves(results.comparisons[0], "train_s", "seconds"), lanes(results.speedups[0])):
            figure.draw_without_rendering()
            texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
            assert not any(text.get_parse_math() and "$" in text.get_text() for text in texts)
            shown = {text.get_text().removeprefix("\N{ZERO WIDTH SPACE}") for text in texts}
            assert {"_x", "$x$", "a|b", "<b>"} <= {text.removesuffix(" (3 runs)") for text in shown}
