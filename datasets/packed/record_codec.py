"""Encoding of a split's samples as records of a packed file, and decoding of records to training images.

The file holds the stored samples: decoding, crops, random changes and normalisation are applied by the split
when a record is read. So a batch is equal, bit for bit, to one that is read by indices.
"""

import hashlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

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
    image, label = samples.batch(torch.tensor([0]))
    if label.dim() != 1:
        raise ValueError("has a label for each pixel, and a packed file has one an image; take reader=none")
    if isinstance(samples, Split):
        return _Images(samples, samples.images[0])
    if isinstance(samples, Augmentable):
        raise ValueError(
            "changes its images at random in a way of its own, which a packed file does not know; take "
            "reader=none"
        )
    return _Made(samples, image[0])


class _Arrays(RecordCodec):
    """Images of one type and shape, as `image`, which is one of them."""

    def __init__(self, samples: Any, image: Tensor) -> None:
        self._samples, self._shape = samples, image.shape
        self.encoding = str(image.dtype).removeprefix("torch.")  # as NumPy calls it too
        self.record_bytes = image.nbytes

    def _copied(self, part: Part) -> Tensor:
        """The records of a part, copied to a tensor [b, *shape]."""
        return torch.from_numpy(np.array(part.content).view(self.encoding)).view(len(part), *self._shape)


class _Images(_Arrays):
    """Images in memory, as they are stored there."""

    def sample(self, index: int) -> tuple[bytes, int]:
        return self._samples.images[index].numpy().tobytes(), int(self._samples.labels[index])

    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        return self._samples.trained_on(self._copied(part), indices, key)

    def digest(self, about: str) -> bytes:
        # Without `about`: the same images from files of other names are the same.
        seen = hashlib.blake2b(f"{self.encoding} {tuple(self._shape)}".encode(), digest_size=16)
        for tensor in (self._samples.images, self._samples.labels):
            seen.update(tensor.contiguous().numpy().data)
        return seen.digest()


class _Made(_Arrays):
    """Images that are computed when they are asked for: as the model takes them."""

    def sample(self, index: int) -> tuple[bytes, int]:
        image, label = self._samples.batch(torch.tensor([index]))
        return image.numpy().tobytes(), int(label)

    def images(self, part: Part, indices: Tensor, key: int) -> Tensor:
        return self._copied(part)

    def digest(self, about: str) -> bytes:
        return hashlib.blake2b(about.encode(), digest_size=16).digest()


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
