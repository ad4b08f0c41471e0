"""eDNNcomm against its equations: exchange steps, hand values, and a simulation without any communicator."""

import io
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Linear, Trace, constant, drive
from runs import Awkward, Blobs, config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.datasets.sampler import Sampler
from daso_bench.runner.config import load
from daso_bench.runner.launch import local
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.training import checkpoint
from daso_bench.runner.training.evaluation import score
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.communicator import Communicator
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.ednncomm import EDNNComm, EDNNCommConfig
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan, Progress
from daso_bench.strategies.replica import Replica
from daso_bench.strategies.topology import Topology

EXCHANGES = ["leader", "world", "sliced"]


def possible(nodes: Sequence[int]) -> list[str]:
    """The exchanges that these nodes can do."""
    return EXCHANGES if len(set(nodes)) == 1 else EXCHANGES[:2]


class Watched(EDNNComm):
    """Notes after which steps (from 1; 0 is `finalize`) it exchanged, and what the replica held then."""

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        super().setup(replica, comm, progress)
        self.exchanged: list[int] = []
        self.before: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.met: list[bool] = []

    def after_step(self, progress: Progress) -> None:
        self.before.append(self.replica.flat())
        super().after_step(progress)
        self.buffers.append(self.replica.buffers.pack())
        self.met.append(self.is_sync_point(progress))
        if self.since == 0:
            self.exchanged.append(progress.step + 1)

    def finalize(self) -> None:
        if self.since:
            self.exchanged.append(0)
        super().finalize()


def ednncomm(**keys: Any) -> Callable[[], Strategy]:
    return lambda: Watched(EDNNCommConfig(**keys))


def ddp() -> Strategy:
    return DDP(DDP.Config())


# ------------------------------------------------------------------ when parameters are exchanged


@pytest.mark.parametrize(
    ("keys", "steps", "epochs", "wanted"),
    [
        (dict(sync_every=5), 20, 1, [5, 10, 15, 20]),
        (dict(sync_every=4), 20, 1, [4, 8, 12, 16, 20]),
        (dict(sync_every=4), 10, 2, [4, 8, 10, 14, 18, 20]),
        (dict(sync_every=4, sync_at_epoch_end=False), 10, 2, [4, 8, 12, 16, 20]),
        (dict(sync_every=4, sync_at_epoch_end=False), 11, 1, [4, 8, 0]),
        (dict(), 10, 2, [10, 20]),
        (dict(sync_at_epoch_end=False), 10, 2, [10, 20]),
        (dict(sync_every=50), 98, 1, [50, 98]),
        (dict(sync_every=100), 10, 2, [10, 20]),
        (dict(sync_every=1), 3, 1, [1, 2, 3]),
    ],
)
def test_parameters_are_exchanged_after_every_kth_step(keys, steps, epochs, wanted):
    for trace in drive(ednncomm(**keys), [1, 1], steps_per_epoch=steps, epochs=epochs):
        strategy = trace.strategy
        assert strategy.exchanged == wanted
        assert trace.verbs["parameters.all_reduce"] == len(wanted)
        # Ranks meet where they exchange, and at the end of the schedule.
        meetings = [step for step, met in enumerate(strategy.met, start=1) if met]
        assert meetings == sorted({*wanted, steps * epochs} - {0})
        per_epoch = [record["rounds"] for record in trace.records]
        recorded = [step for record in trace.records for step in record["averaged_after"]]
        assert recorded == [step for step in wanted if step]
        assert strategy.summary()["rounds"] == sum(per_epoch)
        if strategy.config.sync_at_epoch_end:
            assert per_epoch == [math.ceil(steps / strategy.period)] * epochs
        else:
            assert len(wanted) == math.ceil(steps * epochs / strategy.period)


