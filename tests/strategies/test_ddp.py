"""DDP by hand, in virtual time (over gloo: launch/test_torch_world.py), and the label of the placebo."""

from typing import Any

import pytest
import torch
from harness import Blind, Linear, drive
from torch import Tensor, nn

from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.placebo import Placebo


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


@pytest.mark.parametrize("algorithm", ["hierarchical", "sliced"])
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


# ---------------------------------------------------------------- hooks


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


@pytest.mark.parametrize(("ranks", "warned"), [(2, True), (3, False)])
def test_a_placebo_of_two_ranks_says_that_it_is_none(ranks: int, warned: bool):
    labels = drive(lambda: Placebo(Placebo.Config()), [ranks], steps_per_epoch=1)[0].strategy.labels(None)
    assert any("use 3 or more" in label for label in labels) is warned
