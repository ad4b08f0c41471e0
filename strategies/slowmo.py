"""SlowMo: local SGD whose rounds end with a momentum step along what the round's mean has moved.

Update rule (θ_t: the model at the start of round t, equal on all ranks; a round has H = `sync_every` steps;
η: the mean learning rate of the round's steps; β: `slow_momentum`, α: `slow_lr`):

    every step    θ_i = optimizer_i(θ_i, g_i), from θ_i = θ_t at the start of the round
    every round   m = (1/R)·Σ_i θ_i, blocking
                  u = β·u + (θ_t - m) / η,   θ_{t+1} = θ_t - α·η·u,   θ_i = θ_{t+1}

With β = 0 and α = 1 it is local SGD.

Bytes: a ring sends 2·(R-1)/R · 4(m + F + 1)/H per rank and step (m parameters, F elements of floating-point
buffers; one element carries a stop request): DDP's divided by H.

Paper: J. Wang, V. Tantia, N. Ballas, M. Rabbat, SlowMo: Improving Communication-Efficient Distributed SGD
with Slow Momentum, ICLR 2020, arXiv:1910.00643.

Ours differs: the learning rate may change within a round, and η is the mean, so that u stays in units of
gradients. A round at rate 0 is a plain average. A last round that is cut short ends with an average and
without a momentum step. Defaults are ours.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .averaging import PeriodicStrategy, check_policies
from .communicator import Communicator
from .errors import above, at_least, within
from .progress import Progress
from .replica import Replica


@dataclass(frozen=True, kw_only=True)
class SlowMoConfig:
    sync_every: int = 12  # H, steps of a round
    slow_momentum: float = 0.7  # β
    slow_lr: float = 1.0  # α
    buffers: str = "average"  # BatchNorm statistics at the end of a round: average | broadcast | none
    optimizer_state: str = "keep"  # the optimizer's at the end of a round: keep | average | reset

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        within("strategy.slow_momentum", self.slow_momentum, 0, 1)
        above("strategy.slow_lr", self.slow_lr, 0)
        check_policies(self)


class SlowMo(PeriodicStrategy):
    Config = SlowMoConfig
    config: SlowMoConfig
    outer_steps = True
    remembers = (*PeriodicStrategy.remembers, "round_start", "momentum", "rates", "slow_norms")
    tuned = (("sync_every", (3, 6, 12, 24)), ("slow_momentum", (0.2, 0.4, 0.6, 0.8)), ("slow_lr", (0.5, 1.0)))
    caveats = (
        "The period, the slow momentum and the learning rate go together: say which were tuned. All defaults "
        "are ours.",
        "Within a round the learning rate may change; the slow step uses the mean of the round.",
        "A last round that is cut short, and a model judged within a round, is an average without a slow "
        "step.",
        "BatchNorm variances are averaged, not pooled: how far the means of ranks differ is not in them; and "
        "they belong to the average of the round, not to the model after the slow step.",
    )

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.start_alone(replica, comm, progress)
        self.round_start = replica.flat().to(self.model.dtype)  # θ_t
        self.momentum = torch.zeros_like(self.round_start)  # u
        self.rates = 0.0  # Σ of the learning rates of the round's steps
        self.slow_norms: list[float] = []

    def before_step(self, progress: Progress) -> None:
        super().before_step(progress)
        self.rates += float(self.replica.optimizer.param_groups[0]["lr"])

    def outer(self, mean: Tensor, progress: Progress) -> None:
        rate, self.rates = self.rates / self.since, 0.0
        start = self.round_start
        if rate:
            self.momentum.mul_(self.config.slow_momentum).add_((start - mean) / rate)
            mean.copy_(start - self.config.slow_lr * rate * self.momentum)
        self.slow_norms.append(torch.linalg.vector_norm(mean - start).item())
        start.copy_(mean)

    def record(self, progress: Progress) -> dict[str, Any]:
        """`slow_step_norms`: the length of each momentum step of the epoch."""
        row = {**super().record(progress), "slow_step_norms": self.slow_norms}
        self.slow_norms = []
        return row
