"""One label for each image: top-1 and, of more than five classes, top-5 accuracy."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .task import Task

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """Outputs are logits [b, classes], targets labels int64 [b]; the loss is the cross entropy.

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
        found = {"accuracy": accuracy, "correct": int(counts[0]), "count": samples}
        return found | ({"top5": top5[0]} if top5 else {})

    def noise(self, samples: int, height: int, width: int) -> Tensor:
        return torch.arange(samples) % self.classes