class Two(nn.Module):
    """Two parameters, so that an optimizer can have two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.b = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a + self.b)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_step_counts_once_however_many_parameter_groups_there_are(groups):
    def optimizer(parameters: list[Tensor]) -> torch.optim.Optimizer:
        parts = [{"params": parameters}] if groups == 1 else [{"params": [p]} for p in parameters]
        return torch.optim.SGD(parts, lr=1.0)

    traces = drive(ednncomm(sync_every=4), [1, 1], steps_per_epoch=20, model=Two, optimizer=optimizer)
    assert [trace.strategy.exchanged for trace in traces] == [[4, 8, 12, 16, 20]] * 2


def test_a_step_that_one_node_skips_counts_and_is_exchanged_like_any_other():
    """What a scaler does on overflow: node 1 does not step at step 4, where the exchange is due."""

    class Skips(Watched):
        def before_step(self, progress: Progress) -> None:
            super().before_step(progress)
            optimizer: Any = self.replica.optimizer
            skips = progress.step == 3 and self.comm.node == 1
            optimizer.step = (lambda: None) if skips else type(optimizer).step.__get__(optimizer)

    traces = drive(lambda: Skips(EDNNCommConfig(sync_every=4)), [1, 1], steps_per_epoch=8)
    assert [trace.strategy.exchanged for trace in traces] == [[4, 8]] * 2
    assert [trace.parameters[3].item() for trace in traces] == [-3.5] * 2


@pytest.mark.parametrize(
    ("samples", "batch", "ranks", "period"),
    [(50_000, 128, 4, 98), (50_000, 128, 8, 49), (1_281_167, 256, 8, 626)],
)
def test_auto_is_the_steps_of_an_epoch_of_the_real_data(samples, batch, ranks, period):
    steps = Sampler(samples, batch * ranks, ranks, 0).steps_per_epoch
    trace = drive(ednncomm(), [1, 1], steps_per_epoch=steps)[0]
    assert trace.strategy.exchanged == [period]
    assert (trace.records[0]["period"], trace.records[0]["period_from"]) == (period, "steps per epoch")


def test_auto_follows_the_data_set_and_the_batch():
    def periods(**more: Any) -> list[int]:
        done = whole(ranks=[1, 1], epochs=2, **more)
        return [row["strategy"]["period"] for row in done.metrics.rows if row["kind"] == "epoch"]

    assert periods() == [6, 6]
    assert periods(dataset=Blobs(samples=128)) == [8, 8]
    assert periods(global_batch_size=32) == [3, 3]


# ------------------------------------------------------------------ hand values


class Bowl(nn.Module):
    """Loss ½·a·θ² with curvature a from the data, θ = 4 at first."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([4.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x[:, 0] * self.theta**2


def bowls(nodes: list[int], **keys: Any) -> list[Trace]:
    """Curvature 1 on node 0 and 3 on node 1, lr 0.25: factors 0.75 and 0.25 a step."""
    node_of_rank = Topology.of(nodes).node_of_rank

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[1.0 + 2 * node_of_rank[rank]]], dtype=torch.float64), torch.zeros(1)

    sgd = lambda p: torch.optim.SGD(p, lr=0.25)  # noqa: E731
    return drive(ednncomm(**keys), nodes, steps_per_epoch=2, data=data, model=Bowl, optimizer=sgd)


@pytest.mark.parametrize(
    ("nodes", "period", "wanted"),
    [
        ([1, 1], 1, [2.0, 1.0]),
        ([2, 2], 1, [2.0, 1.0]),
        ([1, 1], 2, [None, 1.25]),
        ([2, 2], 2, [None, 1.25]),
        ([3, 1], 1, [2.5, 1.5625]),
        ([3, 1], 2, [None, 1.75]),  # with weights 1/N: 1.25
    ],
)
def test_two_bowls_by_hand(nodes, period, wanted):
    for exchange in possible(nodes):
        for trace in bowls(nodes, sync_every=period, exchange=exchange):
            for got, value in zip(trace.parameters, wanted, strict=True):
                assert value is None or got.item() == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("exchange", ["leader", "world"])
def test_nodes_of_three_and_one_average_to_the_mean_over_ranks(exchange):
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[-4.0 if rank == 3 else 0.0]], dtype=torch.float64), torch.zeros(1)

    for trace in drive(ednncomm(exchange=exchange), [3, 1], steps_per_epoch=1, data=data):
        assert trace.strategy.before[0].item() == (4.0 if trace.comm.rank == 3 else 0.0)
        assert trace.parameters[0].item() == pytest.approx(1.0, abs=1e-12)


def test_weights_are_those_of_a_full_batch_for_the_whole_run():
    """Batches of 3 and 1 samples, then a short one of 1 and 1: the exchange weighs 3/4 and 1/4 both times."""
    sizes = {(0, 0): 3, (1, 0): 1}

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        x = torch.full((sizes.get((rank, step), 1), 1), -4.0 if rank else 0.0, dtype=torch.float64)
        return x, torch.zeros(len(x))

    first, second = drive(ednncomm(sync_every=1), [1, 1], steps_per_epoch=2, data=data)
    assert [p.item() for p in first.parameters] == [1.0, 2.0]
    assert [p.item() for p in second.parameters] == [1.0, 2.0]


# ------------------------------------------------------------------ against the equations


def small_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


Sizes = Callable[[int, int], int]
"""(rank, step) -> samples."""


def four(rank: int, step: int) -> int:
    return 4


@cache
def noise(dtype: torch.dtype = torch.float64, sizes: Sizes = four):
    @cache
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(sizes(rank, step), 6, generator=generator, dtype=torch.float64)
        return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    return data


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def ragged(rank: int, step: int) -> int:
    """Unequal pieces, and shorter ones in every fifth step."""
    return [5, 4, 4, 3, 4, 4, 3, 3][rank] - (2 if step % 5 == 4 else 0)


