"""Uneven batches against their equations: shares, weights, whole runs in virtual time."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import real_runs  # pyright: ignore[reportMissingImports] (another folder of tests)
import torch
from harness import Linear, Trace, drive
from hypothesis import given
from hypothesis import strategies as st
from runs import (  # pyright: ignore[reportMissingImports] (another folder of tests)
    Awkward,
    Blobs,
    assert_same_models,
    config,
    whole_and_resumed,
)
from torch import Tensor, nn

from daso_bench.datasets.sampler import Sampler
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_world import SimulatedRun, simulate
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.strategies import heterogeneous
from daso_bench.strategies.heterogeneous import (
    Fit,
    Heterogeneous,
    HeterogeneousConfig,
    balance,
    fit_affine,
    grows,
    of_shares,
    to_integers,
)
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.topology import Topology

MS = 1_000_000  # the unit of the tables' times, in nanoseconds
Times = Callable[[int, int], float]
"""(rank, samples) -> units of a step."""
DYNAMIC: dict[str, Any] = {"balancing": "dynamic"}
FORWARD: dict[str, Any] = {**DYNAMIC, "rebalance_timing": "forward"}


def make(**keys: Any) -> Heterogeneous:
    return Heterogeneous(HeterogeneousConfig(**keys))


def affine(*coefficients: tuple[float, float]) -> Times:
    return lambda rank, samples: coefficients[rank][0] + coefficients[rank][1] * samples


TABLE = affine((20, 1), (20, 1), (20, 6))


# ------------------------------------------------------------------ weights


def test_speed_weights_of_a_step_count_only_ranks_with_samples():
    strategy = make(weighting="speed")
    strategy.parts = [0.5, 0.3, 0.2]
    assert strategy._weights((5, 3, 2)) == pytest.approx([0.5, 0.3, 0.2])
    assert strategy._weights((5, 0, 2)) == pytest.approx([5 / 7, 0.0, 2 / 7])
    assert make(weighting="uniform")._weights((5, 0, 2)) == [0.5, 0.0, 0.5]
    assert make()._weights((1, 0)) == [1.0, 0.0]


# ------------------------------------------------------------------ from times to shares


def integers(fits: Sequence[Fit], total: int, ranks: int | None = None, **keys: Any) -> tuple[int, ...]:
    cfg = HeterogeneousConfig(**keys)
    limits = cfg.limits(len(fits), total)
    return to_integers(balance(fits, total, limits), total, limits)


@pytest.mark.parametrize(
    ("shares", "total", "batches"),
    [
        ((1, 1, 1), 1024, (342, 341, 341)),
        ((1, 1, 1), 512, (171, 171, 170)),
        ((1, 1, 1), 513, (171, 171, 171)),
        ((70, 25, 5), 200, (140, 50, 10)),
        ((40, 40, 20), 200, (80, 80, 40)),
        ((34, 33, 33), 1000, (340, 330, 330)),
        ((34, 33, 33), 200, (68, 66, 66)),
        ((1, 1), 2, (1, 1)),
    ],
)
def test_shares_to_integers(shares, total, batches):
    assert integers(of_shares(shares), total) == batches


@pytest.mark.parametrize(
    ("fixed", "keys", "batches"),
    [
        ((80, 20, 20), {}, (204, 264, 44)),
        ((0, 0, 0), {}, (236, 236, 40)),
        ((20, 20, 20), {}, (236, 236, 40)),
        ((20, 20, 20), {"max_batch": (200, 512, 512)}, (200, 267, 45)),
        ((20, 20, 20), {"max_batch": (300,)}, (236, 236, 40)),
    ],
)
def test_affine_times_to_integers(fixed, keys, batches):
    fits = [Fit(a, c) for a, c in zip(fixed, (1, 1, 6), strict=True)]
    assert integers(fits, 512, **keys) == batches


def test_affine_times_to_real_batches():
    fits = [Fit(20, 1), Fit(20, 1), Fit(20, 6)]
    real = balance(fits, 512, [(1, 512)] * 3)
    assert [round(batch, 2) for batch in real] == [236.31, 236.31, 39.38]
    assert [round(fit.seconds(batch), 2) for fit, batch in zip(fits, real, strict=True)] == [256.31] * 3


@pytest.mark.parametrize(
    ("times", "fit"),
    [
        ((8, 18, 38), (0, 260 / 28)),  # the line would begin at -2: the best one through 0
        ((5, 5, 5), (0, 5 * 7 / 21)),  # times that do not grow
        ((6, 5, 4), (0, 32 / 21)),
        ((0, 0, 0), (0, 1e-12)),
    ],
)
def test_a_fit_never_has_a_negative_part(times, fit):
    sizes = (2, 4, 8) if times[0] == 8 else (1, 2, 4)
    found = fit_affine(sizes, times)
    if times[0] == 8:
        fit = (0, (2 * 8 + 4 * 18 + 8 * 38) / (4 + 16 + 64))
    assert (found.fixed, found.per_sample) == pytest.approx(fit, abs=1e-15)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Fit], int, list[tuple[int, int]]]:
    ranks = draw(st.integers(1, 8))
    seconds = st.floats(1e-6, 100)
    fits = [Fit(draw(st.just(0.0) | seconds), draw(seconds)) for _ in range(ranks)]
    minimum = draw(st.integers(1, 2))
    total = minimum * ranks + draw(st.integers(0, 200))
    most = None
    if draw(st.booleans()):
        even = -(-total // ranks)  # at least what an even split takes
        most = tuple(even + draw(st.integers(0, 100)) for _ in range(ranks))
    return fits, total, HeterogeneousConfig(max_batch=most).limits(ranks, total, minimum)


@given(problems())
def test_batches_sum_exactly_keep_limits_and_follow_speed(
    problem: tuple[list[Fit], int, list[tuple[int, int]]],
):
    fits, total, limits = problem
    real = balance(fits, total, limits)
    batches = to_integers(real, total, limits)
    assert sum(batches) == total
    rounding = 1e-15 * sum(fit.fixed / fit.per_sample for fit in fits)  # of the common time, in samples
    assert sum(real) == pytest.approx(total, rel=1e-9, abs=rounding)
    for rank, batch in enumerate(batches):
        assert limits[rank][0] <= batch <= limits[rank][1]
        for other, (fit, (_, high)) in enumerate(zip(fits, limits, strict=True)):
            mine = fits[rank]
            if mine.fixed >= fit.fixed and mine.per_sample >= fit.per_sample and high >= limits[rank][1]:
                assert batches[other] >= batch - 1, "a faster rank has no less, to a sample"


def test_equal_remainders_are_ties_whatever_they_are_remainders_of():
    assert 2.4 - 2 != 8.4 - 8
    assert to_integers([2.4, 8.4, 3.2], 14, [(1, 14)] * 3) == (3, 8, 3)
    assert to_integers([1.9999999999, 1.5, 0.5000000001], 4, [(0, 4)] * 3) == (2, 2, 0)


# ------------------------------------------------------------------ epochs of shares


def samples_of(batch: int, last: int) -> Callable[[int, int], tuple[Tensor, Tensor]]:
    """Global batches of `batch` samples on rank 0, which shares cut anew; every second one has `last`."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        size = 0 if rank else (batch, last)[step % 2]
        return torch.ones(size, 1, dtype=torch.float64), torch.zeros(size)

    return data


