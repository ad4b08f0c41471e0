"""A report with claims and stored convergence points of one's own."""

from pathlib import Path

import pytest
from sharing import Make
from test_convergence_points import stored
from test_judge import FAST
from test_speedups import study

from daso_bench.runner.cli.main import run
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.report.build import report
from daso_bench.runner.report.claims.convergence_points import write


def own(folder: Path, runs: Path) -> Path:
    """`folder` with the stored points of the runs' workload, and a claim about daso's time."""
    write(folder / "convergence" / "mine.yaml", stored(runs), "Mine")
    text = (CONF / "claims" / "daso.yaml").read_text()
    (folder / "claims").mkdir()
    (folder / "claims" / "mine.yaml").write_text(text.replace("id: daso_", "id: mine_"))
    return folder


@pytest.mark.usefixtures("undrawn")
def test_a_report_finds_the_users_own_points_and_claims_wherever_they_lie(make_run: Make, tmp_path: Path):
    study(make_run, tmp_path / "in", arm=FAST, fresh=1.0)
    page = report(tmp_path / "in", tmp_path / "out", own(tmp_path / "own", tmp_path / "in"))
    said = page.read_text()
    assert "samples to target were compared with 11 stored runs of mine" in said
    assert "mine_time" in (tmp_path / "out" / "claims.csv").read_text()
    command = (
        "daso-bench report DIR --output OUT --config-dir OWN</code>, where DIR is the folder of the runs"
    )
    assert f"{command} and OWN that of your claims, stored points and sections." in said
    elsewhere = own(tmp_path / "else" / "where", tmp_path / "in")
    assert run(["report", str(tmp_path / "in"), "--config-dir", str(elsewhere)]) == 0
    assert (tmp_path / "in" / "report" / "index.html").read_bytes() == page.read_bytes()
