"""Records: what a kill leaves is read, and what it repeated is told apart."""

import json
import math
import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import daso_bench
from daso_bench.runner.cli.main import run
from daso_bench.runner.records import json_lines
from daso_bench.runner.records.json_lines import RecordWriter, Row, read_records, surviving
from daso_bench.runner.records.rows import (
    EpochRow,
    EvaluationRow,
    RankEvaluationRow,
    RecordRow,
    SegmentsRow,
    StartRow,
    SummaryRow,
    TrainIntervalRow,
)
from daso_bench.runner.records.target_crossing import crossing
from daso_bench.runner.records.trees import below, flatten, nested


def restart_rows(start_row: bool = False) -> list[json_lines.Row]:
    """FA2's restart: 2 s a step, saved at 40, killed after 50; its clock goes on from the save."""
    rows: list[json_lines.Row] = []
    if start_row:
        rows.append({"kind": "start", "attempt": 1, "step": 0, "samples": 0, "resumed_from": None})
    steps = [(1, step) for step in range(1, 51)] + [(2, step) for step in range(41, 61)]
    for attempt, step in steps:
        if start_row and (attempt, step) == (2, 41):
            rows.append({"kind": "start", "attempt": 2, "step": 40, "samples": 40, "resumed_from": "step_40"})
        row = {"kind": "evaluation", "attempt": attempt, "step": step, "samples": step}
        rows.append(row | {"train_s": 2.0 * step, "accuracy": step / 100})
    return rows


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_odd_numbers_survive_valid_json(tmp_path: Path, odd: float) -> None:
    path = tmp_path / "m.jsonl"
    with RecordWriter(path) as writer:
        writer.write({"loss": odd, "missing": None, "nested": {"list": [odd, 1.5]}, "pair": (1, odd)})
    text = path.read_text()

    def refuse(constant: str) -> float:
        raise AssertionError(f"bare {constant} is not JSON")

    json.loads(text, parse_constant=refuse)
    (row,) = read_records(path).rows
    for value in (row["loss"], row["nested"]["list"][0], row["pair"][1]):
        assert isinstance(value, float)
        assert value == odd or (math.isnan(value) and math.isnan(odd))
    assert row["missing"] is None
    assert row["nested"]["list"][1] == 1.5


TORN = '{"step": 1, "acc": 0.1}\n{"step": 2, "acc": 0.2}{"step": 2, "acc": 0.2}\n{"step": 3'


@pytest.mark.parametrize(
    ("tail", "steps", "last"),
    [("", [1, 2, 2], True), ("\n\n", [1, 2, 2], True), ('\n{"step": 4}\n', [1, 2, 2, 4], False)],
    ids=["cut", "then empty", "then good"],
)
def test_torn_file(tmp_path: Path, tail: str, steps: list[int], last: bool) -> None:
    path = tmp_path / "torn.jsonl"
    path.write_text(TORN + tail)
    read = read_records(path)
    assert [row["step"] for row in read.rows] == steps
    where = "last line" if last else "DAMAGE IN THE MIDDLE"
    assert read.damage == [
        "line 2 (DAMAGE IN THE MIDDLE): several records; whole records used: 2",
        f"line 3 ({where}): the line is cut; whole records used: 0",
    ]


@pytest.mark.parametrize(
    "line", [b"17", b'"text"', b"null", b"\xff\xfe{", b"\0\0\0\0", b"step,acc", b'{"a":}', b"[" * 100_000]
)
def test_what_is_no_record_is_reported_and_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    read = read_records(path)
    assert [row["step"] for row in read.rows] == [1, 2]
    assert read.damage == ["line 2 (DAMAGE IN THE MIDDLE): not a record; whole records used: 0"]


def test_appending_starts_on_a_fresh_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(TORN)
    with RecordWriter(path) as writer:
        writer.write({"step": 4})
        assert path.read_text().endswith('{"step": 4}\n'), (
            "a row must be in the file before the writer closes"
        )
    with RecordWriter(path) as writer:
        writer.write({"step": 5})
    assert [row["step"] for row in read_records(path).rows] == [1, 2, 2, 4, 5]
    assert path.read_text().count("\n\n") == 0