def simulate_by_equations(
    nodes: tuple[int, ...], steps: int, period: int, optimizer: str, sizes: Sizes
) -> list[list[Tensor]]:
    """θ of each node after each step from the update rule alone: no ranks, no communicator."""
    ranks, first = [], 0
    for count in nodes:
        ranks.append(range(first, first + count))
        first += count
    data, criterion = noise(sizes=sizes), nn.CrossEntropyLoss()
    models = [small_net() for _ in nodes]
    optimizers = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    full = [sum(sizes(rank, 0) for rank in members) for members in ranks]
    history: list[list[Tensor]] = [[] for _ in nodes]
    for step in range(steps):
        for model, opt, members in zip(models, optimizers, ranks, strict=True):
            pieces = [data(rank, step) for rank in members]
            opt.zero_grad()
            criterion(model(torch.cat([x for x, _ in pieces])), torch.cat([y for _, y in pieces])).backward()
            opt.step()
        if (step + 1) % period == 0:
            with torch.no_grad():
                for copies in zip(*(model.parameters() for model in models), strict=True):
                    mean = sum(b / sum(full) * copy for b, copy in zip(full, copies, strict=True))
                    for copy in copies:
                        copy.copy_(mean)
        for node, model in enumerate(models):
            history[node].append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    return history


def net_run(make: Callable[[], Strategy], nodes: Sequence[int], optimizer: str, **more: Any) -> list[Trace]:
    dtype = more.pop("dtype", torch.float64)
    kinds: dict[str, Any] = dict(
        model=lambda: small_net(dtype),
        criterion=nn.CrossEntropyLoss(),
        data=noise(dtype, more.pop("sizes", four)),
        optimizer=OPTIMIZERS[optimizer],
        steps_per_epoch=20,
    )
    return drive(make, list(nodes), **{**kinds, **more})


@cache
def ddp_run(nodes: tuple[int, ...], optimizer: str, dtype: torch.dtype) -> list[Trace]:
    return net_run(ddp, nodes, optimizer, dtype=dtype)


@pytest.mark.parametrize(
    ("nodes", "exchange", "optimizer"),
    [
        ((1, 1), "leader", "momentum"),
        ((1,) * 4, "sliced", "adam"),
        ((1,) * 8, "world", "momentum"),
        ((2, 2), "sliced", "adam"),
        ((2, 2), "leader", "momentum"),
        ((4, 4), "sliced", "momentum"),
        ((2, 1), "leader", "adam"),
        ((3, 1, 2), "leader", "momentum"),
        ((3, 1, 2), "world", "momentum"),
    ],
)
def test_50_steps_follow_the_equations(nodes, exchange, optimizer):
    make = ednncomm(sync_every=7, sync_at_epoch_end=False, exchange=exchange)
    traces = net_run(make, nodes, optimizer, steps_per_epoch=50, sizes=ragged)
    wanted = simulate_by_equations(nodes, 50, 7, optimizer, ragged)
    for trace in traces:
        for got, value in zip(trace.parameters, wanted[trace.comm.node], strict=True):
            assert torch.allclose(got, value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "tolerance"),
    [
        ("sgd", torch.float64, 1e-12),
        ("momentum", torch.float64, 1e-12),
        ("nesterov", torch.float64, 1e-12),
        ("weight decay", torch.float64, 1e-12),
        ("nesterov", torch.float32, 1e-5),
        ("weight decay", torch.float32, 1e-5),
    ],
)
@pytest.mark.parametrize(
    ("nodes", "exchange"), [([2, 2], "leader"), ([2, 2], "sliced"), ([2, 1], "leader"), ([2, 1], "world")]
)
def test_exchanging_after_every_step_is_ddp(nodes, exchange, optimizer, dtype, tolerance):
    got = net_run(ednncomm(sync_every=1, exchange=exchange), nodes, optimizer, dtype=dtype)[0].parameters[-1]
    wanted = ddp_run(tuple(nodes), optimizer, dtype)[0].parameters[-1]
    assert torch.linalg.vector_norm(got - wanted) <= tolerance * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_with_adam_exchanging_after_every_step_is_not_ddp(optimizer):
    got = net_run(ednncomm(sync_every=1), [2, 2], optimizer)[0].parameters[-1]
    wanted = ddp_run((2, 2), optimizer, torch.float64)[0].parameters[-1]
    assert torch.linalg.vector_norm(got - wanted) > 1e-3 * torch.linalg.vector_norm(wanted)