def train(
    ranks: int,
    *,
    batch: int,
    last: int | None = None,
    epochs: int = 1,
    times: Times = lambda rank, samples: 1,
    model: Callable[[], nn.Module] | None = None,
    strategy: Callable[[], Heterogeneous] | None = None,
    **keys: Any,
) -> list[Trace]:
    """Epochs of one full step and, with `last`, one of so many samples; `times` are in milliseconds."""
    return drive(
        strategy or (lambda: make(**keys)),
        [ranks],
        epochs=epochs,
        steps_per_epoch=1 if last is None else 2,
        data=samples_of(batch, batch if last is None else last),
        model=model,
        step_ns=lambda rank, samples: round(times(rank, samples) * MS),
    )


def batches_of(trace: Trace) -> list[tuple[int, ...]]:
    """Full batches of each epoch."""
    return [tuple(record["batches"]) for record in trace.records]


def norm() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(1), Linear(torch.zeros(1))).double()


@pytest.mark.parametrize("timing", ["probe", "forward"])
def test_dynamic_balancing_step_by_step(timing: str):
    traces = train(3, batch=512, epochs=5, times=TABLE, **DYNAMIC, rebalance_timing=timing)
    for trace in traces:
        assert batches_of(trace) == [(171, 171, 170), (235, 234, 43), *[(236, 236, 40)] * 3]
    looks = traces[0].strategy.history
    assert [round(look["ratio"], 3) for look in looks] == [2.194, 1.060, 1.010, 1.010]
    if timing == "probe":
        milliseconds = [[round(1000 * time) for time in look["times_s"]] for look in looks]
        assert milliseconds == [[191, 191, 1040], [255, 254, 278], [256, 256, 260], [256, 256, 260]]
    idle = [[round(1000 * trace.records[epoch]["idle_s"]) for trace in traces] for epoch in range(3)]
    assert idle == [[849, 849, 0], [23, 24, 0], [4, 4, 0]]
    assert [round(100 * traces[1].records[epoch]["use"], 1) for epoch in range(3)] == [45.6, 94.4, 99.0]
    assert [look["new"] != look["old"] for look in looks] == [True, True, False, False]
    assert [record.get("rebalance") for record in traces[2].records] == [None, *looks]
    summary = traces[0].strategy.summary()
    assert summary["rebalances"] == looks[:2]
    # Eight steps a probe, and all wait for the slowest rank.
    probes_s = 8 * (1.040 + 0.278 + 0.260 + 0.260) if timing == "probe" else 0
    assert summary["measuring_s"] == pytest.approx(probes_s)


