"""Batches in parts (train.accumulate), and batch normalisation, which refuses a part of one sample."""

from typing import Any

import torch
from torch import nn

from ...datasets.dataset import Dataset
from ...datasets.sampler import Sampler
from ...models.spec import InputSpec
from ...strategies.errors import ConfigError
from .model_building import build


def check_parts(parts: int, global_batch_size: int, ranks: int, samples: int | None) -> None:
    """Refuse a batch that the data do not fill, and parts without a sample. Raises ConfigError.

    samples: of the training split, None where they are not known.
    """
    if samples is not None and global_batch_size > samples:
        raise ConfigError(
            f"train.global_batch_size={global_batch_size}: the data set has {samples} training samples; "
            "take at most as many"
        )
    most = global_batch_size // ranks
    if parts > max(1, most):
        raise ConfigError(
            f"train.accumulate={parts}: must be <= {most}, the samples of a rank in a batch "
            f"({global_batch_size} over {ranks} ranks); take fewer parts, or a larger train.global_batch_size"
        )


def check_batch_norm(sampler: Sampler, parts: int) -> None:
    """Refuse batches of which a rank, or a part, has one sample, for a model with batch normalisation.

    Raises ConfigError.
    """
    last = sampler.steps_per_epoch - 1
    if smallest_part(sampler, parts, 0) >= 2 and smallest_part(sampler, parts, last) >= 2:
        return
    size, ranks = sampler.global_batch_size, sampler.ranks
    of_parts = f" x {parts} parts (train.accumulate)" if parts > 1 else ""
    if smallest_part(sampler, parts, 0) < 2:
        way_out = f"use at least 2 x {ranks} ranks{of_parts}"
    else:
        way_out = (
            f"the last batch of an epoch has {sampler.sizes(last)} samples, and needs 2 x {ranks} "
            f"ranks{of_parts}; leave it out with train.short_batch=drop, or take another size"
        )
    raise ConfigError(
        f"train.global_batch_size={size}: gives a rank one sample at a time, which batch normalisation "
        f"refuses; {way_out}"
    )


def smallest_part(sampler: Sampler, parts: int, batch: int) -> int:
    """Samples of the smallest part of any rank, of global batch number `batch`."""
    return min(sampler.samples_of_rank(batch)) // parts


def normalises(model: nn.Module) -> bool:
    """Whether a layer of `model` is one of batch normalisation."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def input_spec(dataset: Dataset) -> InputSpec | None:
    """The shape of a data set's samples; None where it has to be loaded first."""
    info = dataset.info()
    return None if info.shape is None or info.classes is None else InputSpec(*info.shape, info.classes)


def built(model: Any, spec: InputSpec) -> nn.Module:
    """The module of a model's configuration, if possible without memory for its numbers.

    Raises ConfigError where it cannot be built.
    """
    try:
        try:
            with torch.device("meta"):
                return build(model, spec)
        except (RuntimeError, NotImplementedError):  # a model may look at its numbers
            return build(model, spec)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
