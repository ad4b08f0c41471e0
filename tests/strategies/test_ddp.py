"""DDP by hand, in virtual time; launch/test_torch_world.py compares with PyTorch over gloo."""

from typing import Any

import pytest
import torch
from harness import Blind, Linear, Mean, drive
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import AlphaBeta, Network
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_replica import SimulatedReplica
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.runner.training.device_model import Device
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan, Progress
from daso_bench.strategies.reductions import Hierarchical
from daso_bench.strategies.topology import Topology


def instant(rank: int) -> Device:
    """A device that takes no time."""
    return Device(rank, lambda rank, samples: 0)


def make(**keys: Any) -> DDP:
    return DDP(DDP.Config(**keys))


def regression(size: int = 24) -> nn.Module:
    """A net whose first layer is worth compressing."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 2)).double()


def pieces(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """3, 4 or 5 samples."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(3 + (rank + step) % 3, 24, generator=generator, dtype=torch.float64)
    return inputs, (inputs[:, 0] > 0).long()


def train(ranks_of_nodes: list[int], steps: int = 20, **keys: Any) -> list[Any]:
    return drive(
        lambda: make(**keys),
        ranks_of_nodes,
        steps_per_epoch=steps,
        data=pieces,
        model=regression,
        criterion=nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    )


# ---------------------------------------------------------------- algorithms


def test_slices_are_refused_on_ragged_nodes():
    config = DDP.Config(algorithm="sliced")
    DDP.check(config, Plan(Topology.of([2, 2]), 1, 8))
    with pytest.raises(ConfigError, match=r"sliced.*same number of ranks.*\[2, 1\].*hierarchical does not"):
        DDP.check(config, Plan(Topology.of([2, 1]), 1, 8))


@pytest.mark.parametrize("algorithm", ["hierarchical", "sliced", "best"])
@pytest.mark.parametrize("ranks_of_nodes", [[4], [1, 1, 1]])
def test_one_level_is_flat(algorithm: str, ranks_of_nodes: list[int]):
    trace = train(ranks_of_nodes, 2, algorithm=algorithm)[0]
    assert trace.verbs == {"gradients.all_reduce": 2}
    assert any("flat" in label for label in trace.strategy.labels(None))


@pytest.mark.parametrize(
    ("algorithm", "payloads"),
    [("flat", [1.5, 1.75, 1.875]), ("hierarchical", [1.0, 1.5, 1.5]), ("sliced", [1.0, 1.5, 1.5])],
)
def test_gradients_over_a_nodes_link(algorithm: str, payloads: list[float]):
    for (nodes, ranks), payload in zip([(2, 2), (4, 2), (4, 4)], payloads, strict=True):
        traces = drive(
            lambda: make(algorithm=algorithm),
            [ranks] * nodes,
            steps_per_epoch=3,
            model=lambda: Linear(torch.zeros(63)),
            data=lambda rank, step: (torch.ones(1, 63), torch.zeros(1)),
        )
        sent = [trace.comm.traffic.ring_bytes["inter"] for trace in traces]
        of_nodes = [sum(sent[node * ranks : (node + 1) * ranks]) for node in range(nodes)]
        assert of_nodes == [3 * payload * 4 * 64] * nodes


@pytest.mark.parametrize("algorithm", ["flat", "hierarchical", "sliced"])
@pytest.mark.parametrize("hook", ["none", "bf16", "fp16", "powersgd"])
def test_a_stop_request_survives_every_sum(algorithm: str, hook: str):
    traces = drive(
        lambda: make(algorithm=algorithm, hook=hook, powersgd_start_steps=0),
        [2, 2],
        steps_per_epoch=4,
        data=lambda rank, step: (torch.ones(500 if rank else 1, 1), torch.zeros(1)),
        model=lambda: Linear(torch.zeros(1)),
        stop_request=lambda rank, step: (rank, step) == (0, 2),
    )
    assert [trace.agreed for trace in traces] == [[False, False, True, False]] * 4


# ---------------------------------------------------------------- best

SLOW_BETWEEN = AlphaBeta(intra_bytes_per_s=1e9, inter_bytes_per_s=1e8)
SLOW_INSIDE = AlphaBeta(intra_bytes_per_s=1e7, inter_bytes_per_s=1e9)


