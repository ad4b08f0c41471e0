"""The script's arithmetic of calls and clocks against the simulator that it judges."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.groups import entries
from daso_bench.runner.conformance import traffic, trial
from daso_bench.runner.conformance.candidates import SMALL
from daso_bench.runner.conformance.script import Launched, Script
from daso_bench.runner.conformance.traffic import SCRIPTS, Sizes
from daso_bench.runner.conformance.variants import VARIANTS
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulator import Simulator
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Group, Topology, peers

NETWORK = AlphaBeta(intra_latency_s=1e-6, intra_bytes_per_s=1e9, inter_latency_s=5e-5, inter_bytes_per_s=1e7)
GROUPS = [WORLD, NODE, LEADERS, peers(1)]

program = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), st.integers(0, 3)),
        st.tuples(st.just("blocking"), st.sampled_from(GROUPS), st.integers(1, 2000)),
        st.tuples(st.just("launch"), st.integers(1, 2000)),
    ),
    max_size=12,
)


class InOrder(Script):
    """A script gives links to transfers as they are listed; programs of another order are left out."""

    last = -1

    def _start(self, verb: str, channel: str, members: tuple[int, ...], numbytes: int) -> Launched:
        if self.topology.spans_nodes(members):
            ready = max(self.clock[member] for member in members)
            assume(ready > self.last)
            self.last = ready
        return super()._start(verb, channel, members, numbytes)


@settings(max_examples=60, deadline=None)
@given(program=program, nodes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_clocks_and_calls_are_the_simulators(program: list, nodes: list[int]):
    topology = Topology.of(nodes)
    speeds = [1000 * (rank + 1) for rank in range(topology.ranks)]
    script = InOrder(topology, NETWORK, lambda rank: speeds[rank])
    simulator = Simulator(topology, NETWORK)
    payloads: dict[int, int] = {}

    def body(rank: int) -> int:
        comm = SimulatedCommunicator(simulator, rank)
        for name, *told in program:
            if name == "compute":
                simulator.advance(rank, told[0] * speeds[rank])
                continue
            group: Group = told[0] if name == "blocking" else WORLD
            if rank not in topology.members(group, rank):
                continue
            work = comm.all_reduce(torch.zeros(told[-1]), group, async_op=True)
            if name == "launch":
                simulator.advance(rank, speeds[rank])
            work.wait()
        payloads[rank] = sum(comm.traffic.payload_bytes.values())
        return comm.now()

    clocks = simulator.run(body)
    for name, *told in program:
        if name == "compute":
            script.advance(lambda rank, times=told[0]: times * speeds[rank])
        elif name == "blocking":
            script.blocking("all_reduce", "parameters", told[0], 4 * told[1])
        else:
            launched = script.launch("all_reduce", "parameters", WORLD, 4 * told[0])
            script.compute()
            for one in launched:
                script.wait(one)
    assert script.clock == clocks
    assert [sum(call.numbytes for call in calls) for calls in script.calls] == [
        payloads[r] for r in sorted(payloads)
    ]


def test_links_between_nodes_carry_one_transfer_at_a_time():
    network = AlphaBeta(inter_latency_s=1.0)
    script = Script(Topology.of([2, 2]), network, lambda rank: 0)
    script.blocking("broadcast", "parameters", peers(0), 4)
    script.blocking("broadcast", "parameters", peers(1), 4)
    assert script.clock == [10**9, 2 * 10**9] * 2


def test_messages_are_sent_once_and_waited_for_on_both_sides():
    script = Script(Topology.of([1, 1, 1]), AlphaBeta(inter_latency_s=1.0), lambda rank: 0)
    script.messages([(0, 1)], 12)
    assert [len(calls) for calls in script.calls] == [1, 0, 0]
    assert script.clock == [10**9, 10**9, 0]


def test_a_barrier_in_memory_takes_time_and_is_no_call():
    script = Script(Topology.of([2]), AlphaBeta(intra_latency_s=1e-6), lambda rank: 0)
    script.memory_barrier(NODE)
    assert script.clock == [2000, 2000]
    assert script.calls == [[], []]


def test_every_built_in_strategy_has_a_script():
    built_in = {entry.name for entry in entries("strategy")}
    assert built_in == SCRIPTS.keys()
    assert VARIANTS.keys() <= built_in
    assert SMALL.keys() <= built_in
    assert built_in >= traffic.IN_STEP


@pytest.mark.parametrize(("nodes", "between"), [((1, 1), 1), ((2, 2), 1), ((2,), 0)])
def test_the_hand_count_of_ddp(nodes: tuple[int, ...], between: int):
    from daso_bench.runner.conformance.checks import Candidate
    from daso_bench.strategies.ddp import DDP

    course = trial.course(Candidate("ddp", DDP, DDP.Config(), "ddp"), nodes)
    told = traffic.script("ddp", course, Sizes(99, 12), NETWORK, lambda rank: 10)
    assert told is not None
    assert all(len(calls) == 21 and {call.numbytes for call in calls} == {400} for calls in told.calls)
    wait = NETWORK.duration_ns("all_reduce", range(sum(nodes)), 400, bool(between))
    assert told.clock == [21 * (10 + wait)] * sum(nodes)
