"""Encoding of a split's samples as records of a packed file, and decoding of records to training images.

The file holds the stored samples: decoding, crops, random changes and normalisation are applied by the split
when a record is read. So a batch is equal, bit for bit, to one that is read by indices.
"""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data import Augmentable, Samples, Split
from ..image_files import ImageFiles
from ..pixels import decode_content
from .feeder import Part


class RecordCodec(ABC):
    """Encodes and decodes the records of a split.

    encoding: of a record, as in the description of the file; record_bytes: None if sizes differ.
    """

    encoding: str
    record_bytes: int | None

    @abstractmethod
    def sample(self, index: int) -> tuple[bytes, int]:
        """Sample number `index` as a record, and its label. Raises OSError, ValueError naming a file."""

    @abstractmethod
    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        """Training images float32 [b, C, H, W] of a part, changed at random by (key, index of the sample).

        indices: int64 [b], of the samples in the split. The result shares no memory with the part.
        """

    @abstractmethod
    def digest(self, about: str) -> bytes:
        """Digest of the samples, without their order. about: the data set and its files, in words."""


def codec_of(samples: Samples) -> RecordCodec:
    """The codec for these samples. Raises ValueError if a packed file cannot hold them."""
    if isinstance(samples, ImageFiles):
        return _Files(samples)
    _, label = samples.batch(torch.tensor([0]))
    if label.dim() != 1:
        raise ValueError("has a label for each pixel, and a packed file has one an image; take reader=none")
    if isinstance(samples, Split):
        return _Images(samples)
    if isinstance(samples, Augmentable):
        raise ValueError(
            "changes its images at random in a way of its own, which a packed file does not know; take "
            "reader=none"
        )
    return _Made(samples)


class _Images(RecordCodec):
    """Images in memory, as they are stored there."""

    def __init__(self, split: Split) -> None:
        self._split, self._shape = split, split.images.shape[1:]
        self.encoding = str(split.images.dtype).removeprefix("torch.")  # as NumPy calls it too
        self.record_bytes = self._shape.numel() * split.images.element_size()

    def sample(self, index: int) -> tuple[bytes, int]:
        return self._split.images[index].numpy().tobytes(), int(self._split.labels[index])

    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        return self._split.trained_on(_copied(part, self.encoding, self._shape), indices, key)

    def digest(self, about: str) -> bytes:
        # Without `about`: the same images from files of other names are the same.
        seen = hashlib.blake2b(f"{self.encoding} {tuple(self._shape)}".encode(), digest_size=16)
        for tensor in (self._split.images, self._split.labels):
            seen.update(tensor.contiguous().numpy().data)
        return seen.digest()


class _Files(RecordCodec):
    """Image files, byte by byte."""

    encoding = "image file"
    record_bytes = None

    def __init__(self, files: ImageFiles) -> None:
        self._files = files

    def sample(self, index: int) -> tuple[bytes, int]:
        return Path(self._files.path(index)).read_bytes(), int(self._files.labels[index])

    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        files = self._files
        pixels = (
            decode_content(part.record(place).tobytes(), files.path(index), files.rules)
            for place, index in enumerate(indices.tolist())
        )
        return files.normalise(files.changed_pixels(pixels, indices, key))

    def digest(self, about: str) -> bytes:
        seen = hashlib.blake2b(about.encode(), digest_size=16)
        seen.update(self._files.labels.contiguous().numpy().data)
        return seen.digest()


class _Made(RecordCodec):
    """Images that are computed when they are asked for: as the model takes them."""

    encoding = "float32"

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        image, _ = self._sample(0)
        self._shape = image.shape[1:]
        self.record_bytes = self._shape.numel() * 4

    def sample(self, index: int) -> tuple[bytes, int]:
        image, label = self._sample(index)
        return image.numpy().tobytes(), int(label)

    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        return _copied(part, self.encoding, self._shape)

    def digest(self, about: str) -> bytes:
        return hashlib.blake2b(about.encode(), digest_size=16).digest()

    def _sample(self, index: int) -> tuple[Tensor, Tensor]:
        return self._samples.batch(torch.tensor([index]))


def _copied(part: Part, dtype: str, shape: torch.Size) -> Tensor:
    """The records of a part, numbers of `dtype`, copied to a tensor [b, *shape]."""
    return torch.from_numpy(np.array(part.content).view(dtype)).view(len(part), *shape)
