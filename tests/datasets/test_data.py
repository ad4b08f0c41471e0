"""Splits in memory: gathering, normalising, refusing what does not fit together."""

import pytest
import torch

from daso_bench.datasets.data import Data, Split


def a_split(images: torch.Tensor | None = None, mean: tuple[float, ...] = (4.0, 0.0)) -> Split:
    images = torch.arange(24, dtype=torch.uint8).view(3, 2, 2, 2) if images is None else images
    return Split(images=images, labels=torch.tensor([7, 8, 9]), mean=mean, std=(2.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_is_gathered_and_normalised_by_channel(dtype: torch.dtype) -> None:
    split = a_split(torch.arange(24).view(3, 2, 2, 2).to(dtype))
    images, labels = split.batch(torch.tensor([2, 0]))
    assert images.dtype == torch.float32
    assert labels.tolist() == [9, 7]
    assert images[0, 0].flatten().tolist() == [(value - 4) / 2 for value in (16, 17, 18, 19)]
    assert images[1, 1].flatten().tolist() == [4, 5, 6, 7]
    assert len(split) == 3


def test_images_and_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^images torch\.int64"):
        a_split(torch.zeros(3, 2, 2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"labels torch.int64 \[3\]: must be int64 \[4\]"):
        a_split(torch.zeros(4, 2, 2, 2))
    with pytest.raises(ValueError, match="2 numbers"):
        a_split(mean=(1.0,))


def test_splits_are_found_by_name() -> None:
    train, validation, test = a_split(), a_split(), a_split()
    data = Data(name="some", classes=10, shape=(2, 2, 2), train=train, validation=validation, test=test)
    assert [data.split(name) for name in ("train", "validation", "test")] == [train, validation, test]
    with pytest.raises(ValueError, match="split dev: must be one of train, validation, test"):
        data.split("dev")
