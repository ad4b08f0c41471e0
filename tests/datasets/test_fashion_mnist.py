"""Fashion-MNIST: where it is looked for, what is read, and the way out when it is not there.

The reading is tested on files made here, in the real format and size but with counted pixels; the real files
are tested where Debian's package has put them.
"""

import gzip
import os
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from daso_bench.datasets import fashion_mnist
from daso_bench.datasets.bad_file import BadFile
from daso_bench.datasets.data import Split
from daso_bench.datasets.fashion_mnist import DEBIAN_FOLDER, FashionMNIST
from daso_bench.datasets.holdout import split_by_class
from daso_bench.datasets.idx_folder import NAMES, PARTS, find_files


def write_files(folder: Path, *, suffix: str = "", pixel: int = 0) -> None:
    """The four files, every class equally often, all pixels of image i equal to (i + pixel) % 251."""
    folder.mkdir(parents=True)
    for part, count in PARTS.items():
        numbers = np.arange(count)
        images = np.broadcast_to(((numbers + pixel) % 251).astype(np.uint8)[:, None, None], (count, 28, 28))
        for kind, array in (("images-idx3", images), ("labels-idx1", (numbers % 10).astype(np.uint8))):
            lengths = np.array(array.shape, dtype=">u4").tobytes()
            content = bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()
            compressed = gzip.compress(content, compresslevel=1) if suffix else content
            (folder / f"{part}-{kind}-ubyte{suffix}").write_bytes(compressed)


@pytest.fixture
def no_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "debian"
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", folder)
    monkeypatch.setattr(FashionMNIST, "md5s", dict.fromkeys(NAMES, ANY))  # those of files made here will do
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_torchvisions_layout_is_read(tmp_path: Path, no_debian: Path, suffix: str) -> None:
    write_files(tmp_path / "data" / "FashionMNIST" / "raw", suffix=suffix)
    data = FashionMNIST(root=str(tmp_path / "data")).load()
    assert (data.name, data.classes, data.shape) == ("fashion_mnist", 10, (1, 28, 28))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [55_000, 5_000, 10_000]
    assert isinstance(data.test, Split)
    assert data.test.images[:3, 0, 5, 5].tolist() == [0, 1, 2]
    assert data.test.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert isinstance(data.validation, Split)
    assert data.validation.labels.bincount().tolist() == [500] * 10


def test_own_folder_comes_before_debians(tmp_path: Path, no_debian: Path) -> None:
    own = tmp_path / "data" / "FashionMNIST" / "raw"
    write_files(no_debian, suffix=".gz", pixel=100)
    dataset = FashionMNIST(root=str(tmp_path / "data"))

    def first_pixel() -> int:
        test = dataset.load().test
        assert isinstance(test, Split)
        return int(test.images[0, 0, 0, 0])

    assert first_pixel() == 100
    write_files(own)
    assert first_pixel() == 0


def test_a_folder_that_lacks_one_file_does_not_count(tmp_path: Path) -> None:
    for name in NAMES[:3]:
        (tmp_path / name).touch()
    assert find_files(tmp_path) is None
    (tmp_path / f"{NAMES[3]}.gz").touch()
    assert find_files(tmp_path) == {
        **{name: tmp_path / name for name in NAMES[:3]},
        NAMES[3]: tmp_path / f"{NAMES[3]}.gz",
    }


def test_missing_data_names_the_three_ways_out(tmp_path: Path, no_debian: Path) -> None:
    dataset = FashionMNIST(root=str(tmp_path / "data"))
    for call in (dataset.prepare, dataset.load):
        with pytest.raises(FileNotFoundError) as caught:
            call()
        for way in ("dataset.root=", "dataset-fashion-mnist", "dataset.download=true"):
            assert way in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_the_files_that_are_missing_are_named(tmp_path: Path, no_debian: Path) -> None:
    folder = tmp_path / "data" / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for name in (NAMES[0], f"{NAMES[2]}.gz"):
        (folder / name).touch()
    with pytest.raises(
        FileNotFoundError, match=rf"{folder} has no {NAMES[1]}, no {NAMES[3]} \(nor \.gz\), and"
    ):
        FashionMNIST(root=str(tmp_path / "data")).prepare()


