"""The module of a run's model: built, its lazy layers materialised, its parameters of one floating type."""

import logging

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...datasets.dataset import Dataset
from ...datasets.sampler import Sampler
from ...models.spec import InputSpec, Model
from ...strategies.errors import ConfigError

_log = logging.getLogger(__name__)
_checked: set[tuple[str, InputSpec]] = set()  # runs of a sweep have the same model many times


def build(model: Model, spec: InputSpec) -> nn.Module:
    """The module that `model`, a model's configuration, makes for samples of `spec`.

    Lazy layers (`nn.LazyLinear`) get their shapes from a forward pass of two blank samples in evaluation
    mode; their numbers come from torch's generator, as those of other layers do. Raises ConfigError:
    parameters have several floating types, or lazy layers are not reached by that pass.
    """
    module = model.build(spec)
    dtype = _one_type(model, module)
    if _lazy(module):
        device = next(tensor.device for tensor in module.parameters())
        blank = torch.zeros(2, spec.channels, spec.height, spec.width, dtype=dtype, device=device)
        training = [layer for layer in module.modules() if layer.training]
        module.eval()
        with torch.no_grad():
            module(blank)
        for layer in training:
            layer.training = True
        if left := _lazy(module):
            raise ConfigError(
                f"model={_name(model)}: {', '.join(left)} has no shape after a forward pass in evaluation "
                "mode; build the layer with its sizes"
            )
    return module


def normalises(model: nn.Module) -> bool:
    """Whether a layer of `model` is one of batch normalisation."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def input_spec(dataset: Dataset) -> InputSpec | None:
    """The shape of a data set's samples, for plans and checks; None where it has to be loaded first."""
    info = dataset.expected_info()
    return None if info.shape is None or info.classes is None else InputSpec(*info.shape, info.classes)


def built(model: Model, spec: InputSpec) -> nn.Module:
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


def check_batch_norm(sampler: Sampler, parts: int) -> None:
    """Refuse batches of which a rank, or a part, has one sample, for a model with batch normalisation.

    Raises ConfigError.
    """
    last = sampler.steps_per_epoch - 1
    of_first, of_last = (min(sampler.samples_of_rank(batch)) // parts for batch in (0, last))
    if of_first >= 2 and of_last >= 2:
        return
    size, ranks = sampler.global_batch_size, sampler.ranks
    of_parts = f" x {parts} parts (train.accumulate)" if parts > 1 else ""
    if of_first < 2:
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


def check_build(model: Model, spec: InputSpec) -> None:
    """Refuse before any process starts what `build` refuses, without memory for the module's numbers.

    Whatever else a model raises it may raise for having no numbers: its ranks build it with them, and tell.
    Of equal models for equal samples the first is built. Raises ConfigError as `build` does.
    """
    key = f"{type(model)} {model!r}", spec
    if key in _checked:
        return
    try:
        with torch.device("meta"):
            build(model, spec)
    except ConfigError:
        raise
    except Exception as error:
        _log.debug("model=%s: not built without numbers: %s", _name(model), error)
    _checked.add(key)


def _one_type(model: Model, module: nn.Module) -> torch.dtype | None:
    """The floating type of all parameters; None where there is none."""
    firsts = {p.dtype: name for name, p in reversed(list(module.named_parameters())) if p.is_floating_point()}
    if len(firsts) > 1:
        types = ", ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for dtype, name in firsts.items())
        raise ConfigError(
            f"model={_name(model)}: its parameters have {len(firsts)} floating types ({types}), and a run "
            "has one, that of train.precision; build them all in one type"
        )
    return next(iter(firsts), None)


def _lazy(module: nn.Module) -> list[str]:
    named = [*module.named_parameters(), *module.named_buffers()]
    return [name for name, tensor in named if is_lazy(tensor)]


def _name(model: Model) -> str:
    return getattr(model, "name", type(model).__name__)
