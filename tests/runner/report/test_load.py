"""One run directory, whatever is left of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daso_bench.runner.report.load import find_runs, load_run

Make = Callable[..., Path]


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "environment.json"])
@pytest.mark.parametrize("content", [None, "", "\0\0", "[1, 2]", '{"a"', "\xff", "a: ${b", "- ]"])
def test_a_lost_file_is_named(make_run: Make, tmp_path: Path, name: str, content: str | None) -> None:
    path = make_run(tmp_path, "daso", 3)
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content.encode("latin-1"))
    run = load_run(path, "place")
    assert (run.run_id, run.strategy, len(run.evaluations)) == (path.name, "daso", 4)
    readable = name == "config.yaml" and content == "a: ${b"
    assert run.damage == [] if readable else run.damage[0].startswith(f"place/{name}: ")


def test_a_folder_instead_of_a_file(make_run: Make, tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").mkdir()
    run = load_run(path, "place")
    assert run.evaluations == []
    assert "place/metrics.jsonl: Is a directory" in run.damage


def test_runs_are_found_at_any_depth_and_not_inside_each_other(make_run: Make, tmp_path: Path) -> None:
    inside = make_run(tmp_path / "a" / "b")
    (inside / "checkpoints").mkdir()
    (inside / "checkpoints" / "status.json").write_text("{}")
    other = make_run(tmp_path / "a", "daso")
    assert list(find_runs(tmp_path)) == [inside, other]
    assert list(find_runs(inside)) == [inside]


def test_a_missing_summary_is_made_up_for_by_the_last_evaluation(make_run: Make, tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path, status="failed", train_s=50.0), "place")
    assert run.summary == {}
    assert (run.train_s, run.samples, run.samples_per_s, run.final) == (200.0, 4000, 20.0, 0.78)
    assert not run.counted
