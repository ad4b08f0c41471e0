"""What of DDP's sums the backward pass hides, against a formula of this file's own.

Bucket i starts at max(there_i, end_(i-1)): when the last of its gradients is there and the link is free.
Exposed is what lies between the end of backward and the end of the last sum. Large models stand beside a
small one whose vector is cut where theirs is; the link is then slower by the same factor.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from harness import Mean  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.communication.link_costs import AlphaBeta, ClusterNetwork, Network
from daso_bench.runner.config.cluster import DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_replica import SimulatedReplica
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.runner.training.device_model import ClusterDevice, Device, Profile
from daso_bench.strategies.reductions import Flat, Hierarchical
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD, Topology

MS = 1_000_000
LATENCY_US = 20.0
RATES_GBIT = [100, 25, 10, 1]
FORWARD, BACKWARD = 50 * MS, 100 * MS

Model = tuple[Callable[[], nn.Module], InputSpec]
Bucket = tuple[int, float]
"""Bytes of a bucket, and the share of backward after which it is there."""


def perceptron() -> nn.Module:
    """Three wide layers: 16, 16 and 4 MiB of weights."""
    wide = [nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 512)]
    return nn.Sequential(nn.Flatten(), *wide)


IMAGENET = InputSpec(3, 224, 224, 1000)
MODELS: dict[str, Model] = {
    "mlp": (perceptron, InputSpec(2, 32, 32, 512)),
    "resnet18": (lambda: Torchvision(name="resnet18").build(IMAGENET), IMAGENET),
    "resnet50": (lambda: Torchvision(name="resnet50").build(IMAGENET), IMAGENET),
}


def layers(model: Model) -> list[tuple[int, float]]:
    """(numbers, products of a sample) of each parameter in order; a weight has its layer's, others none."""
    build, spec = model
    products: dict[int, float] = {}

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d | nn.Linear)
        # Each weight of a kernel is used once for every place of the output.
        places = output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        products[id(module.weight)] = float(module.weight.numel() * places)

    with torch.device("meta"):
        made = build()
        for module in made.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(count)
        made(torch.empty(2, spec.channels, spec.height, spec.width))
    return [(parameter.numel(), products.get(id(parameter), 0.0)) for parameter in made.parameters()]


def buckets(model: Model) -> list[Bucket]:
    """As DDP fills them, from the last parameter on: the first is full at 1 MiB, all others at 25."""
    sizes = layers(model)
    total = sum(products for _, products in sizes)
    made: list[Bucket] = []
    filled, done, full = 0, 0.0, 2**20
    for numel, products in reversed(sizes):
        filled, done = filled + 4 * numel, done + products
        if filled >= full:
            made.append((filled, done / total))
            filled, full = 0, 25 * 2**20
    return [*made, (filled, 1.0)] if filled else made


def exposed(pieces: Sequence[Bucket], seconds: Callable[[int], float], overlap: bool = True) -> float:
    """Nanoseconds between the end of backward and of the last sum; `seconds` of a sum of so many bytes."""
    end = 0.0
    for size, share in pieces:
        there = BACKWARD * share if overlap else BACKWARD
        end = max(there, end) + seconds(size) * 1e9
    return end - BACKWARD


def surrogate() -> nn.Module:
    return nn.Linear(500, 400, bias=False)


def scripted(rank: int) -> Device:
    """Forward is a third of a step."""
    return Device(rank, lambda rank, samples: FORWARD + BACKWARD)


def ends_of_steps(
    nodes: list[int],
    network: Network,
    profile: Profile | None,
    *,
    model: Callable[[], nn.Module] = surrogate,
    inputs: int = 500,
    device: Callable[[int], Device] = scripted,
    steps: int = 1,
    **averaging: Any,
) -> list[list[int]]:
    """By rank: the clock after each of `steps` calls of compute_gradients."""
    simulator = Simulator(Topology.of(nodes), network)

    def body(rank: int) -> list[int]:
        comm = SimulatedCommunicator(simulator, rank)
        replica = SimulatedReplica(model(), Mean(), comm, device(rank), profile)
        if profile is not None:  # as in timing-only: this replica's numbers stand for more
            comm.scale = sum(profile.numels) / replica.numel
        how = {name: make() if name == "reduction" else make for name, make in averaging.items()}
        replica.average_gradients_over(WORLD, **how)
        stamps = []
        for _ in range(steps):
            replica.compute_gradients(Batch(torch.ones(1, inputs), torch.zeros(1), (1,) * sum(nodes)))
            stamps.append(comm.now())
        return stamps

    return simulator.run(body)


def links(name: str, rate_gbit: float, nodes: list[int]) -> Network:
    """The same links, described in two ways."""
    if name == "AlphaBeta":
        return AlphaBeta(inter_latency_s=LATENCY_US / 1e6, inter_bytes_per_s=rate_gbit * 1e9 / 8)
    inter = LinkConfig(rate_gbit=rate_gbit, latency_us=LATENCY_US)
    return ClusterNetwork(LinksConfig(inter=inter, algorithm="ring", sharing="fifo"), Topology.of(nodes))


