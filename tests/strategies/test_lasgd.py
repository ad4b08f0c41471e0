"""LASGD against the numbers of its description: equations, rounds in virtual time, degenerate cases."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from harness import Linear, Mean, constant, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from periodic import assert_resumes, classifier, course, labelled, sgd, walk
from runs import Awkward, config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.device import Scripted
from daso_bench.runner.network import Network
from daso_bench.runner.optimizers import LARS
from daso_bench.runner.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulated_replica import SimulatedReplica
from daso_bench.runner.simulated_world import simulate
from daso_bench.runner.simulator import Simulator
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ddp import DDP, DDPConfig
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.lasgd import LASGD, LASGDConfig
from daso_bench.strategies.local_sgd import LocalSGD, LocalSGDConfig
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD, Topology

SECOND = 10**9
Make = Callable[[], LASGD]


def lasgd(**keys: Any) -> Make:
    return lambda: LASGD(LASGDConfig(**keys))


def fixed(sync_every: int, delay_steps: int, **keys: Any) -> Make:
    return lasgd(mode="fixed_delay", sync_every=sync_every, delay_steps=delay_steps, **keys)


def ddp() -> Strategy:
    return DDP(DDPConfig())


def local_sgd(sync_every: int, **keys: Any) -> Strategy:
    return LocalSGD(LocalSGDConfig(**{"sync_every": sync_every, "buffers": "none", **keys}))


# ------------------------------------------------------------------ ranks at their own pace


class Idle(SimulatedReplica):
    """A replica that lets time pass and computes nothing."""

    def compute_gradients(self, batch: Batch) -> Tensor:
        self.comm.simulator.advance(self.comm.rank, sum(self.device.step_ns(len(batch.targets))))
        self.wished = self.wish
        return torch.zeros(())


@dataclass
class Rounds(Network):
    """Only sums of parameters take time, and none `at_rest`."""

    seconds: float | Callable[[int], float] = 1.0
    calls: list[int] = field(default_factory=list)
    at_rest: bool = False

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        if verb != "all_reduce" or payload == 32 or self.at_rest:
            return 0
        self.calls.append(payload)
        took = self.seconds(len(self.calls)) if callable(self.seconds) else self.seconds
        return round(took * SECOND)


@dataclass
class Track:
    """What one rank did: after each step its parameters, the clock, and where it met the others.

    `estimates` and `truths`: global samples before each step, as this rank counts them and as they are.
    `launched`: all ranks' counters whenever this rank ended a step. `copies`: deferred copies with their
    samples and clocks. `flown`: steps between snapshot and application of each round.
    """

    parameters: list[Tensor] = field(default_factory=list)
    updates: list[Tensor] = field(default_factory=list)
    clock_s: list[float] = field(default_factory=list)
    met: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    estimates: list[int] = field(default_factory=list)
    truths: list[int] = field(default_factory=list)
    launched: list[list[int]] = field(default_factory=list)
    copies: list[tuple[Tensor | None, int, float]] = field(default_factory=list)
    flown: list[int] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    agreed: bool = False
    end_s: float = 0.0
    bytes_sent: int = 0
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    assembled: list[Tensor] = field(default_factory=list)
    strategy: Any = None
    replica: Any = None

    @property
    def steps(self) -> int:
        return len(self.clock_s)


def race(
    make: Make,
    seconds: Sequence[float],
    *,
    nodes: list[int] | None = None,
    horizon: float | None = None,
    budget: int = 0,
    every: int = 0,
    inline: bool = False,
    rounds: Rounds | None = None,
    data: Callable[[int, int], tuple[Tensor, Tensor]] | None = None,
    model: Callable[[int], nn.Module] | None = None,
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] | None = None,
    criterion: nn.Module | None = None,
    wish: Callable[[int, int], bool] = lambda rank, step: False,
    look: Callable[[Track], None] = lambda track: None,
    numbers: bool = True,
    counts: int = 1,
    set_up_s: float = 0,
) -> list[Track]:
    """Let ranks whose steps take `seconds` run at their own pace, as the loop does.

    Each steps until the next step would end behind `horizon`, or until the strategy says that the run ends
    by `budget` samples. Every `every` samples a copy is set aside, or, `inline`, all ranks stop and average,
    which takes no time but their waiting. Without `numbers` only clocks and counters are real. Each sample
    `counts` for so many. Set-up takes `set_up_s`. Defaults: one float64 parameter at 0, gradient 1, SGD with
    rate 1, a second for each round.
    """
    topology, rounds = Topology.of(nodes or [len(seconds)]), rounds or Rounds()
    simulator = Simulator(topology, rounds)
    feed = data or constant()
    tracks, own = [Track() for _ in seconds], [0] * len(seconds)

    def body(rank: int) -> None:
        track, comm = tracks[rank], SimulatedCommunicator(simulator, rank)
        took = round(seconds[rank] * SECOND)
        built = model(rank) if model else Linear(torch.zeros(1, dtype=torch.float64))
        kind = SimulatedReplica if numbers else Idle
        replica = kind(built, criterion or Mean(), comm, Scripted(rank, lambda rank, samples: took))
        progress = Progress(10**6, 10**6, budget=budget, global_batch_size=len(seconds))
        strategy = make()
        strategy.setup(replica, comm, progress)
        simulator.advance(rank, round(set_up_s * SECOND))
        replica.optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=1.0)))(replica.stepped)
        if every and not inline:
            strategy.reserve(2)
        comm.traffic.clear()
        track.strategy, track.replica = strategy, replica
        judged, ended, flown = 0, False, 0
        sizes = tuple(counts * len(feed(other, 0)[0]) for other in range(len(seconds)))
        while not ended:
            strategy.before_batch(progress)
            track.launched.append([other.strategy.launched for other in tracks if other.strategy])
            if horizon is not None and comm.now() + took > horizon * SECOND:
                break
            inputs, targets = feed(rank, progress.step if numbers else 0)
            progress.samples_of_rank = sizes
            track.estimates.append(strategy.global_samples(progress))
            track.truths.append(sum(own))
            replica.wish = wish(rank, progress.step)
            replica.compute_gradients(Batch(inputs, targets, sizes))
            strategy.before_step(progress)
            before = replica.flat() if numbers else None
            replica.optimizer.step()
            if before is not None:
                track.updates.append(replica.flat() - before)
            strategy.after_step(progress)
            own[rank] += sizes[rank]
            agreed, met = strategy.agree(progress, replica.wished), strategy.meets(progress)
            progress.step += 1
            track.clock_s.append(comm.now() / SECOND)
            if numbers:
                track.parameters.append(replica.flat())
            if met:
                progress.samples = strategy.samples(progress)
                track.met.append(progress.step)
                track.samples.append(progress.samples)
                track.flown.append(round(strategy.run.staleness_steps.total) - flown)
                flown += track.flown[-1]
                look(track)
                if every and progress.samples // every > judged:
                    judged = progress.samples // every
                    if inline:
                        rounds.at_rest = True
                        with strategy.consensus():
                            comm.barrier(WORLD)
                        rounds.at_rest = False
                    else:
                        copy = strategy.snapshot(progress)
                        track.copies.append((copy, progress.samples, comm.now() / SECOND))
                track.agreed = agreed
                ended = agreed or (budget > 0 and strategy.ended(progress))
            else:
                assert not agreed
        track.end_s = comm.now() / SECOND
        track.bytes_sent = sum(comm.traffic.payload_bytes.values())
        strategy.finish()
        track.final = replica.flat()
        track.assembled = [strategy.assemble(copy) for copy, _, _ in track.copies]

    simulator.run(body)
    return tracks


def noisy(size: int = 2, dtype: torch.dtype = torch.float64) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Gradients at random, new ones for each rank and step, whatever the parameters."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        return torch.randn(1, size, generator=generator, dtype=torch.float64).to(dtype), torch.zeros(1)

    return data


def flat_model(size: int = 2, dtype: torch.dtype = torch.float64) -> Callable[[int], nn.Module]:
    return lambda rank: Linear(torch.ones(size, dtype=dtype))


UNEVEN: dict[str, Any] = dict(seconds=(1, 1.3, 0.7, 2.9), data=noisy(), model=flat_model())


# ------------------------------------------------------------------ the update rule


def test_a_round_by_hand():
    # Snapshots 1 and 3, then -0.5 and +0.25 while they are under way.
    steps = {(0, 0): -1.0, (1, 0): -3.0, (0, 1): 0.5, (1, 1): -0.25}

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[steps[rank, step]]], dtype=torch.float64), torch.zeros(1)

    first, second = drive(fixed(1, 1), [1, 1], steps_per_epoch=2, data=data)
    assert (first.parameters[1].item(), second.parameters[1].item()) == (1.5, 2.25)
    assert first.records[0]["detail"][0]["samples"] == 2
    assert first.replica.flat().item() == 1.875, "finish() ends with the average"


@pytest.mark.parametrize(
    ("keys", "tolerance", "dtype"),
    [
        ({}, 1e-12, torch.float64),
        ({}, 1e-5, torch.float32),
        (dict(sync_every=3), 1e-12, torch.float64),
        (dict(max_staleness_steps=1), 1e-12, torch.float64),
        (dict(sync_interval_ms=2500), 1e-12, torch.float64),
        (dict(warmup_samples=6, warmup_mode="model"), 1e-12, torch.float64),
        (dict(transport_dtype="bfloat16"), 2e-2, torch.float32),
    ],
)
def test_the_mean_gains_the_mean_of_all_local_updates(keys, tolerance, dtype):
    # A rank that may wait for others must not be left alone by a horizon.
    end: dict[str, Any] = dict(budget=60) if "max_staleness_steps" in keys else dict(horizon=40)
    tracks = race(lasgd(**keys), UNEVEN["seconds"], data=noisy(2, dtype), model=flat_model(2, dtype), **end)
    wanted = torch.ones(2, dtype=dtype) + sum(update for track in tracks for update in track.updates) / 4
    for track in tracks:
        assert torch.allclose(track.final, wanted, rtol=tolerance, atol=tolerance)
        assert torch.equal(track.final, tracks[0].final)
    assert tracks[0].strategy.applied > 4


def test_overwriting_loses_updates():
    tracks = race(lasgd(apply_rule="overwrite"), **UNEVEN, horizon=40)
    wanted = torch.ones(2) + sum(update for track in tracks for update in track.updates) / 4
    assert (tracks[0].final - wanted).abs().max() > 0.1


def test_overwriting_with_an_immediate_relaunch_stands_still(monkeypatch: pytest.MonkeyPatch):
    """Why `overwrite` counts its period from the application: every snapshot would be the last mean."""
    poll = LASGD._poll

    def immediately(self: LASGD) -> None:
        poll(self)
        self.due = self.flight is None

    def means(make: Make) -> list[Tensor]:
        seen: list[Tensor] = []
        race(make, **UNEVEN, horizon=40, look=lambda track: seen.append(track.strategy.mean.clone()))
        return seen

    moving = means(lasgd(apply_rule="overwrite"))
    assert not torch.allclose(moving[0], moving[-1], rtol=1e-3)
    monkeypatch.setattr(LASGD, "_poll", immediately)
    standing = means(lasgd(apply_rule="overwrite"))
    assert len(standing) > 20
    assert all(torch.equal(mean, standing[0]) for mean in standing)


def test_elastic_moves_by_its_share():
    # Snapshots -1 and -3, one step of -1 each meanwhile: -2 and -4, mean -2, half of the way.
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[1.0 + 2 * rank * (step == 0)]], dtype=torch.float64), torch.zeros(1)

    first, second = drive(
        fixed(1, 1, apply_rule="elastic", elastic_alpha=0.5), [1, 1], steps_per_epoch=2, data=data
    )
    assert (first.parameters[1].item(), second.parameters[1].item()) == (-2.0, -3.0)


def test_after_a_round_each_rank_is_off_the_mean_by_its_own_updates_since_the_snapshot():
    def look(track: Track) -> None:
        since = torch.stack(track.updates[-track.flown[-1] :]).sum(0)
        assert torch.allclose(track.parameters[-1] - track.strategy.mean, since, atol=1e-12, rtol=0)
        track.means.append(track.strategy.mean.clone())

    tracks = race(lasgd(), **UNEVEN, horizon=40, look=look)
    for number, means in enumerate(zip(*(track.means for track in tracks), strict=False)):
        assert all(torch.equal(mean, means[0]) for mean in means)
        after, moved = [], []
        for track in tracks:
            step, flown = track.met[number], track.flown[number]
            after.append(track.parameters[step - 1])
            moved.append(torch.stack(track.updates[step - flown : step]).sum(0).norm())
        for i, j in [(0, 1), (0, 3), (2, 3)]:
            assert torch.linalg.vector_norm(after[i] - after[j]) <= moved[i] + moved[j] + 1e-6
    assert len(tracks[3].means) > 8


def test_without_a_step_in_flight_all_hold_the_mean_bit_for_bit():
    for trace in drive(
        fixed(3, 0), [3], steps_per_epoch=9, data=noisy(5), model=lambda: Linear(torch.ones(5).double())
    ):
        for step in (2, 5, 8):
            snapshots = torch.stack([noisy_sum(rank, step, trace) for rank in range(3)])
            assert torch.allclose(trace.parameters[step], snapshots.mean(0), rtol=1e-12)
        assert trace.records[0]["detail"][0]["spread"][1] == 0


def noisy_sum(rank: int, step: int, trace: Any) -> Tensor:
    """Parameters of `rank` before the average after `step`: the average before, and its own three steps."""
    start = trace.parameters[step - 3] if step > 2 else torch.ones(5).double()
    return start - sum(noisy(5)(rank, k)[0][0] for k in range(step - 2, step + 1))


def test_one_round_brings_unequal_models_to_the_mean_of_the_start():
    starts = torch.tensor([[1.0, 2.0], [3.0, -7.0], [5.5, 0.25], [0.5, 4.0]])
    tracks = race(
        lasgd(),
        (1, 1.5, 2, 3),
        model=lambda rank: Linear(starts[rank]),
        data=constant(0.0, 2, torch.float32),
        horizon=9,
    )
    for track in tracks:
        assert track.strategy.applied >= 1
        assert torch.allclose(track.parameters[-1], starts.mean(0), rtol=1e-6)


# ------------------------------------------------------------------ degenerate cases

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": sgd(0.02),
    "momentum": sgd(0.02, momentum=0.9),
    "nesterov": sgd(0.02, momentum=0.9, nesterov=True),
    "weight decay": sgd(0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "lars": lambda p: LARS(lr=20.0).build(p),
}


def trained(make: Callable[[], Strategy], ranks: int, optimizer: str, dtype: torch.dtype, steps: int = 50):
    return drive(
        make,
        [ranks],
        steps_per_epoch=steps,
        model=classifier(dtype),
        criterion=nn.CrossEntropyLoss(),
        data=cache(labelled(dtype=dtype)),
        optimizer=OPTIMIZERS[optimizer],
    )


@pytest.mark.parametrize(
    ("ranks", "optimizer", "dtype"),
    [
        *((2, optimizer, torch.float64) for optimizer in ("sgd", "momentum", "nesterov", "weight decay")),
        *((ranks, "weight decay", torch.float64) for ranks in (4, 8)),
        *((ranks, "weight decay", torch.float32) for ranks in (2, 4, 8)),
    ],
)
def test_no_delay_in_every_step_is_ddp(ranks, optimizer, dtype):
    got = trained(fixed(1, 0), ranks, optimizer, dtype)[0].parameters[-1]
    wanted = trained(ddp, ranks, optimizer, dtype)[0].parameters[-1]
    off = torch.linalg.vector_norm(got - wanted) / torch.linalg.vector_norm(wanted)
    assert off <= (1e-12 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "lars"])
def test_no_delay_in_every_step_is_not_ddp_where_the_optimizer_is_not_linear(optimizer):
    got = trained(fixed(1, 0), 2, optimizer, torch.float64)[0].parameters[-1]
    wanted = trained(ddp, 2, optimizer, torch.float64)[0].parameters[-1]
    assert (got - wanted).abs().max() > 1e-4


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("ranks", [2, 3])
def test_no_delay_is_local_sgd_bit_for_bit(ranks, period, optimizer):
    got = trained(fixed(period, 0), ranks, optimizer, torch.float32, 11)
    wanted = trained(lambda: local_sgd(period), ranks, optimizer, torch.float32, 11)
    for one, other in zip(got, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
        assert torch.equal(one.replica.flat(), other.replica.flat())


def test_no_delay_is_local_sgd_in_buffers_and_momenta_too():
    keys = dict(buffers="average", optimizer_state="average")
    kinds: dict[str, Any] = dict(
        steps_per_epoch=7,
        model=classifier(norm=True),
        criterion=nn.CrossEntropyLoss(),
        data=labelled(),
        optimizer=OPTIMIZERS["momentum"],
    )
    got = drive(fixed(3, 0, **keys), [3], **kinds)
    for one, other in zip(got, drive(lambda: local_sgd(3, **keys), [3], **kinds), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
        momenta = [trace.replica.optimizer_state().pack() for trace in (one, other)]
        assert torch.equal(*momenta)
        assert torch.equal(one.replica.buffers.pack(), other.replica.buffers.pack())


@pytest.mark.parametrize("period", [1, 2, 4])
def test_a_delay_of_the_whole_period_is_cocod_bit_for_bit(period):
    """s_i = θ_i; start the sum; H local steps; θ_i += mean(s) - s_i. The first s are equal: no change."""
    ranks, steps = 4, 12
    models = [classifier()() for _ in range(ranks)]
    optimizers = [OPTIMIZERS["momentum"](list(m.parameters())) for m in models]
    vectors = lambda: [nn.utils.parameters_to_vector(m.parameters()).detach() for m in models]  # noqa: E731
    handed = vectors()
    got = trained(fixed(period, period), ranks, "momentum", torch.float64, steps)
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            inputs, targets = labelled()(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if (step + 1) % period == 0:
            mean = (((handed[0] + handed[1]) + handed[2]) + handed[3]) / ranks
            for model, now, sent in zip(models, vectors(), handed, strict=True):
                nn.utils.vector_to_parameters(now + (mean - sent), model.parameters())
            handed = vectors()
        for trace, wanted in zip(got, vectors(), strict=True):
            assert torch.equal(trace.parameters[step], wanted), step


@pytest.mark.parametrize("nodes", [[1], [3]])
@pytest.mark.parametrize("keys", [{}, dict(sync_every=5), dict(transport_dtype="float16", buffers="average")])
def test_one_worker_is_plain_sgd_bit_for_bit_learning_rate_included(nodes, keys):
    """Without others there is nothing to average; a node of three is its gradients' average."""
    ranks = sum(nodes)
    common: dict[str, Any] = dict(
        data=labelled(), model=lambda rank: classifier()(), criterion=nn.CrossEntropyLoss(), horizon=10
    )
    unit = "node" if ranks > 1 else "rank"
    tracks = race(
        lasgd(unit=unit, **keys),
        [1.0] * ranks,
        nodes=nodes,
        rounds=Rounds(0),
        optimizer=sgd(0.05, momentum=0.9),
        **common,
    )
    plain = drive(
        ddp,
        nodes,
        steps_per_epoch=10,
        model=classifier(),
        data=labelled(),
        criterion=nn.CrossEntropyLoss(),
        optimizer=sgd(0.05, momentum=0.9),
    )
    for track, trace in zip(tracks, plain, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(track.parameters, trace.parameters, strict=True))
        assert track.estimates == [4 * ranks * step for step in range(10)]
        assert track.met == list(range(1, 11))


