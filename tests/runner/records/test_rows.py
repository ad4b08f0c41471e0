"""The kinds of rows: what a run writes parses strictly, and docs/records.md names every field."""

import dataclasses
import re
from pathlib import Path

import pytest

import daso_bench
from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.records.rows import (
    EpochRow,
    EvaluationRow,
    RecordRow,
    SegmentsRow,
    SentRow,
    StartRow,
    SummaryRow,
    TrainIntervalRow,
)

OF_METRICS = {row.kind: row for row in (StartRow, EvaluationRow, EpochRow, SummaryRow)}
OF_RANK = {row.kind: row for row in (StartRow, TrainIntervalRow, EpochRow, SentRow, SegmentsRow)}
DOCS = (Path(daso_bench.__file__).parent / "docs" / "records.md").read_text()


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
def test_what_a_run_writes_parses_strictly(tmp_path: Path, strategy: str):
    words = [f"strategy={strategy}", "dataset=digits", "model=small_cnn", "launcher=simulated"]
    words += ["train.epochs=3", "cluster.nodes=2", "cluster.ranks_per_node=2", f"results_dir={tmp_path}"]
    assert run(words) == 0
    (path,) = (status.parent for status in tmp_path.rglob("status.json"))
    kinds = set()
    files = [(path / "metrics.jsonl", OF_METRICS)]
    files += [(file, OF_RANK) for file in (path / "ranks").glob("*.jsonl")]
    for file, of_file in files:
        for row in read_records(file).rows:
            kinds.add(type(of_file[row["kind"]].parse(row)))
    assert kinds == {*OF_METRICS.values(), *OF_RANK.values()}


def test_an_unknown_or_a_missing_field_is_refused_and_reading_takes_what_is_there():
    row = {"kind": "segments", "attempt": 1, "step": 2, "samples": 3, "extra": 4}
    with pytest.raises(ValueError, match=r"unknown \['extra'\], missing \['epoch', 'process_s', "):
        SegmentsRow.parse(row)
    with pytest.raises(ValueError, match="row 'segments' as 'train_interval'"):
        TrainIntervalRow.parse(row)
    read = SegmentsRow.read(row)
    assert (read.step, read.samples, read.wall_s) == (2, 3, None)


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        *(("## metrics.jsonl", kind) for kind in OF_METRICS.values()),
        *(("## ranks/", kind) for kind in OF_RANK.values() if kind not in OF_METRICS.values()),
    ],
)
def test_the_documentation_names_every_field(heading: str, kind: type[RecordRow]):
    chapter = DOCS[DOCS.index(heading) :]
    chapter = chapter[: chapter.index("\n## ", 3)]
    common = DOCS[DOCS.index("Every row has") : DOCS.index("**`start`**")]
    text = common + chapter[chapter.index(f"**`{kind.kind}`**") :]
    names = set(re.findall(r"[`{]([a-z0-9_]+)[.`]", text))
    finals = {f"{which}_{metric}" for which in ("final", "best") for metric in ("top5", "pixel_accuracy")}
    assert {field.name for field in dataclasses.fields(kind)} - names - finals == set()
