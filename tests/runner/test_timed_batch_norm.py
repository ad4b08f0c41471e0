"""Statistics of batch normalisation over several ranks, on the clock: hand values."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from daso_bench.models.spec import InputSpec
from daso_bench.runner.device import Profile, Scripted
from daso_bench.runner.network import AlphaBeta
from daso_bench.runner.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulator import Simulator
from daso_bench.runner.timed_batch_norm import SCOPES, NormedReplica
from daso_bench.runner.timing_only import StandIn, TimedReplica
from daso_bench.runner.trace import Timeline
from daso_bench.strategies.reductions import Flat, Hierarchical
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD, Topology

MS = 1_000_000
FORWARD, BACKWARD = 100 * MS, 200 * MS
ONE_MS = AlphaBeta(intra_latency_s=1e-3, inter_latency_s=1e-3)
THREE = Profile.by_size([100] * 4, norms=3, channels=8)


def steps(
    nodes: list[int],
    scope: str,
    slow: int = 0,
    loss: float = 0.0,
    network: AlphaBeta = ONE_MS,
    counts: list[dict[str, int]] | None = None,
    **averaging: Any,
) -> list[int]:
    """By rank: the clock after one step; the last rank's takes `slow` nanoseconds more. Fills `counts`."""
    simulator = Simulator(Topology.of(nodes), network)
    verbs: list[dict[str, int]] = [{} for _ in range(sum(nodes))]
    last = sum(nodes) - 1

    def body(rank: int) -> int:
        comm = SimulatedCommunicator(simulator, rank)
        device = Scripted(rank, lambda rank, n: FORWARD + BACKWARD + (slow if rank == last else 0))
        device.overlap_loss = loss
        replica = NormedReplica(StandIn(400), nn.CrossEntropyLoss(), comm, device, THREE)
        replica.normed_over = SCOPES[scope]
        if averaging:
            how = {k: make() if k == "reduction" else make for k, make in averaging.items()}
            replica.average_gradients_over(**how)
        replica.compute_gradients(Batch(torch.empty(1, 0), torch.zeros(1), (1,) * sum(nodes)))
        verbs[rank] = dict(comm.traffic.verbs)
        return comm.now()

    ends = simulator.run(body)
    if counts is not None:
        counts += verbs
    return ends


def test_each_layer_waits_for_a_gathering_and_a_sum():
    """Two ranks: a ring gathers in one message of 1 ms and sums in two."""
    assert steps([1, 1], "world") == [FORWARD + BACKWARD + 3 * (1 + 2) * MS] * 2


def test_of_three_ranks_a_ring_has_more_messages():
    assert steps([3], "node") == [FORWARD + BACKWARD + 3 * (2 + 4) * MS] * 3


def test_a_scope_of_one_rank_waits_for_nobody():
    assert steps([1, 1], "node") == [FORWARD + BACKWARD] * 2


def test_all_wait_for_the_slowest_at_every_layer():
    """The slower rank is 30 ms later; the other one waits inside its step and ends with it."""
    ends = steps([1, 1], "world", slow=30 * MS)
    # After the last layer of the backward pass both have a sixth of it left; the slower's is 20/6 ms longer.
    assert ends[1] == FORWARD + BACKWARD + 30 * MS + 9 * MS
    assert ends[1] - ends[0] == pytest.approx(20 * MS / 6, abs=2)


def test_gradients_are_summed_beside():
    """One bucket, ready when backward is over: two messages more. Four small ones end before the last."""
    plain = FORWARD + BACKWARD + 9 * MS
    assert steps([1, 1], "world", group=WORLD) == [plain + 2 * MS] * 2
    assert steps([1, 1], "world", group=WORLD, bucket_mib=400 / 2**20) == [plain + 2 * MS] * 2
    assert steps([1, 1], "world", group=WORLD, overlap=False, bucket_mib=400 / 2**20) == [plain + 8 * MS] * 2


def test_what_is_hidden_may_cost():
    """Three of four buckets' sums, 2 ms each, run beside the backward pass; half of that is added to it, and
    the fourth one waits for its end."""
    plain = FORWARD + BACKWARD + 9 * MS
    assert steps([1, 1], "world", loss=0.5, group=WORLD, bucket_mib=400 / 2**20) == [plain + 5 * MS] * 2


