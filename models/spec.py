"""Input and output shapes of models."""

from dataclasses import dataclass


@dataclass(frozen=True)
class InputSpec:
    """Shape of one sample and the number of classes.

    A model built for it maps float images [b, channels, height, width] to logits [b, classes], one for
    segmentation to logits [b, classes, height, width].
    """

    channels: int
    height: int
    width: int
    classes: int