def slow_until(last: int) -> Times:
    """The table's slow rank gets as fast as the others in step `last` of the run."""
    step = Counter[int]()

    def times(rank: int, samples: int) -> float:
        step[rank] += 1
        # A run begins with a warm-up step.
        return 20 + (6 if rank == 2 and step[rank] <= last + 1 else 1) * samples

    return times


@pytest.mark.parametrize(
    ("threshold", "batches"),
    [
        (0.05, [(188, 188, 136), (173, 173, 166), (173, 173, 166), (173, 173, 166)]),
        (0.0, [(188, 188, 136), (173, 173, 166), (171, 171, 170), (171, 171, 170)]),
    ],
)
def test_a_slow_rank_that_gets_fast_is_given_more(
    threshold: float, batches: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heterogeneous, "THRESHOLD", threshold)
    trace = train(3, batch=512, epochs=8, times=slow_until(3), **FORWARD)[0]
    assert batches_of(trace)[:4] == [(171, 171, 170), (235, 234, 43), *[(236, 236, 40)] * 2]
    assert batches_of(trace)[4:] == batches
    assert [round(look["ratio"], 3) for look in trace.strategy.history[3:6]] == [1.343, 1.091, 1.012]


@pytest.mark.parametrize(("balancing", "batches"), [("static", (236, 236, 40)), ("equal", (171, 171, 170))])
def test_static_shares_stay(balancing: str, batches: tuple[int, ...]):
    traces = train(3, batch=512, epochs=3, times=slow_until(40), balancing=balancing)
    assert [batches_of(trace) for trace in traces] == [[batches] * 3] * 3
    assert not traces[0].strategy.history