def test_two_quadratics_with_a_delay():
    """f_0 = θ²/2, f_1 = (θ - 4)², rate 0.5, from 0: (0, 4), (2, 2), (1, 4)."""

    class Quadratic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0] / 2 * (self.w - x[:, 1]) ** 2

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[[1.0, 0.0]], [[2.0, 4.0]]][rank], dtype=torch.float64), torch.zeros(1)

    traces = drive(fixed(1, 1), [1, 1], steps_per_epoch=3, model=Quadratic, data=data, optimizer=sgd(0.5))
    rounds = list(zip(*([p.item() for p in trace.parameters] for trace in traces), strict=True))
    assert rounds == [(0, 4), (2, 2), (1, 4)]


# ------------------------------------------------------------------ rounds in virtual time


def test_rounds_with_one_rank_at_half_speed():
    tracks = race(lasgd(), (1, 1, 1, 2), horizon=24, numbers=False)
    assert [track.steps for track in tracks] == [24, 24, 24, 12]
    assert [track.launched[-1][rank] for rank, track in enumerate(tracks)] == [12] * 4
    assert [len(track.met) for track in tracks] == [11] * 4
    assert sum(sum(track.flown) / 11 for track in tracks) / 4 == 1.75
    assert max(max(track.flown) for track in tracks) == 2
    assert all(track.clock_s[-1] == 24 for track in tracks), "nobody ever waited"
    # A round's sum, and what this rank did since its snapshot: 4 + 3 - 1 after 3 s, 11 + 5 - 3 after 5 s.
    assert tracks[0].estimates[:7] == [0, 1, 2, 6, 7, 13, 14]


