"""Drives a strategy through the loop's calls in virtual time on models whose gradients are known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import Network
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_replica import SimulatedReplica
from daso_bench.runner.simulation.simulator import Simulator
from daso_bench.runner.training.device_model import Scripted
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import Topology


class Linear(nn.Module):
    """outputs = x @ w with w starting at `start`:

    with the mean as criterion the gradient is the mean of x.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(start.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Blind(Linear):
    """Has no gradient that is a number for blank inputs, which a rank without samples goes forward with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x[:, 0] / x[:, 0]


class Mean(nn.Module):
    """The mean output, whatever the targets."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


@dataclass
class Trace:
    """One rank's history:

    parameters after each step, events of each epoch, (phase, B, W) of each epoch, clock after each epoch.
    """

    parameters: list[Tensor] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    epoch_end_ns: list[int] = field(default_factory=list)
    agreed: list[bool] = field(default_factory=list)
    strategy: Any = None
    comm: Any = None
    replica: Any = None


Data = Callable[[int, int], tuple[Tensor, Tensor]]
"""(rank, step) -> inputs [b, …], targets [b]; b may differ between ranks."""


def constant(value: float = 1.0, size: int = 1, dtype: torch.dtype = torch.float64) -> Data:
    """Every rank's gradient is `value` in each of `size` elements."""
    return lambda rank, step: (torch.full((1, size), value, dtype=dtype), torch.zeros(1))


def drive(
    make: Callable[[], Strategy],
    ranks_of_nodes: list[int],
    *,
    epochs: int = 1,
    steps_per_epoch: int,
    data: Data | None = None,
    model: Callable[[], nn.Module] | None = None,
    criterion: nn.Module | None = None,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
    network: Network | None = None,
    step_ns: int | Callable[[int, int], int] = 0,
    losses: Callable[[int], float] | None = None,
    stop_request: Callable[[int, int], bool] = lambda rank, step: False,
    keep: bool = True,
) -> list[Trace]:
    """Run one strategy object per rank.

    Returns the ranks' traces. Defaults: one float64 parameter at 0, gradient 1, SGD lr 1.
    """
    topology = Topology.of(ranks_of_nodes)
    simulator = Simulator(topology, network)
    feed = data or constant()
    step_time = step_ns if callable(step_ns) else lambda rank, samples: step_ns
    traces = [Trace() for _ in range(topology.ranks)]

    def body(rank: int) -> None:
        trace, comm = traces[rank], SimulatedCommunicator(simulator, rank)
        built = model() if model else Linear(torch.zeros(1, dtype=torch.float64))
        replica = SimulatedReplica(built, criterion or Mean(), comm, Scripted(comm.rank, step_time))
        progress = Progress(epochs, steps_per_epoch)
        strategy = make()
        strategy.setup(replica, comm, progress)
        # A rank may own no parameter at all; optimizers refuse an empty list.
        stepped = replica.stepped or [torch.zeros(0)]
        replica.optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=1.0)))(stepped)
        trace.strategy, trace.comm, trace.replica = strategy, comm, replica
        for progress.epoch in range(epochs):
            for progress.batch in range(steps_per_epoch):
                inputs, targets = feed(rank, progress.step)
                sizes = tuple(len(feed(other, progress.step)[0]) for other in range(topology.ranks))
                strategy.before_batch(progress)
                progress.samples_of_rank = sizes
                replica.requests_stop = stop_request(rank, progress.step)
                replica.compute_gradients(Batch(inputs, targets, sizes))
                strategy.before_step(progress)
                replica.optimizer.step()
                strategy.after_step(progress)
                if keep:
                    trace.parameters.append(replica.flat())
                progress.samples += sum(sizes)
                trace.agreed.append(strategy.stop_agreed(progress, replica.stop_requested))
                progress.step += 1
            trace.events.append(spell(getattr(strategy, "events", [])))
            progress.epoch_loss = losses(progress.epoch) if losses else 0.0
            strategy.after_epoch(progress)
            trace.records.append(strategy.record(progress))
            trace.epoch_end_ns.append(comm.now())
        strategy.finalize()

    simulator.run(body)
    return traces


def spell(events: list[tuple[int, str, int]]) -> str:
    """`0 S0 | 4 S1 M0`: what happened after each batch, in order."""
    batches: dict[int, list[str]] = {}
    for batch, letter, q in events:
        batches.setdefault(batch, []).append(f"{letter}{q}")
    return " | ".join(f"{batch} {' '.join(names)}" for batch, names in batches.items())
