"""CIFAR-10 and CIFAR-100: unpacking, checksums, splits, and the ways out without a network.

The files are made here, in the real layout but small, and torchvision is told their checksums.
"""

import hashlib
import pickle
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
import torchvision.datasets.utils
from pictures import stored

from daso_bench.datasets.atomic_files import LOCK, BadFile
from daso_bench.datasets.cifar import CIFAR10, CIFAR100

PER_FILE = 20
ARCHIVE = torchvision.datasets.CIFAR10.filename


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def write(folder: Path, name: str, content: dict[str, object]) -> list[str]:
    (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return [name, md5(folder / name)]


def images(start: int, count: int) -> np.ndarray:
    """Image i: red i, green 0, blue 255."""
    made = np.zeros((count, 3, 1024), dtype=np.uint8)
    made[:, 0] = np.arange(start, start + count)[:, None]
    made[:, 2] = 255
    return made.reshape(count, 3072)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small cifar-10-python.tar.gz of 5 × 20 training images, whose checksums torchvision knows."""
    known = torchvision.datasets.CIFAR10
    folder = tmp_path / "made" / known.base_folder
    folder.mkdir(parents=True)
    labels = [n % 10 for n in range(PER_FILE)]
    train = [
        write(folder, f"data_batch_{n}", {"data": images((n - 1) * PER_FILE, PER_FILE), "labels": labels})
        for n in range(1, 6)
    ]
    test = [write(folder, "test_batch", {"data": images(200, 10), "labels": list(range(10))})]
    names = [f"class {n}" for n in range(10)]
    meta = write(folder, "batches.meta", {"label_names": names})
    path = tmp_path / "made" / known.filename
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, known.base_folder)
    monkeypatch.setattr(known, "train_list", train)
    monkeypatch.setattr(known, "test_list", test)
    monkeypatch.setattr(known, "meta", {"filename": meta[0], "key": "label_names", "md5": meta[1]})
    monkeypatch.setattr(known, "tgz_md5", md5(path))
    return path


@pytest.fixture
def root(tmp_path: Path, archive: Path) -> Path:
    """A folder that holds the archive."""
    (tmp_path / "data").mkdir()
    shutil.copy(archive, tmp_path / "data")
    return tmp_path / "data"


def at(root: Path, *, download: bool = False) -> CIFAR10:
    return CIFAR10(root=str(root), download=download)


def test_an_archive_that_is_there_is_unpacked_and_read(root: Path) -> None:
    dataset = at(root)
    dataset.prepare()
    data = dataset.load()
    assert (data.name, data.classes, data.shape) == ("cifar10", 10, (3, 32, 32))
    train, validation, test = stored(data)
    assert train.labels.bincount().tolist() == [9] * 10
    assert validation.labels.bincount().tolist() == [1] * 10
    reds = torch.cat([train.images[:, 0, 3, 4], validation.images[:, 0, 3, 4]])
    assert sorted(reds.tolist()) == list(range(100))
    assert test.images[:, :, 9, 9].tolist() == [[200 + n, 0, 255] for n in range(10)]
    assert sorted(p.name for p in root.iterdir()) == sorted([LOCK, "cifar-10-batches-py", ARCHIVE])


def test_a_damaged_or_missing_file_is_named_with_the_ways_out_and_replaced_from_the_archive(
    root: Path,
) -> None:
    at(root).prepare()
    folder = root / "cifar-10-batches-py"
    batch = folder / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:100])
    ways = r"CIFAR-10 is missing or damaged in .* daso-bench prepare dataset=cifar10 .*dataset.download=true"
    with pytest.raises(BadFile, match=ways):
        at(root, download=True).load()  # which never fetches
    (folder / "test_batch").unlink()
    at(root).prepare()
    assert len(at(root).load().test) == 10
    batch.unlink()
    archive = root / ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-10])
    with pytest.raises(BadFile, match=rf"{ways}.*copy DIR to .*; {archive} is damaged or cut short"):
        at(root).prepare()


def test_a_download_happens_once_and_only_where_it_may(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(url: str, root: str, filename: str, md5: str) -> None:
        asked.append(url)
        shutil.copy(archive, Path(root) / filename)

    monkeypatch.setattr(torchvision.datasets.utils, "download_url", fetch)
    with pytest.raises(BadFile, match="is missing or damaged"):
        at(tmp_path / "data").prepare()
    assert not (tmp_path / "data").exists()
    for _ in range(2):
        at(tmp_path / "data").downloading().prepare()
    assert len(asked) == 1
    assert at(tmp_path / "data").load().classes == 10


def test_cifar100_takes_the_fine_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = torchvision.datasets.CIFAR100
    folder = tmp_path / known.base_folder
    folder.mkdir()
    labels = [n % 100 for n in range(1000)]
    content = {"data": images(0, 250).repeat(4, axis=0), "fine_labels": labels, "coarse_labels": [0] * 1000}
    monkeypatch.setattr(known, "train_list", [write(folder, "train", content)])
    content = {"data": images(0, 100), "fine_labels": list(range(100)), "coarse_labels": [0] * 100}
    monkeypatch.setattr(known, "test_list", [write(folder, "test", content)])
    meta = write(folder, "meta", {"fine_label_names": [str(n) for n in range(100)]})
    monkeypatch.setattr(known, "meta", {"filename": "meta", "key": "fine_label_names", "md5": meta[1]})
    data = CIFAR100(root=str(tmp_path)).load()
    assert (data.name, data.classes) == ("cifar100", 100)
    _, validation, _ = stored(data)
    assert validation.labels.bincount().tolist() == [1] * 100
    assert len(data.train) == 900


def test_the_sizes_are_those_of_the_real_sets() -> None:
    for kind in (CIFAR10, CIFAR100):
        assert kind().info().samples == {"train": 45_000, "validation": 5_000, "test": 10_000}
    assert [round(value / 255, 3) for value in CIFAR10.mean] == [0.491, 0.482, 0.447]
