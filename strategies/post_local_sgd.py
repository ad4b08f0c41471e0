"""Post-local SGD: gradients are averaged over all ranks in every step up to a switch. From there on ranks, or
nodes, train by themselves, and every H steps all models are replaced by their mean.

Update rule (k0: steps done at the switch; R ranks):

    samples < t'           θ = optimizer(θ, Σ_r n_r·g_r / Σ_r n_r) over all ranks, as DDP
    else, unit rank        θ_i = optimizer_i(θ_i, g_i)
          unit node        θ_i = optimizer_i(θ_i, Σ_{r in node} n_r·g_r / Σ_{r in node} n_r)
    (k - k0) mod H = 0     θ_i = (1/R)·Σ_j θ_j, blocking

Bytes: a ring sends 2·(R-1)/R · 4(m + 1) per rank and step before the switch, 2·(R-1)/R · 4(m + F + 1)/H after
it (m parameters, F elements of floating-point buffers, one for a stop request). With `unit: node` a node
sends 2·(N-1)/N · 4(m + 1)/H to others after it, by its leader, and buffers by themselves.

Paper: T. Lin, S. U. Stich, K. K. Patel, M. Jaggi, Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020,
arXiv:1808.07217.

Ours differs: the switch is counted in samples, not epochs; with a schedule that has no step decay it comes at
half of the samples; a last round that is cut short still ends with an average. The authors' public recipe:
CIFAR-10, ResNet-20, 16 workers of 128 samples, 300 epochs, rate divided by 10 at 150 and 225, switch at 150,
H of 16 or 32, momentum never averaged.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from .averaging import PeriodicStrategy, check_policies, leader_mean, samples_of_round
from .communicator import Communicator
from .errors import ConfigError, above, at_least, one_of
from .gradients import DEFAULT_BUCKET_MIB
from .progress import Progress
from .replica import Replica
from .topology import NODE, WORLD, Group


@dataclass(frozen=True, kw_only=True)
class PostLocalSGDConfig:
    switch_samples: int | str = "auto"  # t', global samples before the first local step; see the YAML
    sync_every: int = 16  # H, steps of a round after the switch
    unit: str = "rank"  # what trains by itself: rank | node
    bucket_mib: float = DEFAULT_BUCKET_MIB  # of gradients per sum
    buffers: str = "average"  # BatchNorm statistics at each average: average | broadcast | none
    optimizer_state: str = "keep"  # momenta at each average: keep | average | reset

    def __post_init__(self) -> None:
        if isinstance(self.switch_samples, str) and self.switch_samples != "auto":
            raise ConfigError(f"strategy.switch_samples={self.switch_samples}: must be auto or a number")
        if isinstance(self.switch_samples, int):
            at_least("strategy.switch_samples", self.switch_samples, 0)
        at_least("strategy.sync_every", self.sync_every, 1)
        above("strategy.bucket_mib", self.bucket_mib, 0)
        one_of("strategy.unit", self.unit, ["rank", "node"])
        check_policies(self)


class PostLocalSGD(PeriodicStrategy):
    """One switch of the gradients' group; what follows it is local SGD."""

    Config = PostLocalSGDConfig
    config: PostLocalSGDConfig
    remembers = (*PeriodicStrategy.remembers, "switch_samples", "switched_after")
    tuned = (("sync_every", (4, 8, 16, 32)), ("optimizer_state", ("keep", "average")))
    caveats = (
        "Up to the switch it is ddp: with the switch at half of the samples it saves at most half of what "
        "communication costs.",
        "A run that ends before its switch is ddp under another name, and is labelled so.",
        "The switch, the period and the learning rate go together: say which were tuned. `auto` follows the "
        "schedule, so another schedule is another switch.",
        "Momenta stay with their ranks, as in the authors' code; averaging or resetting them is an option.",
        "BatchNorm variances are averaged, not pooled: how far the means of ranks differ is not in them.",
    )

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        by_node = self.config.unit == "node"
        self.start(replica, comm, mean=partial(leader_mean, comm) if by_node else None)
        self.period = self.config.sync_every
        self.local_group = NODE if by_node else None
        self.switch_samples = self._switch_samples(progress)
        self.switched_after: int | None = None
        if self.switch_samples < progress.budget and not self.holds_all(self.local_group):
            self.samples_between_syncs = samples_of_round(self.period, progress)
        # With a switch at 0 the first step is local already.
        self._average_over(WORLD if self.switch_samples else self.local_group)

    def before_batch(self, progress: Progress) -> None:
        if self.switched_after is None and progress.samples >= self.switch_samples:
            self.switched_after = progress.step
            self._average_over(self.local_group)

    def _average_over(self, group: Group | None) -> None:
        self.replica.average_gradients_over(group, bucket_mib=self.config.bucket_mib)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._average_over(WORLD if self.switched_after is None else self.local_group)

    def record(self, progress: Progress) -> dict[str, Any]:
        phase = "synchronous" if self.switched_after is None else "local"
        return {"phase": phase, **super().record(progress)}

    def summary(self) -> dict[str, Any]:
        return {
            "switch_samples": self.switch_samples,
            "switched_after_steps": self.switched_after,
            **super().summary(),
        }

    def labels(self, target_step: int | None) -> list[str]:
        if self.switched_after is None:
            return [f"ended before its switch at {self.switch_samples} samples: all steps were synchronous"]
        if self.config.unit == "node" and self.comm.topology.nodes == 1:
            return ["one node: all steps were synchronous"]
        if target_step is not None and self.switched_after >= target_step:
            return ["no local step before the target"]
        return super().labels(target_step)

    def _switch_samples(self, progress: Progress) -> int:
        if isinstance(self.config.switch_samples, int):
            return self.config.switch_samples
        return progress.budget // 2 if progress.first_decay is None else progress.first_decay
