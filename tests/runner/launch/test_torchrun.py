"""`launcher=torchrun`: the directory is made, the line is printed, torchrun's processes are a run's ranks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_runs import finished, history
from runs import Awkward, config

from daso_bench.runner.cli import main
from daso_bench.runner.launch import worker
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import RunDirectory

pytestmark = pytest.mark.timeout(240)


Ends = Callable[[RunDirectory, str], tuple[int, str]]


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """The exit code and the words of a rank as torchrun starts two of them; this process is it."""

    def ends(directory: RunDirectory, rank: str) -> tuple[int, str]:
        place = {"WORLD_SIZE": "2", "GROUP_RANK": "0", "RANK": rank, "LOCAL_RANK": rank}
        for name, value in {"TORCHELASTIC_RUN_ID": "again", **place}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(worker, "_EARLY", ())  # signals of this process stay as they are
        with pytest.raises(SystemExit) as end:
            worker.main([str(directory.path)])
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().err

    return ends


def test_torchrun_trains_what_the_local_launcher_trains(tmp_path: Path, one_of_two: Ends):
    run: dict[str, Any] = {"ranks": [1, 1], "model": Awkward(), "epochs": 2}
    own, _ = finished(config(**run, results=tmp_path / "local"))
    # On a core each, where there are as many: torchrun binds nobody.
    pin = len(os.sched_getaffinity(0)) > 1
    launcher = {"name": "torchrun", "threads_per_rank": 1, "pin": pin}
    cfg = config(**run, results=tmp_path / "torchrun", launcher=launcher)
    directory = RunDirectory.create(cfg.tree, cfg.results_dir)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "daso_bench.runner.launch.worker", str(directory.path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=worker.FIND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert directory.status()["status"] == "finished"
    assert history(directory) == history(own)
    environment = read_json(directory.environment)
    assert environment["world"] == "torchrun"
    assert [row["rank"] for row in environment["ranks"]] == [0, 1]
    assert not pin or [len(row["cores"]) for row in environment["ranks"]] == [1, 1]
    assert not pin or environment["ranks"][0]["cores"] != environment["ranks"][1]["cores"]
    # A finished run is not trained again, and rank 1 looks for no supervisor.
    code, said = one_of_two(directory, "0")
    assert code == 0
    assert "finished already" in said
    assert one_of_two(directory, "1") == (0, "")


def test_a_start_of_more_processes_than_ranks_fails_the_process_and_the_run(tmp_path: Path, one_of_two: Ends):
    cfg = config(ranks=[1], results=tmp_path, launcher={"name": "torchrun", "threads_per_rank": 1})
    directory = RunDirectory.create(cfg.tree, tmp_path)
    code, said = one_of_two(directory, "0")
    assert code == 3
    assert "2 processes were started, the run asks for 1 ranks" in said
    assert directory.status()["status"] == "failed"


def test_the_line_to_start_is_printed_with_the_directory(here: Path, capsys: pytest.CaptureFixture[str]):
    assert main.run(["strategy=ddp", "launcher=torchrun"]) == 0
    said = capsys.readouterr().out
    (made,) = (here / "results" / "runs").iterdir()
    assert f"-m daso_bench.runner.launch.worker {made}" in said
    assert "--nnodes=2" in said
    assert RunDirectory.open(made).status()["status"] == "queued"
    assert main.run(["resume", str(made)]) == 0
    assert f"-m daso_bench.runner.launch.worker {made}" in capsys.readouterr().out
