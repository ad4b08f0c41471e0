"""The driver against runs worked out by hand, and against itself: saved, resumed, looked at."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness import Linear, Mean  # pyright: ignore[reportMissingImports] (another folder of tests)
from plugins import Averager

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.conformance import trial
from daso_bench.runner.conformance.checks import (
    Candidate,
    Failed,
    element,
    require_equal,
    require_same_walk,
)
from daso_bench.runner.conformance.driver import drive, jittered
from daso_bench.runner.conformance.given_workload import GivenOrder
from daso_bench.runner.conformance.scenario import Problem, Scenario
from daso_bench.strategies.base import Shares
from daso_bench.strategies.ddp import DDP

LINEAR = Problem(
    name="linear",
    model=lambda: Linear(torch.zeros(1, dtype=torch.float64)),
    data=lambda rank, step: (
        torch.full((rank + 1, 1), float(step), dtype=torch.float64),
        torch.zeros(rank + 1),
    ),
    criterion=Mean,
    optimizer=lambda stepped: torch.optim.SGD(stepped, lr=1.0),
)


def scenario(kind: type = DDP, **changes: Any) -> Scenario:
    given: dict = dict(ranks_of_nodes=(1, 1), problem=LINEAR, steps_per_epoch=3, epochs=2)
    return Scenario(strategy_class=kind, config=kind.Config(), **{**given, **changes})


def awkward(**changes: Any) -> Scenario:
    return trial.trial_scenario(Candidate("averager", Averager, Averager.Config()), (2, 1), **changes)


def test_gradients_data_rates_and_samples_are_those_of_each_step():
    first, second = drive(scenario(rate=lambda step: 1.0 if step < 3 else 0.5))
    # The gradient in step s is s: 0, 1, 2 at rate 1, then 3, 4, 5 at rate 0.5.
    assert [first.parameters[k].item() for k in range(7)] == [0, 0, -1, -3, -4.5, -6.5, -9]
    assert first.final.item() == second.given.item() == -9
    assert first.samples == {k: 3 * k for k in range(1, 7)}
    assert first.known == {k: 3 * k for k in range(6)}
    assert set(second.sizes.values()) == {(1, 2)}
    assert len(first.records) == 2


def test_clocks_begin_with_the_first_step_and_late_ranks_are_waited_for():
    network = AlphaBeta(inter_latency_s=1e-3)
    first, second = drive(scenario(begin_ns=lambda rank: 7 * rank), network=network, step_time=10)
    all_reduce = 2 * 10**6
    assert first.clock_ns == {0: 0} | {k: 7 + k * (10 + all_reduce) for k in range(1, 7)}
    assert second.clock_ns == {0: 7} | {k: 7 + k * (10 + all_reduce) for k in range(1, 7)}


def test_calls_carry_their_step_and_purpose():
    history = drive(awkward(consensus_after=[2], copies_after=[2]))[0]
    assert history.verbs() == {"parameters.all_reduce": 7}
    own = [call for call in history.calls if call.during == "step"]
    assert [call.step for call in own] == [2, 5, 8, 11, 14, 17, 20]
    assert {call.members for call in own} == {(0, 1, 2)}
    m, f = history.replica.numel, history.replica.buffers.numel
    assert {call.numbytes for call in own} == {4 * (m + 1)}
    assert [call.numbytes for call in history.calls if call.during == "copy"] == [4 * (m + f)]
    assert sum(call.during == "averaged_model" for call in history.calls) == 4, (
        "once asked for, once at the end"
    )


def test_two_drives_are_the_same_bit_for_bit_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    one, other = (drive(awkward(), step_time=jittered(1000, 5)) for _ in range(2))
    assert [h.clock_ns for h in one] == [h.clock_ns for h in other]
    for new, old in zip(one, other, strict=True):
        require_same_walk(new, old, "again")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("samples", "shares", "pieces"),
    [
        ((2, 2, 2), Shares((3, 2, 1)), (3, 2, 1)),
        ((4, 4, 4), Shares((3, 2, 1)), (6, 4, 2)),
        ((3, 2, 2), Shares((5, 1, 1)), (5, 1, 1)),
        ((3, 1, 1), Shares((8, 1, 1), minimum=2), (5, 0, 0)),  # pieces below the minimum go to the largest
    ],
)
def test_shares_cut_the_global_batch_anew(samples: tuple[int, ...], shares: Shares, pieces: tuple[int, ...]):
    given = scenario(ranks_of_nodes=(3,))
    order = GivenOrder(
        given, lambda rank, step: (torch.zeros(samples[rank], 1), torch.zeros(samples[rank])), 0
    )
    progress: Any = SimpleNamespace(step=0)
    assert order.sizes(progress) == samples
    order.shares = shares
    assert order.sizes(progress) == pieces


def test_differences_name_their_first_element():
    names = [("a", 2), ("b", 1)]
    assert [element(names, place) for place in range(4)] == ["a[0]", "a[1]", "b", "buffers[0]"]
    with pytest.raises(Failed, match=r"here: b is 4, must be 3 \(1 of 3 elements differ\)"):
        require_equal(torch.tensor([1.0, 2, 4]), torch.tensor([1.0, 2, 3]), "here", names)
    require_equal(torch.tensor([1.0 + 1e-7]), torch.tensor([1.0]), "here", names, tolerance=1e-6)
    require_equal(torch.tensor([float("nan")]), torch.tensor([float("nan")]), "here", names)
    with pytest.raises(Failed, match="must be nan"):
        require_equal(torch.tensor([0.0]), torch.tensor([float("nan")]), "here", names, tolerance=1.0)
    with pytest.raises(Failed, match=r"\[2\] elements, must be \[3\]"):
        require_equal(torch.zeros(2), torch.zeros(3), "here")
