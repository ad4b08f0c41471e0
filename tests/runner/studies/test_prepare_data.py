"""`daso-bench prepare`, and what a run does before its ranks start."""

import os
from pathlib import Path
from typing import Any

import pytest
from pictures import (  # pyright: ignore[reportMissingImports] (another folder of tests)
    field_images,
    plain,
    put,
)

from daso_bench.datasets.cifar import CIFAR10
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.runner.cli.main import run
from daso_bench.runner.launch import local
from daso_bench.runner.records.json_lines import read_json
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.errors import ConfigError


@pytest.fixture
def images(here: Path) -> Path:
    """The folder of `pictures.py` in imgs/ of the working directory."""
    return field_images(here / "imgs")


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The roots of the image folders that were prepared, in this process."""
    roots: list[str] = []
    real, process = ImageFolder.prepare, os.getpid()

    def prepare(self: ImageFolder, *rest: Any) -> None:
        assert os.getpid() == process
        roots.append(self.root)
        real(self, *rest)

    monkeypatch.setattr(ImageFolder, "prepare", prepare)
    return roots


FOLDER = ("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8")


def test_prepare_names_all_bad_files_however_many_and_what_it_has_made_ready(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(25):
        (images / "train" / "90" / f"broken{number:02}.png").touch()
    bad = [f"train/90/broken{number:02}.png: empty (0 bytes)" for number in range(25)]
    with pytest.raises(ConfigError, match=r"27 of 69 files are bad; .*=skip(\n.*){20}\n  \.\.\. and 7 more$"):
        run(["prepare", *FOLDER])
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "bad files: 27" in shown
    assert [line for line in shown if "broken" in line] == bad
    assert run(["prepare", *FOLDER, "dataset.bad_files=skip"]) == 0
    text = capsys.readouterr().out
    assert [line.strip() for line in text.splitlines() if "broken" in line] == bad
    assert "4 classes; images: 32 train, 6 validation, 4 test (held out of train)" in text
    assert "warning: validation: no image of class '180'" in text
    assert "left out, on all ranks: 27 bad files" in text
    assert len(ImageFolder(root=str(images), resize=8, crop=8, bad_files="skip").load().train) == 32


def test_prepare_downloads_without_being_asked_to(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(CIFAR10, "prepare", lambda self, tell: asked.append((self.download, self.root)))
    assert run(["prepare", "dataset=cifar10", "dataset.root=here"]) == 0
    assert asked == [(True, str(here / "here"))]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs end at once; the folders of those that were launched, with data.json as it then was."""
    folders: list[Path] = []

    def launch(directory: RunDirectory, **settings: Any) -> Outcome:
        folders.append(directory.path)
        with directory.lock():
            directory.begin_attempt()
            directory.end_attempt("finished", None, summary={}, labels=[])
        return Outcome(status="finished", reason=None, exit_code=0, summary={}, details="")

    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.setattr(local, "warm", lambda: None)
    return folders


def test_a_run_prepares_once_tells_and_leaves_a_record(
    images: Path, launched: list[Path], looked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("train.global_batch_size=8", "train.epochs=1")
    assert run(["-m", "seed=0,1", *FOLDER, "dataset.bad_files=skip", *small]) == 0
    assert len(looked) == 1
    assert len(launched) == 2
    for folder in launched:
        about = read_json(folder / "data.json")
        assert about["samples"] == {"train": 32, "validation": 6, "test": 4}
        assert [path for path, _ in about["bad"]] == ["train/90/cut.jpg", "train/90/empty.png"]
    assert capsys.readouterr().out.count("left out, on all ranks: 2 bad files") == 1


def test_too_few_images_are_an_error_before_the_ranks_start(here: Path, launched: list[Path]) -> None:
    for split in ("train", "val", "test"):
        for n, name in enumerate(("a", "b", "c")):
            put(here / "imgs" / split / name / "1.png", plain(n, side=8))
    four = ("cluster.nodes=1", "cluster.ranks_per_node=4")
    with pytest.raises(ConfigError, match="training samples=3: must be at least the number of ranks"):
        run([*FOLDER, *four])
    with pytest.raises(ConfigError, match=r"train\.short_batch=drop: leaves out all 3 training samples"):
        run([*FOLDER, "cluster.nodes=1", "cluster.ranks_per_node=2", "train.short_batch=drop"])
    assert launched == []


def folders_of(where: Path) -> list[str]:
    """The run directories below a folder of results."""
    return sorted(path.parent.name for path in (where / "results").rglob("config.yaml"))


def test_data_that_are_missing_are_looked_for_once_and_cost_no_other_run(
    images: Path, launched: list[Path], looked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-m", "seed=0,1", "dataset=digits,imagefolder", "train.epochs=1"]) == 2
    assert len(looked) == 1
    assert [folder.name[:20] for folder in launched] == ["ddp-small_cnn-digits"] * 2
    assert sorted(folder.name for folder in launched) == folders_of(images.parent)
    assert "2 of 4 did not end in a result" in capsys.readouterr().out
