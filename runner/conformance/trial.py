"""The trial: the short run with an awkward model on which the contract is checked, and its variants.

It has 3 epochs of 7 steps, or 6 epochs where the strategy reads the epoch's loss and is resumed.
"""

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.stream_seeds import stream_seed
from ...strategies.base import AsynchronousStrategy
from ..communication.link_costs import AlphaBeta
from .checks import Candidate, RanksOfNodes
from .driver import drive, jittered
from .scenario import Data, History, Problem, Scenario

FEATURES, CLASSES = 6, 3
EPOCHS, STEPS_PER_EPOCH = 3, 7
EPOCHS_TO_A_PLATEAU = 6  # the first epoch's loss, three that do not improve, and two on either side
CLIP_NORM = 0.5  # of gradients: smaller than most norms
STEP_NS = 10_000_000
# A transfer between nodes takes about one and a half steps, inside a node a fiftieth of one.
NETWORK = AlphaBeta(intra_latency_s=1e-4, intra_bytes_per_s=1e8, inter_latency_s=5e-3, inter_bytes_per_s=2e5)
STEPS = EPOCHS * STEPS_PER_EPOCH
STRATEGY_CALLS = ("step", "epoch", "finalize")
"""The phases in which a strategy calls its communicator for training: no evaluation, no checkpoint."""
ENOUGH = range(1, 10_000)
"""All places of a run."""


class Awkward(nn.Module):
    """Frozen, tied, zero-size and non-contiguous parameters, both kinds of buffers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.rand(FEATURES), requires_grad=False)
        self.tied = nn.Linear(FEATURES, FEATURES)
        self.again = self.tied
        self.norm = nn.BatchNorm1d(FEATURES)
        self.dropout = nn.Dropout(0.2)
        self.nothing = nn.Parameter(torch.empty(0))
        self.scale = nn.Parameter(torch.ones(FEATURES, 2).t()[0])
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """[b, FEATURES] -> [b, CLASSES]."""
        x = self.norm(self.tied(torch.tanh(inputs + self.frozen)))
        x = self.dropout(torch.tanh(self.again(x))) * self.scale + self.nothing.sum()
        return self.head(x)


def problem(dtype: torch.dtype = torch.float32, *, short_last: bool = True) -> Problem:
    """The awkward model on Gaussian noise with learnable labels.

    Rank 0 has one sample more than others; with `short_last` an epoch's last batch has one less on each rank.
    """
    return Problem(
        name="awkward",
        model=lambda: Awkward().to(dtype),
        data=noise(dtype, short_last),
        optimizer=two_groups,
    )


@cache  # every drive asks for the same samples
def noise(dtype: torch.dtype, short_last: bool) -> Data:
    """Fresh samples for each (rank, step)."""

    @cache
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(stream_seed(7, "trial", rank, step))
        short = short_last and step % STEPS_PER_EPOCH == STEPS_PER_EPOCH - 1
        inputs = torch.randn((5 if rank == 0 else 4) - short, FEATURES, generator=generator)
        targets = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0.3).long()
        return inputs.to(dtype), targets

    return data


def two_groups(stepped: list[Tensor]) -> torch.optim.Optimizer:
    """SGD with momentum, and weight decay on matrices only: two parameter groups, which may be empty."""
    matrices = [tensor for tensor in stepped if tensor.dim() > 1]
    vectors = [tensor for tensor in stepped if tensor.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 1e-2}, {"params": vectors}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)


def rate(step: int) -> float:
    """A learning rate that rises, then falls in each step; small, so that rounding errors stay small."""
    return 0.02 * min(1.0, (step + 1) / 4) * 0.97**step


def improving(epoch: int) -> float:
    """An epoch loss that halves: without a plateau."""
    return 0.5**epoch


def stalled(epoch: int) -> float:
    """An epoch loss that never improves."""
    return 1.0


def trial_scenario(
    candidate: Candidate, ranks: RanksOfNodes, *, precision: torch.dtype = torch.float32, **changes: Any
) -> Scenario:
    """The trial run: `EPOCHS` x `STEPS_PER_EPOCH` steps; `changes` are fields of `Scenario`."""
    kind, config = candidate.strategy_class, candidate.config
    fields: dict[str, Any] = {
        "strategy_class": kind,
        "config": config,
        "ranks_of_nodes": ranks,
        # At their own pace ranks draw batches of one size.
        "problem": problem(precision, short_last=not issubclass(kind, AsynchronousStrategy)),
        "steps_per_epoch": STEPS_PER_EPOCH,
        "epochs": EPOCHS,
        "rate": rate,
        "losses": improving,
    }
    return Scenario(**{**fields, **changes})


def demanding(candidate: Candidate, ranks: RanksOfNodes, **changes: Any) -> Scenario:
    """The trial run with clipped gradients, and with a plateau for strategies that read the epoch's loss."""
    kind, fields = candidate.strategy_class, dict[str, Any](clip_norm=CLIP_NORM)
    if kind.reads_epoch_loss and not issubclass(kind, AsynchronousStrategy):
        fields |= {"epochs": EPOCHS_TO_A_PLATEAU, "losses": stalled}
    return trial_scenario(candidate, ranks, **{**fields, **changes})


