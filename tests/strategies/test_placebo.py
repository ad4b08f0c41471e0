"""Placebo against ddp, on pieces that the sampler cuts."""

from typing import Any

import pytest
import torch
from harness import drive
from torch import Tensor, nn

from daso_bench.datasets.sampler import Sampler
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.placebo import Placebo

STEPS = 10
INPUTS = torch.randn(8 * 10 + 5, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
TARGETS = (INPUTS[:, 0] > 0).long()


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def sampler(kind: type[DDP], ranks: int) -> Sampler:
    return Sampler(len(INPUTS), 8, ranks, 5, kind.piece_shift)


def train(kind: type[DDP], ranks_of_nodes: list[int], **keys: Any) -> list[Any]:
    cut = sampler(DDP, sum(ranks_of_nodes))  # the trainer moves the pieces

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        piece = cut.piece(0, step, rank)
        return INPUTS[piece], TARGETS[piece]

    return drive(
        lambda: kind(kind.Config(**keys)),
        ranks_of_nodes,
        steps_per_epoch=STEPS,
        data=data,
        model=net,
        criterion=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    )


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_rank_gets_the_next_ones_piece(ranks: int):
    ours, theirs = sampler(Placebo, ranks), sampler(DDP, ranks)
    for step in range(ours.steps_per_epoch):
        for rank in range(ranks):
            assert torch.equal(ours.piece(2, step, rank), theirs.piece(2, step, (rank + 1) % ranks))


@pytest.mark.parametrize("nodes", [[2], [1, 1]])
def test_with_two_ranks_it_is_ddp_bit_for_bit(nodes: list[int]):
    for mine, theirs in zip(train(Placebo, nodes), train(DDP, nodes), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters, theirs.parameters, strict=True))
        assert "use 3 or more" in mine.strategy.labels(None)[0]


@pytest.mark.parametrize("nodes", [[3], [2, 1], [2, 2], [2, 2, 2]])
@pytest.mark.parametrize("algorithm", ["flat", "hierarchical"])
def test_with_more_it_differs_by_rounding_alone(nodes: list[int], algorithm: str):
    ours, theirs = train(Placebo, nodes, algorithm=algorithm), train(DDP, nodes, algorithm=algorithm)
    gap = (ours[0].parameters[-1] - theirs[0].parameters[-1]).abs().max()
    assert 0 < gap < 1e-12
    assert not any("placebo" in label for label in ours[0].strategy.labels(None))
    assert ours[0].comm.traffic.totals() == theirs[0].comm.traffic.totals()


def test_its_keys_are_those_of_ddp():
    assert Placebo.Config is DDP.Config