@pytest.mark.parametrize(
    ("fixed", "model", "batches"),
    [
        (80, "affine", (204, 264, 44)),
        # The median of t/b is that of 171 samples: speeds 171 / (251, 191, 1046).
        (80, "proportional", (201, 263, 48)),
    ],
)
def test_calibration_finds_the_fixed_cost(fixed: int, model: str, batches):
    times = affine((fixed, 1), (20, 1), (20, 6))
    trace = train(3, batch=512, times=times, calibration_model=model)[0]
    assert batches_of(trace) == [batches]
    calibration = trace.strategy.summary()["calibration"]
    assert calibration["sizes"] == [[85, 171, 341]] * 3
    if model == "affine":
        assert calibration["fixed_s"] == pytest.approx([0.08, 0.02, 0.02])
        assert calibration["per_sample_s"] == pytest.approx([0.001, 0.001, 0.006])
        assert all(abs(left) < 1e-12 for of_rank in calibration["residuals_s"] for left in of_rank)
    # 13 steps of each size on the slowest rank, and as long in the run's clock.
    slowest = 13 * sum(20 + 6 * b for b in (85, 171, 341))
    assert trace.strategy.summary()["measuring_s"] == pytest.approx(slowest / 1000)


def test_calibration_leaves_out_its_warmup_steps(monkeypatch: pytest.MonkeyPatch):
    """The first three steps of each size are slow on one rank, and three are timed behind them."""
    count = Counter[tuple[int, int]]()

    def times(rank: int, samples: int) -> float:
        count[rank, samples] += 1
        slow = 50 if rank == 0 and count[rank, samples] <= 3 else 1
        return slow * TABLE(rank, samples)

    monkeypatch.setattr(heterogeneous, "STEPS", 3)
    assert batches_of(train(3, batch=512, times=times)[0]) == [(236, 236, 40)]


def test_a_few_slow_steps_do_not_enter_the_shares():
    count = [0, 0, 0]

    def times(rank: int, samples: int) -> float:
        count[rank] += 1
        return samples * (50 if count[rank] % 4 == 0 else 1)

    assert batches_of(train(3, batch=512, times=times)[0]) == [(171, 171, 170)]


def test_noise_is_no_slope():
    """Steps that take 100 to 200 units whatever the batch: lines through them would give shares by chance."""
    generator = torch.Generator().manual_seed(1)

    def noisy(rank: int, samples: int) -> float:
        return 100 + 100 * torch.rand((), generator=generator).item()

    def hardly(rank: int, samples: int) -> float:
        return 100 + 0.003 * rank * samples

    for times in (noisy, hardly):
        trace = train(3, batch=512, times=times)[0]
        assert trace.strategy.calibration["model"] == "proportional"
        assert max(batches_of(trace)[0]) < 1.5 * min(batches_of(trace)[0])
        assert trace.strategy.labels(None)[0].startswith("step times hardly grow")


@pytest.mark.parametrize(
    ("times", "grown"),
    [
        ([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]], True),
        ([[1.0, 1.0], [1.01, 1.01], [1.005, 1.005]], False),  # by less than a hundredth
        ([[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]], False),
        ([[1.0, 3.0, 1.0, 3.0], [2.0, 4.0, 2.0, 4.0], [2.0, 4.0, 2.0, 4.0]], False),  # 0.7, among steps 2
        ([[1.0, 1.0, 1.0, 1.0, 90.0], [2.0] * 5, [4.0] * 5], True),  # an outlier does not matter
    ],
)
def test_growing_times_are_told_from_noise(times, grown: bool):
    assert grows((2, 4, 8), times) == grown


@pytest.mark.parametrize("keys", [{"balancing": "manual", "shares": (10.0, 0.1)}, {}, DYNAMIC], ids=str)
def test_a_model_with_batch_normalisation_never_gets_one_sample(keys: dict[str, Any]):
    times = affine((0, 1), (0, 100))
    traces = train(2, batch=20, last=3, epochs=2, times=times, model=norm, **keys)
    assert batches_of(traces[0])[-1] == (18, 2)
    assert traces[1].records[-1]["samples_of_last_step"] == 0  # of 3
    four = train(2, batch=4, times=times, model=norm)[0]
    assert four.strategy.calibration["sizes"] == [[2, 2, 4]] * 2


@pytest.mark.parametrize("keys", [{}, DYNAMIC, FORWARD], ids=["static", "probe", "forward"])
def test_a_clock_that_shows_no_time_gives_equal_shares(keys: dict[str, Any]):
    traces = train(2, batch=20, epochs=3, times=lambda rank, samples: 0, **keys)
    assert batches_of(traces[0]) == [(10, 10)] * 3


