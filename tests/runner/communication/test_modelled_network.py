"""The modelled network: operations end when virtual time says so, on one object per rank or on real ranks."""

import dataclasses
import itertools
import os
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from real_runs import final_model, finished, launch
from runs import PERIODS, config

from daso_bench.runner.communication import modelled_network
from daso_bench.runner.communication.link_costs import ClusterNetwork
from daso_bench.runner.communication.modelled_network import SLOTS, Held, LinkClocks
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.simulation.simulated_communicator import (
    SimulatedCommunicator,
    SimulatedWork,
)
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.strategies.communicator import Channel, Work
from daso_bench.strategies.topology import NODE, WORLD, Group, Topology, peers

MS = 1_000_000
SLOW = LinkConfig(rate_gbit=0.008)  # 1000 bytes a millisecond
CHANNELS: tuple[Channel, ...] = ("gradients", "parameters", "control")


@dataclass
class FakeTime:
    """A clock that the test sets, in nanoseconds; sleeping moves it on."""

    now: int = 1000 * MS

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(modelled_network, "time", fake)
    return fake


@contextmanager
def opened(nodes: Sequence[int], links: LinksConfig | None = None) -> Iterator[list[LinkClocks]]:
    """The clocks of all ranks on one memory. Default: 1000 bytes a millisecond."""
    topology = Topology.of(nodes)
    network = ClusterNetwork(links or LinksConfig(intra=SLOW, inter=SLOW), topology)
    groups = [topology.members(WORLD, 0), *map(topology.on_node, range(topology.nodes))]
    groups += [topology.members(peers(q), 0) for q in range(max(nodes))]
    lines = [(channel, members) for channel in CHANNELS for members in groups]
    descriptor, address = modelled_network.make(topology, lines)
    ranks = [LinkClocks(address, topology, network, lines) for _ in range(topology.ranks)]
    os.close(descriptor)
    yield ranks
    for clocks in ranks:
        clocks.close()


def test_an_all_reduce_begins_when_its_last_member_comes(clock: FakeTime):
    with opened([1, 1]) as ranks:
        first = ranks[0].enter("all_reduce", "parameters", (0, 1), 3000, 0)
        assert first.end_ns() is None
        assert not first.over()
        clock.now += 7 * MS
        second = ranks[1].enter("all_reduce", "parameters", (0, 1), 3000, 1)
        assert first.end_ns() == second.end_ns() == 1010 * MS  # a ring of two sends its bytes once
        clock.now = 1010 * MS - 1
        assert not first.over()
        clock.now += 1
        assert first.over()
        assert second.over()


def test_a_broadcast_begins_with_its_source(clock: FakeTime):
    with opened([1, 1, 1]) as ranks:
        early = ranks[2].enter("broadcast", "parameters", (0, 1, 2), 4000, 2, 1)
        clock.now += 5 * MS
        assert early.end_ns() is None
        source = ranks[1].enter("broadcast", "parameters", (0, 1, 2), 4000, 1, 1)
        assert source.end_ns() == early.end_ns() == 1009 * MS
        clock.now += 50 * MS
        late = ranks[0].enter("broadcast", "parameters", (0, 1, 2), 4000, 0, 1)
        assert late.end_ns() == 1009 * MS
        assert late.over()
        late.wait()
        assert clock.now == 1055 * MS, "who comes when all is over waits for nothing"


Entry = tuple[int, int, int]
"""When which rank comes to which operation."""


