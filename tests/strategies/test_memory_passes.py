"""How often strategies pass over the parameters in memory: what virtual time leaves out (docs/simulation.md).

A pass reads or writes one vector of all parameters, 4m bytes. Counted are the operations of a rank between
its collectives, as PyTorch runs them one by one; collectives themselves are the network's.
"""

from typing import Any

import pytest
from fake_cuda import Alone, GPUReplica
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daso_bench.strategies.base import Strategy
from daso_bench.strategies.communicator import Done, Operation, Work
from daso_bench.strategies.daso import DASO
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import Topology

NUMEL = 100_000
MOVES_NOTHING = {"empty", "new_empty", "detach", "_local_scalar_dense"}  # and views


class Silent(Alone):
    """A rank whose collectives are over at once and leave tensors as they are."""

    def _launch(self, op: Operation) -> Work:
        return Done()


class Moved(TorchDispatchMode):
    """Counts the bytes that operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        # PyTorch leaves out the copy of a tensor to itself, with which x[a:b] /= y ends.
        to_itself = name == "copy_" and args[0].data_ptr() == args[1].data_ptr()
        if name not in MOVES_NOTHING and not func.is_view and not to_itself:
            read = args[1:] if name == "copy_" else [args, kwargs]
            tensors = [leaf for leaf in tree_leaves([read, result]) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def passes(strategy: Strategy, steps: int) -> list[float]:
    """Of rank 0 of two nodes of one rank, in each of the first steps of a long epoch."""
    replica = GPUReplica(nn.Linear(NUMEL, 1, bias=False), nn.MSELoss())
    comm = replica.comm = Silent(Topology.of([1, 1]), 0)
    progress = Progress(10, 1000, budget=10**6, global_batch_size=2, samples_of_rank=(1, 1))
    strategy.setup(replica, comm, progress)
    found = []
    for progress.batch in range(steps):
        with Moved() as moved:
            strategy.before_batch(progress)
            strategy.before_step(progress)
            strategy.after_step(progress)
        found.append(moved.bytes / (4 * NUMEL))
    return found


def daso(**keys: Any) -> DASO:
    return DASO(DASO.Config(**{"warmup_epochs": 0, "cooldown_epochs": 0, **keys}))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DDP(DDP.Config()), [0, 0, 0, 0]),
        # Start: a copy. Merge: a copy, 2θ, its sum with the others', the quotient, and back.
        (daso(), [2, 2 + 2 + 3 + 2 + 2, 0, 0]),
        (daso(sync_every=1), [2, 13, 13, 13]),
        # A copy, the quotient, and back.
        (daso(warmup_epochs=1), [6, 6, 6, 6]),
        # Differences to the reference besides, in two types, and a new reference.
        (daso(warmup_epochs=1, transport_dtype="bfloat16"), [21, 21, 21, 21]),
    ],
    ids=["ddp", "daso B=4", "daso B=1", "daso blocking", "daso blocking in 16 bits"],
)
def test_passes_over_the_parameters_of_a_step(strategy: Strategy, expected: list[float]):
    assert passes(strategy, 4) == pytest.approx(expected, abs=0.01)
