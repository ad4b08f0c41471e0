"""Synchronous data parallelism: gradients are averaged over all ranks in every step. Every claim's baseline.

The average may be taken in one piece or in two levels, and in fewer bytes; the model is the same on all ranks
after each step.

Update rule (n_r: samples of rank r in this step; `weighting: uniform` has 1/R instead of n_r / Σ n_r):

    g = Σ_r n_r·g_r / Σ_r n_r
    θ = optimizer(θ, g)

    flat           g by one all-reduce over all ranks
    hierarchical   reduce in the node, all-reduce among leaders, broadcast in the node
    sliced         reduce-scatter in the node, all-reduce of slices among peers, all-gather in the node
    bf16, fp16     g_r in 16 bits
    powersgd       ĝ = A·Qᵀ of rank r in place of each matrix of g (strategies/reductions.py)

While a bucket of `hierarchical` or `sliced` is between nodes, the next one is in its first level inside them
and the one before in its last.

Bytes: m trainable fp32 elements and one that carries the stop request, R ranks on N nodes. `flat` sends
2·(R-1)/R · 4(m+1) per rank and step as a ring, and as much over each node's link; `hierarchical` and `sliced`
2·(N-1)/N · 4(m+1) over each node's link, by its leader or in equal parts by its ranks. On 2 x 2 ranks that is
1.5 against 1.0 gradients. `bf16` and `fp16` halve it, `powersgd` sends (n + k)·r elements of a matrix [n, k].

Paper: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020,
arXiv:2006.15704; T. Vogels, S. P. Karimireddy, M. Jaggi, PowerSGD: Practical Low-Rank Gradient Compression
for Distributed Optimization, NeurIPS 2019, arXiv:1905.13727.

Ours differs from `torch.nn.parallel.DistributedDataParallel` in that gradients are weighted by samples, and
that buffers are not broadcast in each forward pass but averaged over ranks where the model is evaluated or
saved; from its PowerSGD hook in two messages a bucket instead of three, and in that errors carry the weights.
A single rank sends nothing and compresses nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch

from .base import Strategy, require_uniform
from .communicator import Communicator
from .errors import above, at_least, one_of
from .gradients import Reduction, by_samples, uniform
from .progress import Plan, Progress, RankMemory
from .reductions import Flat, HalfPrecision, Hierarchical, PowerSGD, Sliced
from .replica import Replica
from .topology import WORLD, Topology

ALGORITHMS: dict[str, type[Reduction]] = {"flat": Flat, "hierarchical": Hierarchical, "sliced": Sliced}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class DDPConfig:
    algorithm: str = "flat"  # how buckets are summed: flat | hierarchical | sliced
    hook: str = "none"  # what is sent for them: none | bf16 | fp16 | powersgd
    bucket_mib: float = 25.0  # gradients per all-reduce; 25 is PyTorch's own, whose first bucket has 1
    gradient_as_bucket_view: bool = True  # gradients live in the buckets: saves a copy of the model
    overlap: bool = True  # buckets are summed while backward goes on
    weighting: str = "samples"  # or uniform: each rank counts alike, whatever its batch
    powersgd_rank: int = 1  # r, columns of both factors
    powersgd_start_steps: int = 10  # steps before the first compressed one
    powersgd_min_compression: float = 2.0  # a matrix that shrinks by less is sent as it is
    error_feedback: bool = True  # powersgd: what a step loses is added to the next gradient
    warm_start: bool = True  # powersgd: Q of the step before

    def __post_init__(self) -> None:
        one_of("strategy.algorithm", self.algorithm, ALGORITHMS)
        one_of("strategy.hook", self.hook, ["none", *HALVES, "powersgd"])
        above("strategy.bucket_mib", self.bucket_mib, 0)
        one_of("strategy.weighting", self.weighting, ["samples", "uniform"])
        at_least("strategy.powersgd_rank", self.powersgd_rank, 1)
        at_least("strategy.powersgd_start_steps", self.powersgd_start_steps, 0)
        above("strategy.powersgd_min_compression", self.powersgd_min_compression, 0)


class DDP(Strategy):
    """One sum of the gradients over all ranks per step, in buckets, overlapped with the backward pass."""

    Config = DDPConfig
    config: DDPConfig
    tuned = (("bucket_mib", (5.0, 10.0, 25.0, 50.0)),)
    caveats = (
        "Its buckets overlap with the backward pass; overlap=false is an ablation, never a baseline.",
        "Which of flat and hierarchical is faster depends on the links: an arm of a study names one.",
        "Buffers are averaged where a model is judged or saved, not broadcast in each step as PyTorch does.",
        "bf16, fp16 and powersgd change the gradients: they are arms of their own.",
    )

    needs_numbers = (("hook", "powersgd"),)

    @classmethod
    def check(cls, config: DDPConfig, plan: Plan) -> None:
        if config.algorithm == "sliced":
            require_uniform(plan, "strategy.algorithm=sliced:", "; hierarchical does not")

    @classmethod
    def copies_held(cls, config: DDPConfig, plan: Plan, memory: RankMemory) -> float:
        """With slices also the gathered ones of each node, and its ranks' own."""
        in_slices = config.algorithm == "sliced" and two_levels(plan.topology)
        by_node = plan.topology.nodes / plan.topology.ranks
        return super().copies_held(config, plan, memory) + 2 * by_node * in_slices

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        config = self.config
        self.reduction = self._reduction()
        replica.average_gradients_over(
            WORLD,
            weights=by_samples if config.weighting == "samples" else uniform,
            reduction=self.reduction,
            bucket_mib=config.bucket_mib,
            bucket_view=config.gradient_as_bucket_view,
            overlap=config.overlap,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"reduction": {} if self.reduction is None else self.reduction.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.reduction is not None:
            self.reduction.load_state_dict(state["reduction"])

    def summary(self) -> dict[str, Any]:
        row: dict[str, Any] = {"algorithm": self.config.algorithm, "hook": self.config.hook}
        if self.config.hook in HALVES:
            row["compression_ratio"] = self.replica.parameters.empty().element_size() / 2
        if isinstance(self.reduction, PowerSGD):
            row["compression_ratio"] = self.reduction.ratio()
            row["compressed_steps"] = max(0, self.reduction.steps - self.reduction.start_steps)
        return row

    def labels(self, target_step: int | None) -> list[str]:
        config, topology, remarks = self.config, self.comm.topology, []
        if config.algorithm != "flat" and not two_levels(topology):
            remarks.append(f"{config.algorithm} is flat here: one node, or one rank per node")
        if config.hook != "none" and topology.ranks == 1:
            remarks.append(f"{config.hook} is off: a single rank sends no gradient")
        elif isinstance(self.reduction, PowerSGD) and self.reduction.ratio() in (None, 1.0):
            why = "no matrix shrinks enough" if self.reduction.sent else "no step beyond powersgd_start_steps"
            remarks.append(f"powersgd compressed nothing: {why}")
        return remarks

    def _reduction(self) -> Reduction | None:
        """The sum of a bucket; None: the plain all-reduce."""
        config = self.config
        inner = ALGORITHMS[config.algorithm if two_levels(self.comm.topology) else "flat"]()
        if config.hook in HALVES:
            return HalfPrecision(inner, HALVES[config.hook])
        if config.hook == "powersgd":
            return PowerSGD(
                inner,
                rank=config.powersgd_rank,
                start_steps=config.powersgd_start_steps,
                min_compression=config.powersgd_min_compression,
                error_feedback=config.error_feedback,
                warm_start=config.warm_start,
            )
        return None if isinstance(inner, Flat) else inner


def two_levels(topology: Topology) -> bool:
    """Whether sums in two levels differ from one all-reduce: several nodes, one of several ranks."""
    return topology.nodes > 1 and topology.ranks > topology.nodes
