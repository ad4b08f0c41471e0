"""DDP by hand, in virtual time; over gloo tests/runner/test_torch_world.py compares with PyTorch's own."""

import pytest
import torch
from harness import Linear, Mean, drive
from torch import Tensor, nn

from daso_bench.runner.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulated_replica import SimulatedReplica
from daso_bench.runner.simulator import Simulator
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD, Topology


class Quadratic(nn.Module):
    """f = ½·a·(θ - c)² for x = (a, c): the test problem with gradients θ and 2(θ - 4) on two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x[:, 0] * (self.theta - x[:, 1]) ** 2


def make() -> DDP:
    return DDP(DDP.Config())


def test_two_steps_on_the_test_problem():
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[1.0, 0.0] if rank == 0 else [2.0, 4.0]], dtype=torch.float64), torch.zeros(1)

    for trace in drive(
        make,
        [1, 1],
        steps_per_epoch=2,
        data=data,
        model=Quadratic,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
    ):
        # θ: 0 → 0 - ½·(0 - 8)/2 = 2 → 2 - ½·(2 - 4)/2 = 2.5
        assert [p.item() for p in trace.parameters] == [2.0, 2.5]


@pytest.mark.parametrize("nodes", [[1, 1], [2]])
def test_gradients_are_weighted_by_samples(nodes: list[int]):
    """y = w·x, w = 1, loss = mean y; x = 1, 2, 3 on one rank, 10 on the other: 4, equal weights give 6."""
    simulator = Simulator(Topology.of(nodes))

    def body(rank: int) -> float:
        comm = SimulatedCommunicator(simulator, rank)
        replica = SimulatedReplica(Linear(torch.ones(1)), Mean(), comm, lambda rank, samples: 0)
        replica.average_gradients_over(WORLD)
        x = torch.tensor([[1.0], [2.0], [3.0]]) if rank == 0 else torch.tensor([[10.0]])
        replica.compute_gradients(Batch(x, torch.zeros(len(x)), (3, 1)))
        return replica.gradients().item()

    assert simulator.run(body) == [4.0, 4.0]


def test_one_rank_is_plain_training():
    trace = drive(make, [1], steps_per_epoch=3)[0]
    assert [p.item() for p in trace.parameters] == [-1.0, -2.0, -3.0]
    assert not trace.comm.traffic.verbs


def test_bytes_of_a_step():
    # One all-reduce of m + 1 elements: the last one carries a wish. As a ring over 2 x 2 ranks, each sends
    # 2·3/4 of it, and two of the four send over the link between the nodes: 1.5 payloads per node.
    traces = drive(
        make,
        [2, 2],
        steps_per_epoch=1,
        model=lambda: Linear(torch.zeros(99)),
        data=lambda rank, step: (torch.ones(1, 99), torch.zeros(1)),
    )
    for trace in traces:
        assert trace.comm.traffic.totals()["payload_bytes"] == {"intra": 0, "inter": 400}
    sent = [trace.comm.traffic.ring_bytes["inter"] for trace in traces]
    assert sent == [0, 600, 0, 600]


def test_a_wish_is_heard_in_its_own_step():
    traces = drive(make, [2, 1], steps_per_epoch=3, wish=lambda rank, step: (rank, step) == (2, 1))
    assert [trace.agreed for trace in traces] == [[False, True, False]] * 3
