"""Sums of gradient buckets over all ranks: in one piece, through the nodes' leaders, in slices, compressed.

`HalfPrecision` and `PowerSGD` send what they compress through another of these sums. All bytes below are what
is sent for a bucket of n elements of 4 bytes.

Paper: T. Vogels, S. P. Karimireddy, M. Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization, NeurIPS 2019, arXiv:1905.13727. Two-level sums are folklore (Horovod, NCCL).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .communicator import Communicator, Work
from .gradients import Reduction
from .topology import LEADERS, NODE, WORLD, peers


class Flat(Reduction):
    """One all-reduce over all R ranks.

    Bytes: as a ring 2·(R-1)/R · 4n per rank; laid node by node, the same over each node's link.
    """

    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        yield comm.all_reduce(bucket, WORLD, channel="gradients", async_op=True)


class Hierarchical(Reduction):
    """Reduce in the node to its leader, all-reduce among the N leaders, broadcast in the node.

    Nodes may be ragged: it is a sum, whatever the way. While a bucket is between nodes, the next one is
    reduced and the one before is broadcast inside them.

    Bytes: between nodes 2·(N-1)/N · 4n per leader, nothing by others; inside a node of G ranks 2·(G-1) · 4n
    in all.
    """

    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        yield comm.reduce(bucket, 0, NODE, channel="gradients", async_op=True)
        leads = comm.local_rank == 0
        yield comm.all_reduce(bucket, LEADERS, channel="gradients", async_op=True) if leads else None
        yield comm.broadcast(bucket, 0, NODE, channel="gradients", async_op=True)


class Sliced(Reduction):
    """Reduce-scatter in the node, all-reduce of slices among peers, all-gather in the node.

    Each rank of a node brings its own slice over the link, so that every network card is used. The nodes must
    have the same number of ranks, G. A bucket is padded to a multiple of G. Levels of neighbouring buckets
    run at the same time, as those of `Hierarchical`.

    Bytes: between nodes 2·(N-1)/N · 4n/G per rank, which makes 2·(N-1)/N · 4n per node; inside a node
    2·(G-1)/G · 4n per rank.
    """

    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        ranks = len(comm.members(NODE))
        numel = bucket.numel()
        size = -(-numel // ranks)
        whole = bucket if numel == size * ranks else bucket.new_zeros(size * ranks)
        if whole is not bucket:
            whole[:numel] = bucket
        own = bucket.new_empty(size)
        yield comm.reduce_scatter(own, whole, NODE, channel="gradients", async_op=True)
        yield comm.all_reduce(own, peers(comm.local_rank), channel="gradients", async_op=True)
        yield comm.all_gather(whole, own, NODE, channel="gradients", async_op=True)
        if whole is not bucket:
            bucket.copy_(whole[:numel])


class HalfPrecision(Reduction):
    """Cast to 16 bits, sum, cast back. Weights are in the gradients already, so nothing is divided after.

    There is no loss scaling: a gradient beyond float16's 65504 becomes infinite.

    Bytes: half of `inner`'s.
    """

    def __init__(self, inner: Reduction, dtype: torch.dtype) -> None:
        self.inner, self.dtype = inner, dtype

    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        narrow = bucket.to(self.dtype)
        yield from self.inner.levels(narrow, index, shapes, comm)
        bucket.copy_(narrow)


class PowerSGD(Reduction):
    """Each gradient matrix as the product of two thin ones, found by one subspace iteration per step.

    M_i = w_i·g_i + e_i on rank i, for a gradient [n, …] seen as a matrix [n, m] (the weight w_i is in the
    gradient already); Q [m, r] is equal on all ranks:

        A = orthonormal(Σ_i M_i·Q),   Q = Σ_i M_iᵀ·A,   ĝ = A·Qᵀ,   e_i = M_i - ĝ/R

    Both factors are renewed in each step (the paper's Algorithm 1 and PyTorch's hook), not one in turn (the
    authors' later package). Σ_i e_i is what ĝ still owes. Vectors, and matrices that would not shrink by
    `min_compression`, are summed as they are. The first `start_steps` steps compress nothing.

    A bucket's factors are summed one after the other, and then the next bucket's: levels are not pipelined.

    inner: the sum through which both factors go; rank: r, at most n and m; min_compression: a matrix is
    compressed if (n + m)·r · min_compression < n·m; error_feedback: keep e_i, else 0; warm_start: begin with
    the Q of the step before, else with a new random one.

    Bytes: `inner`'s of (n + m)·r elements a matrix, in two messages; what is not compressed travels with the
    first.
    """

    def __init__(
        self,
        inner: Reduction,
        *,
        rank: int = 1,
        start_steps: int = 10,
        min_compression: float = 2,
        error_feedback: bool = True,
        warm_start: bool = True,
    ) -> None:
        self.inner = inner
        self.rank, self.start_steps, self.min_compression = rank, start_steps, min_compression
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self.steps = 0
        # By bucket, one tensor per compressed matrix: Q [m, r] and e [n, m]. Replaced, never written into.
        self.factors: dict[int, list[Tensor]] = {}
        self.errors: dict[int, list[Tensor]] = {}
        # Elements of all compressed steps: as they are, and as they were sent.
        self.whole = self.sent = 0
        self._drawn: dict[tuple[int, int, int], Tensor] = {}

    def levels(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> Iterator[Work | None]:
        self._compress(bucket, index, shapes, comm)
        yield from ()

    def _compress(
        self, bucket: Tensor, index: int, shapes: Sequence[tuple[int, ...]], comm: Communicator
    ) -> None:
        if index == 0:
            self.steps += 1
            if not self.warm_start:
                self._drawn.clear()
        if self.steps <= self.start_steps:
            self.inner.sum(bucket, index, shapes, comm)
            return
        matrices, others = self._parted(bucket, shapes)
        wanted = [(m.shape[1], self._rank_of(m.shape)) for m in matrices]
        factors = self._held(self.factors, index, wanted, bucket.device)
        if factors is None or not self.warm_start:
            factors = [self._random(matrix, self._rank_of(matrix.shape)) for matrix in matrices]
        errors = self._held(self.errors, index, [tuple(matrix.shape) for matrix in matrices], bucket.device)
        if errors is not None and matrices:
            torch._foreach_add_(matrices, errors)  # pyright: ignore[reportPrivateImportUsage] (no public name)
        products = [matrix @ factor for matrix, factor in zip(matrices, factors, strict=True)]
        summed = self._sum([*others, *products], index, comm)
        for other, total in zip(others, summed, strict=False):
            other.copy_(total)
        left = [orthonormal(product) for product in summed[len(others) :]]
        right = [matrix.T @ factor for matrix, factor in zip(matrices, left, strict=True)]
        right = self._sum(right, index, comm) if matrices else []
        kept = []
        for matrix, a, q in zip(matrices, left, right, strict=True):
            low = a @ q.T
            if self.error_feedback:
                kept.append(torch.sub(matrix, low, alpha=1 / comm.topology.ranks))
            matrix.copy_(low)
        if self.error_feedback:
            self.errors[index] = kept
        if self.warm_start:
            self.factors[index] = [self._revived(q, m) for q, m in zip(right, matrices, strict=True)]
        self.whole += bucket.numel()
        self.sent += sum(tensor.numel() for tensor in (*others, *products, *right))

    def ratio(self) -> float | None:
        """Elements of all compressed steps over the elements sent for them; None before the first."""
        return self.whole / self.sent if self.sent else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "factors": dict(self.factors),
            "errors": dict(self.errors),
            "elements": [self.whole, self.sent],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.factors, self.errors = dict(state["factors"]), dict(state["errors"])
        self.whole, self.sent = state["elements"]

    def _parted(self, bucket: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[list[Tensor], list[Tensor]]:
        """Views of the bucket: matrices to compress, and vectors."""
        matrices, others = [], []
        for piece, shape in zip(bucket.split([math.prod(s) for s in shapes]), shapes, strict=True):
            if self._pays(shape, piece.numel()):
                matrices.append(piece.view(shape[0], -1))
            else:
                others.append(piece)
        return matrices, others

    def _pays(self, shape: Sequence[int], numel: int) -> bool:
        if len(shape) < 2 or numel == 0:
            return False
        n, m = shape[0], numel // shape[0]
        return (n + m) * self._rank_of((n, m)) * self.min_compression < numel

    def _rank_of(self, shape: Sequence[int]) -> int:
        return min(self.rank, *shape)

    @staticmethod
    def _held(
        held: dict[int, list[Tensor]], index: int, shapes: Sequence[tuple[int, ...]], device: torch.device
    ) -> list[Tensor] | None:
        """What was kept for bucket `index`; None before its first compressed step."""
        tensors = held.get(index)
        if tensors is None:
            return None
        if [tuple(tensor.shape) for tensor in tensors] != list(shapes):
            raise RuntimeError(
                f"PowerSGD: bucket {index} has other matrices than before: it was resumed with other buckets"
            )
        return [tensor.to(device) for tensor in tensors]  # a checkpoint's come on the CPU

    def _sum(self, tensors: Sequence[Tensor], index: int, comm: Communicator) -> list[Tensor]:
        """Their sums over all ranks, in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.inner.sum(flat, index, [(flat.numel(),)], comm)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]

    def _random(self, matrix: Tensor, rank: int) -> Tensor:
        """A random Q, equal on all ranks. It depends on shapes alone (and, without warm start, on the step):
        another cut into buckets compresses alike."""
        n, m = matrix.shape
        if (n, m, rank) not in self._drawn:
            step = 0 if self.warm_start else self.steps
            generator = torch.Generator().manual_seed(_seed(step, n, m))
            drawn = torch.randn(m, rank, generator=generator, dtype=torch.float64)
            self._drawn[n, m, rank] = drawn.to(matrix.device, matrix.dtype)
        return self._drawn[n, m, rank]

    def _revived(self, factor: Tensor, matrix: Tensor) -> Tensor:
        """Q for the next step: a column that became zero (a gradient that was) would stay so for ever."""
        alive = factor.abs().amax(0) > 0
        return torch.where(alive, factor, self._random(matrix, factor.shape[1]))


def _seed(*place: int) -> int:
    """The seed of a random factor, by `place`: as the runner derives the seeds of its streams."""
    text = "/".join(map(str, (0, "powersgd", *place)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def orthonormal(matrix: Tensor) -> Tensor:
    """An orthonormal basis [n, r] whose span holds the columns of `matrix` [n, r], r <= n.

    A single column of zeros stays one.
    """
    if matrix.shape[1] == 1:
        return matrix / torch.linalg.vector_norm(matrix).clamp_min(torch.finfo(matrix.dtype).tiny)
    return torch.linalg.qr(matrix).Q
