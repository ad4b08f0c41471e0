"""Folders that are none and files that cannot be written end in one sentence, never in a traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from asking import code_of

from daso_bench.runner.cli import commands
from daso_bench.runner.machine.folders import writing
from daso_bench.runner.records.run_directory import MACHINE, WRONG_REQUEST
from daso_bench.runner.report import results
from daso_bench.strategies.errors import ConfigError, MachineError

FULL = Path("/dev/full")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "{}"),
        ("status", "{}"),
        ("resume", "{}"),
        ("cancel", "{}"),
        ("evaluate", "{}"),
        ("tensorboard", "{}"),
        ("list", "models", "--config-dir", "{}"),
        ("prepare", "dataset=imagefolder", "dataset.root={}"),
    ],
)
def test_a_file_is_no_folder_and_what_is_not_there_is_none_such(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "afile").touch()
    for name, said in (("afile", "is no folder"), ("nothing", "no such folder")):
        assert code_of(*(word.format(tmp_path / name) for word in words)) == WRONG_REQUEST
        assert f"{name}: {said}" in "".join(capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, MachineError), (errno.EACCES, ConfigError), (errno.EEXIST, ConfigError)],
)
def test_a_full_disk_is_the_machines_fault_and_all_else_can_be_mended(number: int, kind: type[Exception]):
    with pytest.raises(kind, match=f"^out: cannot be written: {os.strerror(number)}$"), writing("out"):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("place", ["afile", "afile/below"])
def test_a_report_that_cannot_be_written_is_refused_in_a_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "afile").touch()
    monkeypatch.setattr(results, "load_runs", lambda *_: [])
    assert code_of("report", str(tmp_path), "--output", str(tmp_path / place)) == WRONG_REQUEST
    said = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / place}: cannot be written: " in said


def test_an_error_of_the_system_that_nobody_expected_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def broken(arguments: list[str]) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", "some/file")

    monkeypatch.setitem(commands.COMMANDS, "list", broken)
    assert code_of("list") == MACHINE
    assert capsys.readouterr().err == "daso-bench: some/file: Permission denied\n"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "models"], MACHINE),
        (["list", "schedules"], MACHINE),  # less than a buffer: Python has it still at its end
        (["status", "nowhere"], WRONG_REQUEST),
    ],
    ids=["long", "short", "none"],
)
def test_an_output_that_is_full_ends_without_a_traceback(words: list[str], code: int):
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with open(FULL, "w") as out:
        command = [sys.executable, "-c", "from daso_bench.runner.cli.main import main; main()", *words]
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, env=environ, text=True, check=False, timeout=60
        )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    if code == MACHINE:
        assert done.stderr == "daso-bench: No space left on device\n"
