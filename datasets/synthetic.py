"""Learnable images of any size, computed when they are asked for: for throughput runs and big models.

A sample is its class's pattern plus noise: x = (pattern[label] + noise · n) / sqrt(1 + noise²), n ~ N(0, 1).
In memory are one small pattern per class, a pool of noise images and three whole numbers per sample.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .data import Data, indices_on
from .dataset import Dataset, DatasetInfo, at_least
from .stream_seeds import stream_seed

PATTERN_SIDE = 8  # pixels; patterns are enlarged to the image, so 1000 classes of 224×224 take 1 MB, not 600
POOL = 64  # noise images per split; a sample adds one of the first half to one of the second


@dataclass(frozen=True, kw_only=True)
class Synthetic(Dataset):
    """Balanced classes, normalised images [channels, height, width]; the splits share only the patterns.

    samples, validation_samples, test_samples: size of each split; height, width: pixels;
    noise: standard deviation of the noise, the patterns' being 1; seed: of the data, not of the run.
    Raises ValueError for a number out of range.
    """

    name: ClassVar[str] = "synthetic"

    samples: int = 2048
    validation_samples: int = 256
    test_samples: int = 512
    channels: int = 3
    height: int = 32
    width: int = 32
    classes: int = 10
    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("samples", "validation_samples", "test_samples", "channels", "height", "width"):
            at_least(key, getattr(self, key), 1)
        at_least("classes", self.classes, 2)
        at_least("noise", self.noise, 0)

    def info(self) -> DatasetInfo:
        samples = {"train": self.samples, "validation": self.validation_samples, "test": self.test_samples}
        return DatasetInfo(shape=self.shape, classes=self.classes, samples=samples)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an image, [C, H, W]."""
        return self.channels, self.height, self.width

    def load(self) -> Data:
        """Draws patterns and noise pools; the same for the same fields on every machine."""
        side = (min(PATTERN_SIDE, self.height), min(PATTERN_SIDE, self.width))
        patterns = torch.randn(self.classes, self.channels, *side, generator=self._generator("patterns"))
        sizes = {"train": self.samples, "validation": self.validation_samples, "test": self.test_samples}
        splits: dict[str, Any] = {name: self._draw(name, size, patterns) for name, size in sizes.items()}
        return Data(name=self.name, classes=self.classes, shape=self.shape, **splits)

    def _draw(self, name: str, samples: int, patterns: Tensor) -> "NoisyPatterns":
        generator = self._generator(name)
        pool = torch.randn(POOL, self.channels, self.height, self.width, generator=generator)
        return NoisyPatterns(
            patterns=patterns,
            pool=pool,
            labels=torch.randperm(samples, generator=generator) % self.classes,
            first=torch.randint(POOL // 2, (samples,), generator=generator),
            second=torch.randint(POOL // 2, POOL, (samples,), generator=generator),
            noise=self.noise,
        )

    def _generator(self, stream: str) -> torch.Generator:
        return torch.Generator().manual_seed(stream_seed(self.seed, "synthetic", stream))


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyPatterns:
    """Like `data.Split`, but images are computed in `batch`.

    patterns: float32 [classes, C, h, w]; pool: float32 [POOL, C, H, W]; labels, first, second: int64 [M], the
    class of each sample and the two images of the pool that are its noise; noise: standard deviation.
    """

    patterns: Tensor
    pool: Tensor
    labels: Tensor
    first: Tensor
    second: Tensor
    noise: float

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def on(self, device: torch.device) -> "NoisyPatterns":
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W] and labels int64 [b], for indices int64 [b]."""
        indices = indices_on(self.device, indices)
        labels = self.labels.index_select(0, indices)
        height, width = self.pool.shape[-2:]
        images = interpolate(self.patterns.index_select(0, labels), size=(height, width), mode="nearest")
        scale = 1 / math.sqrt(1 + self.noise**2)
        # The sum of two independent noise images has twice the variance of one.
        noise_scale = scale * self.noise / math.sqrt(2)
        images = images * scale
        for chosen in (self.first, self.second):
            images.add_(self.pool.index_select(0, chosen.index_select(0, indices)), alpha=noise_scale)
        return images, labels
