"""eDNNcomm: ranks of a node combine gradients in every step, nodes exchange parameters every K steps.

Between exchanges a node is one worker of local SGD; both levels block, so nothing is ever stale.

Update rule (g_r, n_r: gradient and samples of rank r in this step; b_j, B_global: samples of node j and of
all in a full batch; K: `sync_every`):

    every step      g_j = Σ_{r in j} n_r·g_r / Σ_{r in j} n_r,   θ_j = optimizer(θ_j, g_j)
    every K steps   θ = Σ_j (b_j / B_global)·θ_j on every rank

Bytes: an exchange sends 2·(N-1)/N · 4m bytes per node between nodes (`leader`, `sliced`), or 2·(R-1)/R · 4m
(`world`, ranks laid node by node); divided by K, per step. Inside a node 2·(G-1)/G · 4m per rank and step.

Paper: S. Moreno-Álvarez, M. E. Paoletti, G. Cavallaro, J. M. Haut, Enhancing Distributed Neural Network
Training Through Node-Based Communications, IEEE Transactions on Neural Networks and Learning Systems (2023),
doi:10.1109/TNNLS.2023.3309735. After the abstract and the figure of the public repository `mhaut/eDNNcomm`:
its scripts call a modified library that is not published, and the exchange is not in them.

Ours differs: averages rather than sums, the weights, the order within a step and what happens to buffers and
optimizer state are our choice, since the public material does not give them. Running statistics of batch
normalisation are means of variances, not pooled ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from .averaging import PeriodicStrategy, check_policies, leader_mean, samples_of_round, world_mean
from .base import require_uniform
from .communicator import Communicator
from .errors import ConfigError, above, at_least, one_of
from .gradients import DEFAULT_BUCKET_MIB
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import NODE, peers


@dataclass(frozen=True, kw_only=True)
class EDNNCommConfig:
    sync_every: int | str = "auto"  # K, steps between exchanges; auto = steps of an epoch
    exchange: str = "leader"  # how nodes make their mean: leader | world | sliced
    sync_at_epoch_end: bool = True  # exchange after the last step of an epoch too
    bucket_mib: float = DEFAULT_BUCKET_MIB  # of gradients per sum over a node
    buffers: str = "average"  # BatchNorm statistics at an exchange: average | broadcast | none
    optimizer_state: str = "keep"  # momenta at an exchange: keep | average | reset

    def __post_init__(self) -> None:
        if isinstance(self.sync_every, str):
            if self.sync_every != "auto":
                raise ConfigError(f"strategy.sync_every={self.sync_every}: must be auto or an integer >= 1")
        else:
            at_least("strategy.sync_every", self.sync_every, 1)
        above("strategy.bucket_mib", self.bucket_mib, 0)
        one_of("strategy.exchange", self.exchange, ["leader", "world", "sliced"])
        check_policies(self)


def sliced_mean(comm: Communicator, flat: Tensor, weight: float) -> None:
    """Σ_j w_j·x_j over nodes of G ranks each, whose vectors are equal inside a node; `weight` is w_j.

    Local rank q sums the q-th of G slices with its peers, so every link between nodes carries its part; then
    each node gathers its slices.
    """
    ranks, q = len(comm.members(NODE)), comm.local_rank
    size = -(-flat.numel() // ranks)
    piece = flat[q * size : (q + 1) * size] * weight
    # All slices have one size, or they could not be gathered.
    slice_ = flat.new_zeros(size)
    slice_[: piece.numel()] = piece
    comm.all_reduce(slice_, peers(q)).wait()
    whole = flat.new_empty(size * ranks)
    comm.all_gather(whole, slice_, NODE).wait()
    flat.copy_(whole[: flat.numel()])


class EDNNComm(PeriodicStrategy):
    """A round ends with an exchange between nodes."""

    Config = EDNNCommConfig
    config: EDNNCommConfig
    remembers = (*PeriodicStrategy.remembers, "full_batch")
    tuned = (("sync_every", ("auto", 2, 4, 8)), ("optimizer_state", ("keep", "average")))
    caveats = (
        "Implemented after the abstract and the figure: averages, weights, order and what happens to buffers "
        "are ours. The paper's tables are not reproduced, since its code is not available.",
        "Mathematically it is local SGD between nodes; with one rank on each node it is local_sgd.",
        "The period and the learning rate go together: say whether both were tuned.",
        "Momenta stay with their nodes and then refer to a point that has moved; averaging or resetting them "
        "is an option. With Adam and its like an exchange after every step is not ddp.",
        "BatchNorm variances are averaged, not pooled: how far the means of ranks differ is not in them.",
        "It can only save communication that ddp does not hide: show how much that is.",
    )

    @classmethod
    def check(cls, config: EDNNCommConfig, plan: Plan) -> None:
        if config.exchange == "sliced":
            require_uniform(plan, "strategy.exchange=sliced", "; leader and world do not")

    @classmethod
    def communication_share(cls, config: EDNNCommConfig, plan: Plan, steps: int) -> float:
        # Slices cross all links of a node at once: such an exchange may take less than a sum of ddp.
        every = plan.steps_per_epoch if isinstance(config.sync_every, str) else config.sync_every
        if plan.topology.nodes == 1 or every is None or config.exchange == "sliced":
            return 0.0
        return steps // every / steps

    @classmethod
    def copies_held(cls, config: EDNNCommConfig, plan: Plan, memory: RankMemory) -> float:
        """With slices also the gathered ones, and a rank's own."""
        slices = plan.topology.nodes / plan.topology.ranks if config.exchange == "sliced" else 0
        return super().copies_held(config, plan, memory) + slices

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        replica.average_gradients_over(NODE, bucket_mib=self.config.bucket_mib)
        self.start(replica, comm, mean=partial(leader_mean, comm))
        self.period = self._period(progress)
        self.full_batch: list[int] = []
        if not self.holds_all(NODE):
            by_epoch = self.config.sync_at_epoch_end or self.config.sync_every == "auto"
            self.samples_between_syncs = samples_of_round(self.period, progress, ends_with_epoch=by_epoch)

    def before_step(self, progress: Progress) -> None:
        # An epoch's first batch is a full one, unless the data set is smaller than that.
        if not self.full_batch:
            self._weigh(progress.samples_of_rank)
        super().before_step(progress)

    def due(self, progress: Progress) -> bool:
        self.period = self._period(progress)
        epoch_ends = self.config.sync_at_epoch_end and progress.last_batch
        return self.since >= self.period or epoch_ends

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.full_batch:
            self._weigh(self.full_batch)

    def record(self, progress: Progress) -> dict[str, Any]:
        given = self.config.sync_every != "auto"
        return {
            **super().record(progress),
            "period_from": "strategy.sync_every" if given else "steps per epoch",
        }

    def labels(self, target_step: int | None) -> list[str]:
        if self.comm.topology.nodes == 1:
            return ["one node: nothing to exchange"]
        return super().labels(target_step)

    def _period(self, progress: Progress) -> int:
        every = self.config.sync_every
        return progress.steps_per_epoch if isinstance(every, str) else every

    def _weigh(self, full_batch: Sequence[int]) -> None:
        """Give each rank and node its share of a full batch as weight (`full_batch`: samples by rank)."""
        comm, total = self.comm, sum(full_batch)
        self.full_batch = list(full_batch)
        self.everybody = partial(world_mean, comm, weight=full_batch[comm.rank] / total)
        mean = {"leader": leader_mean, "sliced": sliced_mean}.get(self.config.exchange)
        node = sum(full_batch[rank] for rank in comm.members(NODE)) / total
        self.mean = self.everybody if mean is None else partial(mean, comm, weight=node)
