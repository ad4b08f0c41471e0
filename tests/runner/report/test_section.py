"""What is the user's own in --config-dir: sections, claims and stored points, found by being there."""

from pathlib import Path

import pytest
from sharing import Make, table
from test_convergence_points import stored
from test_judge import FAST
from test_speedups import study

from daso_bench.runner.cli.main import run
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.convergence_points import write
from daso_bench.strategies.errors import ConfigError

MINE = '''
from matplotlib.figure import Figure

from daso_bench.runner.report.plots.pictures import Plot
from daso_bench.runner.report.section import Section


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
        text = {"title": "My figure", "caption": "", "table": "mine", "corner": "", "alternative": "runs"}
        return [Plot(file="mine", **text, draw=(Figure,))]
'''


@pytest.mark.usefixtures("undrawn")
def test_a_section_without_anything_to_show_has_no_table_and_no_block(make_run: Make, tmp_path: Path):
    make_run(tmp_path / "runs", target=None)
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    tables = {file.stem for file in (tmp_path / "out").glob("*.csv")}
    assert tables == {"runs", "evaluations", "arms"}
    for heading in ("Which link is fast", "packed file", "What tuning found", "assumptions"):
        assert heading not in page


def own(folder: Path, runs: Path) -> Path:
    """`folder` with a section, the stored points of the runs' workload, and a claim about daso's time."""
    (folder / "sections").mkdir(parents=True)
    (folder / "sections" / "mine.py").write_text(MINE)
    write(folder / "convergence" / "mine.yaml", stored(runs), "Mine")
    text = (CONF / "claims" / "daso.yaml").read_text()
    (folder / "claims").mkdir()
    (folder / "claims" / "mine.yaml").write_text(text.replace("id: daso_", "id: mine_"))
    return folder


@pytest.mark.usefixtures("undrawn")
def test_sections_points_and_claims_of_the_users_own_are_found_wherever_they_lie(
    make_run: Make, tmp_path: Path
):
    study(make_run, tmp_path / "in", arm=FAST, fresh=1.0)
    page = report(tmp_path / "in", tmp_path / "out", own(tmp_path / "own", tmp_path / "in"))
    said = page.read_text()
    assert said.index("1 run: ddp") < said.index("My figure") < said.index("Every run (")
    assert table(tmp_path / "out" / "mine.csv")
    assert "samples to target were compared with 11 stored runs of mine" in said
    assert "mine_time" in {row["claim"] for row in table(tmp_path / "out" / "claims.csv")}
    command = "daso-bench report DIR --output OUT --config-dir OWN</code>, where DIR is the folder of the"
    assert f"{command} runs and OWN that of your claims, stored points and sections." in said
    elsewhere = own(tmp_path / "else" / "where", tmp_path / "in")
    assert run(["report", str(tmp_path / "in"), "--config-dir", str(elsewhere)]) == 0
    assert (tmp_path / "in" / "report" / "index.html").read_bytes() == page.read_bytes()


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