def ring_of_two(rate_gbit: float) -> Callable[[int], float]:
    """Two messages of a half, one after the other."""
    return lambda size: 2 * LATENCY_US / 1e6 + size / (rate_gbit * 1e9 / 8)


PIECES = {name: buckets(model) for name, model in MODELS.items()}
PROFILES = {name: Profile.of(*model) for name, model in MODELS.items()}


def test_the_models_have_buckets_of_all_kinds():
    """Sizes in MiB by hand: the perceptron's are whole layers with their biases."""
    assert [size for size, _ in PIECES["mlp"]] == [4 * (2048 * 512 + 512), 8 * (2048 * 2048 + 2048)]
    assert {name: len(pieces) for name, pieces in PIECES.items()} == {"mlp": 2, "resnet18": 3, "resnet50": 5}
    assert [share for _, share in PIECES["mlp"]] == [0.25 / 2.25, 1.0]


@pytest.mark.parametrize(
    ("network", "overlap"), [("AlphaBeta", True), ("ClusterNetwork", True), ("AlphaBeta", False)]
)
@pytest.mark.parametrize("rate_gbit", RATES_GBIT)
@pytest.mark.parametrize("name", MODELS)
def test_what_overlap_leaves_exposed(name: str, rate_gbit: float, network: str, overlap: bool):
    """Without overlap, all sums."""
    seconds = ring_of_two(rate_gbit)
    expected = exposed(PIECES[name], seconds, overlap)
    if not overlap:
        assert expected == pytest.approx(sum(seconds(size) for size, _ in PIECES[name]) * 1e9)
    slower = links(network, rate_gbit, [1, 1])
    for stamps in ends_of_steps([1, 1], slower, PROFILES[name], steps=3, overlap=overlap):
        for step, stamp in enumerate(stamps, 1):
            assert stamp / step - FORWARD - BACKWARD == pytest.approx(expected, rel=0.01)


def test_a_bucket_waits_for_the_slower_rank():
    """Rank 1 takes twice as long: its gradients decide when each sum starts, and both end together."""
    device = DeviceConfig(samples_per_second=20 / 3, speeds=(1.0, 0.5))  # 150 ms a sample, 300 on rank 1
    name, rate_gbit, end = "resnet50", 10.0, 0.0
    for size, share in PIECES[name]:
        end = max(2 * (FORWARD + BACKWARD * share), end) + ring_of_two(rate_gbit)(size) * 1e9
    got = ends_of_steps(
        [1, 1],
        links("ClusterNetwork", rate_gbit, [1, 1]),
        PROFILES[name],
        device=lambda rank: ClusterDevice(device, rank, PROFILES[name], 0),
    )
    assert got[0] == got[1]
    assert got[0][0] == pytest.approx(end, rel=0.001)
    assert got[0][0] - 300 * MS == pytest.approx(end - 300 * MS, rel=0.01)


Levels = tuple[Callable[[int], float], Callable[[int], float], Callable[[int], float]]


def two_levels(rate_gbit: float, intra_gbit: float) -> Levels:
    """Reduce to the leader, two messages of a half between two leaders, broadcast; 5 µs a message inside."""

    def inside(size: int) -> float:
        return 5e-6 + size / (intra_gbit * 1e9 / 8)

    return inside, ring_of_two(rate_gbit), inside


def one_by_one(pieces: Sequence[Bucket], levels: Levels, overlap: bool = True) -> float:
    """What is exposed if a bucket begins when the one before has passed all levels."""
    return exposed(pieces, lambda size: sum(seconds(size) for seconds in levels), overlap)


def pipelined(pieces: Sequence[Bucket], levels: Levels) -> float:
    """What is exposed if a bucket is between nodes while its neighbours are inside them.

    A bucket's first level begins when it is there and the one before has gone on to its second; its second
    when its first and the other's second are over; its third when its second is over and the next bucket has
    begun.
    """
    first, second, third = ([seconds(size) * 1e9 for size, _ in pieces] for seconds in levels)
    began, over = 0.0, 0.0  # the second level of the bucket before
    third_over = 0.0
    for place, (_, share) in enumerate(pieces):
        there = max(BACKWARD * share, began)
        if place:
            third_over = max(over, there) + third[place - 1]
        began = max(there + first[place], over)
        over = began + second[place]
    return max(over, third_over) + third[-1] - BACKWARD


def two_level_links(rate_gbit: float, intra_gbit: float) -> AlphaBeta:
    return AlphaBeta(5e-6, intra_gbit * 1e9 / 8, LATENCY_US / 1e6, rate_gbit * 1e9 / 8)