@pytest.mark.parametrize(
    ("keys", "optimizer"),
    [
        *((dict(sync_every=3), name) for name in OPTIMIZERS),
        ({}, "momentum"),
        (dict(sync_every=1), "adam"),
        (dict(sync_every=3, optimizer_state="reset"), "adam"),
    ],
)
def test_one_node_is_ddp_bit_for_bit(keys, optimizer):
    traces = net_run(ednncomm(**keys), [3], optimizer, dtype=torch.float32)
    wanted = ddp_run((3,), optimizer, torch.float32)
    for trace, other in zip(traces, wanted, strict=True):
        assert torch.equal(trace.parameters[-1], other.parameters[-1])
        assert trace.verbs == other.verbs
        assert trace.comm.traffic.payload_bytes["inter"] == 0
        assert trace.strategy.met == [True] * 20
        assert trace.strategy.labels(None) == ["one node: nothing to exchange"]


def test_the_three_exchanges_agree_and_keep_the_weighted_mean():
    runs = [
        net_run(ednncomm(sync_every=4, exchange=e), [2, 2], "momentum", dtype=torch.float32, sizes=ragged)
        for e in EXCHANGES
    ]
    weights = torch.tensor([9 / 16, 7 / 16], dtype=torch.float64)
    for traces in runs:
        for trace in traces:
            assert torch.allclose(trace.parameters[-1], runs[0][0].parameters[-1], rtol=1e-5, atol=1e-7)
        for step in traces[0].strategy.exchanged:
            before = torch.stack([traces[rank].strategy.before[step - 1] for rank in (0, 2)]).double()
            after = traces[0].parameters[step - 1].double()
            assert (after - weights @ before).abs().max() <= 1e-6 * before.abs().max()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_slices_need_not_divide_the_parameters(size):
    """On two nodes of three ranks; one element more carries the stop request."""
    rows = torch.randn(6, size, dtype=torch.float64)
    data = lambda rank, step: (rows[rank][None], torch.zeros(1))  # noqa: E731
    model = lambda: Linear(torch.zeros(size, dtype=torch.float64))  # noqa: E731
    for trace in drive(ednncomm(exchange="sliced"), [3, 3], steps_per_epoch=1, data=data, model=model):
        assert torch.allclose(trace.parameters[0], -rows.mean(0), rtol=1e-12)


def test_ranks_of_a_node_are_always_equal_and_all_ranks_are_after_an_exchange():
    traces = net_run(ednncomm(sync_every=4), [2, 2], "momentum", epochs=2, steps_per_epoch=10)
    assert traces[0].strategy.exchanged == [4, 8, 10, 14, 18, 20]
    for step in range(20):
        now = [trace.parameters[step] for trace in traces]
        assert torch.equal(now[0], now[1])
        assert torch.equal(now[2], now[3])
        assert torch.equal(now[0], now[2]) == (step + 1 in traces[0].strategy.exchanged)


def test_the_last_steps_are_exchanged_when_the_run_ends():
    traces = net_run(ednncomm(sync_every=4, sync_at_epoch_end=False), [2, 1], "momentum", steps_per_epoch=11)
    assert not torch.equal(traces[0].parameters[-1], traces[2].parameters[-1])
    finals = [trace.replica.flat() for trace in traces]
    assert torch.equal(finals[0], finals[1])
    assert torch.equal(finals[0], finals[2])
    mean = (2 * traces[0].parameters[-1] + traces[2].parameters[-1]) / 3
    assert torch.allclose(finals[0], mean, rtol=1e-12)


@pytest.mark.parametrize("nodes", [[2, 2], [2, 1]])
def test_without_a_step_nothing_changes(nodes):
    start = torch.full((1,), 0.1, dtype=torch.float64)
    make = ednncomm(sync_every=3)
    for trace in drive(make, nodes, steps_per_epoch=9, data=constant(0.0), model=lambda: Linear(start)):
        assert trace.parameters[-1].item() == pytest.approx(0.1, rel=1e-12)


# ------------------------------------------------------------------ buffers and optimizer state