# ------------------------------------------------------------------ runs that several checks read


def independent(candidate: Candidate) -> bool:
    """Whether ranks step at their own pace."""
    return issubclass(candidate.strategy_class, AsynchronousStrategy)


def when(candidate: Candidate, place: int) -> str:
    """A place of the run in words: with independent sampling places are sync points."""
    return f"at sync point {place}" if independent(candidate) else f"after step {place}"


@lru_cache(maxsize=8)
def plain(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run with equal ranks on the trial's network. Many checks read it, none may change it."""
    return drive(trial_scenario(candidate, ranks), network=NETWORK, step_time=STEP_NS)


@lru_cache(maxsize=8)
def uneven(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The trial run with step times that vary at random."""
    return drive(trial_scenario(candidate, ranks), network=NETWORK, step_time=jittered(STEP_NS, 3))


@lru_cache(maxsize=8)
def looked_at(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The demanding run with averaged model, copy and checkpoint at all places. No transfer takes time."""
    every = places_of(candidate, ranks)
    run = demanding(candidate, ranks, consensus_after=ENOUGH, save_after=ENOUGH, copies_after=every)
    return drive(run, step_time=STEP_NS)


@lru_cache(maxsize=8)
def saved(candidate: Candidate, ranks: RanksOfNodes) -> list[History]:
    """The demanding run with a checkpoint at all places, and one stop request that lasts one step."""
    run = demanding(candidate, ranks, save_after=ENOUGH, stop_request=one_stop_request(ranks))
    return drive(run, network=NETWORK, step_time=STEP_NS)


def one_stop_request(ranks: RanksOfNodes) -> Callable[[int, int], bool]:
    """The last rank asks to stop in one step in the middle of the run."""
    return lambda rank, step: (rank, step) == (sum(ranks) - 1, STEPS // 2)


def some(places: Sequence[int], ranks: RanksOfNodes) -> list[int]:
    """All places on several nodes of several ranks; elsewhere a quarter of them and the last two."""
    if len(ranks) > 1 and min(ranks) > 1:
        return list(places)
    return sorted({*places[::4], *places[-2:]})


def slow_last(run: Scenario) -> tuple[int, ...]:
    """Step times of ranks of which the last takes four times as long."""
    return (*(STEP_NS for _ in range(run.topology.ranks - 1)), 4 * STEP_NS)


def places_of(candidate: Candidate, ranks: RanksOfNodes) -> range:
    """Places where the demanding run can be saved or stopped: each step, or each sync point."""
    if independent(candidate):
        return range(1, sum(plain(candidate, ranks)[0].met.values()) + 1)
    run = demanding(candidate, ranks)
    return range(1, run.epochs * run.steps_per_epoch + 1)
