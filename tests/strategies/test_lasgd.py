"""LASGD against the numbers of its description: equations, rounds in virtual time, degenerate cases."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from harness import Linear, Mean, constant, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from periodic import classifier, labelled, scenario, sgd, walk
from runs import Awkward, config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import Network
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_replica import SimulatedReplica
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.simulation.simulator import Simulator
from daso_bench.runner.training.device_model import Device
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


def ddp() -> Strategy:
    return DDP(DDPConfig())


def local_sgd(sync_every: int) -> Strategy:
    return LocalSGD(LocalSGDConfig(sync_every=sync_every))


# ------------------------------------------------------------------ ranks at their own pace


class Idle(SimulatedReplica):
    """A replica that lets time pass and computes nothing."""

    def compute_gradients(self, batch: Batch) -> Tensor:
        self.comm.simulator.advance(self.comm.rank, sum(self.device.step_ns(len(batch.targets))))
        self.stop_requested = self.requests_stop
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
    copies: list[tuple[Callable[[], Tensor], int, float]] = field(default_factory=list)
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
    stop_request: Callable[[int, int], bool] = lambda rank, step: False,
    look: Callable[[Track], None] = lambda track: None,
    numbers: bool = True,
    counts: int = 1,
) -> list[Track]:
    """Let ranks whose steps take `seconds` run at their own pace, as the loop does.

    Each steps until the next step would end behind `horizon`, or until the strategy says that the run ends
    by `budget` samples. Every `every` samples a copy is set aside, or, `inline`, all ranks stop and average,
    which takes no time but their waiting. Without `numbers` only clocks and counters are real. Each sample
    `counts` for so many. Defaults: one float64 parameter at 0, gradient 1, SGD with
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
        replica = kind(built, criterion or Mean(), comm, Device(rank, lambda rank, samples: took))
        progress = Progress(10**6, 10**6, budget=budget, global_batch_size=len(seconds))
        strategy = make()
        strategy.setup(replica, comm, progress)
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
            replica.requests_stop = stop_request(rank, progress.step)
            replica.compute_gradients(Batch(inputs, targets, sizes))
            strategy.before_step(progress)
            before = replica.flat() if numbers else None
            replica.optimizer.step()
            if before is not None:
                track.updates.append(replica.flat() - before)
            strategy.after_step(progress)
            own[rank] += sizes[rank]
            agreed, met = (
                strategy.stop_agreed(progress, replica.stop_requested),
                strategy.is_sync_point(progress),
            )
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
                        with strategy.averaged_model():
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
        strategy.finalize()
        track.final = replica.flat()
        track.assembled = [assemble() for assemble, _, _ in track.copies]

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

    first, second = race(lasgd(), (1, 1), data=data, horizon=2)
    assert (first.parameters[1].item(), second.parameters[1].item()) == (1.5, 2.25)
    assert first.strategy.details[0]["samples"] == 2
    assert first.final.item() == 1.875, "finalize() ends with the average"


def test_without_a_step_in_flight_all_hold_the_mean_bit_for_bit():
    # The last round is launched at the horizon, and nobody steps any more.
    tracks = race(lasgd(), (1, 1, 1), data=noisy(5), model=flat_model(5), horizon=9)
    snapshots = torch.stack([track.parameters[-1] for track in tracks])
    for track in tracks:
        assert torch.allclose(track.final, snapshots.mean(0), rtol=1e-12)
        assert torch.equal(track.final, tracks[0].final)
        assert track.strategy.details[-1]["spread"][1] == 0


# ------------------------------------------------------------------ degenerate cases


@pytest.mark.parametrize("period", [1, 2, 4])
def test_sums_that_take_a_whole_period_of_equal_ranks_are_cocod_bit_for_bit(period):
    """s_i = θ_i; start the sum; H local steps; θ_i += mean(s) - s_i. The first s are equal: no change."""
    ranks, steps = 4, 12
    models = [classifier()() for _ in range(ranks)]
    optimizers = [sgd(0.02, momentum=0.9)(list(m.parameters())) for m in models]
    vectors = lambda: [nn.utils.parameters_to_vector(m.parameters()).detach() for m in models]  # noqa: E731
    handed = vectors()
    got = race(
        lasgd(sync_every=period),
        [1.0] * ranks,
        rounds=Rounds(period),
        model=lambda rank: classifier()(),
        criterion=nn.CrossEntropyLoss(),
        data=labelled(),
        optimizer=sgd(0.02, momentum=0.9),
        horizon=steps,
    )
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
        for track, wanted in zip(got, vectors(), strict=True):
            assert torch.equal(track.parameters[step], wanted), step