def set_up(network: Network, bucket_mib: float = 25.0, size: int = 1000) -> list[DDP]:
    simulator = Simulator(Topology.of([2, 2]), network)

    def body(rank: int) -> DDP:
        comm = SimulatedCommunicator(simulator, rank)
        replica = SimulatedReplica(Linear(torch.zeros(size)), Mean(), comm, instant(comm.rank))
        strategy = make(algorithm="best", bucket_mib=bucket_mib)
        strategy.setup(replica, comm, Progress(1, 1))
        return strategy

    return simulator.run(body)


@pytest.mark.parametrize(("network", "fastest"), [(SLOW_BETWEEN, "hierarchical"), (SLOW_INSIDE, "flat")])
def test_best_is_the_faster_one_and_says_so(network: Network, fastest: str):
    for strategy in set_up(network):
        assert strategy.algorithm == strategy.summary()["algorithm"] == fastest
        assert isinstance(strategy.reduction, Hierarchical) == (fastest == "hierarchical")
        assert f"best chose {fastest}" in strategy.labels(None)[0]
        assert strategy.replica.averaging.reduction is strategy.reduction


def test_best_times_the_runs_own_buckets():
    # 4000 bytes at 100 MB/s: as a ring 2·3/4 · 40 µs; in two levels 4 µs + 40 µs + 4 µs.
    whole = set_up(SLOW_BETWEEN)[0]
    assert whole.timed_s == {"flat": pytest.approx(60e-6), "hierarchical": pytest.approx(48e-6)}
    # In buckets of 1600, 1600 and 800 bytes the same, unless messages have a price.
    latency = AlphaBeta(inter_latency_s=1e-3)
    cut = set_up(latency, bucket_mib=1600 / 2**20)
    assert cut[0].timed_s == {"flat": pytest.approx(3 * 6e-3), "hierarchical": pytest.approx(3 * 2e-3)}
    assert cut[0].comm.traffic.verbs["gradients.reduce"] == 6 * 3  # pyright: ignore[reportAttributeAccessIssue]


# ---------------------------------------------------------------- hooks


def test_best_is_kept_on_resume():
    chosen = set_up(SLOW_BETWEEN)
    for before, strategy in zip(chosen, set_up(SLOW_INSIDE), strict=True):
        strategy.load_state_dict(before.state_dict())
        assert strategy.algorithm == "hierarchical"
        assert strategy.timed_s == before.timed_s
        assert isinstance(strategy.replica.averaging.reduction, Hierarchical)


def test_what_was_compressed_is_recorded():
    assert train([2], 1, hook="bf16")[0].strategy.summary()["compression_ratio"] == 4  # of float64
    strategy = train([2], 7, hook="powersgd", powersgd_start_steps=5)[0].strategy
    summary, whole = strategy.summary(), 24 * 24 + 24 + 2 * 24 + 2
    assert summary["compressed_steps"] == 2
    assert summary["compression_ratio"] == (whole + 1) / (24 + 24 + 24 + 2 * 24 + 2 + 1)
    assert strategy.labels(None) == []


@pytest.mark.parametrize(
    ("keys", "ranks", "words"),
    [
        ({"hook": "powersgd"}, [2], "compressed nothing: no step beyond powersgd_start_steps"),
        (
            {"hook": "powersgd", "powersgd_rank": 99, "powersgd_start_steps": 0},
            [2],
            "no matrix shrinks enough",
        ),
        ({"hook": "fp16"}, [1], "fp16 is off"),
    ],
)
def test_a_hook_without_effect_is_said(keys: dict[str, Any], ranks: list[int], words: str):
    assert words in train(ranks, 2, **keys)[0].strategy.labels(None)[0]


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize("keys", [{}, {"algorithm": "hierarchical"}, {"algorithm": "sliced"}], ids=str)
def test_what_a_rank_without_samples_computes_is_not_heard(keys: dict[str, Any]):
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        values = torch.tensor([[1.0], [3.0]] if rank == step else [], dtype=torch.float64).view(-1, 1)
        return values, torch.zeros(len(values))

    traces = drive(
        lambda: make(**keys),
        [2, 2],
        steps_per_epoch=3,
        data=data,
        model=lambda: Blind(torch.zeros(1, dtype=torch.float64)),
    )
    for trace in traces:
        assert [vector.item() for vector in trace.parameters] == [-2, -4, -6]
        assert not any(trace.agreed), "a loss of nothing stops nobody"