def test_rounds_with_one_rank_at_a_quarter_of_the_speed():
    tracks = race(lasgd(), [1] * 7 + [4], rounds=Rounds(3), horizon=400, numbers=False)
    assert [track.steps for track in tracks] == [400] * 7 + [100]
    assert [track.launched[-1][rank] for rank, track in enumerate(tracks)] == [100] * 8
    assert [len(track.met) for track in tracks] == [99] * 8
    assert max(max(track.flown) for track in tracks) == 6
    assert sum(sum(track.flown) / 99 for track in tracks) / 8 == pytest.approx(3.64, abs=0.01)
    seldom = race(lasgd(sync_every=8), [1] * 7 + [4], rounds=Rounds(3), horizon=400, numbers=False)
    assert [len(track.met) for track in seldom] == [12] * 8
    assert max(max(track.flown) for track in seldom) == 32


def test_gradient_steps_per_second_beside_synchronous_strategies():
    """One second for each step, two on the last rank, one for each sum: 4/3, 16/9, 2 and 3.5."""

    def pace(make: Callable[[], Strategy], steps: int) -> float:
        took = [1, 1, 1, 2]
        traces = drive(
            make,
            [4],
            steps_per_epoch=steps,
            network=Rounds(1),
            step_ns=lambda rank, samples: took[rank] * SECOND,
            keep=False,
        )
        return 4 * steps * SECOND / max(trace.epoch_end_ns[0] for trace in traces)

    assert pace(ddp, 24) == pytest.approx(4 / 3)
    assert pace(lambda: local_sgd(4), 24) == pytest.approx(16 / 9)
    assert pace(fixed(4, 4), 24) == pytest.approx(2.0)
    assert pace(fixed(4, 0), 24) == pytest.approx(16 / 9)
    tracks = race(lasgd(), (1, 1, 1, 2), horizon=24)
    assert sum(track.steps for track in tracks) / 24 == 3.5


