"""Virtual time: order, cost, busy links, and errors that say who waits for whom."""

import re
from typing import Any

import pytest
import torch
from gloo_entries import every_verb
from torch import Tensor

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.communication.traffic import ring_bytes
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator, SimulatedWork
from daso_bench.runner.simulation.virtual_time import OutOfTime, Simulator
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Topology

MS = 1_000_000
zeros = torch.zeros


def run(body: Any, nodes: list[int], network: Any = None) -> tuple[list[Any], Simulator]:
    simulator = Simulator(Topology.of(nodes), network)
    return simulator.run(lambda rank: body(SimulatedCommunicator(simulator, rank))), simulator


def test_every_verb():
    def body(comm: SimulatedCommunicator) -> None:
        every_verb(comm)
        with pytest.raises(ValueError, match="spans nodes"):
            comm.shared(1, torch.float32, WORLD)

    run(body, [2, 2])


def test_a_group_of_one_is_done_at_once_and_sends_nothing():
    def body(comm: SimulatedCommunicator) -> None:
        x, gathered, piece = torch.ones(2), torch.zeros(2), torch.zeros(2)
        for work in (
            comm.all_reduce(x, NODE, async_op=True),
            comm.all_gather(gathered, x, NODE, async_op=True),
            comm.reduce_scatter(piece, x, NODE, async_op=True),
        ):
            assert (work.is_completed(), work.transfer_ns()) == (True, 0)
        comm.barrier(NODE, in_memory=True)
        assert x.tolist() == gathered.tolist() == piece.tolist() == [1, 1]
        assert not comm.traffic.verbs

    run(body, [1, 1])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.all_reduce(zeros(1), LEADERS), "calls all_reduce on peers(0), of which it is"),
        (lambda c: c.barrier(LEADERS, in_memory=True), "calls barrier on peers(0), of which it is no"),
        (lambda c: c.all_reduce(zeros(4, 2).T, WORLD), "parameters/world: the tensor is not cont"),
        (lambda c: c.all_gather(zeros(7), zeros(2), WORLD), "7 numbers are not 4 pieces of"),
        (lambda c: c.reduce_scatter(zeros(2), zeros(9), WORLD), "9 numbers are not 4 piece"),
    ],
)
def test_calls_that_cannot_be_are_refused(call: Any, error: str):
    with pytest.raises((RuntimeError, ValueError), match=re.escape(error)):
        run(lambda comm: call(comm) if comm.rank == 1 else None, [2, 2])


def test_the_smallest_clock_runs_first_and_a_poll_sees_all_that_was_before():
    """Rank 1 joins at 30 ms; rank 0 polls every 10 ms: not yet at 30 (a tie), done at 40."""

    def body(comm: SimulatedCommunicator) -> list[bool]:
        if comm.rank == 1:
            comm.simulator.advance(1, 30 * MS)
            comm.all_reduce(torch.ones(1), WORLD).wait()
            return []
        work = comm.all_reduce(torch.ones(1), WORLD, async_op=True)
        seen = []
        for _ in range(4):
            comm.simulator.advance(0, 10 * MS)
            seen.append(work.is_completed())
        work.wait()
        return seen

    seen, simulator = run(body, [1, 1])
    assert seen[0][:2] == [False, False]
    assert seen[0][3] is True
    assert simulator.time == [40 * MS, 30 * MS]


def test_a_rank_that_stays_away_is_named():
    def body(comm: SimulatedCommunicator) -> None:
        if comm.rank != 2:
            comm.all_reduce(torch.zeros(1), WORLD).wait()

    with pytest.raises(RuntimeError, match=r"rank 0 waits in all_reduce over \(0, 1, 2, 3\) for ranks \[2\]"):
        run(body, [2, 2])


def test_different_calls_on_one_group_are_an_error_and_not_a_sum():
    def body(comm: SimulatedCommunicator) -> None:
        x = torch.zeros(1)
        (comm.broadcast(x, 0, WORLD) if comm.rank else comm.all_reduce(x, WORLD)).wait()

    with pytest.raises(RuntimeError, match="ranks disagree on their collectives"):
        run(body, [2])


def test_payload_is_counted_by_link_class_and_control_is_not():
    def body(comm: SimulatedCommunicator) -> dict[str, dict[str, int]]:
        comm.all_reduce(torch.zeros(10), WORLD).wait()
        comm.broadcast(torch.zeros(5), 0, NODE).wait()
        comm.all_reduce(torch.zeros(100), WORLD, channel="control").wait()
        return comm.traffic.totals()

    totals = run(body, [2, 2])[0]
    assert totals[0]["payload_bytes"] == {"intra": 20, "inter": 40}
    assert totals[0]["calls"] == {"intra": 1, "inter": 1}


