"""MNIST and Fashion-MNIST: where they are looked for, what is read, and the way out when they are not there.

The reading is tested on files made here, in the real format but small; the real files of Fashion-MNIST are
tested where Debian's package has put them.
"""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
from pictures import stored

from daso_bench.datasets import fashion_mnist
from daso_bench.datasets.atomic_files import LOCK, BadFile
from daso_bench.datasets.fashion_mnist import DEBIAN_FOLDER, FashionMNIST
from daso_bench.datasets.mnist import MNIST, NAMES, find_files

SIZES = {"train": 600, "t10k": 100}


def contents(*, pixel: int = 0) -> dict[str, bytes]:
    """The four files, every class equally often, all pixels of image i equal to (i + pixel) % 251."""
    made = {}
    for part, count in SIZES.items():
        numbers = np.arange(count)
        images = np.broadcast_to(((numbers + pixel) % 251).astype(np.uint8)[:, None, None], (count, 28, 28))
        for kind, array in (("images-idx3", images), ("labels-idx1", (numbers % 10).astype(np.uint8))):
            lengths = np.array(array.shape, dtype=">u4").tobytes()
            made[f"{part}-{kind}-ubyte"] = bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()
    return made


def write_files(folder: Path, *, suffix: str = "", pixel: int = 0) -> None:
    folder.mkdir(parents=True)
    for name, content in contents(pixel=pixel).items():
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)


def md5s(*, pixel: int = 0) -> dict[str, str]:
    made = contents(pixel=pixel).items()
    return {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in made}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files made here are the right ones, and no package of the system has any."""
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "debian")
    monkeypatch.setattr(MNIST, "md5s", md5s())
    monkeypatch.setattr(FashionMNIST, "md5s", md5s())


def first_pixel(dataset: MNIST | FashionMNIST) -> int:
    return int(stored(dataset.load())[2].images[0, 0, 0, 0])


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", [MNIST, FashionMNIST])
def test_torchvisions_layout_is_read(
    tmp_path: Path, kind: type[MNIST] | type[FashionMNIST], suffix: str
) -> None:
    write_files(tmp_path / kind.title.replace("-", "") / "raw", suffix=suffix)
    dataset = kind(root=str(tmp_path))
    dataset.prepare()
    data = dataset.load()
    assert (data.name, data.classes, data.shape) == (kind.name, 10, (1, 28, 28))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [550, 50, 100]
    train, validation, test = stored(data)
    assert test.images[:3, 0, 5, 5].tolist() == [0, 1, 2]
    assert test.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert validation.labels.bincount().tolist() == [5] * 10
    pixels = torch.cat([train.images[:, 0, 0, 0], validation.images[:, 0, 0, 0]])
    assert sorted(pixels.tolist()) == sorted(n % 251 for n in range(600))
    assert validation.images[:, 0, 0, 0].tolist() != list(range(50))
    assert torch.equal(stored(kind(root=str(tmp_path)).load())[1].images, validation.images)


def test_missing_data_names_the_ways_out(tmp_path: Path) -> None:
    ways = ["dataset.root=", "daso-bench prepare dataset=", "dataset.download=true"]
    for dataset, more in (
        (MNIST(root=str(tmp_path / "data")), []),
        (FashionMNIST(root=str(tmp_path / "data")), ["dataset-fashion-mnist"]),
    ):
        for call in (dataset.prepare, dataset.downloading().load):
            with pytest.raises(FileNotFoundError) as caught:
                call()
            assert all(way in str(caught.value) for way in [*ways, *more])
    assert not (tmp_path / "data").exists()


def test_a_damaged_file_and_one_of_another_set_are_named(tmp_path: Path) -> None:
    folder, dataset = tmp_path / "MNIST" / "raw", MNIST(root=str(tmp_path))
    write_files(folder)
    others = contents(pixel=1)
    for name in NAMES[:2]:
        whole = (folder / name).read_bytes()
        for content in (whole[:-1], others[name][::-1]):
            (folder / name).write_bytes(content)
            says = (
                rf"{folder / name}: holds {len(content)} bytes with the MD5 \w+, not {MNIST.md5s[name]}: dam"
            )
            for call in (dataset.prepare, dataset.load):
                with pytest.raises(BadFile, match=says):
                    call()
        (folder / name).write_bytes(whole)
    dataset.prepare()


@pytest.mark.parametrize(
    "content", [gzip.compress(b"labels")[:-9], b"no gzip", b""], ids=["cut", "text", "empty"]
)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "MNIST" / "raw" / f"{NAMES[1]}.gz"
    write_files(path.parent, suffix=".gz")
    path.write_bytes(content)
    with pytest.raises(BadFile, match=rf"{path}: (damaged or cut short|holds 0 bytes)"):
        MNIST(root=str(tmp_path)).prepare()


class FakeDownload:
    """Stands for torchvision's class: writes its layout below the root, or fails as without a network."""

    calls: int = 0
    fails: bool = False

    def __init__(self, root: str, download: bool) -> None:
        assert download
        FakeDownload.calls += 1
        if FakeDownload.fails:
            raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")
        write_files(Path(root) / "FashionMNIST" / "raw")


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> type[FakeDownload]:
    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", FakeDownload)
    monkeypatch.setattr(FakeDownload, "calls", 0)
    monkeypatch.setattr(FakeDownload, "fails", False)
    return FakeDownload


def test_download_fills_the_folder_once(tmp_path: Path, download: type[FakeDownload]) -> None:
    dataset = FashionMNIST(root=str(tmp_path / "data")).downloading()
    dataset.prepare()
    dataset.prepare()
    assert download.calls == 1
    raw = tmp_path / "data" / "FashionMNIST" / "raw"
    assert sorted(path.name for path in raw.iterdir()) == sorted(NAMES)  # and no temporary folder is left
    assert first_pixel(dataset) == 0


def test_nothing_is_downloaded_when_debian_has_it(tmp_path: Path, download: type[FakeDownload]) -> None:
    write_files(tmp_path / "debian")
    FashionMNIST(root=str(tmp_path / "data"), download=True).prepare()
    assert download.calls == 0


def test_a_failed_download_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, download: type[FakeDownload], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "fails", True)
    with pytest.raises(
        ConnectionError,
        match=r"not be fetched \(Error downloading .* run daso-bench prepare",
    ):
        FashionMNIST(root=str(tmp_path / "data"), download=True).prepare()
    assert [path.name for path in (tmp_path / "data").iterdir()] == [LOCK]


@pytest.mark.skipif(
    find_files(DEBIAN_FOLDER) is None, reason="Debian's dataset-fashion-mnist is not installed"
)
def test_the_real_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    train, _, _ = stored(FashionMNIST(root=str(tmp_path)).load())
    assert train.labels.bincount().tolist() == [5_500] * 10
    pixels = train.images.double()
    assert abs(pixels.mean() - FashionMNIST.mean[0]) < 0.01
    assert abs(pixels.std() - FashionMNIST.std[0]) < 0.01
