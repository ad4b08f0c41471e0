"""Launchers: a plug-in runs from a folder outside the tree; processes and cores are the same in --dry-run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import config

from daso_bench.runner import PACKAGE
from daso_bench.runner.cli.main import run
from daso_bench.runner.config.load import load, run_config
from daso_bench.runner.launch import local
from daso_bench.runner.launch.launcher import cores_of, external_launcher, launcher_of, threads_of
from daso_bench.runner.machine import cores
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.strategies.errors import ConfigError


@pytest.fixture(autouse=True)
def twelve_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 12)


@pytest.mark.parametrize(
    ("launcher", "threads", "cores"),
    [
        ({}, 3, 12),
        ({"loader_workers": 1}, 2, 12),
        ({"loader_workers": 5}, 1, 24),
        ({"loader_workers": 1, "threads_per_rank": 2}, 2, 12),
        ({"threads_per_rank": 5}, 5, 20),
    ],
)
def test_auto_leaves_a_core_to_each_loader_worker(launcher: dict[str, Any], threads: int, cores: int) -> None:
    cfg = config(ranks=[2, 2], launcher=launcher)
    assert (launcher_of(cfg).processes(cfg), threads_of(cfg), cores_of(cfg)) == (4, threads, cores)


def test_virtual_ranks_are_one_process(tmp_path: Path) -> None:
    words = ["launcher=simulated", "cluster=ethernet_1g", "launcher.threads_per_rank=auto"]
    cfg = run_config(words, cwd=tmp_path)
    assert (launcher_of(cfg).processes(cfg), threads_of(cfg), cores_of(cfg)) == (1, 12, 12)


@pytest.mark.parametrize(("workers", "said"), [(0, "12 threads"), (1, "11 threads + 1 loader worker")])
def test_a_dry_run_tells_the_threads_that_the_run_takes(
    workers: int, said: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[dict[str, Any]] = []

    def launch(directory: Any, **settings: Any) -> Outcome:
        started.append(settings)
        return Outcome(status="finished", reason=None, exit_code=0, summary={}, details="")

    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.setattr(local, "warm", lambda: None)
    words = ["cluster.nodes=1", "cluster.ranks_per_node=1", f"launcher.loader_workers={workers}"]
    assert run(["--dry-run", *words]) == 0
    assert f"1 ranks on 1 nodes (1 x 1), {said} each, local" in capsys.readouterr().out
    assert run(words) == 0
    assert [(one["threads"], one["workers"]) for one in started] == [(12 - workers, workers)]


@pytest.mark.parametrize(
    ("gpus", "more", "said"),
    [
        (1, [], "4 ranks share 1 GPU, joined by gloo: its times are not valid (launcher.share_gpus=auto)"),
        (3, ["launcher.share_gpus=true"], "4 ranks share 3 GPUs, joined by gloo: its times are not valid"),
        (4, [], None),
        (0, [], None),
        (1, ["cluster.device.kind=cpu"], None),
        (1, ["cluster.device.kind=cuda"], None),  # refused by the ranks, as is the next one
        (1, ["launcher.share_gpus=false"], None),
    ],
)
def test_the_first_command_says_that_ranks_share_a_gpu(
    gpus: int,
    more: list[str],
    said: str | None,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = Outcome(status="finished", reason=None, exit_code=0, summary={}, details="")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(local, "launch", lambda directory, **settings: done)
    monkeypatch.setattr(local, "warm", lambda: None)
    for words in (["--dry-run"], []):
        assert run([*words, "strategy=daso", "model=resnet50", "train.epochs=3", *more]) == 0
        shown = capsys.readouterr().out
        assert ("ranks share" in shown) is (said is not None)
        assert said is None or said in shown


PLUG_IN = """
from dataclasses import dataclass
from typing import ClassVar

from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.launch.local import LocalLauncher
from daso_bench.strategies.errors import ConfigError

@dataclass(frozen=True, kw_only=True)
class QueueConfig(LocalConfig):
    run_by: ClassVar[str] = "launcher_from_outside.QueueLauncher"
    name: str = "queue_of_mine"
    most_ranks: int = 4

class QueueLauncher(LocalLauncher):
    def refuse(self, config):
        most, ranks = config.launcher.most_ranks, config.cluster.ranks
        if ranks > most:
            raise ConfigError(f"launcher.most_ranks={most}: {ranks} ranks")

    def describe(self, config):
        return [f"{self.processes(config)} of mine"]
"""


@pytest.fixture
def outside(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for --config-dir with a launcher of its own; its module is on Python's path."""
    conf = here / "conf"
    (conf / "launcher").mkdir(parents=True)
    keys = yaml.safe_load((PACKAGE / "conf" / "launcher" / "local.yaml").read_text())
    own = {"_target_": "launcher_from_outside.QueueConfig", "name": "queue_of_mine", "most_ranks": 4}
    text = "# A queue of mine\n" + yaml.safe_dump({**keys, **own, "threads_per_rank": 1})
    (conf / "launcher" / "queue_of_mine.yaml").write_text(text)
    (here / "launcher_from_outside.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(here)
    return conf


def test_a_launcher_from_outside_the_tree_is_listed_described_refuses_and_runs(
    outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--config-dir", str(outside), "launcher=queue_of_mine", "model=mlp", "train.epochs=1"]
    words += ["cluster.nodes=1", "cluster.ranks_per_node=2", "results_dir=results"]
    assert run(["list", "launchers", "--config-dir", str(outside)]) == 0
    assert "queue_of_mine  A queue of mine" in capsys.readouterr().out
    assert run(["--dry-run", *words]) == 0
    assert "processes  2 of mine" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"launcher\.most_ranks=1: 2 ranks"):
        run([*words, "launcher.most_ranks=1"])
    assert not Path("results").exists()

    assert run(words) == 0
    (file,) = Path("results").glob("*/*/config.yaml")
    assert load(file).launcher.name == "queue_of_mine"
    environment = json.loads((file.parent / "environment.json").read_text())
    assert (environment["world"], len(environment["ranks"])) == ("queue_of_mine", 2)


def test_runs_of_one_sweep_have_one_launcher() -> None:
    here, torchrun = config(), config(launcher={"name": "torchrun"})
    assert external_launcher([here, None]) is None
    assert external_launcher([torchrun]) is launcher_of(torchrun)
    with pytest.raises(ConfigError, match="a sweep goes to one launcher alone"):
        external_launcher([here, torchrun])
