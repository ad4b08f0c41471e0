"""References of strategies whose models move apart and are averaged from time to time, blocking."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .world import World, mean


def local_sgd(
    world: World,
    *,
    sync_every: int = 8,
    period_rule: str = "constant",
    qsr_alpha: float | None = None,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """θ_i = opt(θ_i, g_i); after k mod H = 0 steps θ_i = mean.

    qsr: H = max(H0, ⌊(α/lr)²⌋) with lr at the round's start; H0 in rounds in which the rate rises.
    """
    since, period, first_rate = 0, sync_every, math.inf
    for _ in world.steps():
        if since == 0 and period_rule == "qsr":
            assert qsr_alpha is not None
            first_rate = world.lr
            period = max(sync_every, math.floor((qsr_alpha / first_rate) ** 2))
        elif world.lr > first_rate:
            period = sync_every
        world.update(world.gradients())
        since += world.ranks > 1  # a single rank has no rounds
        if since >= period:
            average(world, buffers, optimizer_state)
            since = 0
        yield
    if since:
        average(world, buffers, "keep")


def post_local_sgd(
    world: World,
    *,
    switch_samples: int | str = "auto",
    sync_every: int = 16,
    unit: str = "rank",
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """ddp while samples < t'; then local steps (of nodes, with their mean gradient) and a mean every H.

    auto: t' is half of the run's samples (no schedule of a `Setting` has steps).
    """
    switch = world.budget // 2 if isinstance(switch_samples, str) else switch_samples
    workers = len(world.nodes) if unit == "node" else world.ranks
    since = 0
    for _ in world.steps():
        gradients = world.gradients()
        if world.samples < switch:
            world.update(mean(gradients, world.sizes))
            yield
            continue
        world.update(world.in_nodes(gradients) if unit == "node" else gradients)
        since += workers > 1  # a single worker has no rounds
        if since == sync_every:
            average(world, buffers, optimizer_state)
            since = 0
        yield
    if since:
        average(world, buffers, "keep")


def ednncomm(
    world: World,
    *,
    sync_every: int | str = "auto",
    sync_at_epoch_end: bool = True,
    buffers: str = "average",
    optimizer_state: str = "keep",
    **keys: Any,
) -> Iterator[None]:
    """Node-mean gradients in each step; every K steps θ = Σ_j (b_j/B_global)·θ_j, b_j of a full batch."""
    period = world.setting.steps_per_epoch if sync_every == "auto" else int(sync_every)
    weights = world.full_batch
    since = 0

    def exchange(state: str) -> None:
        world.theta[:] = mean(world.theta, weights)  # the ranks of a node are equal: b_r sum to b_j
        world.mix_buffers(buffers, weights)
        world.mix_optimizers(state, weights)

    for _ in world.steps():
        world.update(world.in_nodes(world.gradients()))
        since += 1
        if len(world.nodes) > 1 and (since == period or (world.last_batch and sync_at_epoch_end)):
            exchange(optimizer_state)
            since = 0
        yield
    if since and len(world.nodes) > 1:
        exchange("keep")
    if buffers != "broadcast":
        world.mix_buffers("average", weights)  # a model is judged with these, `none` or not


def slowmo(
    world: World,
    *,
    sync_every: int = 12,
    slow_momentum: float = 0.7,
    slow_lr: float = 1.0,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """After H local steps from θ_t with mean m: u = β·u + (θ_t - m)/lr, θ_{t+1} = θ_t - α·lr·u.

    lr: the mean of the round's rates.
    """
    common, slow = world.theta[0].copy(), np.zeros(world.theta.shape[1])
    rates: list[float] = []
    for _ in world.steps():
        world.update(world.gradients())
        rates.append(world.lr)
        if len(rates) == sync_every:
            rate = sum(rates) / sync_every
            slow = slow_momentum * slow + (common - mean(world.theta)) / rate
            common = common - slow_lr * rate * slow
            average(world, buffers, optimizer_state)
            world.theta[:] = common
            rates = []
        yield
    if rates:
        average(world, buffers, "keep")


def diloco(
    world: World,
    *,
    sync_every: int = 20,
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    optimizer_state: str = "keep",
    buffers: str = "average",
    **keys: Any,
) -> Iterator[None]:
    """After H steps from θ: Δ = mean(θ - θ_i), u = μ·u + Δ, θ = θ - ν·(Δ + μ·u)."""
    common, momentum = world.theta[0].copy(), np.zeros(world.theta.shape[1])
    since = 0
    for _ in world.steps():
        world.update(world.gradients())
        since += 1
        if since == sync_every:
            delta = mean(common - world.theta)
            momentum = outer_momentum * momentum + delta
            common = common - outer_lr * (delta + outer_momentum * momentum)
            average(world, buffers, optimizer_state)
            world.theta[:] = common
            since = 0
        yield
    if since:
        average(world, buffers, "keep")


def average(world: World, buffers: str, optimizer_state: str) -> None:
    """Everybody gets the uniform mean over ranks."""
    world.theta[:] = mean(world.theta)
    world.mix_buffers(buffers)
    world.mix_optimizers(optimizer_state)
