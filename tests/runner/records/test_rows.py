"""docs/records.md names every field of every kind of row that a run writes."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import daso_bench
from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import Row, read_records
from daso_bench.runner.records.rows import RecordRow, StartRow, TrainIntervalRow

DOCS = (Path(daso_bench.__file__).parent / "docs" / "records.md").read_text()
KINDS = {
    "## metrics.jsonl": {"start", "evaluation", "epoch", "summary"},
    "## ranks/": {"start", "train_interval", "epoch", "evaluation", "segments"},
}


@pytest.fixture(scope="module", params=["ddp", "daso"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of a run's metrics and of its ranks, by the heading of their chapter in the documentation."""
    folder = tmp_path_factory.mktemp(request.param)
    words = [f"strategy={request.param}", "dataset=digits", "model=small_cnn", "launcher=simulated"]
    words += ["train.epochs=3", "cluster.nodes=2", "cluster.ranks_per_node=2", f"results_dir={folder}"]
    assert run(words) == 0
    (path,) = (status.parent for status in folder.rglob("status.json"))
    of_ranks = [row for file in (path / "ranks").glob("*.jsonl") for row in read_records(file).rows]
    return {"## metrics.jsonl": read_records(path / "metrics.jsonl").rows, "## ranks/": of_ranks}


@pytest.mark.parametrize("heading", KINDS)
def test_the_documentation_names_every_field_that_a_run_writes(rows: dict[str, list[Row]], heading: str):
    assert {row["kind"] for row in rows[heading]} == KINDS[heading]
    common = DOCS[DOCS.index("Every row has") : DOCS.index("**`start`**")]
    for row in rows[heading]:
        # The `start` and `epoch` rows of ranks are those of metrics.jsonl, and described there.
        place = "## metrics.jsonl" if row["kind"] in ("start", "epoch") else heading
        chapter = DOCS[DOCS.index(place) :]
        chapter = chapter[: chapter.index("\n## ", 3)]
        text = common + chapter[chapter.index(f"**`{row['kind']}`**") :]
        assert set(row) - set(re.findall(r"[`{]([a-z0-9_]+)[.`]", text)) == set(), row["kind"]


@pytest.mark.parametrize("kind", [StartRow, TrainIntervalRow])
def test_a_reader_has_the_fields_of_the_rows_that_are_written(
    rows: dict[str, list[Row]], kind: type[RecordRow]
):
    row = next(row for row in rows["## ranks/"] if row["kind"] == kind.kind)
    names = {field.name for field in fields(kind)}
    assert names - {"still_cached"} == set(row) - {"kind"}, "`still_cached` is of a packed file"
    read = kind.read({**row, "extra": 1} | {"samples": 3})
    assert (read.samples, read.step) == (3, row["step"])
    assert kind.read({}).step is None