def test_calibration_keeps_to_the_limits():
    trace = train(3, batch=512, times=TABLE, max_batch=(100, 300, 300))[0]
    assert trace.strategy.calibration["sizes"] == [[50, 100, 100], [85, 171, 300], [85, 171, 300]]
    assert batches_of(trace) == [(100, 300, 112)]


def test_ranks_that_choose_different_shares_are_stopped():
    class Odd(Heterogeneous):
        def _first_fits(self, total: int) -> list[Fit]:
            return of_shares([1.0, 2.0 if self.comm.rank else 1.0])

    with pytest.raises(RuntimeError, match="different shares"):
        train(2, batch=10, strategy=lambda: Odd(HeterogeneousConfig()))


@pytest.mark.parametrize("keys", [{}, DYNAMIC], ids=["static", "dynamic"])
def test_one_rank_measures_nothing(keys: dict[str, Any]):
    strategy = train(1, batch=16, epochs=2, times=lambda rank, samples: samples, **keys)[0].strategy
    assert not strategy.calibration
    assert not strategy.history


def test_records_are_json_and_say_what_a_rank_did():
    traces = train(3, batch=512, last=40, times=TABLE, weighting="speed")
    row = traces[2].records[0]
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["batches"] == [236, 236, 40]
    assert row["samples_of_last_step"] == 3  # of 40: 18.4, 18.4, 3.1
    parts = traces[2].strategy.parts
    assert (row["share"], row["weight_of_last_step"]) == pytest.approx((parts[2], parts[2]))
    assert row["effective_batch"] == pytest.approx(512, rel=1e-3)
    assert row["compute_s"] == pytest.approx(0.260)
    assert row["calibration"]["sizes"] == [85, 171, 341]
    assert len(row["calibration"]["times_s"]) == 3
    assert row["calibration"]["times_s"][0] == pytest.approx([0.02 + 0.006 * 85] * 10)
    summary = traces[2].strategy.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_labels_say_what_would_mislead():
    def labels(times: Times = TABLE, **keys: Any) -> list[str]:
        return train(3, batch=512, times=times, **keys)[0].strategy.labels(None)

    assert labels() == []
    assert labels(balancing="equal") == []
    assert labels(times=lambda rank, samples: samples) == ["heterogeneous with equal batches"]
    assert labels(weighting="uniform") == ["plain mean over uneven batches: 512 samples, as noisy as 268.9"]
    assert labels(model=norm) == ["batch normalisation over uneven batches: not the training of equal ones"]


