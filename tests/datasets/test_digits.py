"""The digits file: real, complete, split once and for all."""

import hashlib

import pytest
import torch
from pictures import stored

from daso_bench.datasets.data import Data
from daso_bench.datasets.digits import Digits

SIZES = {"train": 1149, "validation": 288, "test": 360}


@pytest.fixture(scope="module")
def data() -> Data:
    return Digits().load()


def test_the_splits_partition_the_whole_set_and_are_stratified(data: Data) -> None:
    """The counts by class are those of the UCI set's test part."""
    counts = torch.stack([split.labels.bincount(minlength=10) for split in stored(data)])
    assert counts.sum(0).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    for row, size in zip(counts, SIZES.values(), strict=True):
        assert (row - counts.sum(0) * (size / 1797)).abs().max() <= 1


def test_the_training_split_is_normalised_by_its_own_statistics(data: Data) -> None:
    images, _ = data.train.batch(torch.arange(SIZES["train"]))
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3


def test_the_content_is_frozen(data: Data) -> None:
    """Another split or other images would make old records incomparable."""
    assert (data.name, data.classes, data.shape) == ("digits", 10, (1, 8, 8))
    digest = hashlib.sha256()
    for split in stored(data):
        digest.update(split.images.numpy().tobytes() + split.labels.numpy().tobytes())
    assert digest.hexdigest() == "066750b64fb387f4020cf4a1478a6320ccbe16d76f7197f86de07b8fd9bf2fb8"
