"""A run is of the code it was submitted with, hours later: told when it is not, or kept as a copy."""

from pathlib import Path

import pytest
from slurm_cases import a_run

from daso_bench.runner.launch.slurm import request
from daso_bench.runner.records.json_lines import write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run that was submitted with what is here."""
    made, _ = a_run(tmp_path / "results")
    write_json(made.path / request.CODE_FILE, request.code_state())
    return made


def test_the_same_files_pass_and_a_run_that_was_never_submitted(run: RunDirectory, tmp_path: Path) -> None:
    request.check_code(run)
    write_json(run.path / request.CODE_FILE, request.code_state() | {"commit": "0" * 40})
    request.check_code(run)
    request.check_code(a_run(tmp_path / "others")[0])


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


def test_a_snapshot_is_made_once_for_each_state_of_the_code_without_tests_and_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = package(tmp_path / "package")
    monkeypatch.setattr(request, "PACKAGE", here)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(request.shutil, "copytree", full)
        with pytest.raises(OSError, match="No space"):
            request.snapshot(tmp_path)
    first = request.snapshot(tmp_path)  # the one that was cut off is made again
    assert first == tmp_path / f"code-{request.code_hash(here)}"
    names = {str(file.relative_to(first)) for file in first.rglob("*") if file.is_file()}
    assert names == {
        "daso_bench/__init__.py", "daso_bench/runner/a.py", "daso_bench/conf/launcher/b.yaml",
        "daso_bench/strategies/c.py", "daso_bench/models/d.py", "daso_bench/datasets/e.py",
    }  # fmt: skip
    mark = first / "daso_bench" / "mark"
    mark.touch()
    assert request.snapshot(tmp_path) == first
    assert mark.exists()
    (here / "runner" / "a.py").rename(here / "models" / "a.py")
    second = request.snapshot(tmp_path)
    assert second != first
    assert (first / "daso_bench" / "runner" / "a.py").is_file()
    assert not (second / "daso_bench" / "runner" / "a.py").exists()
