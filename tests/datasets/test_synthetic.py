"""Synthetic images: any size, learnable, cheap to hold, the same everywhere."""

import torch
from torch.nn.functional import cross_entropy

from daso_bench.datasets.synthetic import NoisyPatterns, Synthetic


def every(data: Synthetic, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    split = data.load().split(name)
    return split.batch(torch.arange(len(split)))


def test_sizes_and_shapes_follow_the_fields() -> None:
    dataset = Synthetic(
        samples=70, validation_samples=20, test_samples=30, channels=2, height=5, width=12, classes=7
    )
    data = dataset.load()
    assert (data.name, data.classes, data.shape) == ("synthetic", 7, (2, 5, 12))
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [70, 20, 30]
    images, labels = data.train.batch(torch.arange(70))
    assert images.shape == (70, 2, 5, 12)
    assert images.dtype == torch.float32
    assert labels.bincount().tolist() == [10] * 7


def test_images_are_normalised() -> None:
    for noise in (0.0, 1.0, 5.0):
        images, _ = every(Synthetic(noise=noise, classes=50), "train")
        assert abs(images.mean()) < 0.05
        assert abs(images.std() - 1) < 0.05


def test_a_linear_model_learns_it_and_the_test_split_too() -> None:
    dataset = Synthetic()
    images, labels = every(dataset, "train")
    test_images, test_labels = every(dataset, "test")
    torch.manual_seed(0)
    model = torch.nn.Linear(images[0].numel(), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for start in range(0, 2048, 64):
        optimizer.zero_grad()
        cross_entropy(model(images[start : start + 64].flatten(1)), labels[start : start + 64]).backward()
        optimizer.step()
    accuracy = (model(test_images.flatten(1)).argmax(1) == test_labels).float().mean()
    assert accuracy > 0.97


def test_a_sample_is_the_same_in_every_batch_and_process() -> None:
    first, second = Synthetic(seed=3).load(), Synthetic(seed=3).load()
    images, labels = first.train.batch(torch.tensor([5, 900, 17]))
    alone, label = second.train.batch(torch.tensor([17]))
    assert torch.equal(images[2:], alone)
    assert torch.equal(labels[2:], label)
    assert not torch.equal(images[:1], Synthetic(seed=4).load().train.batch(torch.tensor([5]))[0])


def test_the_memory_does_not_grow_with_the_images_of_all_samples() -> None:
    """100,000 images of 224×224 would be 60 GB."""
    train = Synthetic(samples=100_000, height=224, width=224, classes=1000).load().train
    assert isinstance(train, NoisyPatterns)
    tensors = (train.patterns, train.pool, train.labels, train.first, train.second)
    assert sum(tensor.nbytes for tensor in tensors) < 50 * 2**20
    images, labels = train.batch(torch.tensor([0, 99_999]))
    assert images.shape == (2, 3, 224, 224)
    assert labels.max() < 1000
