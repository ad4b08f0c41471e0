"""The timeline of a run in virtual time: all that happened is in it, once, in its place."""

import dataclasses
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import run_here
from runs import Awkward, config, simulated, whole_and_resumed

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.runner.communication.link_costs import AlphaBeta, Network
from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.runner.launch.rank import NodeLost
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.timeline import Timeline
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.runner.training.context import TrainContext
from daso_bench.strategies.topology import NODE, WORLD, Topology

MS = 1_000_000
STEPS = 5
Row = dict[str, Any]


def step_ns(rank: int, samples: int) -> int:
    return 3 * MS + 1_001 * rank


def draw(path: Path, strategy: str = "ddp", *, fair: bool = True, most: int = 10**6) -> list[TrainContext]:
    topology = Topology.of([2, 2])
    timeline = Timeline(topology, most)
    network = AlphaBeta(1e-5, 1e8, 1e-4, 1e6, fair)
    made = config(strategy, max_steps=STEPS)
    done = simulated(made, network=network, step_time=step_ns, timeline=timeline)
    timeline.write(path)
    return done.contexts


def read(path: Path) -> tuple[list[Row], list[Row]]:
    """Metadata, and events with start and end in whole nanoseconds."""
    rows = json.loads(path.read_text())["traceEvents"]
    events = [row for row in rows if row["ph"] == "X"]
    for row in events:
        row["start"] = round(row["ts"] * 1000)
        row["end"] = row["start"] + round(row["dur"] * 1000)
    return [row for row in rows if row["ph"] == "M"], events


def transfers(events: list[Row]) -> dict[int, Row]:
    return {row["args"]["transfer"]: row for row in events if row["cat"] in ("intra", "inter")}


def on_threads(events: list[Row]) -> dict[tuple[int, int], list[Row]]:
    by_thread: dict[tuple[int, int], list[Row]] = {}
    for row in events:
        by_thread.setdefault((row["pid"], row["tid"]), []).append(row)
    return by_thread


