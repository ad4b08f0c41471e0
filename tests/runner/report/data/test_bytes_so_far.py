"""What had been sent up to each evaluation: summed over ranks, whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sharing import compared, tables_of

from daso_bench.runner.records.json_lines import RecordWriter
from daso_bench.runner.report.data.run_files import with_bytes
from daso_bench.runner.report.sections.runs import RunSection

Make = Callable[..., Path]
START = {"kind": "start", "attempt": 1, "step": 0, "ranks_of_nodes": [1, 1]}
JUDGED = [{"kind": "evaluation", "attempt": 1, "index": place, "step": 10 + 10 * place} for place in (0, 1)]


def note(index: int, inter: Any, attempt: int = 1, step: int | None = None) -> dict[str, Any]:
    step = 10 + 10 * index if step is None else step
    sent = {"intra": 1, "inter": inter}
    return {"kind": "evaluation", "attempt": attempt, "index": index, "step": step, "payload_bytes": sent}


def with_notes(path: Path, sent: list[float]) -> Path:
    """Two ranks that have sent half of it each."""
    with RecordWriter(path / "metrics.jsonl") as writer:
        writer.write(START)
    for rank in range(2):
        with RecordWriter(path / "ranks" / f"{rank}.jsonl") as writer:
            for index, total in enumerate(sent):
                writer.write(note(index, int(total / 2)))
    return path


def inter(ranks: list[list[dict[str, Any]]], rows: list[dict[str, Any]] | None = None) -> list[Any]:
    found = with_bytes(JUDGED, [START] if rows is None else rows, ranks)
    return [row.get("payload_bytes_inter") for row in found]


def test_bytes_are_summed_over_ranks():
    assert inter([[START, note(0, 5), note(1, 9)], [START, note(0, 7), note(1, 11)]]) == [12, 20]


@pytest.mark.parametrize(
    "second", [[], [START], [START, note(1, 11)], [START, note(0, None), note(1, 11)], [START, {"kind": "x"}]]
)
def test_a_sum_is_never_partial(second: list[dict[str, Any]]):
    assert inter([[START, note(0, 5), note(1, 9)], second])[0] is None


def test_records_without_a_number_of_ranks_give_no_sum():
    assert inter([[START, note(0, 5)]], rows=[]) == [None, None]


def test_what_a_later_attempt_replaced_counts_nothing():
    again = START | {"attempt": 2, "step": 15}
    first = [START, note(0, 5), note(1, 9), again, note(1, 90, attempt=2)]
    assert inter([first, [START, note(0, 7), note(1, 11), again]]) == [12, None]
    assert inter([first, [START, note(0, 7), again, note(1, 10, attempt=2)]]) == [12, 100]


def test_the_table_of_evaluations_has_both_columns(make_run: Make, tmp_path: Path):
    with_notes(make_run(tmp_path, accuracies=(0.5, 0.7)), [4e6, 8e6])
    rows = tables_of(RunSection, [compared(tmp_path)])["evaluations"]
    assert [(row["payload_bytes_intra"], row["payload_bytes_inter"]) for row in rows] == [(2, 4e6), (2, 8e6)]
