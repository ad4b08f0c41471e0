"""Gradients of many ranks in one stack: the same numbers, and the same bits whoever is computed with whom."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import MLP, SmallCNN, assert_same_models, config, simulated, whole_and_resumed
from torch import Tensor, nn

from daso_bench.models.spec import InputSpec
from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.simulation.gradient_pool import GradientPool
from daso_bench.runner.simulation.rank_compute import Pending
from daso_bench.runner.simulation.stacked_ranks import FEWEST

SPEC = InputSpec(1, 4, 4, 4)
CRITERION = nn.CrossEntropyLoss()


def pendings(models: list[nn.Module], batch: int = 3, weight: float = 1.0) -> tuple[list[Pending], list[int]]:
    """A step of each model on data of its own, and who was computed alone."""
    alone: list[int] = []

    def step(number: int, model: nn.Module) -> Pending:
        generator = torch.Generator().manual_seed(number)
        dtype = next(model.parameters()).dtype
        inputs = torch.randn(batch, 1, 4, 4, generator=generator).to(dtype)
        targets = torch.randint(4, (batch,), generator=generator)

        def compute() -> Tensor:
            alone.append(number)
            model.zero_grad()
            loss = CRITERION(model(inputs), targets)
            (weight * loss).backward()
            return loss.detach()

        named = dict(model.named_parameters()), dict(model.named_buffers())
        return Pending(model, CRITERION, *named, inputs, targets, weight, compute)

    return [step(number, model) for number, model in enumerate(models)], alone


def different(build: Any, count: int, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    torch.manual_seed(0)
    return [build.build(SPEC).to(dtype) for _ in range(count)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("build", [SmallCNN(), MLP(hidden=[7])], ids=["cnn", "mlp"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_a_stack_computes_what_each_would_alone(build: Any, dtype: torch.dtype, tolerance: float):
    waiting, alone = pendings(different(build, 11, dtype), weight=0.3)
    pool = GradientPool(11)
    for step in waiting:
        pool.submit(step)
    losses = [pool.result(step)[0] for step in waiting]
    together = [gradients(step.model) for step in waiting]
    assert alone == [0], "the first one alone, to see whether all its parameters are used"
    for step, loss, stacked in zip(waiting, losses, together, strict=True):
        assert torch.allclose(loss, step.alone(), rtol=tolerance, atol=tolerance)
        for mine, wanted in zip(stacked, gradients(step.model), strict=True):
            assert torch.allclose(mine, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("build", [SmallCNN(), MLP(hidden=[7])], ids=["cnn", "mlp"])
@pytest.mark.parametrize("groups", [[1] * 20, [20], [3, 9, 8], [19, 1]])
def test_the_bits_do_not_depend_on_the_company(build: Any, groups: list[int]):
    def computed(sizes: list[int]) -> list[list[Tensor]]:
        waiting, _ = pendings(different(build, 20, torch.float32), batch=8)
        pool, rest = GradientPool(20), list(waiting)
        for size in sizes:
            some, rest = rest[:size], rest[size:]
            for step in some:
                pool.submit(step)
            pool.result(some[-1])
        return [gradients(step.model) for step in waiting]

    for mine, wanted in zip(computed(groups), computed([FEWEST, 20 - FEWEST]), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, wanted, strict=True))


class Unused(nn.Module):
    """A parameter without a gradient is not one whose gradient is 0: an optimizer leaves it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.nobody = nn.Linear(16, 4), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class Noisy(nn.Module):
    """Draws random numbers without a dropout layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(x.flatten(1), 0.5))


class Chooses(Noisy):
    """Looks at its numbers to choose its way."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1)) if x.sum() > 0 else self.head(-x.flatten(1))


class Normalised(nn.Module):
    """A convolution with batch normalisation: every pass in training changes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(nn.functional.relu(self.norm(self.conv(x))).flatten(1))


class Replaces(Normalised):
    """Its pass puts a new buffer in the old one's place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return super().forward(x)


@pytest.mark.parametrize("kind", [Unused, Noisy, Chooses, Replaces])
def test_what_cannot_be_stacked_is_computed_one_by_one(kind: type[nn.Module]):
    waiting, alone = pendings([kind() for _ in range(9)])
    pool = GradientPool(9)
    for step in waiting:
        pool.submit(step)
    pool.result(waiting[4])
    assert set(alone) == set(range(9))


@pytest.mark.parametrize("ranks", [8, 16, 64])
@pytest.mark.parametrize("sizes", [(6,), (6, 5)], ids=["even", "uneven"])
def test_batch_norm_in_a_stack_equals_one_by_one(ranks: int, sizes: tuple[int, ...]):
    def models() -> list[nn.Module]:
        torch.manual_seed(0)
        return [Normalised().double() for _ in range(ranks)]

    stacked, alone = models(), models()
    pool = GradientPool(ranks)
    for step in range(3):  # running statistics are carried from one step to the next
        batch = sizes[step % len(sizes)]
        (waiting, computed), (single, _) = pendings(stacked, batch, 0.3), pendings(alone, batch, 0.3)
        for pending in waiting:
            pool.submit(pending)
        for pending, other in zip(waiting, single, strict=True):
            assert torch.allclose(pool.result(pending)[0], other.alone(), rtol=0, atol=1e-12)
        assert len(computed) <= 1, "in a stack, but for the trial of a new shape"
        for mine, wanted in zip(stacked, alone, strict=True):
            assert_close(gradients(mine), gradients(wanted))
            assert_close(list(mine.buffers()), list(wanted.buffers()))


def assert_close(mine: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(mine, wanted, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", ["ddp", "daso", "hsgd", "heterogeneous", "local_sgd"])
def test_runs_of_many_ranks_resume_bit_for_bit(tmp_path: Path, strategy: str):
    """Ranks of different speeds are computed in other company before the break than after the resume."""
    keys = {"daso": {"warmup_epochs": 1, "cooldown_epochs": 1, "wait_batches": 2}}.get(strategy, {})
    cfg = config(
        strategy,
        keys=keys,
        model=SmallCNN(),
        ranks=[4, 4],
        global_batch_size=32,
        checkpoint_every_samples=160,
        eval_every_samples=64,
    )
    run = partial(
        simulated,
        cfg,
        network=AlphaBeta(inter_latency_s=0.002),
        step_time=lambda rank, n: 1_000_000 * (rank + 1) + 10_000 * n,
    )
    whole, resumed = whole_and_resumed(run, tmp_path, 7)
    assert resumed.metrics.rows[0]["resumed_from"] == "step_0000000005"
    assert_same_models(whole, resumed)
