"""The models of `numpy_models.py` in torch, with the product's optimizers in two parameter groups."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from numpy_models import HIDDEN, Autoencoder, Samples, uneven
from numpy_optimizers import PLAIN, Recipe
from torch import Tensor, nn

from daso_bench.runner.config import optimizers
from daso_bench.runner.conformance.scenario import Problem

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class ModelProblem(Problem):
    """A problem whose model exists in NumPy too."""

    samples: Samples
    recipe: Recipe

    @property
    def numpy_model(self) -> Autoencoder:
        """The model in NumPy."""
        return self.samples.model


class AutoencoderModel(nn.Module):
    """`numpy_models.Autoencoder` in torch.

    It has frozen, tied, non-contiguous, scalar, empty and mixed-type parameters.
    """

    def __init__(self, model: Autoencoder) -> None:
        super().__init__()
        values = {name: torch.from_numpy(value.copy()) for name, value in model.views(model.start).items()}
        dtypes = {part.name: DTYPES[part.dtype] for part in model.parts}
        dtype = dtypes["weight"]
        self.shift = nn.Parameter(torch.from_numpy(model.shift.copy()).to(dtype), requires_grad=False)
        # Stored transposed: the parameter is not contiguous.
        self.weight = nn.Parameter(values["weight"].to(dtype).t().contiguous().t())
        self.decoder = self.weight
        self.nothing = nn.Parameter(torch.empty(0, 3, dtype=dtype))
        self.b1 = nn.Parameter(values["b1"].to(dtype))
        self.odd = nn.Parameter(values["odd"].to(dtypes["odd"]))
        self.s = nn.Parameter(values["s"].to(dtype))
        self.b2 = nn.Parameter(values["b2"].to(dtype))
        self.mean: Tensor
        self.batches: Tensor
        self.register_buffer("mean", torch.zeros(HIDDEN, dtype=dtype))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        """[b, WIDTH] -> [b, WIDTH + 1]."""
        hidden = torch.tanh((inputs + self.shift) @ self.weight + self.b1)
        if self.training:
            self.mean.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
            self.batches.add_(1)
        outputs = hidden @ self.decoder.t() * self.s + self.b2 + self.nothing.sum()
        return torch.cat([outputs, (inputs.to(self.odd.dtype) @ self.odd)[:, None]], dim=1)


class Squares(nn.Module):
    """The mean squared error; types may be mixed."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over samples and columns."""
        return (outputs - targets).square().mean()


def build(recipe: Recipe) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    """The product's own optimizer of a recipe, in two groups: tensors of at most one dimension never decay.

    Either group may be empty, for a rank may step none of a group's parameters.
    """

    def make(stepped: list[Tensor]) -> torch.optim.Optimizer:
        groups: Any = [
            {"params": [p for p in stepped if p.dim() > 1]},
            {"params": [p for p in stepped if p.dim() <= 1], "weight_decay": 0.0},
        ]
        if recipe.kind == "adamw":
            config = optimizers.AdamW(lr=recipe.lr, weight_decay=recipe.weight_decay)
            return config.build(groups)
        if recipe.kind == "lars":
            return optimizers.LARS(
                lr=recipe.lr,
                momentum=recipe.momentum,
                weight_decay=recipe.weight_decay,
                trust_coefficient=recipe.trust,
            ).build(groups)
        return optimizers.SGD(
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        ).build(groups)

    return make


@cache
def autoencoder(
    ranks: int,
    *,
    dtype: str = "float64",
    odd: str | None = None,
    recipe: Recipe = PLAIN,
    steps_per_epoch: int = 10,
    seed: int = 0,
    sizes: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> ModelProblem:
    """The autoencoder; `odd` is the type of one parameter (default: as the others).

    `sizes`: samples of each rank in a full and in an epoch's last batch; default `uneven`.
    """
    odd = odd or dtype
    samples = Samples(_autoencoder(dtype, odd), *(sizes or uneven(ranks)), steps_per_epoch, seed)
    mixed = "" if odd == dtype else f" with one {odd}"
    return ModelProblem(
        name=f"autoencoder in {dtype}{mixed}, {recipe.kind}",
        model=lambda: AutoencoderModel(_autoencoder(dtype, odd)),
        data=_torch_data(samples, DTYPES[dtype]),
        criterion=Squares,
        optimizer=build(recipe),
        samples=samples,
        recipe=recipe,
    )


@cache
def _autoencoder(dtype: str, odd: str) -> Autoencoder:
    return Autoencoder(dtype, odd)


def _torch_data(samples: Samples, dtype: torch.dtype) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    @cache
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        x, t = samples.piece(rank, step)
        return torch.from_numpy(x).to(dtype), torch.from_numpy(t).to(dtype)

    return data
