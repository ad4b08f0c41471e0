"""Tasks: the loss of a batch, what an evaluation counts, and the metrics of the counts.

The data set of a run says which task it has: labels of images (classification) or of pixels (segmentation).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...datasets.transforms import UNLABELLED
from ...strategies.errors import ConfigError, unknown

MOST_SAMPLES = 256  # of a forward pass in an evaluation
MOST_PIXELS = 2**20  # of a forward pass in an evaluation: outputs have `classes` numbers for each
TOP = 5


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task on `classes` classes. Train loop and strategies know none by name.

    name: as data sets and models give it; metrics: what a target may be of, the headline first; all but
    `loss` are shares, and better the higher. label_smoothing: of the criterion alone.
    """

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    smooths: ClassVar[bool] = False
    """Whether the criterion has `label_smoothing`."""

    classes: int
    label_smoothing: float = 0.0

    @property
    def headline(self) -> str:
        """The metric that models are judged by."""
        return self.metrics[0]

    @abstractmethod
    def criterion(self) -> nn.Module:
        """Maps (outputs, targets) to a batch's loss [], the mean of its samples' losses.

        As each sample counts 1, weights n_r / Σ n_r make the loss of all ranks' batches of theirs, exactly.
        """

    @abstractmethod
    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum [] of the samples' losses in an evaluation, without label smoothing."""

    @abstractmethod
    def nothing(self) -> Tensor:
        """int64, what is counted of no sample."""

    @abstractmethod
    def count(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """int64, what is counted of a batch, to be summed over batches and ranks; on the outputs' device.

        Outputs that are not all finite are wrong.
        """

    @abstractmethod
    def numbers(self, counts: Tensor, samples: int) -> dict[str, Any]:
        """An evaluation's fields from the sum of all counts, `loss` apart; NaN where there is nothing."""

    @abstractmethod
    def noise(self, samples: int, height: int, width: int) -> Tensor:
        """Targets to measure with, of samples of that size; every class in turn."""

    def evaluation_batch(self, height: int, width: int) -> int:
        """Samples of a forward pass in an evaluation."""
        return MOST_SAMPLES


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """One label for each image: top-1 and, of more than five classes, top-5 accuracy.

    Outputs are logits [b, classes], targets labels int64 [b]; the loss is the cross entropy.

    Counts are [right] or [right, among the five highest]. Of equal outputs the first is the higher.
    """

    name = "classification"
    metrics = ("accuracy", "top5", "loss")
    smooths = True

    @property
    def has_top5(self) -> bool:
        """Whether the five highest outputs are not simply all."""
        return self.classes > TOP

    def criterion(self) -> nn.Module:
        return nn.CrossEntropyLoss(label_smoothing=self.label_smoothing)

    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")

    def nothing(self) -> Tensor:
        return torch.zeros(1 + self.has_top5, dtype=torch.int64)

    def count(self, outputs: Tensor, targets: Tensor) -> Tensor:
        finite = outputs.isfinite().all(1)
        right = ((outputs.argmax(1) == targets) & finite).sum()
        if not self.has_top5:
            return right.view(1)
        own = outputs.gather(1, targets[:, None])
        before = torch.arange(outputs.shape[1], device=outputs.device) < targets[:, None]
        higher = (outputs > own) | ((outputs == own) & before)
        return torch.stack([right, ((higher.sum(1) < TOP) & finite).sum()])

    def numbers(self, counts: Tensor, samples: int) -> dict[str, Any]:
        accuracy, *top5 = (counts.double() / samples).tolist() if samples else [math.nan] * len(counts)
        fields = {"accuracy": accuracy, "correct": int(counts[0]), "count": samples}
        return fields | ({"top5": top5[0]} if top5 else {})

    def noise(self, samples: int, height: int, width: int) -> Tensor:
        return torch.arange(samples) % self.classes


@dataclass(frozen=True, kw_only=True)
class Segmentation(Task):
    """One label for each pixel: the mean intersection over union (mIoU) of the classes, and pixel accuracy.

    IoU_c = TP_c / (TP_c + FP_c + FN_c), of all pixels of all images together (M. Everingham et al., The
    PASCAL Visual Object Classes Challenge: A Retrospective, IJCV 111, 2015, DOI 10.1007/s11263-014-0733-5,
    section 4.2). mIoU is the mean over the classes that occur in labels or predictions; one that occurs in
    neither has no IoU and is left out. Unlabelled pixels count nowhere.

    Outputs are logits [b, classes, H, W], targets masks int64 [b, H, W] with 255 for unlabelled pixels.

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


TASKS: dict[str, type[Task]] = {kind.name: kind for kind in (Classification, Segmentation)}
METRICS = tuple(dict.fromkeys(metric for kind in TASKS.values() for metric in kind.metrics))


def kind_of(task: str, where: str) -> type[Task]:
    """The class of the task called `task`, which a part of the group `where` is for. Raises ConfigError."""
    if task not in TASKS:
        raise unknown(f"{where}.task", str(task), TASKS)
    return TASKS[task]


def check_top5(target_metric: str, classes: int) -> None:
    """Refuse `top5` where all classes are among the first five. Raises ConfigError."""
    if target_metric == "top5" and classes <= TOP:
        raise ConfigError(
            f"train.target_metric=top5: the data set has {classes} classes, which are all among the first "
            f"{TOP}; take accuracy"
        )