@pytest.mark.parametrize("strategy", ["ddp", "daso"])
@pytest.mark.parametrize("fair", [False, True])
def test_a_runs_steps_and_bytes_are_all_there(tmp_path: Path, strategy: str, fair: bool):
    contexts = draw(tmp_path / "t.json", strategy, fair=fair)
    about, events = read(tmp_path / "t.json")

    assert {(row["pid"], row["args"]["name"]) for row in about if row["name"] == "process_name"} == {
        (0, "node 0"),
        (1, "node 1"),
    }
    names = {(row["pid"], row["tid"]): row["args"]["name"] for row in about if row["name"] == "thread_name"}
    assert [names[rank // 2, rank] for rank in range(4)] == [f"rank {rank}" for rank in range(4)]
    for row in events:
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} <= row.keys()
        thread = names[row["pid"], row["tid"]]
        assert thread.startswith("network" if row["cat"] in ("intra", "inter") else "rank")
    assert [row["start"] for row in events] == sorted(row["start"] for row in events)

    # One step more than was counted: the one that is undone.
    for rank in range(4):
        mine = [row for row in events if (row["cat"], row["tid"]) == ("compute", rank)]
        assert [row["name"] for row in mine] == ["forward", "backward"] * (STEPS + 1)
        assert sum(row["end"] - row["start"] for row in mine) == (STEPS + 1) * step_ns(rank, 4)

    begun = min(
        [row for row in events if (row["cat"], row["tid"]) == ("compute", rank)][2]["start"]
        for rank in range(4)
    )
    sent = {"intra": 0, "inter": 0}
    for row in transfers(events).values():
        if row["start"] >= begun and row["args"]["channel"] not in ("control", "shared"):
            sent[row["cat"]] += row["args"]["payload_bytes"] * len(row["args"]["members"].split(","))
    counted = [context.comm.traffic.payload_bytes for context in contexts]
    assert sent == {link: sum(counter[link] for counter in counted) for link in ("intra", "inter")}
    assert sent["inter"] > 0


@pytest.mark.parametrize("fair", [False, True])
def test_nothing_overlaps_on_a_thread_and_a_rank_is_never_idle_unseen(tmp_path: Path, fair: bool):
    draw(tmp_path / "t.json", fair=fair)
    threads = on_threads(read(tmp_path / "t.json")[1])
    for rows in threads.values():
        for row, following in itertools.pairwise(rows):
            assert row["end"] <= following["start"]
    for rank in range(4):  # all of a rank's time is computing or waiting: nothing else takes any
        rows = threads[rank // 2, rank]
        assert all(row["end"] == later["start"] for row, later in itertools.pairwise(rows))


def test_of_a_long_run_the_beginning_is_kept_and_the_file_says_so(tmp_path: Path):
    draw(tmp_path / "all")
    draw(tmp_path / "cut", most=20)
    whole, cut = (json.loads((tmp_path / name).read_text()) for name in ("all", "cut"))
    kept, events = read(tmp_path / "cut")[1], read(tmp_path / "all")[1]
    assert len(kept) == 20
    assert cut["otherData"]["cut"] == f"{len(events) - 20} events after the first 20 are left out"
    assert "cut" not in whole["otherData"]


def shared_link(timeline: Timeline) -> None:
    """10 ms and 20 ms on one link, both from 0 ms; the first is noted as if it were alone."""

    class PerByte(AlphaBeta):
        def duration_ns(self, verb: str, members: Any, payload: int, inter: bool) -> int:
            return payload * MS if inter else 0

    simulator = Simulator(Topology.of([2, 2]), PerByte(fair=True), timeline)

    def body(rank: int) -> None:
        comm = SimulatedCommunicator(simulator, rank)
        works = [
            comm.all_reduce(torch.zeros(size, dtype=torch.uint8), WORLD, async_op=True) for size in (10, 20)
        ]
        comm.barrier(NODE, in_memory=True)
        for work in works:
            work.wait()

    simulator.run(body)


def test_a_transfer_that_another_slows_has_the_end_it_came_to(tmp_path: Path):
    timeline = Timeline(Topology.of([2, 2]))
    shared_link(timeline)
    timeline.write(tmp_path / "t.json")
    about, events = read(tmp_path / "t.json")
    inter = [row for row in events if row["cat"] == "inter"]
    spans = [(row["pid"], row["start"], row["end"], row["args"]["payload_bytes"]) for row in inter]
    assert sorted(spans) == [
        (node, 0, end * MS, size) for node in (0, 1) for end, size in ((20, 10), (30, 20))
    ]
    assert {row["args"].get("name") for row in about} >= {"network", "network 2"}
    assert [row["args"]["channel"] for row in events if row["name"] == "barrier"] == ["shared"] * 2
    waits = {(row["tid"], row["start"], row["end"]) for row in events if row["cat"] == "wait"}
    assert waits == {(rank, *span) for rank in range(4) for span in ((0, 20 * MS), (20 * MS, 30 * MS))}


def test_each_attempt_of_a_run_leaves_a_file_however_it_ended(tmp_path: Path):
    link = LinkConfig(rate_gbit=1.0, latency_us=10.0)
    cluster = ClusterConfig(
        ranks_per_node=(2, 2),
        links=LinksConfig(intra=link, inter=link),
        device=DeviceConfig(samples_per_second=1000.0),
        failures_s=(0.02,),
    )
    made = dataclasses.replace(
        config(max_steps=STEPS, results=tmp_path, dataset=Synthetic(samples=96)),
        cluster=cluster,
        launcher=SimulatedConfig(timeline=True),
    )
    assert made.run_id == dataclasses.replace(made, launcher=SimulatedConfig()).run_id
    directory = RunDirectory.create(made.tree, tmp_path)
    with pytest.raises(NodeLost):
        run_here(directory)
    directory.end_attempt("failed", None)
    run_here(directory)
    steps = [
        sum(row["name"] == "forward" for row in read(directory.path / name)[1])
        for name in ("timeline.json", "timeline_2.json")
    ]
    assert 4 <= steps[0] < steps[1] == 4 * (STEPS + 1)


@pytest.mark.parametrize("strategy", ["ddp", "hsgd", "daso", "ednncomm", "lasgd", "sgp"])
def test_both_classes_together_are_what_was_exposed_and_waited(strategy: str):
    cfg = config(strategy, model=Awkward())
    done = simulated(
        cfg,
        network=AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6),
        step_time=lambda rank, n: 2_000_000 + 300_000 * rank,
    )
    parts = done.results[0].summary["parts_s"]
    blocked_s = sum(done.results[0].summary["blocked_s"].values())
    assert blocked_s == pytest.approx(parts["exposed"] + parts["waiting"], rel=1e-6)
    assert blocked_s > 0


def timed(strategy: str, network: Network, slower_ns: int = 0, **keys: Any) -> dict[str, Any]:
    """The summary of a run of 2 nodes of 4 ranks; `slower_ns`: of a node's last rank in each step."""
    cfg = config(strategy, ranks=[4, 4], keys=keys, epochs=1)
    done = simulated(cfg, network=network, step_time=lambda r, n: 2_000_000 + slower_ns * (r % 4 == 3))
    return done.results[0].summary


@pytest.mark.parametrize(
    ("strategy", "keys", "flat"),
    [
        ("hsgd", {}, 0),
        ("hsgd", {"shared_weights": False}, 0),
        ("hsgd", {"level1": "collective"}, 0),
        ("hsgd", {"level2_algorithm": "linear"}, 0),
        ("ednncomm", {"sync_every": 1}, 0),
        # Its epoch's loss is summed over all ranks in one ring.
        ("daso", {"warmup_epochs": 1, "cooldown_epochs": 0, "allow_no_cycling": True}, 14 * 5e-3),
    ],
    ids=str,
)
def test_all_ranks_of_a_node_stand_still_for_their_leaders_sum_over_nodes(
    strategy: str, keys: dict[str, Any], flat: float
):
    """2(N-1) latencies of 5 ms a step: the leader in its sum, the others where they wait for it."""
    summary = timed(strategy, AlphaBeta(inter_latency_s=5e-3), **keys)
    assert summary["blocked_s"] == pytest.approx({"intra": 0, "inter": 6 * 10e-3 + flat}, abs=1e-9)


def test_by_tensors_the_barrier_behind_the_update_waits_for_the_others_sums():
    # Four messages of a node one after the other over its link: all have waited for the last.
    network = AlphaBeta(inter_latency_s=5e-3)
    for shared_weights in (True, False):
        summary = timed("hsgd", network, partition="tensor", shared_weights=shared_weights)
        messages = summary["calls"]["inter"] / 2 / 6  # of a node and step
        assert messages > 1
        assert summary["blocked_s"] == pytest.approx({"intra": 0, "inter": 6 * messages * 10e-3}, abs=1e-9)


def test_what_is_sent_inside_a_node_counts_there_also_where_its_receivers_waited_for_their_leader():
    # Reduce and broadcast among 4: a tree of 2 levels of 1 ms each.
    summary = timed("hsgd", AlphaBeta(intra_latency_s=1e-3, inter_latency_s=5e-3), level1="collective")
    assert summary["blocked_s"] == pytest.approx({"intra": 6 * 4e-3, "inter": 6 * 10e-3}, abs=1e-9)
    assert summary["parts_s"]["exposed"] + summary["parts_s"]["waiting"] == pytest.approx(6 * 14e-3)


def test_waiting_for_a_slower_rank_of_the_node_is_of_the_node():
    summary = timed("hsgd", AlphaBeta(inter_latency_s=5e-3), slower_ns=4_000_000)
    assert summary["blocked_s"] == pytest.approx({"intra": 6 * 4e-3 * 3 / 4, "inter": 6 * 10e-3}, abs=1e-9)


def test_a_group_counts_for_its_widest_link_and_a_message_for_the_widest_there_is():
    traffic = Traffic(Topology.of([2, 2]), rank=0)
    inside, across = (traffic.launch("gradients", members, 0) for members in ((0, 1), (0, 2)))
    traffic.block(inside, 0, 5)
    traffic.block(across, 10, 17, waited=3)
    traffic.block(-1, 20, 31)
    assert traffic.blocked_on == {"intra": 5, "inter": 18}
    alone = Traffic(Topology.of([2]), rank=0)
    alone.block(-1, 0, 4)
    assert alone.blocked_on == {"intra": 4}


def test_a_resumed_run_has_stood_still_as_long(tmp_path: Path):
    cfg = config("hsgd", model=Awkward(), checkpoint_every_samples=128)
    slow = AlphaBeta(inter_latency_s=0.001, inter_bytes_per_s=1e6)
    whole, resumed = whole_and_resumed(partial(simulated, cfg, network=slow), tmp_path, 14)
    blocked, wanted = (done.results[0].summary["blocked_s"] for done in (resumed, whole))
    assert blocked == pytest.approx(wanted, rel=1e-9)
    assert sum(wanted.values()) > 0
