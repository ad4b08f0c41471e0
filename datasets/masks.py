"""Images with a label for each pixel, held in memory; what an unlabelled pixel is."""

from dataclasses import dataclass

import torch
from torch import Tensor

UNLABELLED = 255


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedSplit:
    """The sibling of `data.Split` for segmentation.

    images: float32 [M, C, H, W], normalised; masks: uint8 [M, H, W], 255 for unlabelled.
    """

    images: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.masks)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images float32 [b, C, H, W] and masks int64 [b, H, W], for indices int64 [b]; copies."""
        return self.images.index_select(0, indices), self.masks.index_select(0, indices).to(torch.int64)
