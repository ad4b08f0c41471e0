"""A run keeps to the files that it was started with: when it goes on, when it is evaluated, on every rank."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from pictures import cats_and_dogs  # pyright: ignore[reportMissingImports] (another folder of tests)
from runs import config

from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.runner.cli.main import run
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import check_same_data, write_data_file
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.errors import ConfigError

RUN = (
    *("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8", "model=mlp"),
    *("launcher=simulated", "cluster=ethernet_1g", "cluster.nodes=2", "cluster.ranks_per_node=1"),
    *("train.global_batch_size=8", "train.epochs=2"),
)
OTHERS = "the run was started with other files of the data set"


@pytest.fixture
def images(here: Path) -> Path:
    """Two classes of twelve images in imgs/ of the working directory."""
    return cats_and_dogs(here / "imgs")


def prepared(root: Path) -> str:
    """The digest of a folder's files."""
    dataset = ImageFolder(root=str(root), resize=8, crop=8)
    dataset.prepare()
    return dataset.load().files


def test_a_run_neither_goes_on_nor_is_evaluated_with_other_files(images: Path) -> None:
    assert run([*RUN, "train.max_seconds=1e-9"]) == 1, "timed out"
    (folder,) = (images.parent / "results" / "runs").glob("*-s0-*")
    before = read_json(folder / "data.json")
    shutil.move(images / "cats" / "3.png", images / "dogs" / "30.png")
    prepared(images)  # by somebody else's run
    for words in (["resume", str(folder)], ["evaluate", str(folder)]):
        with pytest.raises(ConfigError, match=OTHERS):
            run(words)
    assert read_json(folder / "data.json") == before, "what it was started with is not forgotten"
    shutil.move(images / "dogs" / "30.png", images / "cats" / "3.png")
    assert run(["resume", str(folder)]) == 1, "it goes on, and out of time"
    assert run(["evaluate", str(folder)]) == 0


def test_a_run_that_has_not_begun_takes_the_files_that_are_there(tmp_path: Path) -> None:
    write_data_file(tmp_path, {"files": "abc"}, begun=False)
    write_data_file(tmp_path, {"files": "def"}, begun=False)
    with pytest.raises(ConfigError, match=OTHERS):
        write_data_file(tmp_path, {"files": "abc"}, begun=True)
    check_same_data(tmp_path, "def")
    with pytest.raises(ConfigError, match=r"digest def, now none"):
        check_same_data(tmp_path, "")
    check_same_data(tmp_path / "of a set without files", "")


def test_a_rank_whose_node_has_other_files_ends_the_run_before_it_trains() -> None:
    class Elsewhere(Trainer):
        def run(self):
            other = "b" if self.context.comm.rank == 3 else "a"
            self.context.data = dataclasses.replace(self.context.data, files=other)
            return super().run()

    cfg = config("ddp")
    with pytest.raises(ConfigError, match="are others on rank 3 than on rank 0"):
        simulate(cfg, cfg.dataset.load(), loop=Elsewhere)