def test_two_quadratics_with_sums_of_one_step():
    """f_0 = θ²/2, f_1 = (θ - 4)², rate 0.5, from 0: (0, 4), (2, 2), (1, 4)."""

    class Quadratic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, 0] / 2 * (self.w - x[:, 1]) ** 2

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([[[1.0, 0.0]], [[2.0, 4.0]]][rank], dtype=torch.float64), torch.zeros(1)

    tracks = race(lasgd(), (1, 1), model=lambda rank: Quadratic(), data=data, optimizer=sgd(0.5), horizon=3)
    rounds = list(zip(*([p.item() for p in track.parameters] for track in tracks), strict=True))
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
    """One second for each step, two on the last rank, one for each sum: 4/3, 16/9 and 3.5."""

    def pace(make: Callable[[], Strategy], steps: int) -> float:
        took = [1, 1, 1, 2]
        traces = drive(
            make,
            [4],
            steps_per_epoch=steps,
            network=Rounds(1),
            step_ns=lambda rank, samples: took[rank] * SECOND,
        )
        return 4 * steps * SECOND / max(trace.epoch_end_ns[0] for trace in traces)

    assert pace(ddp, 24) == pytest.approx(4 / 3)
    assert pace(lambda: local_sgd(4), 24) == pytest.approx(16 / 9)
    tracks = race(lasgd(), (1, 1, 1, 2), horizon=24)
    assert sum(track.steps for track in tracks) / 24 == 3.5


@pytest.mark.parametrize("round_s", [0.1, 1, 10])
def test_slow_sums_and_slow_ranks_hold_up_nobody(round_s):
    seconds = (1, 1, 1, 4)
    free = race(lasgd(), seconds, rounds=Rounds(round_s), horizon=40, numbers=False)
    assert [track.steps for track in free] == [40, 40, 40, 10]
    assert [track.clock_s for track in free[:3]] == [[float(s) for s in range(1, 41)]] * 3


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
)
def test_counters_samples_and_payload_of_any_race(seconds, round_s, period):
    tracks = race(lasgd(sync_every=period), seconds, rounds=Rounds(round_s), numbers=False, horizon=20)
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


def test_samples_are_exact_beyond_the_integers_of_float32():
    many = 2**24 + 1
    tracks = race(lasgd(), (1, 2), horizon=7, counts=many)
    assert tracks[0].samples == [2 * many, 5 * many, 8 * many]
    assert tracks[1].samples == [2 * many, 5 * many]


# ------------------------------------------------------------------ the end


def test_a_budget_ends_all_ranks_in_one_round():
    tracks = race(lasgd(), (1, 1.3, 0.7, 2.9), budget=60)
    assert len({len(track.met) for track in tracks}) == 1
    assert tracks[0].samples[-1] >= 60 > tracks[0].samples[-2]
    for track in tracks:
        assert track.strategy.flight is None
        # The final model holds the steps that were made while the last round was in flight.
        assert track.strategy.summary()["overshoot_samples"] == sum(other.steps for other in tracks) - 60
        assert track.strategy.summary()["steps_of_worker"] == [other.steps for other in tracks]
        assert track.strategy.launched == track.strategy.applied == len(track.met)


def test_a_wish_does_not_wait_for_the_period():
    asked = race(lasgd(sync_every=50), (1, 1), horizon=200, stop_request=lambda r, step: step == 3)
    assert [track.steps for track in asked] == [5, 5]


def test_a_wish_is_told_once():
    stop_request = lambda rank, step: (rank, step) == (1, 2)  # noqa: E731
    made = scenario(LASGD(LASGDConfig()), [2], steps=12, stop_request=stop_request)
    for history in walk(made, step_time=lambda rank, samples: 10):
        # Made in the third step, sent with the round of the fourth and applied at its end.
        assert [step for step, agreed in history.agreed.items() if agreed] == [4]


def test_a_loss_that_is_not_finite_stops_all_ranks():
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        value = math.inf if (rank, step) == (1, 4) else 1.0
        return torch.full((1, 1), value, dtype=torch.float64), torch.zeros(1)

    tracks = race(lasgd(), (1, 2), data=data, horizon=100, model=lambda r: Linear(torch.ones(1).double()))
    assert all(track.agreed for track in tracks)


# ------------------------------------------------------------------ evaluation


