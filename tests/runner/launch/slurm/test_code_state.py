"""A run is of the code it was submitted with, hours later: told when it is not, or kept as a copy."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_cases import a_run

from daso_bench.runner.launch.slurm import request
from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that was submitted with what is here."""
    made, _ = a_run(tmp_path / "results")
    request.record_code(made, request.code_state())
    return made


def test_what_is_unchanged_passes(run: RunDirectory) -> None:
    request.check_code(run)
    state = read_json(run.path / request.CODE_FILE)
    assert set(state) == {"python", "torch", "commit", "code"}
    assert re.fullmatch("[0-9a-f]{16}", state["code"])


def test_another_commit_with_the_same_files_passes(run: RunDirectory) -> None:
    write_json(run.path / request.CODE_FILE, request.code_state() | {"commit": "0" * 40})
    request.check_code(run)


@pytest.mark.parametrize("key", ["python", "torch", "code"])
def test_what_has_changed_is_refused_with_both_states_and_the_ways_out(run: RunDirectory, key: str) -> None:
    now = str(request.code_state()[key])
    write_json(run.path / request.CODE_FILE, request.code_state() | {key: "0.0.0-before"})
    with pytest.raises(ConfigError) as caught:
        request.check_code(run)
    message = str(caught.value)
    assert f"changed since the run was submitted: {key} 0.0.0-before -> {now[:12]};" in message
    assert f"daso-bench resume {run.path}" in message
    assert "launcher.snapshot=true" in message


def test_a_run_that_was_never_submitted_is_not_checked(tmp_path: Path) -> None:
    made, _ = a_run(tmp_path / "results")
    request.check_code(made)


def package(folder: Path) -> Path:
    """A small one, laid out as ours."""
    for name, text in {
        "runner/a.py": "a = 1", "conf/launcher/b.yaml": "b: 1", "strategies/c.py": "", "models/d.py": "",
        "datasets/e.py": "", "__init__.py": "", "tests/test_f.py": "", "docs/g.md": "", "results/h.json": "",
        ".git/config": "", "runner/__pycache__/a.pyc": "", ".venv/lib.py": "",
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("file", "text", "counts"),
    [
        ("runner/a.py", "a = 2", True),
        ("conf/launcher/b.yaml", "b: 2", True),
        ("strategies/new.py", "", True),
        ("runner/deep/er/new.py", "", True),
        ("tests/test_f.py", "changed", False),
        ("docs/g.md", "changed", False),
        ("runner/__pycache__/x.py", "changed", False),
        ("results/new.yaml", "", False),
    ],
)
def test_the_hash_is_over_code_and_configuration(tmp_path: Path, file: str, text: str, counts: bool) -> None:
    here = package(tmp_path)
    before = request.code_hash(here)
    (here / file).parent.mkdir(parents=True, exist_ok=True)
    (here / file).write_text(text)
    assert (request.code_hash(here) != before) == counts


def test_a_file_that_moves_or_splits_changes_the_hash(tmp_path: Path) -> None:
    here = package(tmp_path)
    before = request.code_hash(here)
    (here / "runner" / "a.py").rename(here / "models" / "a.py")
    assert request.code_hash(here) != before


def test_a_snapshot_leaves_out_tests_results_and_hidden_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "PACKAGE", package(tmp_path / "package"))
    copy = request.snapshot(tmp_path)
    assert copy == tmp_path / f"code-{request.code_hash(request.PACKAGE)}"
    names = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
    assert names == {
        "daso_bench/__init__.py", "daso_bench/runner/a.py", "daso_bench/conf/launcher/b.yaml",
        "daso_bench/strategies/c.py", "daso_bench/models/d.py", "daso_bench/datasets/e.py",
    }  # fmt: skip


def test_a_snapshot_is_made_once_for_each_state_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = package(tmp_path / "package")
    monkeypatch.setattr(request, "PACKAGE", here)
    first = request.snapshot(tmp_path)
    mark = first / "daso_bench" / "mark"
    mark.touch()
    assert request.snapshot(tmp_path) == first
    assert mark.exists()
    (here / "runner" / "a.py").write_text("a = 2")
    second = request.snapshot(tmp_path)
    assert second != first
    assert (first / "daso_bench" / "runner" / "a.py").read_text() == "a = 1"


def test_a_snapshot_that_was_cut_off_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "PACKAGE", package(tmp_path / "package"))
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(request.shutil, "copytree", full)
        with pytest.raises(OSError, match="No space"):
            request.snapshot(tmp_path)
    copy = request.snapshot(tmp_path)
    assert (copy / "daso_bench" / "runner" / "a.py").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [copy.name, "package"]


def test_the_run_from_a_snapshot_finds_the_code_it_was_submitted_with(tmp_path: Path) -> None:
    """The copy comes before the installed package, and is the same to the last byte."""
    copy = request.snapshot(tmp_path)
    ask = "from daso_bench.runner.launch.slurm.request import *; print(PACKAGE, code_hash(PACKAGE))"
    done = subprocess.run(
        [sys.executable, "-c", ask], env={**os.environ, "PYTHONPATH": str(copy)}, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(copy / "daso_bench"), request.code_hash(request.PACKAGE)]
