"""Arms called None, NA, _x, $x$, a|b or <b> are called so in every table, on the page and in figures."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from matplotlib.text import Text
from sharing import tables_of
from test_text_tables import from_latex, from_markdown

from daso_bench.runner.report import build
from daso_bench.runner.report.claims.claim_tables import speedup_rows
from daso_bench.runner.report.claims.speedups import all_speedups
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import find_runs, load_run
from daso_bench.runner.report.plots.curves import curves
from daso_bench.runner.report.plots.pictures import Picture
from daso_bench.runner.report.plots.style import drawing
from daso_bench.runner.report.sections.headline import HeadlineSection
from daso_bench.runner.report.sections.speedup_table import draw
from daso_bench.runner.report.sections.tuned import TunedSection
from daso_bench.runner.report.tables import write_table

Make = Callable[..., Path]
BASELINE, ARMS = "None", ("NA", "_x", "$x$", "a|b", "<b>")
NAMES = (BASELINE, *ARMS)
TUNED = {"tune_trials": 8, "tune_space": "all", "tune_failed": 2, "tune_device_hours": 0.25}


def studied(
    make_run: Make,
    root: Path,
    *,
    tuned: bool = False,
    study: str = "odd",
) -> Path:
    """Three seeds of each arm; with tuned settings too if `tuned`."""
    for label in NAMES:
        for seed in range(3):
            for row in ("", label) if tuned else ("",):
                place = {"arm": label, "size": "", "role": "", "baseline": BASELINE, "tuned": row}
                place |= TUNED if tuned else {}
                path = make_run(
                    root,
                    "ddp" if label == BASELINE else "daso",
                    seed,
                    (0.6, 0.7, 0.74, 0.78),
                    place=place,
                    study=study,
                    arm=f"{label} {row and 'tuned'}",
                    train_s=20.0 + seed + NAMES.index(label) - (5 if row else 0),
                )
                config = yaml.safe_load((path / "config.yaml").read_text())
                config["run"]["arm"] = ""
                (path / "config.yaml").write_text(yaml.safe_dump(config))
    return root


@pytest.fixture(scope="module")
def tables(make_run: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of every table that a plain study and one of tuned arms have."""

    def of(name: str, **asked: Any) -> list[Any]:
        root = studied(make_run, tmp_path_factory.mktemp(name), **asked)
        return compare(load_run(path, path.name) for path in find_runs(root))

    plain = of("plain")
    tuned = of("tuned", tuned=True)
    return {
        "reached": tables_of(HeadlineSection, plain)["reached"],
        "speedups": speedup_rows(all_speedups(plain)),
        "tuning": tables_of(TunedSection, tuned)["tuning"],
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, NAMES) for name in ("reached", "tuning")),
        ("speedups", ARMS),
    ],
)
def test_names_survive_in_the_three_forms_of_a_table(
    name: str, expected: tuple[str, ...], tables: dict[str, list[dict[str, Any]]], tmp_path: Path
):
    write_table(tmp_path / f"{name}.csv", tables[name])
    frame = pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False)
    assert set(frame["arm"]) == set(expected)
    if "baseline" in frame:
        assert set(frame["baseline"]) == {BASELINE}
    head, *rows = from_markdown((tmp_path / f"{name}.md").read_text())
    assert {row[head.index("arm")] for row in rows} == set(expected)
    assert {len(row) for row in rows} == {len(head)}, "no name makes a cell of its own"
    lines = [line for line in (tmp_path / f"{name}.tex").read_text().splitlines() if line.endswith(r"\\")]
    cells = [line.removesuffix(r" \\").split(" & ") for line in lines]
    column = cells[0].index("arm")
    assert {from_latex(row[column]) for row in cells[1:]} == set(expected)


class Words(HTMLParser):
    """The text of a page by tag, and all tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.headers: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "th":
            self._inside = True
            self.headers.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.headers[-1] += data


def section_of(page: str, start: str, end: str) -> Words:
    place = page.index(start)
    return Words(page[place : page.index(end, place)])


def test_names_survive_on_the_page_in_every_section_that_has_arms(
    make_run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without figures, which take most of the time and are asked below."""
    monkeypatch.setattr(build, "picture", lambda plot, output: Picture(title=plot.title))
    root = tmp_path / "in"
    studied(make_run, root, study="plain")
    studied(make_run, root, tuned=True, study="tuned")
    page = build.report(root, tmp_path / "out").read_text()
    assert "b" not in Words(page).tags
    for start, end, expected in (
        ("What tuning came to", "</section>", NAMES),
        ("<h2>The answer", "</section>", ARMS),
    ):
        found = section_of(page, start, end).headers
        assert set(expected) <= set(found), start


def texts(figure: Figure) -> set[str]:
    found = [one for axes in figure.axes for one in axes.findobj(Text)]
    found += [one for legend in figure.legends for one in legend.get_texts()]
    said = [one.get_text() for one in found if isinstance(one, Text)]
    return {text.removeprefix("\N{ZERO WIDTH SPACE}") for text in said}


def test_names_survive_as_text_of_the_figures(make_run: Make, tmp_path: Path):
    root = studied(make_run, tmp_path)
    (comparison,) = compare(load_run(path, path.name) for path in find_runs(root))
    (found,) = all_speedups([comparison])
    with drawing("test"):
        drawn, lanes = curves(comparison, "train_s", "seconds"), draw(found)
        assert {f"{name} (3 runs)" for name in NAMES} <= texts(drawn)
        assert set(ARMS) <= texts(lanes)
        for figure in (drawn, lanes):  # nothing of a name is taken for mathematics
            assert not any(one.get_parse_math() and "$" in one.get_text() for one in figure.findobj(Text))
