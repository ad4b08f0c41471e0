"""Placebo against ddp, on pieces that the sampler cuts."""

import pytest
import torch
from harness import drive

from daso_bench.datasets.sampler import Sampler
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.placebo import Placebo


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_rank_gets_the_next_ones_piece(ranks: int):
    ours, theirs = (Sampler(85, 8, ranks, 5, kind.piece_shift) for kind in (Placebo, DDP))
    for step in range(ours.steps_per_epoch):
        for rank in range(ranks):
            assert torch.equal(ours.piece(2, step, rank), theirs.piece(2, step, (rank + 1) % ranks))


@pytest.mark.parametrize(("ranks", "warned"), [(2, True), (3, False)])
def test_a_placebo_of_two_ranks_says_that_it_is_none(ranks: int, warned: bool):
    labels = drive(lambda: Placebo(Placebo.Config()), [ranks], steps_per_epoch=1)[0].strategy.labels(None)
    assert any("use 3 or more" in label for label in labels) is warned
