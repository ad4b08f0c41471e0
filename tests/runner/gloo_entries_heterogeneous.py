"""What the ranks of the tests of uneven batches over gloo do; imported by the ranks themselves."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from gloo_entries import on_nodes
from torch import Tensor, nn

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.training.context import undone_step
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.heterogeneous import Heterogeneous, HeterogeneousConfig
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch

Pieces = list[tuple[Tensor, Tensor]]


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 4)).double()


class Normed(nn.Module):
    """Batch normalisation, dropout, and a buffer that is not saved with the model."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm, self.head = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.head(self.dropout(self.norm(self.first(x))))


class Blind(nn.Module):
    """`net` that has no gradient that is a number for blank inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (x[:, :1] / x[:, :1])


def pieces_of(n: Sequence[int], step: int = 0) -> Pieces:
    generator = torch.Generator().manual_seed(8 + step)
    return [
        (
            torch.randn(size, 6, generator=generator).double() + rank,
            torch.randint(4, (size,), generator=generator),
        )
        for rank, size in enumerate(n)
    ]


def started(
    model: nn.Module, comm: TorchCommunicator, total: int, **keys: Any
) -> tuple[TorchReplica, Heterogeneous]:
    replica = TorchReplica(model, nn.CrossEntropyLoss(), comm)
    strategy = Heterogeneous(HeterogeneousConfig(**keys))
    strategy.setup(replica, comm, Progress(1, 1, global_batch_size=total))
    replica.optimizer = torch.optim.SGD(replica.stepped, lr=0.05, momentum=0.9)
    dtype = next(model.parameters()).dtype
    replica.noise = lambda n: (torch.rand(n, 6, dtype=dtype), torch.arange(n) % 4)
    return replica, strategy


def image(replica: TorchReplica) -> list[Tensor]:
    states = [value for state in replica.optimizer.state.values() for value in state.values()]
    kept = [*replica.model.parameters(), *replica.model.buffers(), *states, torch.get_rng_state()]
    return [tensor.detach().clone() for tensor in kept]


def weights(comm: TorchCommunicator) -> None:
    """Uneven batches give the gradient of their union; a rank without samples takes part and is heard."""
    rank = comm.rank
    for weighting in ("samples", "uniform"):
        replica, _ = started(Blind(), comm, 16, weighting=weighting)
        for step, n in enumerate([(10, 5, 1), (7, 0, 9), (1, 1, 14)]):
            pieces = pieces_of(n, step)
            replica.compute_gradients(Batch(*pieces[rank], n))
            assert not replica.stop_requested, "a loss of nothing stops nobody"
            union = Blind()
            whole = torch.cat([x for x, _ in pieces]), torch.cat([t for _, t in pieces])
            nn.functional.cross_entropy(union(whole[0]), whole[1]).backward()
            wanted = torch.cat([p.grad.reshape(-1) for p in union.parameters() if p.grad is not None])
            off = ((replica.gradients() - wanted).norm() / wanted.norm()).item()
            assert off < 1e-12 if weighting == "samples" else off > 0.05, (n, weighting, off)
            assert 0 < replica.forward_ns < replica.compute_ns
    replica, _ = started(Normed().double(), comm, 16)
    before = [buffer.clone() for buffer in replica.model.buffers()]
    replica.requests_stop = rank == 2
    replica.compute_gradients(Batch(*pieces_of((9, 7, 0))[rank], (9, 7, 0)))
    assert replica.stop_requested, "the stop request of a rank without samples is heard by all"
    for now, then in zip(replica.model.buffers(), before, strict=True):
        assert torch.equal(now, then) == (rank == 2)
    replica.requests_stop = False
    inputs, targets = pieces_of((9, 7, 0))[rank]
    replica.compute_gradients(Batch(inputs * float("nan") if rank == 0 else inputs, targets, (9, 7, 0)))
    assert replica.stop_requested, "and so is a loss that is not finite"
    assert all(module.training for module in replica.model.modules())


def no_trace(comm: TorchCommunicator) -> None:
    """Calibrating and probing change nothing that training depends on."""
    rank = comm.rank
    finals = []
    for measured in (False, True):
        replica, strategy = started(Normed(), comm, 48)
        torch.manual_seed(rank)
        n = (6, 5, 5)
        batches = [
            Batch(inputs.float(), targets, n)
            for inputs, targets in (pieces_of(n, step)[rank] for step in range(6))
        ]
        undone_step(replica, copy.copy(batches[0]), comm)
        for step, batch in enumerate(batches):
            if measured and step in (0, 3):
                before = image(replica)
                if step == 0:
                    split = strategy.shares(Progress(1, 1, global_batch_size=48))
                    assert sum(split.values) == 48
                    assert len(strategy.calibration["times_s"]) == 3  # pyright: ignore[reportOptionalSubscript]
                else:
                    took = replica.time_steps(8, 4)
                    assert len(took) == 4
                    assert min(took) > 0
                for now, then in zip(image(replica), before, strict=True):
                    assert torch.equal(now, then), step
                assert all(parameter.grad is None for parameter in replica.model.parameters())
            replica.compute_gradients(batch)
            replica.optimizer.step()
        finals.append(torch.cat([replica.flat(), replica.buffers.pack()]))
    assert torch.equal(*finals)


@on_nodes([2, 1])
def uneven(comm: TorchCommunicator) -> None:
    """Both, one after the other."""
    weights(comm)
    no_trace(comm)