@pytest.mark.parametrize("round_s", [0.1, 1, 10])
def test_slow_sums_and_slow_ranks_hold_up_nobody_until_staleness_is_bounded(round_s):
    seconds = (1, 1, 1, 4)
    free = race(lasgd(), seconds, rounds=Rounds(round_s), horizon=40, numbers=False)
    assert [track.steps for track in free] == [40, 40, 40, 10]
    assert [track.clock_s for track in free[:3]] == [[float(s) for s in range(1, 41)]] * 3
    bounded = race(lasgd(max_staleness_steps=2), seconds, rounds=Rounds(round_s), horizon=40, numbers=False)
    assert bounded[0].steps < 40
    assert max(max(track.flown) for track in bounded) <= 2
    assert bounded[0].strategy.summary()["blocked_s"] > 1


def test_nobody_is_blocked_while_training():
    blocked: list[float] = []
    look = lambda track: blocked.append(track.strategy.run.blocked_ns)  # noqa: E731
    race(lasgd(), (1, 1, 1, 4), rounds=Rounds(3), horizon=60, look=look)
    assert len(blocked) > 30
    assert set(blocked) == {0}


@settings(max_examples=25, deadline=None)
@given(
    seconds=st.lists(st.sampled_from([0.5, 0.9, 1.0, 1.7, 4.0]), min_size=2, max_size=5),
    round_s=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    period=st.integers(1, 5),
    bound=st.sampled_from([None, 1, 3]),
)
def test_counters_samples_and_payload_of_any_race(seconds, round_s, period, bound):
    end: dict[str, Any] = dict(horizon=20) if bound is None else dict(budget=20 * len(seconds))
    make = lasgd(sync_every=period, max_staleness_steps=bound)
    tracks = race(make, seconds, rounds=Rounds(round_s), numbers=False, **end)
    for rank, track in enumerate(tracks):
        for counters in track.launched:
            assert max(counters) - min(counters) <= 1
        # One float64 parameter and four integers a round.
        assert track.bytes_sent == track.launched[-1][rank] * (8 + 32)
        assert all(guess <= true for guess, true in zip(track.estimates, track.truths, strict=True))
        assert track.estimates == sorted(track.estimates)
        assert track.strategy.launched == tracks[0].strategy.launched
        assert track.strategy.applied == tracks[0].strategy.applied
        assert track.strategy.applied == track.strategy.launched
        both = min(len(track.samples), len(tracks[0].samples))
        assert track.samples[:both] == tracks[0].samples[:both]
        assert torch.equal(track.final, tracks[0].final)


def test_payload_with_buffers_behind_the_parameters():
    norm = classifier(torch.float32, norm=True)
    more: dict[str, Any] = dict(data=labelled(dtype=torch.float32), model=lambda rank: norm(), horizon=20)
    more["criterion"] = nn.CrossEntropyLoss()
    m, f = sum(p.numel() for p in norm().parameters()), 14
    for keys, every, elements in (({}, 0, m), (dict(buffers="average"), 0, m + f), ({}, 16, m + f)):
        for rank, track in enumerate(race(lasgd(**keys), (1, 1, 2), every=every, **more)):
            assert track.bytes_sent == track.launched[-1][rank] * (4 * elements + 32)
    halved = race(lasgd(transport_dtype="bfloat16"), (1, 1, 2), **more)[0]
    assert halved.bytes_sent == halved.launched[-1][0] * (2 * m + 32)


def test_samples_are_exact_beyond_the_integers_of_float32():
    many = 2**24 + 1
    tracks = race(lasgd(), (1, 2), horizon=7, counts=many)
    assert tracks[0].samples == [2 * many, 5 * many, 8 * many]
    assert tracks[1].samples == [2 * many, 5 * many]


