"""The optimizers a run can choose: one frozen dataclass each, built on the parameters this rank steps.

All use PyTorch's fused kernels: one pass over a parameter and its state instead of one per operation, several
times faster on CPUs, where the step of a large model is bound by memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..strategies.errors import ConfigError, above, at_least


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent with momentum, `torch.optim.SGD`."""

    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        _learning_rate(self.lr)
        _share("momentum", self.momentum)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        if self.nesterov and self.momentum == 0:
            raise ConfigError("optimizer.nesterov=true: needs optimizer.momentum > 0")

    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimizer of `parameters` at the base learning rate; the schedule scales it."""
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019, arXiv:1711.05101), `torch.optim.AdamW`."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _learning_rate(self.lr)
        _share("beta1", self.beta1)
        _share("beta2", self.beta2)
        above("optimizer.eps", self.eps, 0)
        at_least("optimizer.weight_decay", self.weight_decay, 0)

    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimizer of `parameters` at the base learning rate; the schedule scales it."""
        return torch.optim.AdamW(
            parameters,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


def _learning_rate(lr: float) -> None:
    above("optimizer.lr", lr, 0)
    if lr == float("inf"):
        raise ConfigError(f"optimizer.lr={lr}: must be finite")


def _share(key: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"optimizer.{key}={value}: must be at least 0 and below 1")