def test_nothing_is_in_flight_where_ranks_meet_and_a_look_leaves_no_trace():
    """At every meeting parameters, momenta, buffers and random numbers are the same after a consensus."""
    make = lambda **more: scenario(  # noqa: E731
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


def test_a_copy_is_the_mean_of_its_round():
    means: dict[int, Tensor] = {}
    snapshots: dict[int, list[Tensor]] = {}

    def look(track: Track) -> None:
        number = track.strategy.applied
        if track.strategy.mean is not None:
            means.setdefault(number, track.strategy.mean.clone())
        snapshots.setdefault(number, []).append(track.parameters[-1 - track.flown[-1]])

    tracks = race(
        lasgd(),
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
        assert track.strategy.copies == (0 if rank else len(track.copies))
        for number, copy in zip(numbers, track.assembled, strict=True):
            assert torch.equal(copy, means[number]), "bit for bit, however late it is looked at"
            mean = torch.stack(snapshots[number]).mean(0)
            assert torch.allclose(copy, mean, rtol=1e-6, atol=1e-6)


def test_the_stamp_of_a_copy_is_the_last_rank_to_apply_its_round():
    # One round of 7 s that begins at 4.5 s: applied after 12.0, 12.1, 12.0 and 13.5 s.
    tracks = race(lasgd(), (1, 1.1, 2, 4.5), rounds=Rounds(7), horizon=14, every=1)
    assert [track.copies[0][2] for track in tracks] == [12.0, 12.1, 12.0, 13.5]
    assert max(track.copies[0][2] for track in tracks) == 13.5


def test_copies_hold_the_mean_of_the_buffers_of_all_ranks():
    made = classifier(torch.float64, norm=True)
    tracks = race(
        lasgd(),
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


def test_deferred_evaluation_costs_no_time_and_inline_evaluation_does():
    def took(times: int, *, inline: bool) -> float:
        tracks = race(lasgd(), (1, 1, 1, 4), budget=1000, every=4000 // times, inline=inline, numbers=False)
        return max(track.end_s for track in tracks) / tracks[0].samples[-1]

    assert took(8, inline=False) == took(30, inline=False) == took(120, inline=False)
    assert took(120, inline=True) / took(30, inline=True) == pytest.approx(1.19, abs=0.01)


# ------------------------------------------------------------------ what travels besides


def test_averaged_second_moments_stay_positive():
    """Rank 0 has a wide gradient once and narrow ones then: the plain difference would be below 0."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.full((1, 1), 100.0 if (rank, step) == (0, 0) else 1.0).double(), torch.zeros(1)

    seen: list[float] = []
    race(
        lasgd(optimizer_state="average"),
        (1, 1, 1, 1),
        data=data,
        optimizer=lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.5)),
        horizon=9,
        look=lambda track: seen.append(track.replica.optimizer_state().pack()[-1].item()),
    )
    assert len(seen) > 20
    assert min(seen) > 0
    assert max(seen[-4:]) < max(seen) / 2, "the wide gradient is forgotten: moments move on"


def test_another_number_of_workers_is_refused():
    state = race(lasgd(), (1, 1), horizon=3)[0].strategy.state_dict()
    other = race(lasgd(), (1, 1, 1), horizon=3)[0].strategy
    with pytest.raises(ConfigError, match="of 2 workers, the run has 3"):
        other.load_state_dict(state)


# ------------------------------------------------------------------ configuration, records, whole runs


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(sync_every=0), ["sync_every=0", ">= 1"]),
        (dict(optimizer_state="reset"), ["optimizer_state=reset", "average"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        LASGDConfig(**keys)
    assert all(word in str(error.value) for word in words)


def test_records_and_labels():
    tracks = race(lasgd(), (1, 1, 1, 2), horizon=24)
    row = tracks[0].strategy.record(Progress(1, 1))
    assert [row[key] for key in ("rounds", "launched", "steps", "samples")] == [12, 12, 24, 24]
    assert row["blocked_s"] == 1, "the round that finalize() waited for"
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


def slow_last(rank: int, samples: int) -> int:
    return 10**7 * (3 if rank == 3 else 1)


def test_a_whole_run_ends_by_samples_with_copies_evaluated_later():
    cfg = config("lasgd", model=Awkward(), eval_every_samples=48)
    run = simulate(cfg, cfg.dataset.load(), network=Rounds(0.03), step_time=slow_last)
    evaluations = [row for row in run.metrics.rows if row["kind"] == "evaluation"]
    assert [row["mode"] for row in evaluations[-2:]] == ["deferred", "inline"]
    samples = [row["samples"] for row in evaluations]
    assert samples == sorted(set(samples))
    assert evaluations[-1]["samples"] >= 4 * 96
    assert evaluations[-1]["accuracy"] > 0.5
    finals = [context.replica.flat() for context in run.contexts]
    assert all(torch.equal(final, finals[0]) for final in finals)
    assert {result.status for result in run.results} == {"finished"}


def test_a_reached_target_stops_all_ranks():
    cfg = config("lasgd", target=0.5, stop="first", eval_every_samples=48, epochs=20, eval_mode="inline")
    run = simulate(cfg, cfg.dataset.load(), network=Rounds(0.03), step_time=slow_last)
    assert {result.reason for result in run.results} == {"target reached (train.stop=first)"}
    assert len({context.strategy.summary()["rounds"] for context in run.contexts}) == 1
