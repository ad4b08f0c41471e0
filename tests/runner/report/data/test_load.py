"""One run directory, whatever is left of it."""

import json
import shutil
from pathlib import Path

import pytest
from sharing import Make

from daso_bench.runner.report.data.load import find_runs, load_run, load_runs
from daso_bench.runner.report.show_verdicts import show_verdicts


@pytest.mark.parametrize("name", ["status.json", "config.yaml", "environment.json"])
@pytest.mark.parametrize("content", [None, "", "[1, 2]", "\xff", "a: ${b"])
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


def test_a_copied_run_directory_counts_once_and_is_told_once(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "in"
    first, _ = make_run(runs), make_run(runs, "daso", 3)
    shutil.copytree(first, runs / "backup" / "of_the_first")
    both = load_runs(runs, "test")
    assert [(run.strategy, run.place) for run in both] == [
        ("ddp", f"quick/{first.name}"),
        ("daso", both[1].place),
    ]
    told = f"{first.name} was found twice and counts once: quick/{first.name}, backup/of_the_first"
    assert [run.found_again for run in both] == [told, ""]
    assert show_verdicts(runs, None) == 0
    assert "".join(capsys.readouterr().out.split()).count("".join(told.split())) == 1


def test_of_copies_the_one_that_got_furthest_counts(make_run: Make, tmp_path: Path) -> None:
    """Copied while it ran: the copy stands still."""
    path = make_run(tmp_path)
    early = shutil.copytree(path, tmp_path / "a")
    status = json.loads((early / "status.json").read_text())
    (early / "status.json").write_text(json.dumps(status | {"status": "running"}))
    shutil.copytree(early, tmp_path / "z")
    (run,) = load_runs(tmp_path, "test")
    assert (run.state, run.place, run.copies) == ("finished", f"quick/{path.name}", ("a", "z"))
    assert "was found 3 times" in run.found_again


def test_a_run_that_was_made_again_is_another_run(make_run: Make, tmp_path: Path) -> None:
    for folder, started in (("a", 1000), ("b", 2000)):
        make_run(tmp_path / folder, attempts=[{"number": 1, "started_unix": started, "ended_unix": 2400}])
    assert [run.found_again for run in load_runs(tmp_path, "test")] == ["", ""]
