"""Data sets that torchvision downloads: their keys, the download, the validation split held out of train."""

import contextlib
import http.client
import io
import socket
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .data import Data, Split
from .dataset import Dataset, DatasetInfo
from .stream_seeds import stream_seed
from .transforms import Change, recipe

TIMEOUT_S = 30.0  # without an answer
# HTTPException: of a malformed answer; ValueError: of a malformed address in a redirection.
_FAILURES = (RuntimeError, OSError, http.client.HTTPException, ValueError)


@contextlib.contextmanager
def fetching(title: str, elsewhere: str) -> Iterator[None]:
    """Run a download by torchvision: any failure, also no answer for 30 s, becomes one short message.

    title: of the data set; elsewhere: how to get it without a network here. Raises ConnectionError.
    """
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        # Cut between words if possible.
        short = textwrap.shorten(reason, 200, placeholder=" ...") if " " in reason[:200] else reason[:200]
        raise ConnectionError(f"{title} could not be fetched ({short}): {elsewhere}") from error
    finally:
        socket.setdefaulttimeout(before)


def split_by_class(labels: Tensor, held_out_per_class: int, name: str) -> tuple[Tensor, Tensor]:
    """Indices int64, ascending, of (the rest, the held-out samples): the same number of each class.

    labels: int64 [M]; name: of the data set, which decides the draw.
    """
    generator = torch.Generator().manual_seed(stream_seed(0, name, "validation"))
    order = torch.randperm(len(labels), generator=generator)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        held_out[order[labels[order] == label][:held_out_per_class]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


@dataclass(frozen=True, kw_only=True)
class DownloadedDataset(Dataset, ABC):
    """A data set that torchvision downloads; its validation split is held out of the training images.

    root: folder in torchvision's layout, relative to the working folder; download: whether a run may fetch
    the files (`daso-bench prepare` always may); augment: random changes of training images, see
    `transforms.recipe`. Raises ValueError for an unknown one.
    """

    root: str = "data"
    download: bool = False
    augment: str = "none"

    title: ClassVar[str]
    classes: ClassVar[int]
    shape: ClassVar[tuple[int, int, int]]
    mean: ClassVar[tuple[float, ...]]  # per channel, of the training images; pixels are 0 to 255
    std: ClassVar[tuple[float, ...]]
    train_images: ClassVar[int]
    test_images: ClassVar[int]
    validation_share: ClassVar[int]  # validation gets 1 of so many training images of each class

    def __post_init__(self) -> None:
        recipe(self.augment, self.shape[1:])

    def info(self) -> DatasetInfo:
        held_out = self.train_images // self.classes // self.validation_share * self.classes
        train = self.train_images - held_out
        samples = {"train": train, "validation": held_out, "test": self.test_images}
        return DatasetInfo(shape=self.shape, classes=self.classes, samples=samples)

    def downloading(self) -> Self:
        return replace(self, download=True)

    def folder(self) -> str:
        return self.root

    def torchvision_class(self) -> Any:
        import torchvision.datasets  # here: other data sets do not need it

        return getattr(torchvision.datasets, self.title.replace("-", ""))

    @abstractmethod
    def other_source(self) -> str:
        """How to get the files neither from here nor from `prepare` elsewhere, in words."""

    def elsewhere(self) -> str:
        """How to get the files without a network here, in one sentence."""
        return (
            f"on a machine with a network run daso-bench prepare dataset={self.name} dataset.root=DIR and "
            f"copy DIR to {self.root}, or {self.other_source()}"
        )

    def missing(self) -> str:
        """That the files are not there, and all ways to get them."""
        return (
            f"{self.title} is missing or damaged in {Path(self.root).absolute()}: run daso-bench prepare "
            f"dataset={self.name} dataset.root={self.root}, or set dataset.download=true; without a network, "
            f"{self.elsewhere()}"
        )

    def in_splits(self, images: Tensor, labels: Tensor, test_images: Tensor, test_labels: Tensor) -> Data:
        """The data set of images uint8 [M, C, H, W] and labels int64 [M]."""
        per_class = len(labels) // self.classes // self.validation_share
        train, validation = split_by_class(labels, per_class, self.name)

        def split(images: Tensor, labels: Tensor, augment: Change | None = None) -> Split:
            return Split(images=images, labels=labels, mean=self.mean, std=self.std, augment=augment)

        return Data(
            name=self.name,
            classes=self.classes,
            shape=self.shape,
            train=split(images[train], labels[train], recipe(self.augment, self.shape[1:])),
            validation=split(images[validation], labels[validation]),
            test=split(test_images, test_labels),
        )
