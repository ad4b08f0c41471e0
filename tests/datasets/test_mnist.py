"""MNIST: torchvision's layout is read, and the ways out are told; the rest is as for Fashion-MNIST."""

import gzip
import hashlib
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest

from daso_bench.datasets import idx_folder
from daso_bench.datasets.bad_file import BadFile
from daso_bench.datasets.data import Split
from daso_bench.datasets.fashion_mnist import FashionMNIST
from daso_bench.datasets.mnist import MNIST


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a hundredth of the size, 5 validation images of each class."""
    monkeypatch.setattr(idx_folder, "PARTS", {"train": 600, "t10k": 100})
    monkeypatch.setattr(idx_folder, "VALIDATION_PER_CLASS", 5)
    monkeypatch.setattr(MNIST, "md5s", dict.fromkeys(idx_folder.NAMES, ANY))  # of files made here


def write_files(folder: Path) -> None:
    """Every class equally often, all pixels of image i equal to i % 251."""
    folder.mkdir(parents=True)
    for part, count in idx_folder.PARTS.items():
        numbers = np.arange(count)
        pixels = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (count, 28, 28))
        for kind, array in (("images-idx3", pixels), ("labels-idx1", (numbers % 10).astype(np.uint8))):
            lengths = np.array(array.shape, dtype=">u4").tobytes()
            (folder / f"{part}-{kind}-ubyte").write_bytes(
                bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()
            )


def test_torchvisions_layout_is_read(tmp_path: Path, small: None) -> None:
    write_files(tmp_path / "MNIST" / "raw")
    dataset = MNIST(root=str(tmp_path))
    dataset.prepare()
    data = dataset.load()
    assert (data.name, data.classes, data.shape) == ("mnist", 10, (1, 28, 28))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [550, 50, 100]
    assert isinstance(data.validation, Split)
    assert data.validation.labels.bincount().tolist() == [5] * 10
    assert (data.validation.images[:, 0, 0, 0].int() % 251).tolist() != list(range(50))


def test_missing_files_name_the_ways_out(tmp_path: Path) -> None:
    for call in (MNIST(root=str(tmp_path)).prepare, MNIST(root=str(tmp_path), download=True).load):
        with pytest.raises(
            FileNotFoundError, match=r"daso-bench prepare dataset=mnist, or set dataset.download"
        ):
            call()


def test_a_missing_file_and_a_damaged_one_are_named_before_a_run(tmp_path: Path, small: None) -> None:
    folder = tmp_path / "MNIST" / "raw"
    write_files(folder)
    labels = folder / "t10k-labels-idx1-ubyte"
    whole = labels.read_bytes()
    labels.write_bytes(whole[:-1])
    with pytest.raises(BadFile, match=f"{labels}: 107 bytes where 108 belong"):
        MNIST(root=str(tmp_path)).prepare()
    labels.unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"incomplete: {folder} has no {labels.name} \(nor .gz\): put"
    ):
        MNIST(root=str(tmp_path)).prepare()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_of_the_same_names_with_another_content_are_refused(
    tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    folder = tmp_path / "MNIST" / "raw"
    write_files(folder)
    known = {
        name: hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()
        for name in idx_folder.NAMES
    }
    monkeypatch.setattr(MNIST, "md5s", known)
    if suffix:
        for name in idx_folder.NAMES:
            (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
            (folder / name).unlink()
    dataset = MNIST(root=str(tmp_path))
    dataset.prepare()
    for name in idx_folder.NAMES:
        monkeypatch.setattr(MNIST, "md5s", {**known, name: "0" * 32})
        for call in (dataset.prepare, dataset.load):
            with pytest.raises(BadFile, match=rf"{folder / name}{suffix}: .* MD5 {known[name]}, not 0{{32}}"):
                call()


def test_fashion_mnists_files_are_not_taken_for_mnists() -> None:
    assert MNIST.md5s.keys() == FashionMNIST.md5s.keys() == set(idx_folder.NAMES)
    assert not set(MNIST.md5s.values()) & set(FashionMNIST.md5s.values())


def test_a_download_fills_the_folder(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torchvision.datasets

    monkeypatch.setattr(
        torchvision.datasets, "MNIST", lambda root, download: write_files(Path(root) / "MNIST" / "raw")
    )
    dataset = MNIST(root=str(tmp_path), download=True)
    dataset.prepare()
    assert len(dataset.load().train) == 550