def test_a_truncated_file_is_named(tmp_path: Path, no_debian: Path) -> None:
    folder = tmp_path / "data" / "FashionMNIST" / "raw"
    write_files(folder)
    os.truncate(folder / "train-labels-idx1-ubyte", 30_000)
    dataset = FashionMNIST(root=str(tmp_path / "data"))
    for call in (dataset.prepare, dataset.load):
        with pytest.raises(BadFile, match="train-labels-idx1-ubyte: 30000 bytes where 60008 belong"):
            call()


def test_files_swapped_or_labels_out_of_range_are_named(tmp_path: Path, no_debian: Path) -> None:
    folder = tmp_path / "data" / "FashionMNIST" / "raw"
    write_files(folder)
    labels = folder / "t10k-labels-idx1-ubyte"
    good = labels.read_bytes()
    labels.write_bytes(good[:-1] + b"\x0a")
    with pytest.raises(BadFile, match="t10k-labels-idx1-ubyte: label 10: must be 0 to 9"):
        FashionMNIST(root=str(tmp_path / "data")).load()
    labels.write_bytes((folder / "train-labels-idx1-ubyte").read_bytes())
    with pytest.raises(BadFile, match=r"t10k-labels-idx1-ubyte: shape \[60000\]: must be \[10000\]"):
        FashionMNIST(root=str(tmp_path / "data")).load()


class FakeDownload:
    """Stands for torchvision's class: writes its layout below the root, or fails as without a network."""

    calls: int = 0
    fails: bool = False

    def __init__(self, root: str, download: bool) -> None:
        assert download
        FakeDownload.calls += 1
        if FakeDownload.fails:
            raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")
        write_files(Path(root) / "FashionMNIST" / "raw", pixel=7)


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> type[FakeDownload]:
    import torchvision.datasets

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", FakeDownload)
    monkeypatch.setattr(FakeDownload, "calls", 0)
    monkeypatch.setattr(FakeDownload, "fails", False)
    return FakeDownload


def test_download_fills_the_folder_once(
    tmp_path: Path, no_debian: Path, download: type[FakeDownload]
) -> None:
    dataset = FashionMNIST(root=str(tmp_path / "data"), download=True)
    dataset.prepare()
    dataset.prepare()
    assert download.calls == 1
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    assert sorted(path.name for path in raw.iterdir()) == sorted(NAMES)  # and no temporary folder is left
    test = dataset.load().test
    assert isinstance(test, Split)
    assert int(test.images[0, 0, 0, 0]) == 7


def test_nothing_is_downloaded_when_debian_has_it(
    tmp_path: Path, no_debian: Path, download: type[FakeDownload]
) -> None:
    write_files(no_debian)
    FashionMNIST(root=str(tmp_path / "data"), download=True).prepare()
    assert download.calls == 0


def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, no_debian: Path, download: type[FakeDownload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "fails", True)
    with pytest.raises(
        ConnectionError,
        match=r"not be fetched \(Error downloading .* run daso-bench prepare",
    ):
        FashionMNIST(root=str(tmp_path / "data"), download=True).prepare()
    assert not (tmp_path / "data").exists()


def test_the_validation_split_is_the_same_every_time_and_disjoint() -> None:
    labels = torch.arange(1000) % 10
    rest, held_out = split_by_class(labels, 5, "fashion_mnist")
    again = split_by_class(labels, 5, "fashion_mnist")
    assert torch.equal(rest, again[0])
    assert torch.equal(held_out, again[1])
    assert torch.cat([rest, held_out]).sort().values.tolist() == list(range(1000))
    assert labels[held_out].bincount().tolist() == [5] * 10
    assert held_out.tolist() != list(range(50))


@pytest.mark.skipif(
    find_files(DEBIAN_FOLDER) is None, reason="Debian's dataset-fashion-mnist is not installed"
)
def test_the_real_files(tmp_path: Path) -> None:
    data = FashionMNIST(root=str(tmp_path)).load()
    train = data.train
    assert isinstance(train, Split)
    assert train.labels.bincount().tolist() == [5_500] * 10
    pixels = train.images.double()
    assert abs(pixels.mean() - FashionMNIST.mean) < 0.01
    assert abs(pixels.std() - FashionMNIST.std) < 0.01
