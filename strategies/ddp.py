"""Synchronous data parallelism: gradients are averaged over all ranks in every step. Every claim's baseline.

Update rule (n_r: samples of rank r in this step):

    g = Σ_r n_r·g_r / Σ_r n_r
    θ = optimizer(θ, g)

Bytes: a ring sends 2·(R-1)/R · 4m bytes per rank and step (m trainable fp32 elements).

Paper: S. Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020,
arXiv:2006.15704.

Ours differs from `torch.nn.parallel.DistributedDataParallel` only in that gradients are weighted by samples,
and that buffers are not broadcast in each forward pass but averaged over ranks where the model is evaluated
or saved.
"""

from dataclasses import dataclass

from .base import Strategy
from .communicator import Communicator
from .progress import Progress
from .replica import Replica
from .topology import WORLD


class DDP(Strategy):
    """One all-reduce of the gradients per step, in buckets, overlapped with the backward pass."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """No keys yet: bucket size and overlap are PyTorch's own."""

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        replica.average_gradients_over(WORLD)
