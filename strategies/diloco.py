"""DiLoCo: ranks train by themselves for H steps; their mean move is the gradient of an outer optimizer.

The inner optimizer is the run's own and keeps its state; the outer one is SGD with Nesterov momentum and
takes the same step on every rank.

Update rule (θ: the global model, equal on all ranks; a round has H = `sync_every` steps; ν: `outer_lr`, μ:
`outer_momentum`):

    every step    θ_i = optimizer_i(θ_i, g_i), from θ_i = θ at the start of the round
    every round   Δ = (1/R)·Σ_i (θ - θ_i), blocking
                  u = μ·u + Δ,   θ = θ - ν·(Δ + μ·u),   θ_i = θ

Bytes: a ring sends 2·(R-1)/R · 4(m + F + 1)/H per rank and step (m parameters, F elements of floating-point
buffers; one element carries a stop request): DDP's divided by H.

Paper: A. Douillard, Q. Feng, A. A. Rusu, R. Chhaparia, Y. Donchev, A. Kuncoro, M. Ranzato, A. Szlam, J. Shen,
DiLoCo: Distributed Low-Communication Training of Language Models (2023), arXiv:2311.08105.

Ours differs: `sync_every` is 20, for short runs; the abstract's 500 times less communication is 500. Values
of `outer_lr` and `outer_momentum` are those common in public code. A last round that is cut short ends with
an average and without an outer step; a model judged within a round is made the same way.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .averaging import PeriodicStrategy, check_policies
from .communicator import Communicator
from .errors import ConfigError, above, at_least, one_of, within
from .progress import Plan, Progress, RankMemory
from .replica import Replica


@dataclass(frozen=True, kw_only=True)
class DiLoCoConfig:
    sync_every: int = 20  # H, inner steps of a round
    outer_lr: float = 0.7  # ν
    outer_momentum: float = 0.9  # μ, Nesterov
    outer_device: str = "cpu"  # where θ and u live and the outer step is done: cpu | device
    buffers: str = "average"  # BatchNorm statistics at the end of a round: average | broadcast | none
    optimizer_state: str = "keep"  # the inner optimizer's at the end of a round: keep | average | reset

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        above("strategy.outer_lr", self.outer_lr, 0)
        within("strategy.outer_momentum", self.outer_momentum, 0, 1)
        one_of("strategy.outer_device", self.outer_device, ["cpu", "device"])
        check_policies(self)


class DiLoCo(PeriodicStrategy):
    Config = DiLoCoConfig
    config: DiLoCoConfig
    outer_steps = True
    remembers = (*PeriodicStrategy.remembers, "model_between_rounds", "momentum", "outer_norms")
    tuned = (
        ("sync_every", (5, 10, 20, 40)),
        ("outer_lr", (0.5, 0.7, 0.9, 1.0)),
        ("outer_momentum", (0.5, 0.7, 0.9)),
    )
    caveats = (
        "The inner optimizer is the run's: compare with ddp under the same optimizer, AdamW and SGD apart.",
        "The period, the outer rate and the learning rate go together: say which were tuned. The default "
        "period is ours.",
        "A last round that is cut short, and a model judged within a round, is an average without an outer "
        "step.",
        "BatchNorm variances are averaged, not pooled: how far the means of ranks differ is not in them; and "
        "they belong to the average of the round, not to the model after the outer step.",
    )

    @classmethod
    def check(cls, config: DiLoCoConfig, plan: Plan) -> None:
        if plan.steps is not None and plan.steps < 2 * config.sync_every:
            raise ConfigError(
                f"strategy.sync_every={config.sync_every}: diloco needs at least two rounds, which a run of "
                f"{plan.steps} steps does not have; lower it or train longer"
            )

    @classmethod
    def copies_held(cls, config: DiLoCoConfig, plan: Plan, memory: RankMemory) -> float:
        on_host = memory.on_gpu and config.outer_device == "cpu"
        return super().copies_held(config, plan, memory) - 2 * on_host

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.start_alone(replica, comm, progress)
        cpu = self.config.outer_device == "cpu"
        self.device = torch.device("cpu") if cpu else replica.parameters.device
        self.model_between_rounds = replica.flat().to(self.device, self.model.dtype)  # θ
        self.momentum = torch.zeros_like(self.model_between_rounds)  # u
        self.outer_norms: list[float] = []

    def outer(self, mean: Tensor, progress: Progress) -> None:
        theta, momentum, config = self.model_between_rounds, self.momentum, self.config
        delta = theta - mean.to(self.device)
        momentum.mul_(config.outer_momentum).add_(delta)
        step = config.outer_lr * (delta + config.outer_momentum * momentum)
        theta -= step
        mean.copy_(theta)
        self.outer_norms.append(torch.linalg.vector_norm(step).item())

    def record(self, progress: Progress) -> dict[str, Any]:
        """`outer_step_norms`: the length of each outer step of the epoch."""
        row = {**super().record(progress), "outer_step_norms": self.outer_norms}
        self.outer_norms = []
        return row
