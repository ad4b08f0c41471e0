"""`prepare` and `inspect`, and what a run does before its ranks start."""

import json
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
from daso_bench.datasets.fashion_mnist import FashionMNIST
from daso_bench.datasets.imagefolder import ImageFolder
from daso_bench.runner import local
from daso_bench.runner.cli import main, run
from daso_bench.runner.records import read_json
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FA1 in imgs/ of the folder in which the user stands."""
    monkeypatch.chdir(tmp_path)
    return field_images(tmp_path / "imgs")


FOLDER = ("dataset=imagefolder", "dataset.root=imgs", "dataset.resize=8", "dataset.crop=8")


def test_prepare_names_bad_files_and_ends_with_2(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["prepare", *FOLDER])
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[1:] == [
        "  train/90/cut.jpg: damaged or cut short .jpg file: Truncated File Read",
        "  train/90/empty.png: empty (0 bytes)",
    ]


def test_prepare_says_what_it_has_made_ready(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prepare", *FOLDER, "dataset.bad_files=skip"]) == 0
    shown = capsys.readouterr().out
    assert "4 classes; images: 32 train, 6 validation, 4 test (held out of train)" in shown
    assert "converted: 16 bits to 8 1, CMYK to RGB 1, alpha over background 1, grey to colour 2" in shown
    assert "warning: val: no image of class '180'" in shown
    assert "left out, on all ranks: 2 bad files" in shown
    assert "train/90/empty.png: empty (0 bytes)" in shown
    made = ImageFolder(root=str(images), resize=8, crop=8, bad_files="skip")
    assert len(made.load().train) == 32


def test_prepared_goes_where_it_is_wanted_from_here(images: Path) -> None:
    assert run(["prepare", *FOLDER, "dataset.bad_files=skip", "dataset.prepared=kept #1"]) == 0
    assert len(list((images.parent / "kept #1").glob("*.npz"))) == 1
    assert not (images / ".daso-bench").exists()


def test_prepare_downloads_without_being_asked_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CIFAR10, "prepare", lambda self: asked.append((self.download, self.root)))
    assert run(["prepare", "dataset=cifar10", "dataset.root=here"]) == 0
    assert asked == [(True, str(tmp_path / "here"))]


def test_no_network_is_told_with_3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut_off(self: FashionMNIST) -> None:
        raise ConnectionError(
            "Fashion-MNIST could not be fetched (no route): on a machine with a network ..."
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FashionMNIST, "prepare", cut_off)
    with pytest.raises(MachineError, match="on a machine with a network"):
        run(["prepare", "dataset=fashion_mnist"])
    with pytest.raises(SystemExit) as caught:
        main(["prepare", "dataset=fashion_mnist"])
    assert caught.value.code == 3


@pytest.mark.parametrize("command", ["prepare", "inspect"])
def test_other_words_are_refused(command: str) -> None:
    for words, message in (
        (["dataset=digits", "seed=1"], r"seed=1: must be dataset=NAME or dataset\.KEY=VALUE"),
        (["digits"], r"digits: must be dataset=NAME"),
        (["dataset.root=x"], rf"{command}: takes dataset=NAME"),
        (["dataset=digit"], r"dataset=digit: unknown \(did you mean 'digits'"),
        (["dataset=imagefolder", "dataset.crop=0"], r"dataset\.crop=0: must be >= 1"),
        (["dataset=imagefolder", "dataset.corp=8"], r"did you mean dataset\.crop"),
        (["dataset=imagefolder", "dataset.root=nowhere"], r"dataset\.root=.*nowhere: no such folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            run([command, *words])


def test_inspect_shows_everything_and_ends_with_3(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", *FOLDER]) == 3
    shown = capsys.readouterr().out
    for line in (
        "class  train  validation  test",
        "180        7           0     1",
        "all       32           6     4",
        "held out of train: test",
        "sizes: 24 x 24 42",
        "warning: val: no image of class '180'",
        "bad files: 2",
        "  train/90/cut.jpg: damaged or cut short .jpg file: Truncated File Read",
        "the same image in more than one split: 6",
    ):
        assert line in [text.rstrip() for text in shown.splitlines()]
    assert "train/90/0.jpg (90) = " in shown
    assert not (images / ".daso-bench").exists()


def test_inspect_for_programs(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", *FOLDER, "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["samples"] == {"train": 32, "validation": 6, "test": 4}
    assert [entry["path"] for entry in found["bad"]] == ["train/90/cut.jpg", "train/90/empty.png"]
    assert len(found["duplicates_across_splits"]) == 6


def test_inspect_of_a_set_in_memory_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", "dataset=digits"]) == 0
    shown = capsys.readouterr().out
    assert "all     1149         288   360" in shown
    assert "Nothing is wrong." in shown


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs end at once; the folders of those that were launched, with data.json as it then was."""
    folders: list[Path] = []

    def launch(directory: RunDirectory, **settings: Any) -> local.Outcome:
        folders.append(directory.path)
        with directory.lock():
            directory.begin_attempt()
            directory.end_attempt("finished", None, summary={}, labels=[])
        return local.Outcome(status="finished", reason=None, exit_code=0, summary={}, details="")

    monkeypatch.setattr(local, "launch", launch)
    monkeypatch.setattr(local, "warm", lambda: None)
    return folders


def test_a_run_prepares_once_tells_and_leaves_a_record(
    images: Path, launched: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[int] = []
    real = ImageFolder.prepare
    monkeypatch.setattr(
        ImageFolder, "prepare", lambda self, *rest: (prepared.append(os.getpid()), real(self, *rest))
    )
    small = ("train.global_batch_size=8", "train.epochs=1")
    assert run(["-m", "seed=0,1", *FOLDER, "dataset.bad_files=skip", *small]) == 0
    assert prepared == [os.getpid()]
    assert len(launched) == 2
    for folder in launched:
        about = read_json(folder / "data.json")
        assert about["samples"] == {"train": 32, "validation": 6, "test": 4}
        assert [path for path, _ in about["bad"]] == ["train/90/cut.jpg", "train/90/empty.png"]
    assert capsys.readouterr().out.count("left out, on all ranks: 2 bad files") == 1


def test_a_run_on_bad_files_is_refused_before_its_ranks_start(images: Path, launched: list[Path]) -> None:
    with pytest.raises(ConfigError, match="2 of 44 files are bad"):
        run([*FOLDER])
    assert launched == []


def test_too_few_images_are_an_error_before_the_ranks_start(
    tmp_path: Path, launched: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split, names in (("train", ("a", "b", "c")), ("val", ("a", "b", "c")), ("test", ("a", "b", "c"))):
        for n, name in enumerate(names):
            put(tmp_path / "imgs" / split / name / "1.png", plain(n, side=8))
    four = ("cluster.nodes=1", "cluster.ranks_per_node=4")
    with pytest.raises(ConfigError, match="training samples=3: must be at least the number of ranks"):
        run([*FOLDER, *four])
    with pytest.raises(ConfigError, match=r"train\.short_batch=drop: leaves out all 3 training samples"):
        run([*FOLDER, "cluster.nodes=1", "cluster.ranks_per_node=2", "train.short_batch=drop"])
    assert launched == []
