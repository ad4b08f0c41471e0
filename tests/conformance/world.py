"""R replicas in NumPy: what the reference of every strategy moves. Rows are ranks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy_models import Array, NumpyModel
from numpy_optimizers import Recipe

Piece = Callable[[int, int], tuple[Array, Array]]
"""(rank, step from 0) -> inputs [b, …], targets [b, …]."""


class NoReference(Exception):
    """There is no reference for what is asked; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run: R ranks on nodes, `epochs` of `steps_per_epoch`, samples, optimizer.

    Args:
        rate: learning rate of a step (from 0); None: the recipe's.
        clip_norm: largest norm of a gradient that is applied.
        start: rank -> θ [m]; None: the model's.
        losses: epoch -> its loss, instead of the true one.
        step_time: (rank, samples) -> time of a step on so many samples.
        round_time: time from the last launch of an asynchronous round to its completion.
        factor: (draw, n, m, r) -> random factor [m, r] to compress a matrix [n, m] with; draw 0 is the one to
            begin with, draw k that of step k where each step begins anew.
    """

    model: NumpyModel
    piece: Piece
    recipe: Recipe
    ranks_of_nodes: Sequence[int]
    steps_per_epoch: int
    epochs: int = 1
    rate: Callable[[int], float] | None = None
    clip_norm: float | None = None
    start: Callable[[int], Array] | None = None
    losses: Callable[[int], float] | None = None
    step_time: Callable[[int, int], float] | None = None
    round_time: float | None = None
    factor: Callable[[int, int, int, int], Array] | None = None


class World:
    """θ [R, m] and buffers [R, F] of all ranks, their optimizers, and the steps that they take together.

    After `gradients`, `sizes` [R] are the samples of each rank in the step and `losses` [R] its mean losses.
    `samples` counts global samples of all completed steps.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.ranks = sum(setting.ranks_of_nodes)
        edges = np.cumsum([0, *setting.ranks_of_nodes])
        self.nodes = [list(range(a, b)) for a, b in pairwise(edges)]
        model = setting.model
        start = setting.start or (lambda rank: model.start)
        self.theta = np.stack([start(rank) for rank in range(self.ranks)]).astype(np.float64)
        self.buffers = np.tile(model.buffers, (self.ranks, 1))
        self.optimizers = [setting.recipe.build(model.parts) for _ in range(self.ranks)]
        self.sizes = self.losses = np.zeros(self.ranks)
        self.samples = 0
        self.step = 0

    @property
    def full_batch(self) -> Array:
        """Samples of each rank in a full batch [R]."""
        return np.array([len(self.setting.piece(rank, 0)[0]) for rank in range(self.ranks)], dtype=float)

    @property
    def budget(self) -> int:
        """Samples of the whole run, all ranks taking equal steps."""
        steps = range(self.setting.epochs * self.setting.steps_per_epoch)
        return sum(len(self.setting.piece(rank, step)[0]) for rank in range(self.ranks) for step in steps)

    @property
    def nominal_budget(self) -> int:
        """Samples of as many full batches as the run has steps."""
        return self.setting.epochs * self.setting.steps_per_epoch * int(self.full_batch.sum())

    @property
    def last_batch(self) -> bool:
        """Whether the present step is the last of its epoch."""
        return self.step % self.setting.steps_per_epoch == self.setting.steps_per_epoch - 1

    @property
    def lr(self) -> float:
        """The present step's learning rate."""
        return self.setting.rate(self.step) if self.setting.rate else self.setting.recipe.lr

    def steps(self) -> Iterator[int]:
        """The steps of the run, k = 1, 2, …; while k is handed out, `step` is k - 1."""
        for step in range(self.setting.epochs * self.setting.steps_per_epoch):
            self.step = step
            yield step + 1
            self.samples += int(self.sizes.sum())

    def pieces(self) -> list[tuple[Array, Array]]:
        """Every rank's samples in the present step."""
        return [self.setting.piece(rank, self.step) for rank in range(self.ranks)]

    def gradients(self, pieces: Sequence[tuple[Array, Array]] | None = None) -> Array:
        """Every rank's mean gradient [R, m] at its own θ; buffers move on. 0 for a rank without samples."""
        pieces = self.pieces() if pieces is None else pieces
        gradients = np.zeros_like(self.theta)
        self.sizes = np.array([len(x) for x, _ in pieces], dtype=float)
        self.losses = np.zeros(self.ranks)
        for rank, (x, t) in enumerate(pieces):
            if len(x):
                self.losses[rank], gradients[rank], self.buffers[rank] = self.setting.model.descend(
                    self.theta[rank], self.buffers[rank], x, t
                )
        return gradients

    def update(self, gradients: Array) -> None:
        """Every rank's optimizer steps with its row (a row [m] is everybody's)."""
        for rank in range(self.ranks):
            own = gradients if gradients.ndim == 1 else gradients[rank]
            self.step_of(rank, own)

    def step_of(self, rank: int, gradient: Array) -> None:
        """The rank's optimizer steps with its gradient [m], clipped as PyTorch does."""
        most = self.setting.clip_norm
        if most is not None:
            gradient = gradient * min(1.0, most / (float(np.linalg.norm(gradient)) + 1e-6))
        self.optimizers[rank].step(self.theta[rank], gradient, self.lr)

    def in_nodes(self, rows: Array) -> Array:
        """[R, …]: every rank's row becomes its node's mean, weighted by the samples of the step."""
        result = np.empty_like(rows)
        for ranks in self.nodes:
            result[ranks] = mean(rows[ranks], self.sizes[ranks])
        return result

    def mix_buffers(self, policy: str, weights: Array | None = None) -> None:
        """`average`: every rank gets the mean, weighted if so; `broadcast`: rank 0's; `none`: its own."""
        if policy == "average":
            self.buffers[:] = mean(self.buffers, weights)
        elif policy == "broadcast":
            self.buffers[:] = self.buffers[0]

    def weights(self, weighting: str) -> Array:
        """w_r [R] of the step: by samples, or uniform over ranks that have any."""
        weights = self.sizes if weighting == "samples" else (self.sizes > 0).astype(float)
        return weights / weights.sum()

    def average(self, buffers: str, optimizer_state: str) -> None:
        """Every rank gets the uniform mean of all parameters; buffers and optimizer state as the keys say."""
        self.theta[:] = mean(self.theta)
        self.mix_buffers(buffers)
        self.mix_optimizers(optimizer_state)

    def mix_optimizers(self, policy: str, weights: Array | None = None) -> None:
        """`average`: every state vector becomes the ranks' mean; `reset`: all is forgotten; `keep`."""
        if policy == "reset":
            for optimizer in self.optimizers:
                optimizer.reset()
        elif policy == "average":
            for place in range(self.optimizers[0].vectors):
                moments = np.stack([optimizer.moments[place] for optimizer in self.optimizers])
                for optimizer in self.optimizers:
                    optimizer.moments[place] = mean(moments, weights)


Reference = Callable[..., Iterator[Sequence[int] | None]]
"""(world, **the strategy's keys): moves the world, and at its end finishes.

Yields after each step which ranks have taken it; None: all.
"""


def mean(rows: Array, weights: Array | None = None) -> Array:
    """The mean of `rows` [n, …] over n, weighted if so."""
    if weights is None:
        return rows.mean(0)
    share = weights / weights.sum()
    return np.einsum("r,r...->...", share, rows)


def bfloat16(values: Array) -> Array:
    """Rounded to the nearest bfloat16, ties to even, by way of float32 as hardware does."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


def float16(values: Array) -> Array:
    """Rounded to the nearest float16, by way of float32."""
    return values.astype(np.float32).astype(np.float16).astype(np.float64)


NARROW = {"bfloat16": bfloat16, "float16": float16}


def narrow_sum(rows: Array, dtype: str) -> Array:
    """Σ rows [n, …], every addend and every partial sum rounded to `dtype`, in order."""
    narrow = NARROW[dtype]
    total = narrow(rows[0])
    for row in rows[1:]:
        total = narrow(total + narrow(row))
    return total
