"""Small models in NumPy float64 with gradients derived by hand, and their samples. No torch, no autograd.

The same models in torch are in `torch_models.py` and share no code with these. All random numbers are exact
in float32: models of both precisions start from the same values and see the same samples.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

WIDTH, HIDDEN = 6, 5
"""Inputs and hidden units of the autoencoder."""


@dataclass(frozen=True)
class Part:
    """One trainable parameter's place in the flat vector; `dtype` is its type in the torch model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float64"

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class NumpyModel(ABC):
    """A model and its loss. θ is a vector [m] of `parts` one after the other, `buffers` a vector [F]."""

    parts: tuple[Part, ...]
    start: Array
    buffers: Array = np.zeros(0)

    def views(self, theta: Array) -> dict[str, Array]:
        """θ's parts by name, in their shapes, as views."""
        views, at = {}, 0
        for part in self.parts:
            views[part.name] = theta[at : at + part.numel].reshape(part.shape)
            at += part.numel
        return views

    @abstractmethod
    def descend(self, theta: Array, buffers: Array, x: Array, t: Array) -> tuple[float, Array, Array]:
        """(mean loss over the samples x [b, …], t [b, …]; its gradient [m]; buffers [F] after this step)."""


class Autoencoder(NumpyModel):
    """h = tanh((x + shift)·W + b1), y = s·h·Wᵀ + b2, squared error against t, W in both places.

    Beside it stands z = x·odd against the last target column: nothing else depends on `odd`, so that its
    type (another one than the rest's in mixed models) spoils no other parameter. `nothing` has no elements,
    `shift` is frozen, `mean` is a buffer: 0.9·mean + 0.1·h averaged over the batch.
    """

    def __init__(self, dtype: str, odd: str) -> None:
        self.parts = (
            Part("s", (), dtype),
            Part("weight", (WIDTH, HIDDEN), dtype),
            Part("b1", (HIDDEN,), dtype),
            Part("b2", (WIDTH,), dtype),
            Part("nothing", (0, 3), dtype),
            Part("odd", (WIDTH,), odd),
        )
        generator = np.random.default_rng(7)
        self.start = _float32(generator.normal(0, 0.5, sum(part.numel for part in self.parts)))
        self.start[0] = 0.75
        self.shift = _float32(generator.normal(0, 0.3, WIDTH))
        self.buffers = np.zeros(HIDDEN)

    def descend(self, theta: Array, buffers: Array, x: Array, t: Array) -> tuple[float, Array, Array]:
        p = self.views(theta)
        s, weight = float(p["s"]), p["weight"]
        shifted = x + self.shift
        hidden = np.tanh(shifted @ weight + p["b1"])
        linear = hidden @ weight.T
        miss = s * linear + p["b2"] - t[:, :WIDTH]
        odd_miss = x @ p["odd"] - t[:, WIDTH]
        count = len(x) * (WIDTH + 1)
        loss = (np.square(miss).sum() + np.square(odd_miss).sum()) / count

        d_out = 2 / count * miss
        d_pre = s * (d_out @ weight) * (1 - hidden**2)
        gradient = np.zeros_like(theta)
        g = self.views(gradient)
        g["s"][...] = (d_out * linear).sum()
        g["weight"][...] = s * d_out.T @ hidden + shifted.T @ d_pre
        g["b1"][...] = d_pre.sum(0)
        g["b2"][...] = d_out.sum(0)
        g["odd"][...] = 2 / count * odd_miss @ x
        return loss, gradient, 0.9 * buffers + 0.1 * hidden.mean(0)

    def draw(self, generator: np.random.Generator, rank: int, size: int) -> tuple[Array, Array]:
        """`size` random samples (inputs [b, …], targets [b, …]) that `rank` sees; ranks see unlike ones."""
        x = generator.normal(0.3 * math.sin(rank), 0.7, (size, WIDTH))
        t = x @ np.full((WIDTH, WIDTH + 1), 0.2) + generator.normal(
            0.2 * math.cos(rank), 0.5, (size, WIDTH + 1)
        )
        return _float32(x), _float32(t)


class Springs(NumpyModel):
    """½·a·(θ - c)² for samples (a, c): gradients a·(θ - c), one parameter `theta`. Hand values are on it."""

    def __init__(self, start: float = 0.0) -> None:
        self.parts = (Part("theta", (1,)),)
        self.start = np.array([start])

    def descend(self, theta: Array, buffers: Array, x: Array, t: Array) -> tuple[float, Array, Array]:
        a, c = x[:, 0], x[:, 1]
        return (
            float(0.5 * (a * (theta - c) ** 2).mean()),
            np.array([(a * (theta - c)).mean()]),
            buffers,
        )


class Slope(NumpyModel):
    """The mean of x·w: the gradient is the mean x, whatever w is."""

    def __init__(self, start: Sequence[float] = (1.0,)) -> None:
        self.parts = (Part("w", (len(start),)),)
        self.start = np.array(start, dtype=np.float64)

    def descend(self, theta: Array, buffers: Array, x: Array, t: Array) -> tuple[float, Array, Array]:
        return float((x @ theta).mean()), x.mean(0), buffers


@dataclass(frozen=True)
class Samples:
    """What each rank sees in each step: `full` samples, but `short` ones in the last step of an epoch."""

    model: Autoencoder
    full: tuple[int, ...]
    short: tuple[int, ...]
    steps_per_epoch: int
    seed: int = 0

    def piece(self, rank: int, step: int) -> tuple[Array, Array]:
        """(inputs [b, …], targets [b, …]) of `rank` in `step` from 0; always the same ones."""
        last = step % self.steps_per_epoch == self.steps_per_epoch - 1
        size = (self.short if last else self.full)[rank]
        return _piece(self.model, self.seed, rank, step, size)


@cache
def _piece(model: Autoencoder, seed: int, rank: int, step: int, size: int) -> tuple[Array, Array]:
    return model.draw(np.random.default_rng([seed, rank, step]), rank, size)


def uneven(ranks: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Samples of each rank in a full and in a short batch, as if cut from batches that R does not divide."""
    full, short = 2 * ranks + (ranks + 1) // 2, ranks + ranks // 2
    return _cut(full, ranks), _cut(short, ranks)


def _cut(size: int, ranks: int) -> tuple[int, ...]:
    return tuple(size // ranks + (rank < size % ranks) for rank in range(ranks))


def _float32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)
