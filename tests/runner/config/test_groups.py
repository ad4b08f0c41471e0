"""`list` and `status`: read from the files, and quick because nothing heavy is imported."""

import re
from pathlib import Path

from daso_bench.runner.config import groups
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.studies.overview import states


def test_every_yaml_file_says_what_it_is() -> None:
    for group in groups.GROUPS:
        entries = groups.entries(group)
        assert entries, group
        for name, description in entries.items():
            assert len(description) > 5, f"{group}/{name} has no comment in its first line"


def test_the_groups_are_the_folders() -> None:
    folders = {path.name for path in groups.CONF.iterdir() if path.is_dir()} - {
        "claims",
        "convergence",
        "published",
    }
    assert folders == set(groups.GROUPS)


def test_a_group_is_listed_by_singular_and_plural_with_its_default() -> None:
    text = groups.listing("schedules")
    assert text == groups.listing("schedule")
    assert re.search(r"^schedules \(schedule=NAME\):$", text, re.MULTILINE)
    assert re.search(r"^  cosine  .*half a cosine.*\(default\)$", text, re.MULTILINE)
    assert "+study=NAME" in groups.listing("studies")


def test_a_folder_of_ones_own_comes_first(tmp_path: Path) -> None:
    (tmp_path / "strategy").mkdir()
    text = "# @package _global_\n#\n# of my own\n_target_: a.B\nx: 1\n"
    (tmp_path / "strategy" / "mine.yaml").write_text(text)
    (tmp_path / "strategy" / "bare.yaml").write_text("x: 1\n")
    entries = groups.entries("strategy", [tmp_path])
    assert entries["mine"] == "of my own"
    assert entries["bare"] == ""
    assert "ddp" in entries
    assert groups.keys("strategy", "mine", [tmp_path]) == ["x"]
    assert groups.keys("strategy", "nosuch", [tmp_path]) == []


def make_run(root: Path, study: str, name: str) -> RunDirectory:
    return RunDirectory.create({"study": {"name": study}, "run": {"id": name}}, root)


def test_status_works_for_a_run_a_study_and_a_results_folder(tmp_path: Path) -> None:
    first = make_run(tmp_path, "one", "a")
    with first.lock():
        first.begin_attempt()
        first.end_attempt("failed", "rank 1: SIGKILL")
    make_run(tmp_path, "one", "b")
    make_run(tmp_path, "two", "a")
    rows = {name: status["status"] for name, status in states(tmp_path)}
    assert rows == {"one/a": "failed", "one/b": "queued", "two/a": "queued"}
    assert [name for name, _ in states(tmp_path / "one")] == ["a", "b"]
    ((name, status),) = states(first.path)
    assert (name, status["reason"]) == ("a", "rank 1: SIGKILL")


def test_a_damaged_status_is_told_and_hides_nobody(tmp_path: Path) -> None:
    broken = make_run(tmp_path, "one", "a")
    broken.status_file.write_text('{"status": ')
    make_run(tmp_path, "one", "b")
    rows = dict(states(tmp_path))
    assert rows["one/a"]["status"] == "damaged"
    assert str(broken.status_file) in rows["one/a"]["reason"]
    assert rows["one/b"]["status"] == "queued"
