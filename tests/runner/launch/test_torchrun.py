"""`launcher=torchrun`: the directory is made, the line is printed, torchrun's processes are a run's ranks."""

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runs import Awkward, config

from daso_bench.runner.cli import main
from daso_bench.runner.config.launchers import TorchrunConfig
from daso_bench.runner.launch import local, worker
from daso_bench.runner.records.json_lines import read_json, read_records, surviving
from daso_bench.runner.records.run_directory import RunDirectory

HERE = Path(__file__).parents[1]
WORKER = "daso_bench.runner.launch.worker"
pytestmark = pytest.mark.timeout(240)


def python(*words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "PYTHONPATH": str(HERE), **environ},
        capture_output=True,
        text=True,
        timeout=worker.FIND_S,
        check=False,
    )


def torchrun(directory: RunDirectory, processes: int) -> "subprocess.CompletedProcess[str]":
    options = ("--standalone", f"--nproc-per-node={processes}")
    return python("torch.distributed.run", *options, "-m", WORKER, str(directory.path))


def learnt(directory: RunDirectory) -> list[tuple[object, ...]]:
    rows = surviving(read_records(directory.metrics).rows)
    found = [row for row in rows if row["kind"] in ("evaluation", "epoch")]
    return [
        (row["kind"], row["step"], row["samples"], row.get("accuracy"), row["train_loss"]) for row in found
    ]


def test_torchrun_trains_what_the_local_launcher_trains(tmp_path: Path):
    cfg = config("ddp", ranks=[1, 1], results=tmp_path, model=Awkward(), epochs=2)
    own = RunDirectory.create(cfg.tree, tmp_path / "local")
    assert local.launch(own, ranks=2, threads=1, port=None, stall_s=60).status == "finished"
    # On a core each, where there are as many: torchrun binds nobody.
    pin = len(os.sched_getaffinity(0)) > 1
    other = dataclasses.replace(cfg, launcher=TorchrunConfig(threads_per_rank=1, pin=pin))
    directory = RunDirectory.create(other.tree, tmp_path / "torchrun")
    done = torchrun(directory, 2)
    assert done.returncode == 0, done.stderr
    assert directory.status()["status"] == "finished"
    assert learnt(directory) == learnt(own)
    environment = read_json(directory.environment)
    assert environment["world"] == "torchrun"
    assert [row["rank"] for row in environment["ranks"]] == [0, 1]
    assert not pin or [len(row["cores"]) for row in environment["ranks"]] == [1, 1]
    assert not pin or environment["ranks"][0]["cores"] != environment["ranks"][1]["cores"]
    # A finished run is not trained again, and rank 1 looks for no supervisor.
    torchruns = {"TORCHELASTIC_RUN_ID": "again", "WORLD_SIZE": "2", "GROUP_RANK": "0"}
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(python, WORKER, str(directory.path), **torchruns, RANK=rank, LOCAL_RANK=rank)
            for rank in ("0", "1")
        ]
    ends = [(again.result().returncode, "finished already" in again.result().stderr) for again in both]
    assert ends == [(0, True), (0, False)]


def test_a_failing_rank_fails_torchrun_and_the_run(tmp_path: Path):
    cfg = config("ddp", ranks=[1], results=tmp_path, epochs=2)
    other = dataclasses.replace(cfg, launcher=TorchrunConfig(threads_per_rank=1))
    directory = RunDirectory.create(other.tree, tmp_path)
    done = torchrun(directory, 2)
    assert done.returncode != 0
    assert "2 processes were started, the run asks for 1 ranks" in done.stderr
    assert directory.status()["status"] == "failed"


def test_the_line_to_start_is_printed_with_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main.run(["strategy=ddp", "launcher=torchrun"]) == 0
    said = capsys.readouterr().out
    (made,) = (tmp_path / "results" / "runs").iterdir()
    assert f"-m daso_bench.runner.launch.worker {made}" in said
    assert "--nnodes=2" in said
    assert RunDirectory.open(made).status()["status"] == "queued"
    assert main.run(["resume", str(made)]) == 0
    assert f"-m daso_bench.runner.launch.worker {made}" in capsys.readouterr().out