def test_the_learning_rate_of_local_steps_counts_whole_batches():
    # The harness calls a global batch one sample of each rank.
    local = race(lasgd(lr_clock="local_steps"), (1, 1, 1, 2), horizon=6)
    assert [guess + 1 for guess in local[0].estimates] == [4, 8, 12, 16, 20, 24]
    assert [guess + 1 for guess in local[3].estimates] == [4, 8, 12]


def test_a_period_in_time():
    tracks = race(lasgd(sync_interval_ms=5000), (1, 1, 1.5), rounds=Rounds(0.5), horizon=30)
    launches = [row["stamps_s"][0] for row in tracks[0].strategy.details]
    assert launches == [5, 10, 15, 20, 25], "at 30 the round of 25 is still on its way"


def test_a_period_in_time_begins_with_training():
    """Set-up of 3 s, one undone step and other ranks' start are in no interval."""
    late = race(lasgd(sync_interval_ms=5000), (1, 1, 1.5), rounds=Rounds(0.5), horizon=33, set_up_s=3)
    launches = [row["stamps_s"][0] for row in late[0].strategy.details]
    assert launches == [5, 10, 15, 20, 25]


# ------------------------------------------------------------------ the end


def test_a_budget_ends_all_ranks_in_one_round():
    tracks = race(lasgd(), (1, 1.3, 0.7, 2.9), budget=60)
    assert len({len(track.met) for track in tracks}) == 1
    assert tracks[0].samples[-1] >= 60 > tracks[0].samples[-2]
    for track in tracks:
        assert track.strategy.flight is None
        assert track.strategy.summary()["overshoot_samples"] == tracks[0].samples[-1] - 60
        assert track.strategy.summary()["steps_of_worker"] == [other.steps for other in tracks]
        assert track.strategy.launched == track.strategy.applied == len(track.met)


@pytest.mark.parametrize(("rule", "slowest"), [("any_done", False), ("all_done", True)])
def test_the_end_by_parts_of_the_data(rule, slowest):
    tracks = race(lasgd(finish_rule=rule, draw="shard"), (1, 1, 1, 10), budget=40)
    assert len({len(track.met) for track in tracks}) == 1
    assert tracks[0].steps >= 10, "a quarter of the budget is one rank's part"
    assert (tracks[0].steps < 40) == (tracks[3].steps < 10)
    assert (tracks[3].steps >= 10) == slowest
    # Those without data go on with rounds until the last round; nobody hangs.
    assert all(track.strategy.launched == tracks[0].strategy.launched for track in tracks)


@pytest.mark.parametrize("keys", [{}, dict(sync_every=7), dict(warmup_samples=10**6, warmup_mode="model")])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_wish_of_one_rank_stops_all_after_the_same_round(rank, keys):
    tracks = race(lasgd(**keys), (1, 1, 1, 2), horizon=200, wish=lambda r, step: (r, step) == (rank, 8))
    assert all(track.agreed for track in tracks)
    assert len({len(track.met) for track in tracks}) == 1
    assert max(track.clock_s[-1] for track in tracks) <= 40
    assert all(track.strategy.flight is None for track in tracks)


def test_a_wish_does_not_wait_for_the_period():
    asked = race(lasgd(sync_every=50), (1, 1), horizon=200, wish=lambda r, step: step == 3)
    assert [track.steps for track in asked] == [5, 5]


def test_in_a_warm_up_a_wish_is_told_in_its_own_step():
    for mode in ("gradient", "model"):
        make = lasgd(warmup_samples=10**6, warmup_mode=mode)
        tracks = race(make, (1, 2), horizon=200, wish=lambda r, step: (r, step) == (1, 3))
        assert [track.steps for track in tracks] == [4, 4]


def test_a_wish_is_told_once():
    heard: list[bool] = []
    traces = drive(fixed(2, 1), [2], steps_per_epoch=12, wish=lambda r, step: (r, step) == (1, 2))
    for trace in traces:
        heard = trace.agreed
        # Sent with the round launched after step 4, applied one step later.
        assert [step for step, agreed in enumerate(heard) if agreed] == [4]


def test_a_loss_that_is_not_finite_stops_all_ranks():
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        value = math.inf if (rank, step) == (1, 4) else 1.0
        return torch.full((1, 1), value, dtype=torch.float64), torch.zeros(1)

    tracks = race(lasgd(), (1, 2), data=data, horizon=100, model=lambda r: Linear(torch.ones(1).double()))
    assert all(track.agreed for track in tracks)


# ------------------------------------------------------------------ evaluation


def test_nothing_is_in_flight_where_ranks_meet_and_a_look_leaves_no_trace():
    """At every meeting parameters, momenta, buffers and random numbers are the same after a consensus."""
    make = lambda **more: course(  # noqa: E731
        LASGD(LASGDConfig()), [2, 2], steps=6, model=classifier(norm=True, dropout=0.1), **more
    )
    meetings = range(1, 100)
    times: dict[str, Any] = dict(step_time=lambda rank, samples: (10, 13, 7, 29)[rank])
    looked = walk(make(consensus_after=meetings, save_after=meetings), **times)
    for history in looked:
        assert len(history.disturbed) > 3
        assert not any(history.disturbed.values())
        assert history.unwaited == 0
    in_flight: list[Any] = []
    race(lasgd(), **UNEVEN, horizon=40, look=lambda track: in_flight.append(track.strategy.flight))
    assert len(in_flight) > 30
    assert not any(in_flight)


@pytest.mark.parametrize("transport", [None, "bfloat16"])
def test_a_copy_is_the_mean_of_its_round(transport):
    means: dict[int, Tensor] = {}
    snapshots: dict[int, list[Tensor]] = {}

    def look(track: Track) -> None:
        number = track.strategy.applied
        if track.strategy.mean is not None:
            means.setdefault(number, track.strategy.mean.clone())
        snapshots.setdefault(number, []).append(track.parameters[-1 - track.flown[-1]])

    exact = transport is None
    tracks = race(
        lasgd(transport_dtype=transport),
        (1, 1.3, 0.7, 2.9),
        data=noisy(3, torch.float32),
        model=flat_model(3, torch.float32),
        budget=200,
        every=20,
        look=look,
    )
    copies = tracks[0].assembled
    assert len(copies) >= 8
    numbers = [tracks[0].samples.index(samples) + 1 for _, samples, _ in tracks[0].copies]
    for rank, track in enumerate(tracks):
        assert [samples for _, samples, _ in track.copies] == [tracks[0].samples[n - 1] for n in numbers]
        assert all((copy is None) == (rank > 0) for copy, _, _ in track.copies)
        for number, copy in zip(numbers, track.assembled, strict=True):
            assert torch.equal(copy, means[number]), "bit for bit, however late it is looked at"
            mean = torch.stack(snapshots[number]).mean(0)
            assert torch.allclose(copy, mean, rtol=1e-6, atol=1e-6 if exact else 0.1)