@pytest.mark.parametrize(
    ("reduction", "calls", "took"),
    [
        (Flat, {"gradients.all_reduce": 4}, 2),
        (Hierarchical, {"gradients.reduce": 4, "gradients.all_reduce": 4, "gradients.broadcast": 4}, 4),
    ],
)
def test_another_sum_is_another_sum_here_too(reduction: Any, calls: dict[str, int], took: int):
    """Four buckets by leaders of nodes of two: what is left after the backward pass is the last one's.

    Flat over four ranks: six messages of a ring; by nodes: one down, two between nodes, one up.
    """
    plain = FORWARD + BACKWARD + 3 * (3 + 6) * MS
    counts: list[dict[str, int]] = []
    ends = steps([2, 2], "world", counts=counts, group=WORLD, bucket_mib=400 / 2**20, reduction=reduction)
    assert max(ends) == plain + (6 if reduction is Flat else took) * MS
    for verb, times in calls.items():
        assert counts[0][verb] == times


@pytest.mark.parametrize("sharing", [False, True])
def test_sums_under_way_at_once_cost_once(sharing: bool):
    """Long sums overlap where links are shared; BatchNorm over one rank waits for nobody."""
    network = AlphaBeta(inter_latency_s=45e-3, fair=sharing)
    ends = steps([1, 1], "node", network=network, loss=1.0, group=WORLD, bucket_mib=400 / 2**20)
    simulator = Simulator(Topology.of([1, 1]), network)

    def body(rank: int) -> int:
        comm = SimulatedCommunicator(simulator, rank)
        device = Scripted(rank, lambda rank, n: FORWARD + BACKWARD)
        device.overlap_loss = 1.0
        replica = TimedReplica(StandIn(400), nn.CrossEntropyLoss(), comm, device, THREE)
        replica.average_gradients_over(WORLD, bucket_mib=400 / 2**20)
        replica.compute_gradients(Batch(torch.empty(1, 0), torch.zeros(1), (1, 1)))
        return comm.now()

    assert ends == simulator.run(body)


def test_layers_and_their_places_come_from_the_module():
    """Two convolutions of equal cost with a layer behind each: backward comes to the last at once."""

    def build() -> nn.Module:
        pairs = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)) for _ in range(2)]
        return nn.Sequential(*(module for pair in pairs for module in pair))

    profile = Profile.of(build, InputSpec(4, 8, 8, 2))
    assert profile.norms == ((4, 0.0), (4, 0.5))
    assert Profile.of(lambda: nn.Linear(8, 2), InputSpec(1, 1, 8, 2)).norms == ()


def test_sizes_alone_put_them_at_equal_distances():
    assert THREE.norms == ((8, 0.5 / 3), (8, 1.5 / 3), (8, 2.5 / 3))


def test_a_timeline_shows_passes_in_pieces_and_what_overlap_costs(tmp_path: Path):
    """Nothing of a pass is drawn where the rank waits for statistics."""
    topology = Topology.of([1, 1])
    timeline = Timeline(topology)
    simulator = Simulator(topology, ONE_MS, timeline)

    def body(rank: int) -> int:
        comm = SimulatedCommunicator(simulator, rank)
        device = Scripted(rank, lambda rank, n: FORWARD + BACKWARD)
        device.overlap_loss = 0.5
        replica = NormedReplica(StandIn(400), nn.CrossEntropyLoss(), comm, device, THREE)
        replica.average_gradients_over(WORLD, bucket_mib=400 / 2**20)
        replica.compute_gradients(Batch(torch.empty(1, 0), torch.zeros(1), (1, 1)))
        return comm.now()

    simulator.run(body)
    timeline.write(tmp_path / "timeline.json")
    rows = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    bars = [row for row in rows if row["ph"] == "X" and row["pid"] == 0]
    lasted = {"forward": 0.0, "backward": 0.0}
    waits = [row for row in bars if row["cat"] == "wait"]
    for bar in bars:
        if bar["cat"] == "compute":
            lasted[bar["name"]] += bar["dur"] * 1000
            for wait in waits:
                assert wait["ts"] + wait["dur"] <= bar["ts"] or bar["ts"] + bar["dur"] <= wait["ts"]
    assert waits
    assert lasted == {"forward": pytest.approx(FORWARD), "backward": pytest.approx(BACKWARD + 3 * MS)}
