"""The optimizers a run can choose: one frozen dataclass each, built on the parameters that this rank steps.

SGD and AdamW use PyTorch's fused kernels: one pass over a parameter and its state instead of one per
operation, several times faster on CPUs, where the step of a large model is bound by memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import Field, dataclass
from typing import Any, ClassVar

import torch

from ...strategies.errors import ConfigError, above, at_least, one_of


class Optimizer(ABC):
    """The keys of an optimizer: a frozen, keyword-only dataclass that checks them in `__post_init__`.

    A new one is a subclass with the key `lr` and the method `build`, and conf/optimizer/NAME.yaml with
    `_target_` and every key. `daso-bench tune` searches `lr`, and `weight_decay` where there is such a key.
    """

    lr: float
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # each one is a dataclass: `replace` takes it

    @abstractmethod
    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The optimizer of `parameters` at the base learning rate; the schedule scales it."""


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
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
        return torch.optim.SGD(
            parameters,
            lr=self.lr,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
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
        return torch.optim.AdamW(
            parameters,
            lr=self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            weight_decay=self.weight_decay,
            fused=True,
        )


@dataclass(frozen=True, kw_only=True)
class LARS(Optimizer):
    """Layer-wise adaptive rates (You, Gitman, Ginsburg 2017, arXiv:1708.03888), see `LARSOptimizer`.

    It brings its own learning rate: with the trust coefficient of 0.001 a base rate around 10 is ordinary.
    """

    lr: float = 10.0
    trust_coefficient: float = 0.001
    momentum: float = 0.9
    weight_decay: float = 1e-4
    skip: str = "norm_and_bias"

    def __post_init__(self) -> None:
        _learning_rate(self.lr)
        above("optimizer.trust_coefficient", self.trust_coefficient, 0)
        _share("momentum", self.momentum)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        one_of("optimizer.skip", self.skip, ["norm_and_bias", "none"])

    def build(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        return LARSOptimizer(parameters, self)


class LARSOptimizer(torch.optim.Optimizer):
    """Per tensor w with gradient g, weight decay wd, trust coefficient η, momentum μ:

        λ = η·‖w‖ / (‖g‖ + wd·‖w‖)
        v ← μ·v + lr·λ·(g + wd·w),  w ← w - v

    λ = 1 where ‖w‖ or ‖g‖ is 0. Skipped tensors (`norm_and_bias`: at most one dimension) have λ = 1 and
    wd = 0. Norms are of the whole tensor and of the gradient as applied, accumulated in float64.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], config: LARS) -> None:
        super().__init__(parameters, {"lr": config.lr, "weight_decay": config.weight_decay})
        self.config = config

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (no closure)
        """Apply the gradients that are there."""
        for group in self.param_groups:
            pairs = [(p, p.grad) for p in group["params"] if p.grad is not None]
            for (w, g), norms in zip(pairs, self._norms(pairs), strict=True):
                decay = 0.0 if norms is None else group["weight_decay"]
                rate = group["lr"] * self._trust_ratio(norms, decay)
                state = self.state[w]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(w)
                v = state["momentum_buffer"]
                v.mul_(self.config.momentum)
                w.sub_(v.add_(g.add(w, alpha=decay) if decay else g, alpha=rate))

    def _norms(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> list[tuple[float, float] | None]:
        """(‖w‖, ‖g‖) of each pair, None of skipped ones; a GPU is waited for once, not for each tensor."""
        scaled = [not (self.config.skip == "norm_and_bias" and w.dim() <= 1) for w, _ in pairs]
        norms = [
            torch.linalg.vector_norm(tensor, dtype=torch.float64)
            for pair, scale in zip(pairs, scaled, strict=True)
            if scale
            for tensor in pair
        ]
        numbers = iter(torch.stack(norms).tolist() if norms else [])
        return [(next(numbers), next(numbers)) if scale else None for scale in scaled]

    def _trust_ratio(self, norms: tuple[float, float] | None, decay: float) -> float:
        """λ of one tensor."""
        if norms is None or 0 in norms:
            return 1.0
        w_norm, g_norm = norms
        return self.config.trust_coefficient * w_norm / (g_norm + decay * w_norm)


def _learning_rate(lr: float) -> None:
    above("optimizer.lr", lr, 0)
    if lr == float("inf"):
        raise ConfigError(f"optimizer.lr={lr}: must be finite")


def _share(key: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ConfigError(f"optimizer.{key}={value}: must be at least 0 and below 1")
