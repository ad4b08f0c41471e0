"""DASO against the equations, traces and tables of its description, computed by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import Linear, Mean, Trace, constant, drive
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from daso_bench.runner.communication.link_costs import AlphaBeta, Network
from daso_bench.strategies.daso import DASO, DASOConfig, PlateauRule
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology

CYCLING: dict[str, Any] = {"warmup_epochs": 0, "cooldown_epochs": 0}


def daso(**keys: Any):
    return lambda: DASO(DASOConfig(**keys))


def ddp():
    return DDP(DDP.Config())


def values(trace: Trace) -> list[float]:
    return [p.item() for p in trace.parameters]


# ------------------------------------------------------------------ the schedule of events


@pytest.mark.parametrize(
    ("keys", "steps", "epochs"),
    [
        (
            dict(sync_every=4, wait_batches=1),
            10,
            ["0 S0 | 1 M0 | 4 S1 | 5 M1 | 9 A2", "0 S3 | 1 M3 | 4 S0 | 5 M0 | 9 A1"],
        ),
        (dict(sync_every=2, wait_batches=1), 7, ["0 S0 | 1 M0 | 2 S1 | 3 M1 | 4 S2 | 5 M2 | 6 A3"]),
        (dict(sync_every=1, wait_batches=1), 6, ["0 S0 | 1 S1 M0 | 2 S2 M1 | 3 S3 M2 | 4 M3 | 5 A0"]),
        (dict(sync_every=4, wait_batches=4), 10, ["0 S0 | 4 S1 M0 | 8 M1 | 9 A2"]),
        (dict(sync_every=8, wait_batches=2), 19, ["0 S0 | 2 M0 | 8 S1 | 10 M1 | 18 A2"]),
        (dict(sync_every=4, wait_batches=3), 5, ["0 S0 | 3 M0 | 4 A1"]),
        (dict(sync_every=4, wait_batches=3), 2, ["1 A0"]),
        (dict(sync_every=4, wait_batches=3), 1, ["0 A0"]),
        (dict(sync_every=4, wait_batches=0), 10, ["0 A0 | 4 A1 | 8 A2 | 9 A3"]),
    ],
)
def test_events_of_cycling_epochs(keys, steps, epochs):
    for trace in drive(daso(**keys, **CYCLING), [4, 4], epochs=len(epochs), steps_per_epoch=steps):
        assert trace.events == epochs


def test_events_of_blocking_epochs():
    make = daso(warmup_epochs=1, cooldown_epochs=0, allow_no_cycling=True)
    assert drive(make, [4, 4], steps_per_epoch=3)[5].events == ["0 A0 | 1 A1 | 2 A2"]


@settings(max_examples=60, deadline=None)
@given(steps=st.integers(1, 30), period=st.integers(1, 9), wait=st.integers(1, 9), local=st.integers(1, 4))
def test_each_start_is_merged_exactly_wait_batches_later(steps, period, wait, local):
    wait = min(wait, period)
    make = daso(sync_every=period, wait_batches=wait, **CYCLING)
    trace = drive(make, [local, local], epochs=2, steps_per_epoch=steps)[0]
    q = 0
    for text, record in zip(trace.events, trace.records, strict=True):
        events = [
            (int(part.split()[0]), e[0], int(e[1:])) for part in text.split(" | ") for e in part.split()[1:]
        ]
        starts = [(batch, rank) for batch, letter, rank in events if letter == "S"]
        merges = [(batch, rank) for batch, letter, rank in events if letter == "M"]
        assert merges == [(batch + wait, rank) for batch, rank in starts]
        assert len(starts) == math.ceil(max(0, steps - 1 - wait) / period) == record["starts"]
        assert record["waited_batches"] == [wait] * len(merges)
        assert [batch for batch, letter, _ in events if letter == "A"] == [steps - 1]
        for _, _, rank in [e for e in events if e[1] in "SA"]:
            assert rank == q
            q = (q + 1) % local
    assert not trace.strategy.pending


# ------------------------------------------------------------------ the merge


def scripted(table: dict[tuple[int, int], float]):
    """gradient(rank, step) from a table, else 0."""
    return lambda rank, step: (
        torch.tensor([[table.get((rank, step), 0.0)]], dtype=torch.float64),
        torch.zeros(1),
    )


def test_merge_by_hand():
    # Batch 0 leaves s = (0, 2), batch 1 makes y = (1, 3); then x = (1, 2) exactly.
    data = scripted({(1, 0): -2.0, (0, 1): -1.0, (1, 1): -1.0})
    first, second = drive(daso(**CYCLING), [1, 1], steps_per_epoch=4, data=data)
    assert values(first)[:2] == [0.0, 1.0]
    assert values(second)[:2] == [2.0, 2.0]


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.integers(2, 5),
    waited=st.integers(1, 4),
    weight=st.floats(0.1, 10),
    seed=st.integers(0, 999),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_identities_of_mean_and_spread(nodes, waited, weight, seed, dtype):
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    generator = torch.Generator().manual_seed(seed)
    size = 5
    steps = torch.randn(waited + 1, nodes, size, generator=generator, dtype=torch.float64).to(dtype)

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return (steps[step, rank] if step <= waited else torch.zeros(size, dtype=dtype))[None], torch.zeros(1)

    keys: dict[str, Any] = dict(sync_every=waited, wait_batches=waited, staleness_weight=weight, **CYCLING)
    traces = drive(
        daso(**keys),
        [1] * nodes,
        steps_per_epoch=waited + 2,
        data=data,
        model=lambda: Linear(torch.zeros(size, dtype=dtype)),
    )
    sent = torch.stack([t.parameters[0] for t in traces]).double()
    merged = torch.stack([t.parameters[waited] for t in traces]).double()
    final = torch.stack([-steps[: waited + 1, node].sum(0) for node in range(nodes)]).double()
    a = weight * waited / (weight * waited + nodes)
    scale = 1 + steps.abs().max().item()
    assert torch.allclose(
        merged.mean(0), a * final.mean(0) + (1 - a) * sent.mean(0), atol=tolerance * scale * 10, rtol=0
    )
    spread = merged - merged[0]
    assert torch.allclose(spread, a * (final - final[0]), atol=tolerance * scale * 10, rtol=0)
    assert all(torch.equal(t.parameters[-1], traces[0].parameters[-1]) for t in traces), "equal after A"


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_equal_nodes_without_a_step_do_not_change(nodes, dtype, tolerance):
    start = torch.tensor([0.1, -3.7, 1e4], dtype=dtype)
    traces = drive(
        daso(sync_every=3, wait_batches=3, staleness_weight=1.7, **CYCLING),
        [1] * nodes,
        steps_per_epoch=9,
        data=constant(0.0, 3, dtype),
        model=lambda: Linear(start),
    )
    for trace in traces:
        assert torch.allclose(trace.parameters[-1], start, rtol=tolerance, atol=0)


@pytest.mark.parametrize(
    ("keys", "steps", "expected"),
    [
        (dict(sync_every=4, wait_batches=1), 10, [-1, -1.5, -2.5, -3.5, -4.5, -5, -6, -7, -8, -9]),
        (dict(sync_every=1, wait_batches=1), 6, [-1, -1.5, -2.25, -2.875, -3.5625, -4.5625]),
        (dict(sync_every=2, wait_batches=1), 7, [None] * 6 + [-5.5]),
        (dict(sync_every=8, wait_batches=2), 19, [None] * 18 + [-53 / 3]),
    ],
)
def test_constant_gradient(keys, steps, expected):
    for trace in drive(daso(**keys, **CYCLING), [1, 1], steps_per_epoch=steps):
        for got, wanted in zip(values(trace), expected, strict=True):
            assert wanted is None or got == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("nodes", "speeds"),
    [
        (2, (0.667, 0.750, 0.875, 0.917)),
        (4, (0.600, 0.667, 0.833, 0.875)),
        (16, (0.529, 0.556, 0.778, 0.800)),
        (64, (0.508, 0.515, 0.758, 0.765)),
    ],
)
def test_speed_of_the_mean_against_synchronous_sgd(nodes, speeds):
    for (period, wait), speed in zip([(1, 1), (2, 1), (4, 1), (8, 2)], speeds, strict=True):
        steps = 184 if period == 1 else 64  # W = B settles slowly: its error shrinks by 1 - a a step
        theta = values(
            drive(daso(sync_every=period, wait_batches=wait, **CYCLING), [1] * nodes, steps_per_epoch=steps)[
                0
            ]
        )
        # Between equal places of two late cycles: the start and the epoch's end do not count.
        late = steps - 16 + wait
        early = late - 8 * 4
        assert (theta[early] - theta[late]) / (late - early) == pytest.approx(speed, abs=0.002)


# ------------------------------------------------------------------ degenerate cases


def small_net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def noise(dtype: torch.dtype = torch.float64):
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
        return x.to(dtype), (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    return data


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def both(make, optimizer: str, dtype: torch.dtype, nodes: Sequence[int] = (2, 2)) -> tuple[Tensor, Tensor]:
    kinds: dict[str, Any] = dict(
        model=lambda: small_net(dtype),
        criterion=nn.CrossEntropyLoss(),
        data=noise(dtype),
        optimizer=OPTIMIZERS[optimizer],
        epochs=2,
        steps_per_epoch=10,
    )
    return drive(make, list(nodes), **kinds)[0].parameters[-1], drive(ddp, list(nodes), **kinds)[
        0
    ].parameters[-1]


BLOCKING: dict[str, Any] = dict(warmup_epochs=2, cooldown_epochs=0, allow_no_cycling=True)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "weight decay"])
def test_blocking_throughout_is_ddp(optimizer, dtype, tolerance):
    got, wanted = both(daso(**BLOCKING), optimizer, dtype)
    assert torch.allclose(got, wanted, rtol=tolerance, atol=tolerance)


def test_adam_needs_gradients_to_be_averaged():
    by_parameters, wanted = both(daso(**BLOCKING), "adam", torch.float64)
    assert (by_parameters - wanted).abs().max() > 1e-4
    by_gradients, wanted = both(daso(**BLOCKING, blocking="gradients"), "adam", torch.float64)
    assert torch.allclose(by_gradients, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "keys", [BLOCKING, dict(sync_every=2, wait_batches=2, **CYCLING), dict(wait_batches=0, **CYCLING)]
)
def test_one_node_is_ddp_bit_for_bit(keys):
    got, wanted = both(daso(**keys), "momentum", torch.float32, nodes=[3])
    assert torch.equal(got, wanted)
    trace = drive(daso(**keys), [3], steps_per_epoch=5)[0]
    assert trace.comm.traffic.payload_bytes["inter"] == 0
    assert trace.events == [""]


def test_replicas_of_a_node_stay_equal_and_all_are_equal_after_each_epoch():
    traces = drive(
        daso(sync_every=4, wait_batches=3, **CYCLING),
        [2, 2],
        epochs=3,
        steps_per_epoch=5,
        model=small_net,
        criterion=nn.CrossEntropyLoss(),
        data=noise(),
        optimizer=OPTIMIZERS["momentum"],
    )
    differed = False
    for step in range(15):
        now = [trace.parameters[step] for trace in traces]
        assert torch.equal(now[0], now[1])
        assert torch.equal(now[2], now[3])
        differed = differed or not torch.equal(now[0], now[2])
        if step % 5 == 4:
            assert all(torch.equal(one, now[0]) for one in now)
    assert differed


# ------------------------------------------------------------------ B and W over the epochs


def schedule(epochs: int, loss, **keys) -> list[tuple[int, int] | None]:
    """(B, W) of each epoch, None where it is blocking."""
    record = drive(daso(**keys), [1, 1], epochs=epochs, steps_per_epoch=1, losses=loss)[1].records
    return [None if r["phase"] != "cycling" else (r["sync_every"], r["wait_batches"]) for r in record]


def spans(*parts: tuple[int, tuple[int, int] | None]) -> list[tuple[int, int] | None]:
    return [value for count, value in parts for _ in range(count)]


def flat(epoch: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("epochs", "each"), [(3, 1), (12, 1), (20, 1), (33, 1), (34, 2), (90, 4), (100, 4), (300, 13)]
)
def test_auto_scales_the_reference(epochs, each):
    assert DASOConfig().blocking_epochs(epochs) == (each, each)


def test_flat_loss_20_epochs():
    wanted = spans(
        (1, None), (3, (4, 1)), (3, (2, 1)), (3, (1, 1)), (3, (4, 1)), (3, (2, 1)), (3, (1, 1)), (1, None)
    )
    assert schedule(20, flat) == wanted


def test_flat_loss_90_epochs():
    cycle = [(3, (4, 1)), (3, (2, 1)), (3, (1, 1))]
    got = schedule(90, flat)
    assert got[:4] == got[86:] == [None] * 4
    assert got[4:86] == spans(*(cycle * 10))[:82]
    assert got[85] == (4, 1)


def test_larger_maximum_after_the_reset():
    got = schedule(90, flat, max_sync_every=8)
    assert got[4:25] == spans(
        (3, (4, 1)), (3, (2, 1)), (3, (1, 1)), (3, (8, 2)), (3, (4, 1)), (3, (2, 1)), (3, (1, 1))
    )
    assert got[85] == (8, 2)


def test_no_warmup_starts_cycling_at_once():
    got = schedule(20, flat, warmup_epochs=0, cooldown_epochs=2)
    assert got == spans(
        (4, (4, 1)), (3, (2, 1)), (3, (1, 1)), (3, (4, 1)), (3, (2, 1)), (2, (1, 1)), (2, None)
    )


def test_without_patience():
    got = schedule(12, flat, warmup_epochs=2, cooldown_epochs=2, plateau_patience=0)
    assert got == [None, None, *[(b, 1) for b in (4, 2, 1, 4, 2, 1, 4, 2)], None, None]


@pytest.mark.parametrize("loss", [lambda e: 0.97**e * 0.98**e, lambda e: -(1.06**e)])
def test_improving_losses_keep_the_period(loss):
    got = schedule(20, loss, warmup_epochs=2, cooldown_epochs=2)
    assert set(got[2:18]) == {(4, 1)}


def test_nan_is_never_an_improvement():
    got = schedule(20, lambda e: math.nan, warmup_epochs=2, cooldown_epochs=2)
    assert got[2:10] == spans((2, (4, 1)), (3, (2, 1)), (3, (1, 1)))


def test_updates_of_the_wait():
    rule = PlateauRule(DASOConfig(sync_every=8, wait_batches=4), 8, 4)
    seen = [(8, 4)]
    for _ in range(40):
        if rule.observe(1.0):
            seen.append((rule.sync_every, rule.wait_batches))
    assert seen[:5] == [(8, 4), (4, 3), (2, 2), (1, 1), (8, 2)]


@settings(max_examples=50, deadline=None)
@given(
    period=st.integers(1, 16),
    wait=st.integers(0, 16),
    factor=st.integers(2, 20),
    largest=st.integers(1, 40),
    divisor=st.integers(1, 9),
)
def test_the_wait_never_exceeds_the_period(period, wait, factor, largest, divisor):
    wait, largest = min(wait, period), max(largest, period)
    config = DASOConfig(
        sync_every=period,
        wait_batches=wait,
        max_sync_every=largest,
        reduction_factor=factor,
        reset_wait_divisor=divisor,
        plateau_patience=0,
    )
    rule = PlateauRule(config, period, wait)
    for _ in range(60):
        rule.observe(1.0)
        assert 1 <= rule.sync_every <= largest
        assert (rule.wait_batches == 0) if wait == 0 else (1 <= rule.wait_batches <= rule.sync_every)


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (dict(max_sync_every=2, sync_every=4), ["max_sync_every=2", "sync_every=4"]),
        (dict(wait_batches=5, sync_every=4), ["wait_batches=5", "sync_every=4"]),
        (dict(sync_every=0), ["sync_every=0", ">= 1"]),
        (dict(warmup_epochs=-1), ["warmup_epochs=-1"]),
        (dict(warmup_epochs="four"), ["warmup_epochs=four", "auto"]),
        (dict(reduction_factor=1), ["reduction_factor=1"]),
        (dict(staleness_weight=0.0), ["staleness_weight=0.0"]),
        (dict(blocking="gradient"), ["blocking=gradient", "gradients"]),
    ],
)
def test_refused_keys(keys, words):
    with pytest.raises(ConfigError) as error:
        DASOConfig(**keys)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("epochs", "keys", "words"),
    [
        (3, dict(warmup_epochs=2, cooldown_epochs=2), ["=2", "train.epochs=3"]),
        (2, {}, ["=1", "train.epochs=2"]),
    ],
)
def test_runs_without_an_asynchronous_epoch_are_refused(epochs, keys, words):
    with pytest.raises(ConfigError) as error:
        DASO.check(DASOConfig(**keys), Plan(Topology.of([2, 2]), epochs, 16))
    assert all(word in str(error.value) for word in words)
    DASO.check(DASOConfig(**keys, allow_no_cycling=True), Plan(Topology.of([2, 2]), epochs, 16))


def test_ragged_nodes_are_refused():
    with pytest.raises(ConfigError, match=r"daso needs the same number of ranks on every node, got \[3, 1\]"):
        DASO.check(DASOConfig(), Plan(Topology.of([3, 1]), 12, 16))


# ------------------------------------------------------------------ 16-bit transport


@pytest.mark.parametrize("transport", ["bfloat16", "float16"])
def test_small_updates_survive_16_bit_transport(transport):
    keys: dict[str, Any] = dict(
        warmup_epochs=1, cooldown_epochs=0, allow_no_cycling=True, transport_dtype=transport
    )
    traces = drive(
        daso(**keys),
        [1, 1],
        steps_per_epoch=100,
        data=constant(1e-4, dtype=torch.float32),
        model=lambda: Linear(torch.ones(1)),
    )
    for trace in traces:
        assert trace.parameters[-1].item() == pytest.approx(0.99, abs=5e-5)
    assert (torch.ones(1, dtype=torch.bfloat16) - 1e-4).item() == 1.0, "overwriting with bf16 would stay at 1"


def test_16_bit_transport_halves_the_bytes_between_nodes():
    keys: dict[str, Any] = dict(warmup_epochs=1, cooldown_epochs=0, allow_no_cycling=True)
    sizes: dict[str, Any] = dict(
        steps_per_epoch=10, data=constant(1.0, 99, torch.float32), model=lambda: Linear(torch.zeros(99))
    )
    full = drive(daso(**keys), [1, 1], **sizes)[0].comm.traffic.payload_bytes["inter"]
    half = drive(daso(**keys, transport_dtype="bfloat16"), [1, 1], **sizes)[0].comm.traffic.payload_bytes[
        "inter"
    ]
    # Ten averages of 100 elements of 4 and of 2 bytes; the probe of the type comes before training.
    assert (full, half) == (10 * 400, 10 * 200)


# ------------------------------------------------------------------ time and bytes


class FreeButGlobal(Network):
    """25 ms for each all-reduce of parameters between nodes, everything else free."""

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return 25_000_000 if verb == "all_reduce" and inter else 0


@pytest.mark.parametrize(
    ("keys", "milliseconds"),
    [
        (dict(warmup_epochs=1, cooldown_epochs=0, allow_no_cycling=True), 350),
        (dict(wait_batches=0, **CYCLING), 200),
        (dict(wait_batches=1, **CYCLING), 155),
        (dict(wait_batches=2, **CYCLING), 135),
        (dict(wait_batches=3, **CYCLING), 125),
    ],
)
def test_epoch_time_on_the_virtual_clock(keys, milliseconds):
    for trace in drive(
        daso(sync_every=4, **keys), [2, 2], steps_per_epoch=10, network=FreeButGlobal(), step_ns=10_000_000
    ):
        assert trace.epoch_end_ns == [milliseconds * 1_000_000]


def test_bytes_of_an_epoch():
    m = 10**6
    traces = drive(
        daso(**CYCLING),
        [2, 2, 2, 2],
        steps_per_epoch=10,
        data=constant(0.0, m, torch.float32),
        model=lambda: Linear(torch.zeros(m)),
    )
    inter = [trace.comm.traffic.payload_bytes["inter"] for trace in traces]
    # Three global all-reduces of m + 1 elements: local ranks 0, 1, 0 in turn.
    assert inter == [2 * 4 * (m + 1), 4 * (m + 1)] * 4
    ring = [trace.comm.traffic.ring_bytes["inter"] for trace in traces]
    assert [a + b for a, b in zip(ring[::2], ring[1::2], strict=True)] == pytest.approx([18e6] * 4, rel=1e-5)


def test_ranks_outside_the_active_group_send_nothing_between_nodes():
    traces = drive(daso(sync_every=4, wait_batches=1, **CYCLING), [4, 4], steps_per_epoch=3)
    sent = [trace.comm.traffic.payload_bytes["inter"] for trace in traces]
    # 0 S0 | 1 M0 | 2 A1: groups 0 and 1 were active, 2 and 3 never.
    assert [bool(s) for s in sent] == [True, True, False, False] * 2


def test_blocked_time_follows_the_period_formula():
    compute, duration = 10, 25
    for wait in (1, 2, 3):
        traces = drive(
            daso(sync_every=4, wait_batches=wait, **CYCLING),
            [1, 1],
            steps_per_epoch=41,
            network=FreeButGlobal(),
            step_ns=compute * 1_000_000,
        )
        periods = 10 * (4 * compute + max(0, duration - wait * compute)) + compute + duration
        assert traces[0].epoch_end_ns == [periods * 1_000_000]


def test_overlap_is_what_was_not_blocked():
    """Rank 0 carries S0 (25 ms, 15 of them waited for) and the last average (25 of 25), rank 1 only S1."""
    traces = drive(
        daso(sync_every=4, wait_batches=1, **CYCLING),
        [2, 2],
        steps_per_epoch=10,
        network=FreeButGlobal(),
        step_ns=10_000_000,
    )
    first, second = (trace.strategy.summary() for trace in traces[:2])
    assert (first["transfer_s"], first["blocked_s"]) == (0.050, 0.040)
    assert (second["transfer_s"], second["blocked_s"]) == (0.025, 0.015)
    assert first["overlap"] == pytest.approx(0.2)
    assert second["overlap"] == pytest.approx(0.4)


# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("local", [1, 2])
def test_a_wish_is_heard_by_all_ranks_at_one_step_without_another_collective(local):
    make = daso(sync_every=4, wait_batches=1, **CYCLING)
    nodes = [local, local]
    quiet = drive(make, nodes, steps_per_epoch=12)
    assert not any(any(trace.agreed) for trace in quiet)
    # Asked in step 2 on the last rank: it travels with the transfer started after step 4, merged after step
    # 5.
    asked = drive(
        make, nodes, steps_per_epoch=12, stop_request=lambda rank, step: rank == len(quiet) - 1 and step >= 2
    )
    for trace, other in zip(asked, quiet, strict=True):
        assert trace.agreed.index(True) == 5
        assert trace.agreed == asked[0].agreed
        assert trace.verbs == other.verbs


def test_a_wish_of_one_step_waits_for_the_next_transfer():
    make = daso(sync_every=4, wait_batches=1, **CYCLING)
    traces = drive(make, [2, 2], steps_per_epoch=12, stop_request=lambda rank, step: (rank, step) == (1, 2))
    assert [trace.agreed.index(True) for trace in traces] == [5] * 4
    assert all(trace.agreed.count(True) == 1 for trace in traces), "once told, it is not told again"


def test_a_loss_that_is_not_finite_is_a_wish():
    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.full(
            (1, 1), math.inf if (rank, step) == (3, 1) else 1.0, dtype=torch.float64
        ), torch.zeros(1)

    model = lambda: Linear(torch.ones(1, dtype=torch.float64))  # noqa: E731
    traces = drive(daso(**CYCLING), [2, 2], steps_per_epoch=10, data=data, model=model)
    assert {tuple(trace.agreed) for trace in traces} == {tuple(traces[0].agreed)}
    assert True in traces[0].agreed


def test_labels_tell_what_did_not_happen():
    only_blocking = drive(daso(**BLOCKING), [2, 2], epochs=2, steps_per_epoch=3)[0].strategy
    assert "no asynchronous phase" in only_blocking.labels(None)
    cycled = drive(daso(warmup_epochs=1, cooldown_epochs=1), [2, 2], epochs=4, steps_per_epoch=3)[0].strategy
    assert cycled.labels(None) == []
    assert cycled.labels(3) == ["no asynchronous phase before the target"]
    assert cycled.labels(4) == []


def test_latency_is_paid_between_nodes_only():
    network = AlphaBeta(inter_latency_s=0.005)
    one = drive(daso(**CYCLING), [2], steps_per_epoch=4, network=network)[0].epoch_end_ns
    two = drive(daso(**CYCLING), [2, 2], steps_per_epoch=4, network=network)[0].epoch_end_ns
    assert one == [0]
    assert two[0] > 0


def test_mean_criterion_gives_the_gradient_it_says():
    model = Linear(torch.zeros(2))
    Mean()(model(torch.tensor([[1.0, 2.0], [3.0, 6.0]])), torch.zeros(2)).backward()
    assert model.w.grad is not None
    assert model.w.grad.tolist() == [2.0, 4.0]