def test_json_is_old_or_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    json_lines.write_json(path, {"status": "running", "loss": math.nan})
    with pytest.raises(TypeError):
        json_lines.write_json(path, {"status": object()})

    def no_space(*_: object) -> None:
        raise OSError(28, "no space left on device")

    for step in ("fsync", "replace"):
        monkeypatch.setattr(os, step, no_space)
        with pytest.raises(OSError, match="no space"):
            json_lines.write_json(path, {"status": "finished"})
        monkeypatch.undo()
    value = json_lines.read_json(path)
    assert value["status"] == "running"
    assert math.isnan(value["loss"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize("start_row", [False, True])
def test_later_attempt_wins(start_row: bool) -> None:
    rows = restart_rows(start_row)
    kept = [row for row in surviving(rows) if row["kind"] == "evaluation"]
    assert [row["step"] for row in kept] == list(range(1, 61))
    assert [row["attempt"] for row in kept] == [1] * 40 + [2] * 20
    assert len([row for row in rows if row["kind"] == "evaluation"]) == 70
    found = crossing(kept, 0.6)
    assert found is not None
    assert found.stamp_s == 120.0
    assert kept[-1]["train_s"] / kept[-1]["step"] == 2.0


def test_an_attempt_that_recorded_nothing_but_its_start_still_replaces() -> None:
    rows = [
        {"kind": "start", "attempt": 1, "step": 0},
        {"kind": "evaluation", "attempt": 1, "step": 10},
        {"kind": "evaluation", "attempt": 1, "step": 20},
        {"kind": "start", "attempt": 2, "step": 10},
        {"kind": "evaluation", "attempt": 2, "step": 30},
        {"kind": "start", "attempt": 3, "step": 0},
    ]
    kept = [(row["kind"], row["attempt"]) for row in surviving(rows)]
    assert kept == [("start", 3)]


NAMES = st.text("abc_", min_size=1, max_size=3)
LEAVES = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3))


def test_lists_and_mappings_without_keys_are_values():
    tree = {"train": {"epochs": 3, "more": {}}, "seed": 0, "cluster": {"speeds": [1, {"a": 2}]}}
    flat = {"train.epochs": 3, "train.more": {}, "seed": 0, "cluster.speeds": [1, {"a": 2}]}
    assert flatten(tree) == flat
    assert list(flatten(tree)) == list(flat), "in the order of the tree"
    assert nested(flat) == tree


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_nesting_undoes_flattening(tree: dict[str, Any]):
    assert nested(flatten(tree)) == tree


def test_a_key_lies_below_itself_and_below_what_its_dots_say():
    assert below("train", ["train"])
    assert below("train.target", ["model", "train"])
    assert not below("training", ["train"])
    assert not below("train", ["train.target"])
    assert not below("train", [])


DOCS = (Path(daso_bench.__file__).parent / "docs" / "records.md").read_text()
KINDS: dict[str, tuple[type[RecordRow], ...]] = {
    "## metrics.jsonl": (StartRow, EvaluationRow, EpochRow, SummaryRow),
    "## ranks/": (StartRow, TrainIntervalRow, EpochRow, RankEvaluationRow, SegmentsRow),
}


@pytest.fixture(scope="module", params=["ddp", "daso"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    """The rows of a run's metrics and of its ranks, by the heading of their chapter in the documentation."""
    folder = tmp_path_factory.mktemp(request.param)
    words = [f"strategy={request.param}", "dataset=digits", "model=mlp", "launcher=simulated"]
    words += ["train.epochs=3", "cluster.nodes=2", "cluster.ranks_per_node=2", f"results_dir={folder}"]
    assert run(words) == 0
    (path,) = (status.parent for status in folder.rglob("status.json"))
    of_ranks = [row for file in (path / "ranks").glob("*.jsonl") for row in read_records(file).rows]
    return {"## metrics.jsonl": read_records(path / "metrics.jsonl").rows, "## ranks/": of_ranks}


@pytest.mark.parametrize("heading", KINDS)
def test_the_documentation_names_every_field_that_a_run_writes(rows: dict[str, list[Row]], heading: str):
    kinds = {kind.kind: kind for kind in KINDS[heading]}
    assert {row["kind"] for row in rows[heading]} == set(kinds)
    common = DOCS[DOCS.index("Every row has") : DOCS.index("**`start`**")]
    for row in rows[heading]:
        # The `start` and `epoch` rows of ranks are those of metrics.jsonl, and described there.
        place = "## metrics.jsonl" if row["kind"] in ("start", "epoch") else heading
        chapter = DOCS[DOCS.index(place) :]
        chapter = chapter[: chapter.index("\n## ", 3)]
        text = common + chapter[chapter.index(f"**`{row['kind']}`**") :]
        kind = kinds[row["kind"]]
        names = set(row) | {field.name for field in fields(kind)} - set(kind.merged)
        assert names - set(re.findall(r"[`{]([a-z0-9_]+)[.`]", text)) == set(), row["kind"]


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