@pytest.mark.parametrize(
    ("verb", "members", "payload", "distance", "sent"),
    [
        ("all_reduce", 4, 4000, 0, 6000),
        ("all_reduce", 2, 4000, 0, 4000),
        ("reduce_scatter", 4, 4000, 1, 3000),
        ("all_gather", 4, 1000, 1, 3000),
        ("broadcast", 4, 4000, 0, 4000),
        ("broadcast", 4, 4000, 3, 0),
        ("reduce", 4, 4000, 0, 0),
        ("reduce", 4, 4000, 2, 4000),
        ("send", 2, 8, 0, 8),
    ],
)
def test_ring_model(verb: str, members: int, payload: int, distance: int, sent: int):
    assert ring_bytes(verb, members, payload, distance) == sent


def test_the_sum_does_not_depend_on_who_comes_first():
    values = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))

    def body(order: list[int]):
        def one(comm: SimulatedCommunicator) -> Tensor:
            comm.simulator.advance(comm.rank, order[comm.rank] * MS)
            x = values[comm.rank].clone()
            comm.all_reduce(x, WORLD).wait()
            return x

        return one

    results = [run(body(order), [4])[0][0] for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1])]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_helper_has_its_own_clock_and_leaves_nothing_behind():
    """A chain of two 12 ms sums goes on while the rank computes for 30 ms, and 4 ms more are waited for."""
    network = AlphaBeta(inter_latency_s=6e-3)

    def body(comm: SimulatedCommunicator) -> tuple[int, int, int, float]:
        x = torch.ones(1)

        def chain() -> None:
            for _ in range(2):
                comm.all_reduce(x, WORLD).wait()
            comm.simulator.advance(comm.rank, 10 * MS)

        work = comm.start_helper(chain)
        comm.simulator.advance(comm.rank, 30 * MS)
        assert not work.is_completed()
        work.wait()
        return comm.now(), comm.traffic.blocked_ns, comm.traffic.waited_ns, x.item()

    ends, simulator = run(body, [1, 1], network)
    assert ends == [(34 * MS, 4 * MS, 0, 4.0)] * 2
    assert len(simulator._rank_of) == 2
    assert not simulator._helpers


def test_waiting_in_a_helper_is_not_counted_as_transfer():
    """Rank 1 enters 20 ms later: of rank 0's 32 ms in the sum 20 are waiting, whoever waits for it."""

    def body(comm: SimulatedCommunicator) -> tuple[int, int]:
        x = torch.ones(1)
        comm.simulator.advance(comm.rank, 20 * MS * comm.rank)
        comm.start_helper(lambda: comm.all_reduce(x, WORLD).wait()).wait()
        return comm.traffic.blocked_ns, comm.traffic.waited_ns

    ends, _ = run(body, [1, 1], AlphaBeta(inter_latency_s=6e-3))
    assert ends == [(32 * MS, 20 * MS), (12 * MS, 0)]


@pytest.mark.parametrize(("others", "missing"), [(0, r"\[1\]"), (1, r"\[\]")])
def test_a_rank_that_polls_for_ever_in_no_time_is_stopped(others: int, missing: str):
    def body(comm: SimulatedCommunicator) -> None:
        comm.simulator.advance(comm.rank, 1 - comm.rank)
        if comm.rank <= others:
            work = comm.all_reduce(torch.ones(1), WORLD, async_op=True)
            while comm.rank == 0 and not work.is_completed():
                pass

    with pytest.raises(RuntimeError, match=f"no time passes: a rank polls all_reduce .* for ranks {missing}"):
        run(body, [1, 1], AlphaBeta(inter_latency_s=1.0))


def test_the_sum_of_a_collective_is_let_go_of_when_every_member_has_it():
    def body(comm: SimulatedCommunicator) -> list[int]:
        work = comm.all_reduce(torch.ones(1), WORLD, async_op=True)
        assert isinstance(work, SimulatedWork)
        work.wait()
        comm.barrier(WORLD)
        return [len(operation.results) for operation, _ in work.parts]

    assert run(body, [1, 1])[0] == [[0], [0]]


def test_a_run_can_be_cut_at_a_moment():
    topology = Topology.of([2])
    simulator = Simulator(topology)
    with pytest.raises(OutOfTime):
        simulator.run(lambda rank: [simulator.advance(rank, 10 * MS) for _ in range(9)], until_ns=45 * MS)
    assert simulator.time == [40 * MS, 40 * MS]


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("nodes", [2, 3, 16])
def test_a_ring_of_messages_takes_the_time_of_one(nodes: int, fair: bool):
    """Everybody sends to the next and receives from the one before: a link carries one message each way."""

    def body(comm: SimulatedCommunicator) -> int:
        rank = comm.rank
        got = torch.zeros(250)
        comm.exchange({(rank + 1) % nodes: torch.ones(250)}, {(rank - 1) % nodes: got}, tag=0).wait()
        assert got.sum() == 250
        return comm.now()

    ends, _ = run(body, [1] * nodes, AlphaBeta(inter_bytes_per_s=1e6, fair=fair))
    assert ends == [MS] * nodes
