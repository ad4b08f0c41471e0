"""Sections are found by being there: those of the project, and one of the user's own."""

from pathlib import Path

import pytest
from sharing import Make, table

from daso_bench.runner.report.build import report
from daso_bench.strategies.errors import ConfigError

MINE = '''
from daso_bench.runner.report.section import Section, one_each


def draw(name):
    from matplotlib.figure import Figure

    return Figure()


class Mine(Section):
    """Runs by name."""

    order = 5
    template = """
{% for run in results.runs %}<p>{{ words.count(1, "run") }}: {{ run.strategy }}</p>{% endfor %}
{{ page.figure(pictures[0], []) }}
"""

    def tables(self):
        return {"mine": [{"run": run.run_id} for run in self.results.runs]}

    def plots(self):
        text = {"title": "My figure", "caption": "", "corner": str, "alternative": str}
        return one_each("mine", ["name"], draw=draw, **text)
'''


@pytest.mark.usefixtures("undrawn")
def test_a_section_without_anything_to_show_has_no_table_and_no_block(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "runs", target=None)
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    tables = {file.stem for file in (tmp_path / "out").glob("*.csv")}
    assert tables == {"runs", "evaluations", "arms"}
    for heading in (
        "Which link is fast",
        "What the papers claim",
        "packed file",
        "What tuning found",
        "assumptions",
    ):
        assert heading not in page


def test_a_section_of_the_users_own_is_one_file(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "runs")
    (tmp_path / "own" / "sections").mkdir(parents=True)
    (tmp_path / "own" / "sections" / "mine.py").write_text(MINE)
    page = report(tmp_path / "runs", tmp_path / "out", tmp_path / "own").read_text()
    assert page.index("1 run: ddp") < page.index("My figure") < page.index("Every run (1)")
    assert "and OWN that of your claims" in page
    assert len(table(tmp_path / "out" / "mine.csv")) == 1
    assert {"mine.svg", "mine.pdf"} <= {p.name for p in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize(
    ("text", "message"), [("1/0", "ZeroDivisionError: division by zero"), ("x = 1", "no subclass of")]
)
def test_a_file_that_is_no_section_is_refused_by_name(
    make_run: Make, tmp_path: Path, text: str, message: str
):
    make_run(tmp_path / "runs")
    (tmp_path / "sections").mkdir()
    (tmp_path / "sections" / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=f"mine.py: .*{message}"):
        report(tmp_path / "runs", tmp_path / "out", tmp_path)
