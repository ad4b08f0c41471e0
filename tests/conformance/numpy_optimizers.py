"""SGD, AdamW and LARS in NumPy, on flat vectors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy_models import Array, Part


@dataclass(frozen=True)
class Recipe:
    """An optimizer's numbers. Tensors of at most one dimension are a group of their own and never decay."""

    kind: str = "sgd"  # sgd | adamw | lars
    lr: float = 0.2
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    trust: float = 0.02

    def build(self, parts: Sequence[Part]) -> "Optimizer":
        """A fresh optimizer for one rank's vector."""
        kinds = {"sgd": SGD, "adamw": AdamW, "lars": LARS}
        return kinds[self.kind](self, parts)


PLAIN = Recipe()
MOMENTUM = Recipe(lr=0.1, momentum=0.8)
DECAYED = Recipe(lr=0.1, momentum=0.8, weight_decay=0.05)
NESTEROV = Recipe(lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.05)
ADAMW = Recipe("adamw", lr=0.01, weight_decay=0.1)
LARS_RECIPE = Recipe("lars", lr=2.0, momentum=0.8, weight_decay=0.05)


class Optimizer(ABC):
    """Steps one rank's vector in place. `moments` are the vectors of its state, in a fixed order."""

    def __init__(self, recipe: Recipe, parts: Sequence[Part]) -> None:
        self.recipe, self.parts = recipe, parts
        decays = [np.full(part.numel, recipe.weight_decay if len(part.shape) > 1 else 0.0) for part in parts]
        self.decay = np.concatenate(decays)
        self.moments: list[Array] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.count = 0
        self.moments = [np.zeros_like(self.decay) for _ in range(self.vectors)]

    @property
    def vectors(self) -> int:
        """How many vectors of state there are."""
        return 1

    @abstractmethod
    def step(self, theta: Array, gradient: Array, lr: float) -> None:
        """θ moves, in place."""


class SGD(Optimizer):
    """g' = g + wd·θ, v = μ·v + g', θ -= lr·v (Nesterov: lr·(g' + μ·v))."""

    def step(self, theta: Array, gradient: Array, lr: float) -> None:
        gradient = gradient + self.decay * theta
        velocity = self.moments[0]
        velocity *= self.recipe.momentum
        velocity += gradient
        direction = gradient + self.recipe.momentum * velocity if self.recipe.nesterov else velocity
        theta -= lr * direction


class AdamW(Optimizer):
    """Decoupled decay, bias-corrected moments; β 0.9 and 0.999, ε 1e-8."""

    @property
    def vectors(self) -> int:
        return 2

    def step(self, theta: Array, gradient: Array, lr: float) -> None:
        self.count += 1
        first, second = self.moments
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        theta *= 1 - lr * self.decay
        corrected = np.sqrt(second / (1 - 0.999**self.count)) + 1e-8
        theta -= lr * first / (1 - 0.9**self.count) / corrected


class LARS(Optimizer):
    """λ = η·‖w‖/(‖g‖ + wd·‖w‖) per tensor (1 where a norm is 0 or the tensor has at most one dimension).

    v = μ·v + lr·λ·(g + wd·w), w -= v.
    """

    def step(self, theta: Array, gradient: Array, lr: float) -> None:
        at = 0
        velocity = self.moments[0]
        for part in self.parts:
            here = slice(at, at + part.numel)
            at += part.numel
            w, g = theta[here], gradient[here]
            decay = self.recipe.weight_decay if len(part.shape) > 1 else 0.0
            size, slope = np.sqrt(np.sum(w * w)), np.sqrt(np.sum(g * g))
            ratio = 1.0
            if len(part.shape) > 1 and size > 0 and slope > 0:
                ratio = self.recipe.trust * size / (slope + decay * size)
            velocity[here] = self.recipe.momentum * velocity[here] + lr * ratio * (g + decay * w)
        theta -= velocity