def test_the_stamp_of_a_copy_is_the_last_rank_to_apply_its_round():
    # One round of 7 s that begins at 4.5 s: applied after 12.0, 12.1, 12.0 and 13.5 s.
    tracks = race(lasgd(), (1, 1.1, 2, 4.5), rounds=Rounds(7), horizon=14, every=1)
    assert [track.copies[0][2] for track in tracks] == [12.0, 12.1, 12.0, 13.5]
    assert max(track.copies[0][2] for track in tracks) == 13.5


def test_copies_hold_the_mean_of_the_buffers_of_all_ranks():
    made = classifier(torch.float64, norm=True)
    for keys in ({}, dict(warmup_samples=10**6)):
        tracks = race(
            lasgd(**keys),
            (1, 1, 1),
            data=labelled(),
            model=lambda rank: made(),
            criterion=nn.CrossEntropyLoss(),
            horizon=2,
            every=1,
            rounds=Rounds(0.5),
        )
        # Launched after the first step, when each rank had seen one batch: 0.9 · old + 0.1 · the batch's own.
        middle = [next(made().children())(labelled()(rank, 0)[0]) for rank in range(3)]
        want = torch.stack([0.1 * x.mean(0) for x in middle]).mean(0)
        copy, m = tracks[0].assembled[0], tracks[0].replica.numel
        assert len(copy) == m + 14
        assert torch.allclose(copy[m : m + 7], want.detach(), atol=1e-12)


@pytest.mark.parametrize("keys", [{}, dict(transport_dtype="bfloat16"), dict(optimizer_state="average")])
def test_any_cadence_of_copies_leaves_training_as_it_is(keys):
    def run(every: int) -> list[Track]:
        return race(
            lasgd(**keys),
            (1, 1.3, 0.7, 2.9),
            data=labelled(dtype=torch.float32),
            model=lambda rank: classifier(torch.float32)(),
            criterion=nn.CrossEntropyLoss(),
            optimizer=sgd(0.1, momentum=0.9),
            budget=240,
            every=every,
        )

    seldom = run(10**9)
    for every in (12, 48):
        for one, other in zip(run(every), seldom, strict=True):
            assert one.clock_s == other.clock_s
            assert one.bytes_sent == other.bytes_sent
            assert all(torch.equal(a, b) for a, b in zip(one.parameters, other.parameters, strict=True))
            assert len(one.copies) > 4