@dataclass(frozen=True)
class Step:
    """One operation of a script."""

    verb: str
    channel: Channel
    members: tuple[int, ...]
    group: Group
    numel: int
    source: int

    def start(self, comm: SimulatedCommunicator, tag: int) -> Work:
        """This rank's part of it."""
        tensor, size = torch.zeros(self.numel), len(self.members)
        if self.verb == "send":
            sender, receiver = self.members
            there = {receiver: tensor} if comm.rank == sender else {}
            return comm.exchange(there, {} if there else {sender: tensor}, tag)
        more: Any = {"channel": self.channel, "async_op": True}
        if self.verb == "all_reduce":
            return comm.all_reduce(tensor, self.group, **more)
        if self.verb == "reduce_scatter":
            return comm.reduce_scatter(torch.zeros(self.numel // size), tensor, self.group, **more)
        if self.verb == "all_gather":
            return comm.all_gather(torch.zeros(self.numel * size), tensor, self.group, **more)
        return getattr(comm, self.verb)(tensor, self.source, self.group, **more)


def script(topology: Topology, seed: int, steps: int = 50) -> tuple[list[Step], list[Entry]]:
    """Operations in the order in which each rank comes to its own, at times of its own, none like another's.

    A broadcast's source comes last of its members: virtual time lets it begin with the last one.
    """
    draw = random.Random(seed)
    spread = draw.choice([5_000, 300_000, 5_000_000])
    clocks = [MS] * topology.ranks
    taken: set[int] = set()
    made: list[Step] = []
    entries: list[Entry] = []
    for number in range(steps):
        verb = draw.choice(["all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "send"])
        rank = draw.randrange(topology.ranks)
        group = draw.choice([WORLD, NODE, peers(topology.local_ranks[rank])])
        members = topology.members(group, rank)
        if verb == "send":
            members = (rank, draw.choice([other for other in range(topology.ranks) if other != rank]))
        elif len(members) == 1:
            group, members = WORLD, topology.members(WORLD, 0)
        source = draw.randrange(len(members)) if verb in ("broadcast", "reduce") else 0
        step = Step(verb, draw.choice(CHANNELS), members, group, 12 * draw.randrange(1, 3000), source)
        made.append(step)
        last = members[source] if verb == "broadcast" else None
        for member in sorted(members, key=lambda member: member == last):
            earliest = max(clocks[other] for other in members) if member == last else clocks[member]
            at = earliest + draw.randrange(1, spread)
            while at in taken:
                at += 1
            taken.add(at)
            clocks[member] = at
            entries.append((at, member, number))
    return made, sorted(entries)


def ends_in_virtual_time(
    topology: Topology, network: ClusterNetwork, steps: list[Step], entries: list[Entry]
) -> list[int | None]:
    simulator = Simulator(topology, network)
    works: dict[int, Work] = {}

    def body(rank: int) -> None:
        comm = SimulatedCommunicator(simulator, rank)
        for at, member, number in entries:
            if member == rank:
                simulator.advance(rank, at - simulator.now)
                works[number] = steps[number].start(comm, number)

    simulator.run(body)
    ends: list[int | None] = []
    for number in range(len(steps)):
        work = works[number]
        assert isinstance(work, SimulatedWork)
        ends.append(work.parts[0][0].end)
    return ends


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [(2, 2), (3, 1)])
def test_operations_end_when_they_end_in_virtual_time(clock: FakeTime, nodes: tuple[int, ...], seed: int):
    topology = Topology.of(nodes)
    links = LinksConfig(
        intra=LinkConfig(rate_gbit=1.7, latency_us=3),
        inter=LinkConfig(rate_gbit=0.13, latency_us=50, efficiency=0.9),
        nics=1 + seed % 2,
        algorithm=["auto", "ring", "tree", "hierarchical"][seed % 4],
        node_speeds=(1.0, 0.5) if seed % 3 == 0 else None,
    )
    steps, entries = script(topology, seed)
    held: dict[int, Held] = {}
    with opened(nodes, links) as ranks:
        for at, rank, number in entries:
            step, clock.now = steps[number], at
            channel = "messages" if step.verb == "send" else step.channel
            held[number] = ranks[rank].enter(
                step.verb, channel, step.members, 4 * step.numel, rank, step.source
            )
        ends = [held[number].end_ns() for number in range(len(steps))]
    assert None not in ends
    assert ends == ends_in_virtual_time(topology, ClusterNetwork(links, topology), steps, entries)


def test_numbers_of_operations_go_round_the_slots(clock: FakeTime):
    with opened([1, 1]) as ranks:
        oldest: Held | None = None
        for number in range(2 * SLOTS + 3):
            held = [ranks[rank].enter("all_reduce", "gradients", (0, 1), 1000, rank) for rank in (0, 1)]
            assert held[0].end_ns() == held[1].end_ns() == 1000 * MS + (number + 1) * MS
            oldest = oldest or held[0]
        assert oldest is not None
        assert oldest.over(), "its slot has another operation: it has ended long ago"


def test_more_operations_than_slots_are_refused_not_mixed_up(clock: FakeTime):
    with opened([1, 1]) as ranks:
        for _ in range(SLOTS):
            ranks[0].enter("all_reduce", "gradients", (0, 1), 1000, 0)
        ranks[0].enter("all_reduce", "parameters", (0, 1), 1000, 0)  # a line of its own has slots of its own
        with pytest.raises(RuntimeError, match=rf"all_reduce on gradients: more than {SLOTS} operations"):
            ranks[0].enter("all_reduce", "gradients", (0, 1), 1000, 0)


def test_a_rank_that_was_let_go_alone_waits_its_own_transfers_time(clock: FakeTime):
    with opened([1, 1]) as ranks:
        held = ranks[0].enter("reduce", "gradients", (0, 1), 6000, 0)
        held.wait()
        assert clock.now == 1006 * MS


def test_ranks_that_come_at_once_leave_no_gap_and_no_overlap():
    """Four threads, each with a file of its own, as four processes would have."""
    times, ends = 100, list[list[int]]()
    with opened([2, 2]) as ranks:

        def rank(number: int) -> None:
            pair = ((0, 2), (1, 3))[number % 2]
            mine = [ranks[number].enter("all_reduce", "gradients", pair, 1000, number) for _ in range(times)]
            met.wait()
            ends.append([held.end_ns() or 0 for held in mine])

        met = threading.Barrier(4)
        threads = [threading.Thread(target=rank, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    every = sorted({end for mine in ends for end in mine})
    assert len(every) == 2 * times, "each operation has an end of its own on the one card"
    assert all(later - earlier >= MS for earlier, later in itertools.pairwise(every))


@pytest.mark.parametrize(
    ("name", "ranks"), [("values", 4), ("asynchronous", 4), ("same_gradients", 4), ("step_time", 2)]
)
def test_real_ranks_find_what_they_should(tmp_path: Path, name: str, ranks: int):
    finished(config(ranks=[ranks], results=tmp_path), entry=f"gloo_entries_network:{name}")


def test_a_rank_that_is_gone_ends_the_others_with_an_error(tmp_path: Path):
    directory, outcome = launch(config(ranks=[2], results=tmp_path), entry="gloo_entries_network:leaves")
    assert outcome.status == "failed"
    assert "rank 1" in (outcome.reason or "")
    assert "7" in (outcome.reason or ""), "its exit code"
    assert (directory.path / "errors-0").read_text() == "['RuntimeError', 'RuntimeError']"


def modelled(cfg: RunConfig, rate_gbit: float = 0.01) -> RunConfig:
    """The run on a modelled network between its nodes."""
    inter = LinkConfig(rate_gbit=rate_gbit, latency_us=20)
    return dataclasses.replace(
        cfg,
        cluster=dataclasses.replace(cfg.cluster, links=LinksConfig(inter=inter)),
        launcher=LocalConfig(network="modelled", on_invalid="record"),
    )


def run(cfg: RunConfig) -> dict[str, Any]:
    """Run it as `daso-bench run` does; its final model."""
    directory, summary = finished(cfg)
    network = cfg.launcher.asked_network
    assert (summary.get("validity") or {"network": "none"})["network"] == network
    assert (f"{network} network" in summary["labels"]) == (network != "none")
    return final_model(directory)


@pytest.mark.parametrize(
    ("strategy", "keys", "ranks", "epochs"),
    [
        ("ddp", {}, [1, 1], 1),
        ("local_sgd", {"sync_every": 2}, [1, 1], 1),
        ("hsgd", {}, [2, 2], 1),
        ("daso", PERIODS["daso"], [2, 2], 3),
        ("sgp", {}, [1, 1], 1),
    ],
)
def test_a_modelled_network_changes_no_bit_of_the_final_model(
    tmp_path: Path, strategy: str, keys: dict[str, Any], ranks: list[int], epochs: int
):
    cfg = config(strategy, keys=keys, ranks=ranks, epochs=epochs, results=tmp_path)
    held_back = run(modelled(cfg))
    assert all(bool(value.isfinite().all()) for value in held_back.values())
    if strategy in ("ddp", "local_sgd", "hsgd"):  # the others depend on times
        plain = run(cfg)
        assert plain.keys() == held_back.keys()
        assert all(torch.equal(held_back[name], plain[name]) for name in plain)
