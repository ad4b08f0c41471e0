"""The run directory: made once, held by one, and its status always readable."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from daso_bench.runner.records import json_lines, run_directory
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError


def config(run_id: str = "ddp-s0-12345678", study: str = "runs") -> dict[str, Any]:
    return {"study": {"name": study}, "run": {"id": run_id, "tag": "1e3", "name": "no"}, "seed": 0}


def make(root: Path, **names: str) -> RunDirectory:
    return RunDirectory.create(config(**names), root)


def test_a_new_directory_holds_the_config_and_waits(tmp_path: Path) -> None:
    directory = make(tmp_path)
    assert directory.path == tmp_path / "runs" / "ddp-s0-12345678"
    assert OmegaConf.to_container(OmegaConf.load(directory.config)) == config()  # text stays text
    assert yaml.safe_load(directory.config.read_text("utf-8")) == config()
    status = directory.status()
    assert (status["status"], status["run_id"], status["study"]) == ("queued", directory.run_id, "runs")
    assert status["attempts"] == []
    assert directory.state() == "queued"
    assert directory.rank_log(3).parent.is_dir()
    assert directory.rank_records(3).parent.is_dir()
    assert directory.checkpoints.is_dir()


def test_attempts_follow_each_other_to_the_finish(tmp_path: Path) -> None:
    directory = make(tmp_path)
    with directory.lock():
        assert directory.begin_attempt(timing={"valid": False, "reasons": ["x"]}) == 1
        assert directory.state() == "running"
        assert directory.status()["status"] == "running"
        directory.update(progress={"step": 3})
        directory.end_attempt("failed", "rank 1: boom")
    assert directory.state() == "resumable"
    with directory.lock():
        assert directory.begin_attempt() == 2
        assert directory.status()["reason"] is None
        directory.end_attempt("finished", None, summary={"loss": float("inf")}, reached=True)
    status = directory.status()
    assert [(a["number"], a["status"], a["reason"]) for a in status["attempts"]] == [
        (1, "failed", "rank 1: boom"),
        (2, "finished", None),
    ]
    assert all(a["started_unix"] <= a["ended_unix"] and a["pid"] == os.getpid() for a in status["attempts"])
    assert (status["progress"], status["timing"]["reasons"]) == ({"step": 3}, ["x"])
    assert status["summary"] == {"loss": float("inf")}
    assert directory.state() == "finished"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("finished", "finished"),
        ("diverged", "finished"),
        ("failed", "resumable"),
        ("cancelled", "resumable"),
        ("timed_out", "resumable"),
    ],
)
def test_what_has_a_result_is_finished_and_the_rest_may_go_on(
    tmp_path: Path, status: str, state: str
) -> None:
    directory = make(tmp_path)
    with directory.lock():
        directory.begin_attempt()
        directory.end_attempt(status, None)
    assert directory.state() == state
    with pytest.raises(ConfigError, match=r"run\.repeat=1" if state == "finished" else "daso-bench resume"):
        make(tmp_path)


def test_the_holder_of_a_run_is_named_and_a_crash_frees_it(tmp_path: Path) -> None:
    directory = make(tmp_path)
    code = (
        "import time; from pathlib import Path\n"
        "from daso_bench.runner.records.run_directory import RunDirectory\n"
        f"directory = RunDirectory.open(Path({str(directory.path)!r}))\n"
        "with directory.lock():\n    directory.begin_attempt(); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for attempt in (lambda: directory.lock().__enter__(), lambda: make(tmp_path)):
            with pytest.raises(ConfigError, match=f"{directory.run_id} is being run by pid {other.pid} on "):
                attempt()
        assert directory.state() == "running"
        other.kill()
    assert directory.state() == "resumable"
    assert (directory.status()["status"], directory.status()["reason"]) == ("failed", "supervisor gone")
    with directory.lock():
        assert directory.begin_attempt() == 2
        first = directory.status()["attempts"][0]
        assert (first["status"], first["reason"], first["ended_unix"]) == ("failed", "supervisor gone", None)


def test_a_half_made_or_queued_directory_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "ddp-s0-12345678"
    path.mkdir(parents=True)
    assert RunDirectory(path).state() == "new"
    assert make(tmp_path).state() == "queued"
    assert make(tmp_path).state() == "queued"


def test_records_of_unknown_origin_are_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "ddp-s0-12345678"
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="move it away"):
        make(tmp_path)
    assert [file.name for file in path.iterdir() if file.name != ".lock"] == ["metrics.jsonl"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
@pytest.mark.parametrize("key", ["run_id", "study"])
def test_names_cannot_leave_the_results_folder(tmp_path: Path, name: str, key: str) -> None:
    with pytest.raises(ConfigError, match="must be the name of a folder"):
        make(tmp_path, **{key: name})


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^results_dir=/proc/x: cannot be written: No such file"):
        make(Path("/proc/x"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"):
        make(tmp_path / "file")


def test_a_full_disk_is_the_machines_fault_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(json_lines.os, "fsync", full)
    with pytest.raises(MachineError, match="cannot be written: No space left on device"):
        directory.update(status="finished")
    with pytest.raises(MachineError, match=f"results_dir={tmp_path}: cannot be written: No space"):
        make(tmp_path, run_id="other")
    assert directory.status()["status"] == "queued"
    monkeypatch.undo()
    assert make(tmp_path, run_id="other").state() == "queued"


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make(tmp_path)

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(run_directory.fcntl, "flock", no_locks)
    with pytest.raises(MachineError, match="files cannot be locked"), directory.lock():
        pass
    assert directory.state() == "queued"


def test_what_is_no_run_directory_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        RunDirectory.open(tmp_path)
    directory = make(tmp_path)
    for text in ("", "{", "[]", '{"status": "finished"}'):
        directory.status_file.write_text(text)
        with pytest.raises(ConfigError, match=r"status\.json: (cannot be read|holds no status)"):
            directory.status()
    directory.status_file.unlink()
    with pytest.raises(ConfigError, match=r"no status\.json"):
        directory.status()


def test_a_run_that_another_start_is_just_setting_up_is_waited_for(tmp_path: Path) -> None:
    directory = RunDirectory.create(config(), tmp_path)
    status = directory.status_file.read_text()
    directory.status_file.unlink()
    with directory.lock():
        later = threading.Timer(0.1, lambda: directory.status_file.write_text(status))
        later.start()
        assert RunDirectory(directory.path).status()["status"] == "queued"
        later.join()
    directory.status_file.unlink()
    with pytest.raises(ConfigError, match=r"no status\.json"):
        RunDirectory(directory.path).status()