def test_deferred_evaluation_costs_no_time_and_inline_evaluation_does():
    def took(times: int, *, inline: bool) -> float:
        tracks = race(lasgd(), (1, 1, 1, 4), budget=1000, every=4000 // times, inline=inline, numbers=False)
        return max(track.end_s for track in tracks) / tracks[0].samples[-1]

    assert took(8, inline=False) == took(30, inline=False) == took(120, inline=False)
    assert took(120, inline=True) / took(30, inline=True) == pytest.approx(1.19, abs=0.01)


# ------------------------------------------------------------------ nodes


@pytest.mark.parametrize(
    "keys",
    [{}, dict(max_staleness_steps=2), dict(sync_interval_ms=3000), dict(buffers="average", sync_every=2)],
)
@pytest.mark.parametrize("nodes", [[2, 2], [3, 1]])
def test_replicas_of_a_node_stay_equal_whatever_is_late(nodes, keys):
    generator = torch.Generator().manual_seed(5)
    late = Rounds(lambda call: torch.rand((), generator=generator).item() * 4)
    tracks = race(
        lasgd(unit="node", **keys),
        (1, 1.2, 1.9, 0.7),
        nodes=nodes,
        rounds=late,
        data=labelled(),
        model=lambda rank: classifier(norm=True)(),
        criterion=nn.CrossEntropyLoss(),
        optimizer=sgd(0.1, momentum=0.9),
        horizon=60,
    )
    first, second = tracks[0], tracks[1]
    assert first.strategy.applied > 5
    assert first.steps == second.steps
    assert first.met == second.met
    assert all(torch.equal(a, b) for a, b in zip(first.parameters, second.parameters, strict=True))
    assert not torch.equal(first.parameters[2], tracks[3].parameters[2])
    assert first.estimates == second.estimates
    assert all(torch.equal(track.final, first.final) for track in tracks)
    assert all(guess <= true for guess, true in zip(first.estimates, first.truths, strict=True))


def test_a_node_counts_as_one_worker():
    """Nodes of 3 ranks and 1 rank at 0 and 4: mean 2, and the samples of all ranks."""
    tracks = race(
        lasgd(unit="node"),
        (1, 1, 1, 1),
        nodes=[3, 1],
        model=lambda rank: Linear(torch.tensor([4.0 * (rank == 3)], dtype=torch.float64)),
        data=constant(0.0),
        horizon=4,
    )
    assert [track.parameters[-1].item() for track in tracks] == [2.0] * 4
    assert tracks[0].samples[0] == tracks[3].samples[0] == 4


# ------------------------------------------------------------------ warm-up


def test_a_warm_up_by_gradients_is_ddp_until_its_samples_are_there():
    tracks = race(lasgd(warmup_samples=20), (1, 1, 1, 2), data=noisy(), model=flat_model(), horizon=40)
    start = torch.ones(2, dtype=torch.float64)
    plain = drive(ddp, [4], steps_per_epoch=5, data=noisy(), model=lambda: Linear(start))
    for track in tracks:
        assert torch.allclose(torch.stack(track.parameters[:5]), torch.stack(plain[0].parameters), atol=1e-12)
        assert track.samples[:5] == [4, 8, 12, 16, 20]
        assert track.met[:5] == [1, 2, 3, 4, 5]
        assert track.strategy.warmup_steps == 5
        assert not torch.equal(track.parameters[5], tracks[0].parameters[5]) or track is tracks[0]
        assert track.estimates[:6] == [0, 4, 8, 12, 16, 20]
    # Two seconds and a sum for each step of the warm-up, then everybody for himself.
    assert tracks[0].clock_s[:7] == [3, 6, 9, 12, 15, 16, 17]


def test_a_warm_up_at_ones_own_pace_counts_all_ranks_alike():
    """Others' batch sizes are not surely known there: the mean is of 1 and 3, not of 1, 3, 3 and 3."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        size = 1 + 2 * rank
        return torch.full((size, 1), float(size), dtype=torch.float64), torch.zeros(size)

    tracks = race(lasgd(warmup_samples=10**6), (1, 1), data=data, budget=4)
    assert [track.parameters[0].item() for track in tracks] == [-2.0, -2.0]
    assert tracks[0].samples == [4]


def test_a_warm_up_by_models_averages_in_each_step():
    make = lasgd(warmup_samples=20, warmup_mode="model")
    tracks = race(make, (1, 1, 1, 2), data=noisy(), model=flat_model(), horizon=40)
    for step in range(5):
        assert all(torch.equal(track.parameters[step], tracks[0].parameters[step]) for track in tracks)
    assert not torch.equal(tracks[1].parameters[5], tracks[0].parameters[5])
    assert [track.samples[:5] for track in tracks] == [[4, 8, 12, 16, 20]] * 4


@pytest.mark.parametrize("mode", ["gradient", "model"])
def test_with_common_batches_a_warm_up_is_ddp_and_periods_count_from_its_end(mode):
    make = fixed(3, 0, warmup_samples=4 * 4 * 5, warmup_mode=mode)
    got = trained(make, 4, "momentum", torch.float64, 12)[0]
    wanted = trained(ddp, 4, "momentum", torch.float64, 12)[0]
    for step in range(5):
        assert torch.allclose(got.parameters[step], wanted.parameters[step], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(got.parameters[5], wanted.parameters[5])
    rounds = [row["samples"] // 16 for row in got.records[0]["detail"]]
    assert rounds[-2:] == [8, 11]
    assert got.strategy.labels(None) == [
        "fixed_delay waits for its rounds: a test of the method, not the method"
    ]


# ------------------------------------------------------------------ what travels besides


def test_small_updates_survive_16_bit_transport():
    for transport in ("bfloat16", "float16"):
        traces = drive(
            fixed(1, 1, transport_dtype=transport),
            [2],
            steps_per_epoch=100,
            data=constant(1e-4, dtype=torch.float32),
            model=lambda: Linear(torch.ones(1)),
        )
        for trace in traces:
            assert trace.parameters[-1].item() == pytest.approx(0.99, abs=5e-5)


def test_after_a_warm_up_differences_to_its_end_are_sent():
    means: list[float] = []
    tracks = race(
        lasgd(warmup_samples=100, transport_dtype="bfloat16"),
        (1, 1),
        data=constant(1.3, dtype=torch.float32),
        model=lambda rank: Linear(torch.zeros(1)),
        horizon=105,
        look=lambda track: means.append(track.strategy.mean.item()),
    )
    # Half of 100 samples each, then one step by themselves, from -65 to -66.3: not from 0, where bfloat16
    # tells apart quarters at best.
    assert tracks[0].met[50] == 52
    assert tracks[0].parameters[50].item() == pytest.approx(-66.3, abs=1e-4)
    assert means[100] == means[101] == pytest.approx(-66.3, abs=0.01)
    assert torch.tensor(-66.3, dtype=torch.bfloat16).item() == -66.5


def test_what_16_bits_cannot_hold_is_sent_later():
    """One rank's steps fall below the resolution of the difference: they are not lost."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[-1.001 if rank == 0 else 0.0]]), torch.zeros(1)

    traces = drive(
        fixed(1, 1, transport_dtype="bfloat16"),
        [2],
        steps_per_epoch=200,
        data=data,
        model=lambda: Linear(torch.zeros(1)),
    )
    assert (1.001 - torch.tensor(1.001, dtype=torch.bfloat16).item()) * 100 > 0.09
    assert traces[0].replica.flat().item() == pytest.approx(100.1, abs=0.02)


def test_averaged_buffers_keep_variances_positive_and_are_not_frozen():
    """Rank 0 sees wide data once and narrow data then: the plain difference would make its variance < 0."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        wide = 100.0 if (rank, step) == (0, 0) else 1.0
        generator = torch.Generator().manual_seed(10 * step + rank)
        return wide * torch.randn(8, 6, generator=generator), torch.zeros(8, dtype=torch.int64)

    traces = drive(
        fixed(1, 1, buffers="average"),
        [4],
        steps_per_epoch=30,
        model=classifier(torch.float32, norm=True),
        criterion=nn.CrossEntropyLoss(),
        data=data,
        optimizer=sgd(0.0),
    )
    variances = [trace.replica.buffers.pack()[7:] for trace in traces]
    assert all(v.min() > 0 for v in variances)
    assert all(torch.equal(v, variances[0]) for v in variances), "equal after finish()"
    assert variances[0].max() < 200, "the one wide batch is forgotten: statistics move on"


def test_local_buffers_are_averaged_in_the_end_only():
    traces = drive(
        fixed(1, 1),
        [3],
        steps_per_epoch=5,
        model=classifier(norm=True),
        criterion=nn.CrossEntropyLoss(),
        data=labelled(),
        optimizer=sgd(0.1),
    )
    final = [trace.replica.buffers.pack() for trace in traces]
    assert all(torch.equal(one, final[0]) for one in final)
    m = traces[0].replica.numel
    assert traces[0].comm.traffic.payload_bytes["intra"] == 4 * (8 * m + 32) + 8 * m + 8 * 14


@pytest.mark.parametrize("policy", ["average", "reset"])
@pytest.mark.parametrize("unit", ["rank", "node"])
def test_momenta_are_averaged_or_dropped_when_a_round_is_applied(policy, unit):
    traces = drive(
        fixed(2, 0, optimizer_state=policy, unit=unit),
        [2, 2],
        steps_per_epoch=4,
        model=classifier(),
        criterion=nn.CrossEntropyLoss(),
        data=labelled(),
        optimizer=OPTIMIZERS["momentum"],
    )
    states = [trace.replica.optimizer_state() for trace in traces]
    if policy == "reset":
        assert [state.numel for state in states] == [0] * 4
    else:
        assert all(torch.equal(state.pack(), states[0].pack()) for state in states)
        assert states[0].pack().abs().max() > 0


# ------------------------------------------------------------------ resume


@pytest.mark.parametrize(
    ("keys", "optimizer"),
    [
        (dict(sync_every=3, delay_steps=2), "momentum"),
        (dict(sync_every=2, delay_steps=2, buffers="average", unit="node"), "momentum"),
        (dict(sync_every=3, delay_steps=0, transport_dtype="bfloat16"), "nesterov"),
        (dict(sync_every=2, delay_steps=1, optimizer_state="average", transport_dtype="float16"), "adam"),
        (dict(sync_every=2, delay_steps=1, warmup_samples=60, optimizer_state="average"), "momentum"),
        (dict(sync_every=2, delay_steps=1, warmup_samples=60, warmup_mode="model", buffers="average"), "sgd"),
    ],
)
def test_a_resumed_run_is_the_unbroken_run_bit_for_bit(keys, optimizer):
    strategy = LASGD(LASGDConfig(mode="fixed_delay", **keys))

    def make(**more: Any):
        return course(
            strategy,
            [2, 2],
            steps=5,
            epochs=2,
            model=classifier(torch.float32, norm=True, dropout=0.1),
            data=labelled(dtype=torch.float32),
            optimizer=OPTIMIZERS[optimizer],
            **more,
        )

    assert_resumes(make, [1, 3, 4, 5, 6])


def test_an_asynchronous_run_resumes_where_ranks_met():
    def make(**more: Any):
        return course(LASGD(LASGDConfig()), [2, 2], steps=6, model=classifier(norm=True), **more)

    times: dict[str, Any] = dict(step_time=lambda rank, samples: (10, 13, 7, 29)[rank])
    whole = walk(make(save_after=[1, 3]), **times)
    for meeting in (1, 3):
        resumed = walk(make(), resume=[history.saved[meeting] for history in whole], **times)
        for one, other in zip(whole, resumed, strict=True):
            met = [step for step, yes in one.met.items() if yes][meeting - 1]
            assert torch.equal(other.parameters[met], one.parameters[met])
            # Clocks begin anew, so later rounds may fall on other steps; what counts samples goes on.
            assert other.strategy.launched == other.strategy.applied >= meeting
            assert other.samples[max(other.samples)] >= 6 * 16
            assert torch.equal(other.final, resumed[0].final)


def test_another_number_of_workers_is_refused():
    state = drive(fixed(2, 1), [2], steps_per_epoch=3)[0].strategy.state_dict()
    other = drive(fixed(2, 1), [3], steps_per_epoch=3)[0].strategy
    with pytest.raises(ConfigError, match="of 2 workers, the run has 3"):
        other.load_state_dict(state)


# ------------------------------------------------------------------ configuration, records, whole runs


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(sync_every=0), ["sync_every=0", ">= 1"]),
        (dict(apply_rule="dleta"), ["dleta", "delta"]),
        (dict(apply_rule="elastic"), ["elastic_alpha=None", "elastic"]),
        (dict(elastic_alpha=0.5), ["elastic_alpha=0.5"]),
        (dict(apply_rule="elastic", elastic_alpha=1.5), ["elastic_alpha=1.5"]),
        (dict(max_staleness_steps=0), ["max_staleness_steps=0"]),
        (dict(delay_steps=1), ["delay_steps=1", "fixed_delay"]),
        (dict(mode="fixed_delay"), ["delay_steps=None", "sync_every=1"]),
        (dict(mode="fixed_delay", delay_steps=3, sync_every=2), ["delay_steps=3", "sync_every=2"]),
        (dict(mode="fixed_delay", delay_steps=1, apply_rule="overwrite"), ["overwrite", "stand still"]),
        (dict(mode="fixed_delay", delay_steps=1, draw="shard"), ["draw=shard", "fixed_delay"]),
        (dict(mode="fixed_delay", delay_steps=1, max_staleness_steps=3), ["max_staleness_steps=3"]),
        (dict(sync_interval_ms=5, sync_every=2), ["sync_interval_ms=5", "2"]),
        (dict(sync_interval_ms=0), ["sync_interval_ms=0"]),
        (dict(transport_dtype="int8"), ["int8", "bfloat16"]),
        (dict(finish_rule="done"), ["finish_rule=done"]),
        (dict(warmup_samples=-1), ["warmup_samples=-1"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        LASGDConfig(**keys)
    assert all(word in str(error.value) for word in words)


def test_whose_step_a_step_is():
    assert LASGD.sampling(LASGDConfig()) == "rank"
    assert LASGD.sampling(LASGDConfig(unit="node")) == "node"
    assert LASGD.sampling(LASGDConfig(mode="fixed_delay", delay_steps=0, unit="node")) == "global"


def test_records_and_labels():
    tracks = race(lasgd(), (1, 1, 1, 2), horizon=24)
    row = tracks[0].strategy.record(Progress(1, 1))
    assert row["phase"] == "local"
    assert [row[key] for key in ("rounds", "launched", "steps", "samples")] == [12, 12, 24, 24]
    assert row["blocked_s"] == 1, "the round that finish() waited for"
    first, second = row["detail"][:2]
    assert first["stamps_s"] == [1, 3, 3]
    assert second["stamps_s"] == [3, 5, 5]
    # 4 samples in the snapshots of round 1, this rank knew of its own; then of 4 and two more of its own.
    assert [one["samples"] for one in (first, second)] == [4, 11]
    assert [one["lag_samples"] for one in (first, second)] == [3, 5]
    assert len(row["detail"]) == 12
    assert tracks[0].strategy.record(Progress(1, 1))["rounds"] == 0
    assert tracks[0].strategy.labels(None) == []
    assert race(lasgd(), [1], horizon=3)[0].strategy.labels(None) == ["one rank: nothing to average"]
    assert race(lasgd(sync_every=9), (1, 1), horizon=3)[0].strategy.labels(None) == ["no round was applied"]
    warm = race(lasgd(warmup_samples=99), (1, 1), horizon=3)[0].strategy
    assert warm.labels(None) == ["all steps were in the warm-up"]
    mixed = race(lasgd(warmup_samples=4), (1, 1), horizon=20)[0].strategy
    assert mixed.labels(2) == ["no asynchronous round before the target"]
    assert mixed.labels(3) == []


def slow_last(rank: int, samples: int) -> int:
    return 10**7 * (3 if rank == 3 else 1)


@pytest.mark.parametrize("keys", [{}, dict(unit="node", buffers="average"), dict(warmup_samples=100)])
def test_a_whole_run_ends_by_samples_with_copies_evaluated_later(keys):
    cfg = config("lasgd", keys=keys, model=Awkward(), eval_every_samples=48)
    run = simulate(cfg, cfg.dataset.load(), network=Rounds(0.03), step_time=slow_last)
    evaluations = [row for row in run.metrics.rows if row["kind"] == "evaluation"]
    assert [row["mode"] for row in evaluations[-2:]] == ["deferred", "inline"]
    samples = [row["samples"] for row in evaluations]
    assert samples == sorted(set(samples))
    assert evaluations[-1]["samples"] >= 4 * 96
    assert evaluations[-1]["accuracy"] > 0.5
    finals = [session.replica.flat() for session in run.sessions]
    assert all(torch.equal(final, finals[0]) for final in finals)
    assert {result.status for result in run.results} == {"finished"}


def test_a_reached_target_stops_all_ranks():
    cfg = config("lasgd", target=0.5, stop="first", eval_every_samples=48, epochs=20)
    run = simulate(cfg, cfg.dataset.load(), network=Rounds(0.03), step_time=slow_last)
    assert {result.reason for result in run.results} == {"target reached (train.stop=first)"}
    assert len({session.strategy.summary()["rounds"] for session in run.sessions}) == 1
