"""One label for each pixel: the mean intersection over union (mIoU) of the classes, and pixel accuracy.

IoU_c = TP_c / (TP_c + FP_c + FN_c), of all pixels of all images together (M. Everingham et al., The PASCAL
Visual Object Classes Challenge: A Retrospective, IJCV 111, 2015, DOI 10.1007/s11263-014-0733-5, section
4.2). mIoU is the mean over the classes that occur in labels or predictions; one that occurs in neither has no
IoU and is left out. Unlabelled pixels count nowhere.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ....datasets.transforms import UNLABELLED
from .task import MOST_SAMPLES, Task

MOST_PIXELS = 2**20  # of a forward pass in an evaluation: outputs have `classes` numbers for each


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """Outputs are logits [b, classes, H, W], targets masks int64 [b, H, W] with 255 for unlabelled pixels.

    A sample's loss is the mean cross entropy of its labelled pixels, 0 without any: the denominator of a
    batch is its number of samples, which all ranks know without a message.
    Counts are the confusion matrix [classes, classes + 1]: a row for each label, a column for each prediction
    and one for outputs that are not all finite, which are no class.
    Raises ValueError for more classes than there are labels.
    """

    name = "segmentation"
    metrics = ("miou", "pixel_accuracy", "loss")

    def __post_init__(self) -> None:
        if self.classes > UNLABELLED:
            raise ValueError(f"classes={self.classes}: must be <= {UNLABELLED}, which is 'unlabelled'")

    def criterion(self) -> nn.Module:
        return MeanOfImages()

    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return image_losses(outputs, targets).sum()

    def nothing(self) -> Tensor:
        return torch.zeros(self.classes, self.classes + 1, dtype=torch.int64)

    def count(self, outputs: Tensor, targets: Tensor) -> Tensor:
        predicted = outputs.argmax(1).masked_fill_(~outputs.isfinite().all(1), self.classes)
        labelled = targets != UNLABELLED
        pairs = targets[labelled] * (self.classes + 1) + predicted[labelled]
        return pairs.bincount(minlength=self.classes * (self.classes + 1)).view(self.classes, -1)

    def numbers(self, counts: Tensor, samples: int) -> dict[str, Any]:
        right, labelled = counts.diagonal(), int(counts.sum())
        union = counts.sum(1) + counts.sum(0)[:-1] - right
        occurs = union > 0
        miou = (right[occurs].double() / union[occurs]).mean().item()
        share = int(right.sum()) / labelled if labelled else math.nan
        return {"miou": miou, "pixel_accuracy": share, "count": samples}

    def noise(self, samples: int, height: int, width: int) -> Tensor:
        return torch.arange(samples * height * width).view(samples, height, width) % self.classes

    def evaluation_batch(self, height: int, width: int) -> int:
        return max(1, min(MOST_SAMPLES, MOST_PIXELS // (height * width)))


class MeanOfImages(nn.Module):
    """The mean of the images' losses."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Loss [] of outputs [b, classes, H, W] and masks [b, H, W]."""
        return image_losses(outputs, targets).mean()


def image_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each image's mean cross entropy over its labelled pixels [b]; 0 of an image without any."""
    losses = functional.cross_entropy(outputs, targets, ignore_index=UNLABELLED, reduction="none")
    labelled = (targets != UNLABELLED).flatten(1).sum(1)
    return losses.flatten(1).sum(1) / labelled.clamp(min=1)
