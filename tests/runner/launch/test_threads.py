"""How a run divides this machine's cores: the same in what is foretold and in what is started."""

from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import run_config
from daso_bench.runner.launch import local
from daso_bench.runner.launch.threads import cores_of, processes_of, threads_of
from daso_bench.runner.machine import environment
from daso_bench.runner.studies import duration


@pytest.fixture(autouse=True)
def twelve_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 12)


@pytest.mark.parametrize(
    ("launcher", "threads", "cores"),
    [
        ({}, 3, 12),
        ({"loader_workers": 1}, 2, 12),
        ({"loader_workers": 5}, 1, 24),
        ({"loader_workers": 1, "threads_per_rank": 2}, 2, 12),
    ],
)
def test_auto_leaves_a_core_to_each_loader_worker(launcher: dict[str, Any], threads: int, cores: int) -> None:
    cfg = config(ranks=[2, 2], launcher=launcher)
    assert (processes_of(cfg), threads_of(cfg), cores_of(cfg)) == (4, threads, cores)


def test_virtual_ranks_are_one_process(tmp_path: Path) -> None:
    words = ["launcher=simulated", "cluster=ethernet_1g", "launcher.threads_per_rank=auto"]
    cfg = run_config(words, cwd=tmp_path)
    assert (processes_of(cfg), threads_of(cfg), cores_of(cfg)) == (1, 12, 12)


def test_core_hours_count_loader_workers() -> None:
    found = duration._estimate([config(launcher={"loader_workers": 5})], [3600.0], "tried")
    assert found.core_s == 24 * 3600


@pytest.mark.parametrize(("workers", "said"), [(0, "12 threads"), (1, "11 threads + 1 loader worker")])
def test_a_dry_run_tells_the_threads_that_the_run_takes(
    workers: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[dict[str, Any]] = []

    def launch(directory: Any, **settings: Any) -> local.Outcome:
        started.append(settings)
        return local.Outcome(status="finished", reason=None, exit_code=0, summary={}, details="")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.setattr(local, "warm", lambda: None)
    words = ["cluster.nodes=1", "cluster.ranks_per_node=1", f"launcher.loader_workers={workers}"]
    assert run(["--dry-run", *words]) == 0
    assert f"1 ranks on 1 nodes (1 x 1), {said} each, local" in capsys.readouterr().out
    assert run(words) == 0
    assert [(one["threads"], one["workers"]) for one in started] == [(12 - workers, workers)]
