"""Local SGD: each rank trains by itself, and every H steps all models are replaced by their mean.

The period H is constant, or follows the learning rate by the quadratic synchronisation rule: the smaller the
rate, the longer the round.

Update rule (k: completed optimizer steps from 1; R ranks; η: the learning rate of the round's first step):

    every step       θ_i = optimizer_i(θ_i, g_i)
    k mod H = 0      θ_i = (1/R)·Σ_j θ_j, blocking
    period_rule qsr  H = max(sync_every, floor((qsr_alpha / η)²)), fixed within a round; k from its start

Bytes: a ring sends 2·(R-1)/R · 4(m + F + 1)/H per rank and step (m parameters, F elements of floating-point
buffers; one element carries a stop request): DDP's divided by H.

Paper: S. U. Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019, arXiv:1805.09767. The rule:
X. Gu, K. Lyu, S. Arora, J. Zhang, L. Huang, A Quadratic Synchronization Rule for Distributed Deep Learning,
ICLR 2024, arXiv:2310.14423.

Ours differs: a last round that is cut short still ends with an average. In a warm-up the rule would begin
with a round as long as the run, so a round in which the rate rises has `sync_every` steps (the rule's public
code takes a fixed number there as well). Momenta stay with their ranks by default.
"""

import math
from dataclasses import dataclass

from .averaging import PeriodicStrategy, check_policies
from .communicator import Communicator
from .errors import ConfigError, above, at_least, one_of
from .progress import Plan, Progress
from .replica import Replica


@dataclass(frozen=True, kw_only=True)
class LocalSGDConfig:
    """The keys of `strategy=local_sgd`; periods are in optimizer steps."""

    sync_every: int = 8  # H; with `qsr` the shortest round
    period_rule: str = "constant"  # or `qsr`: longer rounds as the learning rate falls
    qsr_alpha: float | None = None  # growth of the period under qsr; must be tuned, there is no default
    buffers: str = "average"  # BatchNorm statistics at each average: average | broadcast | none
    optimizer_state: str = "keep"  # momenta at each average: keep | average | reset

    def __post_init__(self) -> None:
        at_least("strategy.sync_every", self.sync_every, 1)
        one_of("strategy.period_rule", self.period_rule, ["constant", "qsr"])
        check_policies(self)
        if self.qsr_alpha is not None:
            above("strategy.qsr_alpha", self.qsr_alpha, 0)
        if (self.period_rule == "qsr") != (self.qsr_alpha is not None):
            raise ConfigError(
                f"strategy.qsr_alpha={self.qsr_alpha}: must be a number > 0 with strategy.period_rule=qsr, "
                "and null with constant"
            )


class LocalSGD(PeriodicStrategy):
    """No gradient leaves its rank; parameters meet at the end of each round."""

    Config = LocalSGDConfig
    config: LocalSGDConfig
    remembers = (*PeriodicStrategy.remembers, "rate")
    tuned = (("sync_every", (2, 4, 8, 16)), ("optimizer_state", ("keep", "average")))
    caveats = (
        "The period and the learning rate go together: say whether both were tuned. The default period is "
        "ours, and qsr_alpha has none.",
        "With Adam and its like rounds of one step are not ddp: second moments are each rank's own.",
        "Momenta stay with their ranks and then refer to a point that has moved; averaging or resetting them "
        "is an option.",
        "BatchNorm variances are averaged, not pooled: how far the means of ranks differ is not in them.",
        "It can only save communication that ddp does not hide: show how much that is.",
    )

    @classmethod
    def communication_share(cls, config: LocalSGDConfig, plan: Plan, steps: int) -> float:
        # Under qsr rounds grow as the learning rate falls, which the plan does not hold.
        return 0.0 if config.period_rule == "qsr" else super().communication_share(config, plan, steps)

    @classmethod
    def round_samples(cls, config: LocalSGDConfig, plan: Plan) -> float:
        return math.inf if config.period_rule == "qsr" else super().round_samples(config, plan)

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.start_alone(replica, comm, progress)
        self.rate = math.inf  # η, the learning rate at the start of the round
        if self.config.period_rule == "qsr" and not self.holds_all(None):
            # Rounds outgrow any distance of evaluations as the learning rate goes to zero.
            self.samples_between_syncs = math.inf

    def before_step(self, progress: Progress) -> None:
        super().before_step(progress)
        if self.config.qsr_alpha is not None and self._learning_rate() > self.rate and self.since:
            self.period = self.config.sync_every

    def begin_round(self, progress: Progress) -> None:
        self.rate = self._learning_rate()
        if self.config.qsr_alpha is not None:
            longest = qsr_period(self.config.qsr_alpha, self.rate) if self.rate > 0 else progress.steps
            self.period = max(self.config.sync_every, longest)

    def labels(self, target_step: int | None) -> list[str]:
        remarks = super().labels(target_step)
        longer = self.config.period_rule == "qsr" and self.comm.topology.ranks > 1
        if longer and max(self.lengths, default=0) <= self.config.sync_every:
            remarks.append(f"qsr never made a round longer than strategy.sync_every={self.config.sync_every}")
        return remarks

    def _learning_rate(self) -> float:
        return float(self.replica.optimizer.param_groups[0]["lr"])


def qsr_period(alpha: float, rate: float) -> int:
    """floor((alpha / rate)²) steps."""
    # 0.3 / 0.1 is a little less than 3: what is whole but for rounding counts as whole.
    return math.floor((alpha / rate) ** 2 * (1 + 1e-12))