@pytest.mark.parametrize("rate_gbit", RATES_GBIT)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_hierarchical_sum_pipelines_its_levels_beside_the_backward_pass(
    name: str, rate_gbit: float, overlap: bool
):
    """The links inside a node are as slow as those between nodes, so that the order of levels shows.

    Without overlap buckets are summed one by one.
    """
    rate, levels = rate_gbit, two_levels(rate_gbit, rate_gbit)
    serial = one_by_one(PIECES[name], levels, overlap)
    expected = pipelined(PIECES[name], levels) if overlap else serial
    got = ends_of_steps(
        [2, 2], two_level_links(rate, rate), PROFILES[name], reduction=Hierarchical, overlap=overlap, steps=2
    )
    for first, second in got:
        assert first - FORWARD - BACKWARD == pytest.approx(expected, rel=0.01)
        assert second - first == pytest.approx(first, rel=1e-6)
    if overlap and rate_gbit == 1:
        assert expected < serial


def losing(loss: float) -> Callable[[int], Device]:
    """Devices on which sums beside the backward pass cost this share of their time."""

    def device(rank: int) -> Device:
        made = scripted(rank)
        made.overlap_loss = loss
        return made

    return device


@pytest.mark.parametrize("how", [{}, {"reduction": Flat}])
@pytest.mark.parametrize("loss", [0.0, 0.25, 1.0])
def test_what_sums_beside_backward_cost_is_added_to_it(loss: float, how: dict[str, Any]):
    """All sums but the last run beside the backward pass: what that costs comes before the last one."""
    network = links("AlphaBeta", 40, [1, 1])
    times = [ring_of_two(40)(size) * 1e9 for size, _ in PIECES["resnet50"]]
    assert sum(times) < BACKWARD / 2, "the link is idle between sums"
    late = loss * sum(times[:-1]) + times[-1]
    for (end,) in ends_of_steps([1, 1], network, PROFILES["resnet50"], device=losing(loss), **how):
        assert end == pytest.approx(FORWARD + BACKWARD + late, rel=1e-5)


@pytest.mark.parametrize("how", [{}, {"reduction": Flat}, {"overlap": False}])
def test_each_bucket_whose_sum_is_started_makes_backward_longer(how: dict[str, Any]):
    """A step of 150 ms and half a millisecond a bucket; a rank alone starts no sum."""
    profile, config = PROFILES["resnet50"], DeviceConfig(samples_per_second=1 / 0.15, bucket_us=500)

    def end(nodes: list[int], rate_gbit: float) -> float:
        network = links("AlphaBeta", rate_gbit, nodes)
        made = ends_of_steps(
            nodes, network, profile, device=lambda rank: ClusterDevice(config, rank, profile, 0), **how
        )
        return made[0][0]

    sums = [ring_of_two(100)(size) * 1e9 for size, _ in PIECES["resnet50"]]
    after = sums if how == {"overlap": False} else sums[-1:]
    assert end([1, 1], 100) == pytest.approx(150 * MS + len(sums) * MS / 2 + sum(after), rel=1e-5)
    assert end([1], 100) == 150 * MS


def test_buckets_that_others_enter_late_are_waited_for():
    """Rank 1 comes 50 ms later to each bucket: rank 0 waits that long, once, and both end together."""
    simulator = Simulator(Topology.of([1, 1]), AlphaBeta(inter_latency_s=1e-3))

    def body(rank: int) -> tuple[int, int, int]:
        comm = SimulatedCommunicator(simulator, rank)
        simulator.advance(rank, 50_000_000 * rank)
        began = comm.now()
        work = comm.all_reduce_buckets(
            WORLD, lambda: torch.ones(3), [8, 4], [began + 10_000_000, began + 40_000_000]
        )
        simulator.advance(rank, 40_000_000)
        work.wait()
        assert work.total is not None
        assert work.total.tolist() == [2, 2, 2]
        return comm.now(), comm.traffic.waited_ns, comm.traffic.payload_bytes["inter"]

    # Rank 0 waits from 40 to 60 ms for the first part, then 2 ms for its transfer, then from 62 to 90.
    assert simulator.run(body) == [(92_000_000, 48_000_000, 12), (92_000_000, 0, 12)]


def test_weights_that_look_at_more_than_sizes_are_asked_in_each_step():
    """As `heterogeneous` with weighting=speed does: new parts, equal batches."""
    simulator = Simulator(Topology.of([1, 1]))
    now = {"weights": [0.5, 0.5]}

    def body(rank: int) -> list[float]:
        comm = SimulatedCommunicator(simulator, rank)
        replica = SimulatedReplica(nn.Linear(1, 1, bias=False), Mean(), comm, scripted(rank))
        replica.average_gradients_over(WORLD, weights=lambda samples: now["weights"])
        made = []
        for weights in ([0.5, 0.5], [0.9, 0.1]):
            comm.barrier(WORLD)
            now["weights"] = weights
            replica.compute_gradients(Batch(torch.full((1, 1), 1.0 + rank), torch.zeros(1), (1, 1)))
            made.append(replica.gradients().item())
        return made

    expected = pytest.approx([0.5 * 1 + 0.5 * 2, 0.9 * 1 + 0.1 * 2])
    assert simulator.run(body) == [expected, expected]