def normed() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def scaled(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs of another scale on every rank, so that running statistics differ."""
    inputs, targets = noise()(rank, step)
    return inputs * (1 + rank), targets


def normed_run(nodes: list[int], **keys: Any) -> list[Trace]:
    kinds: dict[str, Any] = dict(model=normed, criterion=nn.CrossEntropyLoss(), data=scaled)
    sgd = OPTIMIZERS["momentum"]
    return drive(ednncomm(sync_every=3, **keys), nodes, steps_per_epoch=6, optimizer=sgd, **kinds)


@pytest.mark.parametrize("exchange", ["leader", "world"])
@pytest.mark.parametrize("nodes", [[2, 2], [2, 1]])
def test_running_statistics_are_equal_after_an_exchange_and_counters_are_left_alone(nodes, exchange):
    alone = normed_run(nodes, buffers="none", exchange=exchange)
    traces = normed_run(nodes, exchange=exchange)
    mean = torch.stack([trace.strategy.buffers[2] for trace in alone]).mean(0)
    for trace in traces:
        assert torch.equal(trace.strategy.buffers[2], traces[0].strategy.buffers[2])
        assert torch.allclose(trace.strategy.buffers[2], mean, rtol=1e-12)
        assert not torch.equal(trace.strategy.buffers[1], traces[0].strategy.buffers[1]) or trace is traces[0]
        assert trace.replica.model[1].num_batches_tracked == 6
    assert not torch.equal(alone[0].strategy.buffers[2], alone[1].strategy.buffers[2])


def test_buffers_can_be_those_of_rank_0():
    alone, traces = normed_run([2, 1], buffers="none"), normed_run([2, 1], buffers="broadcast")
    for trace in traces:
        assert torch.equal(trace.strategy.buffers[2], alone[0].strategy.buffers[2])


def test_statistics_of_buffers_are_weighted_by_samples():
    sizes = lambda rank, step: [6, 2, 4][rank]  # noqa: E731
    kinds: dict[str, Any] = dict(model=normed, criterion=nn.CrossEntropyLoss(), data=noise(sizes=sizes))
    alone, traces = (
        drive(ednncomm(sync_every=2, buffers=policy), [2, 1], steps_per_epoch=2, **kinds)
        for policy in ("none", "average")
    )
    mean = sum(w / 12 * trace.strategy.buffers[1] for w, trace in zip((6, 2, 4), alone, strict=True))
    assert torch.allclose(traces[2].strategy.buffers[1], torch.as_tensor(mean), rtol=1e-12)


def momenta(trace: Trace) -> Tensor:
    return trace.replica.optimizer_state().pack()


def test_momenta_stay_in_the_node_unless_asked_otherwise():
    kept, averaged, reset = (
        net_run(ednncomm(sync_every=4, optimizer_state=policy), [2, 1], "momentum", steps_per_epoch=4)
        for policy in ("keep", "average", "reset")
    )
    assert not torch.equal(momenta(kept[0]), momenta(kept[2]))
    mean = (2 * momenta(kept[0]) + momenta(kept[2])) / 3
    for trace in averaged:
        assert torch.equal(momenta(trace), momenta(averaged[0]))
        assert torch.allclose(momenta(trace), mean, rtol=1e-12)
    assert all(not trace.replica.optimizer.state for trace in reset)


# ------------------------------------------------------------------ evaluation, resume, agreement


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Looks(Watched):
    """Looks at the model to be judged after every step."""

    def after_step(self, progress: Progress) -> None:
        super().after_step(progress)
        counted = self.since
        with self.averaged_model():
            self.judged = self.replica.flat()
            self.judged_buffers = self.replica.buffers.pack()
        assert self.since == counted


@pytest.mark.parametrize("nodes", [[2, 2], [2, 1]])
@pytest.mark.parametrize("buffers", ["average", "broadcast", "none"])
def test_judging_a_model_changes_nothing_and_all_ranks_judge_the_same_one(nodes, buffers):
    kinds: dict[str, Any] = dict(model=normed, criterion=nn.CrossEntropyLoss(), data=scaled)
    keys: dict[str, Any] = dict(sync_every=4, sync_at_epoch_end=False, buffers=buffers)
    quiet = drive(ednncomm(**keys), nodes, steps_per_epoch=10, **kinds)
    looked = drive(lambda: Looks(EDNNCommConfig(**keys)), nodes, steps_per_epoch=10, **kinds)
    weights = [1 / len(quiet)] * len(quiet)
    mean = sum(w * trace.parameters[-1] for w, trace in zip(weights, quiet, strict=True))
    for trace, other in zip(looked, quiet, strict=True):
        assert same(trace.parameters, other.parameters)
        assert same(trace.strategy.buffers, other.strategy.buffers)
        assert torch.equal(trace.strategy.judged, looked[0].strategy.judged)
        assert torch.equal(trace.strategy.judged_buffers, looked[0].strategy.judged_buffers)
        assert torch.allclose(trace.strategy.judged, torch.as_tensor(mean), rtol=1e-12)


def test_copies_set_aside_make_the_model_that_would_have_been_judged():
    class Keeps(Looks):
        def finalize(self) -> None:
            self.made = self.assemble(self.kept)
            super().finalize()

        def after_step(self, progress: Progress) -> None:
            super().after_step(progress)
            self.kept = self.snapshot(progress)

    kinds: dict[str, Any] = dict(model=normed, criterion=nn.CrossEntropyLoss(), data=scaled)
    keys: dict[str, Any] = dict(sync_every=4, sync_at_epoch_end=False)
    for trace in drive(lambda: Keeps(EDNNCommConfig(**keys)), [2, 1], steps_per_epoch=10, **kinds):
        strategy = trace.strategy
        judged = torch.cat([strategy.judged, strategy.judged_buffers])
        assert torch.allclose(strategy.made, judged, rtol=1e-12)


class Resumes(Strategy):
    """After `at` steps hands over to a new object that knows only what the old one saved."""

    def __init__(self, make: Callable[[], Strategy], at: int) -> None:
        super().__init__(None)
        self.make, self.at, self.inner = make, at, make()

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.inner.setup(replica, comm, progress)

    def before_batch(self, progress: Progress) -> None:
        self.inner.before_batch(progress)

    def before_step(self, progress: Progress) -> None:
        self.inner.before_step(progress)

    def after_step(self, progress: Progress) -> None:
        self.inner.after_step(progress)

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        agreed = self.inner.stop_agreed(progress, stop_requested)
        if progress.step + 1 == self.at:
            self.inner.wait_pending()
            with self.inner.averaged_model():
                pass
            file = io.BytesIO()
            torch.save(self.inner.state_dict(), file)
            file.seek(0)
            self.inner = self.make()
            self.inner.setup(self.replica, self.comm, progress)
            self.inner.load_state_dict(torch.load(file, weights_only=True))
        return agreed

    def record(self, progress: Progress) -> dict[str, Any]:
        return self.inner.record(progress)

    def finalize(self) -> None:
        self.inner.finalize()


@pytest.mark.parametrize("keys", [dict(sync_every=4), dict(sync_every=4, sync_at_epoch_end=False), dict()])
def test_a_resumed_run_goes_on_bit_for_bit(keys):
    whole = net_run(ednncomm(**keys), [2, 1], "momentum", epochs=2, steps_per_epoch=10, sizes=ragged)
    for at in (4, 6, 10):
        check_resumed(keys, at, whole)


def check_resumed(keys: dict[str, Any], at: int, whole: list[Trace]) -> None:
    broken = net_run(
        lambda: Resumes(ednncomm(**keys), at), [2, 1], "momentum", epochs=2, steps_per_epoch=10, sizes=ragged
    )
    for trace, other in zip(broken, whole, strict=True):
        assert same(trace.parameters, other.parameters)
        assert torch.equal(trace.replica.flat(), other.replica.flat())
        assert trace.strategy.inner.exchanged == [s for s in other.strategy.exchanged if s > at or not s]
        assert trace.records == other.records


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_wish_reaches_all_ranks_with_the_next_exchange_and_costs_no_collective(exchange, rank):
    make = ednncomm(sync_every=4, exchange=exchange)
    quiet = drive(make, [2, 2], steps_per_epoch=12)
    assert not any(any(trace.agreed) for trace in quiet)
    once = drive(make, [2, 2], steps_per_epoch=12, stop_request=lambda r, step: (r, step) == (rank, 5))
    at_exchange = drive(make, [2, 2], steps_per_epoch=12, stop_request=lambda r, step: (r, step) == (rank, 7))
    for trace, other, third in zip(once, at_exchange, quiet, strict=True):
        # Steps from 0: exchanged after 3, 7, 11; once told it is not told again.
        assert [step for step, heard in enumerate(trace.agreed) if heard] == [7]
        assert [step for step, heard in enumerate(other.agreed) if heard] == [7]
        assert trace.verbs == third.verbs


def test_one_node_hears_a_wish_at_once():
    traces = drive(ednncomm(), [2], steps_per_epoch=12, stop_request=lambda r, step: (r, step) == (1, 5))
    assert [trace.agreed.index(True) for trace in traces] == [5, 5]


# ------------------------------------------------------------------ bytes, records, refusals


def bytes_of(make: Callable[[], Strategy], steps: int, m: int) -> list[Trace]:
    data, model = constant(0.0, m, torch.float32), lambda: Linear(torch.zeros(m))
    return drive(make, [2, 2], steps_per_epoch=steps, data=data, model=model)


def test_one_copy_of_the_model_per_exchange_between_nodes():
    m = 1000
    traces, wanted = bytes_of(ednncomm(), 98, m), bytes_of(ddp, 98, m)
    for trace in traces:
        verbs = trace.verbs
        assert verbs["gradients.all_reduce"] == 98
        assert verbs["parameters.broadcast"] == 1
        assert verbs["parameters.all_reduce"] == (1 if trace.comm.local_rank == 0 else 0)
    # One element more carries the stop request.
    sent = traces[0].comm.traffic.payload_bytes["inter"]
    assert sent == 4 * (m + 1)
    assert wanted[0].comm.traffic.payload_bytes["inter"] == 98 * sent


def test_bytes_between_nodes_as_a_ring():
    m = 999  # one element more carries the stop request
    runs = {exchange: bytes_of(ednncomm(exchange=exchange), 5, m) for exchange in EXCHANGES}
    sent = {name: [t.comm.traffic.ring_bytes["inter"] for t in traces] for name, traces in runs.items()}
    # A node sends 2·(N-1)/N · 4m, through its leader or over all its links, or 2·(R-1)/R · 4m where the ring
    # of all ranks leaves it.
    assert sent == {"leader": [4000, 0] * 2, "sliced": [2000, 2000] * 2, "world": [0, 6000] * 2}


def test_buffers_travel_once_per_exchange_over_the_world():
    for exchange in EXCHANGES:
        few = normed_run([2, 2], exchange=exchange, buffers="none")[0]
        many = normed_run([2, 2], exchange=exchange)[0]
        sent = [trace.comm.traffic.payload_bytes["inter"] for trace in (many, few)]
        assert sent[0] - sent[1] == 2 * 16 * 8
        assert many.verbs["parameters.all_reduce"] - few.verbs["parameters.all_reduce"] == 2


def test_what_is_recorded():
    make = ednncomm(sync_every=4, sync_at_epoch_end=False)
    traces = net_run(make, [2, 2], "sgd", epochs=2, steps_per_epoch=10)
    first, second = traces[3].records
    assert (first["period"], first["period_from"]) == (4, "strategy.sync_every")
    assert (first["rounds"], first["averaged_after"], first["since"]) == (2, [4, 8], 2)
    assert (second["rounds"], second["averaged_after"], second["since"]) == (3, [12, 16, 20], 0)
    # How far this rank's node was from the mean just before the last exchange.
    after = traces[0].parameters[19]
    for trace in traces:
        apart = torch.linalg.vector_norm(trace.strategy.before[19] - after) / torch.linalg.vector_norm(after)
        assert trace.records[1]["spread"] == pytest.approx(apart.item(), rel=1e-9)
        assert apart > 0
    assert traces[0].strategy.labels(None) == []


def test_runs_without_rounds_say_so():
    strategy = net_run(ednncomm(), [2, 2], "sgd", epochs=2)[0].strategy
    assert strategy.labels(19) == ["no average before the target"]
    assert strategy.labels(20) == []
    once = net_run(ednncomm(), [2, 2], "sgd")[0].strategy
    assert once.labels(None) == ["fewer than two complete rounds (1)"]


@pytest.mark.parametrize(
    ("keys", "every", "wanted"),
    [
        (dict(), 96, False),  # 6 steps of 16 samples and an evaluation each epoch
        (dict(), 90, False),  # 90 samples are 6 steps too
        (dict(), 80, True),
        (dict(sync_every=100), 96, False),
        (dict(sync_every=100, sync_at_epoch_end=False), 96, True),
        (dict(sync_every=3), 48, False),
        (dict(sync_every=3), 47, True),
    ],
)
def test_evaluation_is_deferred_only_where_it_is_asked_for_between_exchanges(keys, every, wanted):
    strategy = drive(ednncomm(**keys), [1, 1], steps_per_epoch=6)[0].strategy
    assert strategy.deferred(Progress(2, 6, global_batch_size=16), every) == wanted
    alone = drive(ednncomm(**keys), [2], steps_per_epoch=6)[0].strategy
    assert not alone.deferred(Progress(2, 6, global_batch_size=16), every)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(sync_every=0), ["strategy.sync_every=0", ">= 1"]),
        (dict(sync_every=-1), ["strategy.sync_every=-1", ">= 1"]),
        (dict(sync_every="epoch"), ["strategy.sync_every=epoch", "auto", ">= 1"]),
        (dict(exchange="leaders"), ["strategy.exchange=leaders", "leader", "world", "sliced"]),
        (dict(buffers="mean"), ["strategy.buffers=mean", "average", "broadcast", "none"]),
        (dict(optimizer_state="drop"), ["strategy.optimizer_state=drop", "keep", "average", "reset"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        EDNNCommConfig(**keys)
    assert all(word in str(error.value) for word in words)


def test_slices_need_equal_nodes():
    wanted = r"exchange=sliced needs the same number of ranks on every node, got \[3, 1\]"
    with pytest.raises(ConfigError, match=wanted):
        EDNNComm.check(EDNNCommConfig(exchange="sliced"), Plan(Topology.of([3, 1]), 12, 64))
    for exchange in ("leader", "world"):
        EDNNComm.check(EDNNCommConfig(exchange=exchange), Plan(Topology.of([3, 1]), 12, 64))


# ------------------------------------------------------------------ whole runs in virtual time


class Dies(Exception):
    pass


def dies_after(step: int) -> type[Trainer]:
    class Mortal(Trainer):
        def step(self) -> None:
            if self.context.progress.step == step:
                raise Dies
            super().step()

    return Mortal


def whole(
    keys: dict[str, Any] | None = None,
    *,
    loop: type[Trainer] = Trainer,
    checkpoints: Path | None = None,
    **more: Any,
) -> SimulatedRun:
    cfg = config("ednncomm", keys=keys, **more)
    return simulate(cfg, cfg.dataset.load(), loop=loop, checkpoints=checkpoints)


def evaluations(done: SimulatedRun) -> list[dict[str, Any]]:
    return [row for row in done.metrics.rows if row["kind"] == "evaluation"]


@pytest.mark.parametrize("at_epoch_end", [True, False])
def test_a_run_is_resumed_within_a_round_and_at_an_epoch_end(tmp_path: Path, at_epoch_end: bool):
    """6 steps an epoch, K = 4: saved after steps 9 (within a round) and 18 (an epoch's end)."""
    kinds: dict[str, Any] = dict(ranks=[2, 1], model=Awkward(), checkpoint_every_samples=9 * 16)
    keys = dict(sync_every=4, sync_at_epoch_end=at_epoch_end)
    unbroken = whole(keys, checkpoints=tmp_path / "whole", **kinds)
    for dies in (11, 20):
        folder = tmp_path / str(dies)
        with pytest.raises(Dies):
            whole(keys, loop=dies_after(dies), checkpoints=folder, **kinds)
        resumed = whole(keys, checkpoints=folder, **kinds)
        assert resumed.metrics.rows[0]["step"] == dies // 9 * 9
        for one, other in zip(resumed.contexts, unbroken.contexts, strict=True):
            states = (context.replica.model.state_dict().values() for context in (one, other))
            assert same(*(list(state) for state in states))
    with pytest.raises(ConfigError, match=r"ranks \[2, 1\], this run .* on ranks \[1, 2\]"):
        whole(keys, checkpoints=tmp_path / "20", **{**kinds, "ranks": [1, 2]})


@pytest.mark.parametrize("buffers", ["average", "none"])
@pytest.mark.parametrize("nodes", [[2, 2], [2, 1]])
def test_the_saved_model_scores_as_recorded(tmp_path: Path, nodes, buffers):
    keys = dict(sync_every=4, sync_at_epoch_end=False, buffers=buffers)
    done = whole(keys, checkpoints=tmp_path, ranks=nodes, model=Awkward(), epochs=3)
    context = done.contexts[-1]
    model = context.replica.model
    model.load_state_dict(checkpoint.read(tmp_path / "final" / "model.pt")["model"])
    samples = context.data.split(context.config.train.eval_split)
    indices = torch.arange(len(samples))
    alone = score(model, samples, indices, torch.device("cpu"), torch.float32, task=context.task).numbers()
    last = evaluations(done)[-1]
    assert (alone["correct"], alone["count"]) == (last["correct"], last["count"])
    assert alone["loss"] == pytest.approx(last["loss"], rel=1e-5)


def test_evaluating_more_often_changes_nothing():
    kinds: dict[str, Any] = dict(ranks=[2, 1], model=Awkward())
    seldom = whole(dict(sync_every=4), **kinds)
    often = whole(dict(sync_every=4), eval_every_samples=16, eval_mode="inline", **kinds)
    later = whole(dict(sync_every=4), eval_every_samples=16, **kinds)
    # Inline after steps 4 and 6 of each of four epochs of six steps, where ranks meet; later after any step.
    assert [row["step"] for row in evaluations(often)] == [4, 6, 10, 12, 16, 18, 22, 24]
    assert [row["step"] for row in evaluations(seldom)] == [6, 12, 18, 24]
    assert [row["step"] for row in evaluations(later)] == list(range(1, 25))
    for other in (often, later):
        for one, two in zip(seldom.contexts, other.contexts, strict=True):
            assert torch.equal(one.replica.flat(), two.replica.flat())
            assert torch.equal(one.replica.buffers.pack(), two.replica.buffers.pack())


# ------------------------------------------------------------------ real processes


def test_over_gloo_it_is_ddp_in_the_node_and_pytorchs_periodic_averager(tmp_path: Path):
    directory = RunDirectory.create(load.to_plain(config(ranks=[4], results=tmp_path)), tmp_path)
    outcome = local.launch(
        directory, ranks=4, threads=1, port=None, stall_s=60, entry="gloo_entries_ednncomm:two_levels"
    )
    assert outcome.status == "finished", outcome.details
    assert outcome.summary is not None
    assert outcome.summary["averaged_after"] == {name: [4, 8, 12, 16, 20] for name in EXCHANGES}