def test_buffers_are_averaged_with_the_batches_they_came_from():
    traces = train(3, batch=512, times=TABLE, model=norm)
    for rank, trace in enumerate(traces):  # all ranks see the same inputs here
        trace.replica.buffers.unpack(torch.full((2,), float(rank), dtype=torch.float64))
    simulator = Simulator(Topology.of([3]))

    def body(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        strategy = traces[rank].strategy
        strategy.comm = strategy.replica.comm = SimulatedCommunicator(simulator, rank)
        # The next epoch's batches are others; these statistics are still those of the old ones.
        strategy.batches = (100, 100, 312)
        copy = strategy.snapshot(Progress(1, 1))()
        with strategy.averaged_model():
            inside = torch.cat([strategy.replica.flat(), strategy.replica.buffers.pack()])
        return copy, inside, strategy.replica.buffers.pack()

    for rank, (copy, inside, after) in enumerate(simulator.run(body)):
        assert torch.equal(copy, inside)
        assert inside[-2:].tolist() == pytest.approx([(236 + 2 * 40) / 512] * 2)
        assert after.tolist() == [rank] * 2


# ------------------------------------------------------------------ whole runs


def whole_run(keys: dict[str, Any], strategy: str = "heterogeneous", **more: Any) -> SimulatedRun:
    where = {
        name: more.pop(name)
        for name in ("checkpoints", "loop", "attempt", "step_time", "network")
        if name in more
    }
    cfg = config(strategy, keys=keys, **{"short_batch": "keep", "precision": "fp64", **more})
    return simulate(cfg, cfg.dataset.load(), **where)


def slow_last(rank: int, samples: int) -> int:
    return MS * (2 + (6 if rank == 3 else 1) * samples)


def vectors(run: SimulatedRun) -> list[Tensor]:
    return [context.replica.flat() for context in run.contexts]


def epochs_of(run: SimulatedRun) -> list[dict[str, Any]]:
    return [row["strategy"] for row in run.metrics.rows if row["kind"] == "epoch"]


def test_a_rank_may_have_no_sample_in_the_last_step_and_batch_norm_still_agrees():
    done = whole_run(
        {"balancing": "manual", "shares": (32.0, 8.0)},
        ranks=[1, 1],
        dataset=Blobs(samples=86),
        model=Awkward(),
        global_batch_size=40,
        epochs=2,
    )
    assert [context.progress.samples_of_rank for context in done.contexts] == [(6, 0)] * 2
    assert torch.equal(*vectors(done))


def test_calibration_leaves_no_trace_and_counts_as_training_time():
    run: dict[str, Any] = {"model": Awkward(), "epochs": 2, "step_time": slow_last}
    calibrated = whole_run({}, **run)
    batches = epochs_of(calibrated)[0]["batches"]
    manual = whole_run({"balancing": "manual", "shares": tuple(map(float, batches))}, **run)
    assert_same_models(calibrated, manual)
    for one, other in zip(calibrated.contexts, manual.contexts, strict=True):
        assert torch.equal(one.replica.rng_state()["cpu"], other.replica.rng_state()["cpu"])
    ours, theirs = calibrated.results[0].summary, manual.results[0].summary
    assert ours["strategy"]["measuring_s"] > 0
    assert ours["train_s"] - theirs["train_s"] == pytest.approx(ours["strategy"]["measuring_s"])


@pytest.mark.parametrize(("after", "timing"), [(9, "forward"), (12, "probe")])
def test_a_broken_run_resumes_with_its_shares_and_does_not_calibrate(tmp_path: Path, after: int, timing: str):
    keys = {"balancing": "dynamic", "rebalance_timing": timing}
    run: dict[str, Any] = {
        "model": Awkward(),
        "step_time": slow_last,
        "checkpoint_every_samples": after * 16,
    }
    whole, resumed = whole_and_resumed(partial(whole_run, keys, **run), tmp_path, after + 1)
    assert resumed.metrics.rows[0]["resumed_from"] == f"step_{after:010d}"
    assert_same_models(whole, resumed)
    assert epochs_of(resumed) == epochs_of(whole)[after // 6 :]


# ------------------------------------------------------------------ over gloo


def test_over_gloo_weights_are_right_and_measuring_leaves_no_trace(tmp_path: Path):
    outcome = real_runs.entry("gloo_entries_heterogeneous:uneven", 3, tmp_path)
    assert outcome.status == "finished", outcome.details


def test_over_gloo_a_balanced_run_ends_with_equal_steps_and_its_times_on_record(tmp_path: Path):
    cfg = config(
        "heterogeneous",
        keys={"balancing": "dynamic"},
        ranks=[2, 1],
        dataset=Blobs(samples=100),
        model=Awkward(),
        global_batch_size=40,
        short_batch="keep",
        epochs=2,
        results=tmp_path,
    )
    directory, summary = real_runs.finished(cfg)
    assert summary["steps"] == 6
    assert sum(summary["strategy"]["batches"]) == 40
    assert summary["strategy"]["looks"] == 1
    assert summary["train_s"] > summary["strategy"]["measuring_s"] > 0
    for rank in range(3):
        rows = [
            row["strategy"]
            for row in read_records(directory.rank_records(rank)).rows
            if row["kind"] == "epoch"
        ]
        assert [row["samples_of_last_step"] for row in rows] == [
            Sampler(100, 40, 3, 0, short_batch="keep").samples_of_rank(2, row["batches"], 2)[rank]
            for row in rows
        ]
        assert min(rows[1]["rebalance"]["times_s"]) > 0
        assert all(row["compute_s"] > 0 and row["idle_s"] >= 0 and 0 < row["use"] <= 1 for row in rows)
