"""Sums of buckets against the plain sum, and compression against its equations, in virtual time."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.strategies.communicator import Work
from daso_bench.strategies.gradients import Pipeline, Reduction
from daso_bench.strategies.reductions import Flat, HalfPrecision, Hierarchical, PowerSGD, Sliced, orthonormal
from daso_bench.strategies.topology import Topology

INNER = [Flat, Hierarchical, Sliced]
Shapes = Sequence[tuple[int, ...]]


def on_ranks(ranks_of_nodes: list[int], body: Callable[[SimulatedCommunicator], Any]) -> list[Any]:
    simulator = Simulator(Topology.of(ranks_of_nodes))
    return simulator.run(lambda rank: body(SimulatedCommunicator(simulator, rank)))


def compress(
    make: Callable[[], PowerSGD],
    ranks_of_nodes: list[int],
    gradients: Callable[[int, int], Sequence[Tensor]],
    steps: int,
    buckets: Callable[[Sequence[Tensor]], list[list[int]]] = lambda g: [list(range(len(g)))],
) -> list[tuple[PowerSGD, list[list[Tensor]]]]:
    """What `steps` steps of PowerSGD make of gradients(rank, step), on every rank: by step, by tensor.

    `buckets` names the places of the tensors in each bucket.
    """

    def body(comm: SimulatedCommunicator) -> tuple[PowerSGD, list[list[Tensor]]]:
        reduction, history = make(), []
        for step in range(steps):
            mine = gradients(comm.rank, step)
            result = [torch.empty(0)] * len(mine)
            for index, places in enumerate(buckets(mine)):
                bucket = torch.cat([mine[place].reshape(-1) for place in places])
                reduction.sum(bucket, index, [tuple(mine[place].shape) for place in places], comm)
                for place, piece in zip(places, bucket.split([mine[p].numel() for p in places]), strict=True):
                    result[place] = piece.view(mine[place].shape)
            history.append(result)
        return reduction, history

    return on_ranks(ranks_of_nodes, body)


def noise(*shapes: tuple[int, ...], seed: int = 0) -> Callable[[int, int], list[Tensor]]:
    def gradients(rank: int, step: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + 10 * step + rank)
        return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]

    return gradients


def powersgd(**keys: Any) -> Callable[[], PowerSGD]:
    inner = keys.pop("inner", Flat())
    return lambda: PowerSGD(inner, **{"start_steps": 0, **keys})


# ---------------------------------------------------------------- sums


@pytest.mark.parametrize("ranks_of_nodes", [[2, 2], [2, 2, 2, 2], [4, 4, 4, 4], [2, 1], [3], [1, 1, 1]])
@pytest.mark.parametrize("numel", [1, 7, 12])
@pytest.mark.parametrize("kind", INNER)
def test_every_sum_is_the_sum(kind: type[Reduction], numel: int, ranks_of_nodes: list[int]):
    if kind is Sliced and len(set(ranks_of_nodes)) > 1:
        pytest.skip("slices need nodes of equal size")

    def body(comm: SimulatedCommunicator) -> list[float]:
        bucket = torch.arange(numel, dtype=torch.float32) + 100 * comm.rank
        kind().sum(bucket, 0, [(numel,)], comm)
        assert set(comm.traffic.verbs) <= {
            f"gradients.{verb}"
            for verb in ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather")
        }
        return bucket.tolist()

    ranks = sum(ranks_of_nodes)
    wanted = [ranks * place + 100 * ranks * (ranks - 1) / 2 for place in range(numel)]
    assert on_ranks(ranks_of_nodes, body) == [wanted] * ranks


@pytest.mark.parametrize("kind", INNER)
def test_bf16_rounds_the_sum(kind: type[Reduction]):
    # Two ranks with weight 1/2: 256 and 1 make 128.5 in fp32. 8 bits of mantissa hold 128 or 129.
    def body(comm: SimulatedCommunicator) -> tuple[float, float, int]:
        plain = torch.tensor([256.0 if comm.rank == 0 else 1.0]) / 2
        narrow = plain.clone()
        kind().sum(plain, 0, [(1,)], comm)
        comm.traffic.clear()
        HalfPrecision(kind(), torch.bfloat16).sum(narrow, 0, [(1,)], comm)
        return plain.item(), narrow.item(), comm.traffic.payload_bytes["inter"]

    assert on_ranks([1, 1], body) == [(128.5, 128.0, 2)] * 2


# ---------------------------------------------------------------- pipelined levels


class Level(Work):
    """A level of a bucket that notes when it begins and when it is waited for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        log.append(name)

    def wait(self) -> None:
        self.log.append(f"await {self.name}")

    def is_completed(self) -> bool:
        return False

    def transfer_ns(self) -> int | None:
        return None


def told(bucket: int, leader: bool, log: list[str]) -> Iterator[Work | None]:
    for level in "abc":
        yield Level(f"{level}{bucket}", log) if leader or level != "b" else None


@pytest.mark.parametrize("leader", [True, False])
def test_levels_begin_in_an_order_of_buckets(leader: bool):
    """The next bucket's first level begins while the second one of this bucket is under way."""
    log: list[str] = []
    pipeline = Pipeline()
    for bucket in range(3):
        done = partial(log.append, f"done {bucket}")
        pipeline.add(told(bucket, leader, log), done, last=bucket == 2)
    wanted = (
        "a0, await a0, b0, a1, await b0, c0, await a1, b1, a2, await b1, c1, await a2, b2, await c0, done 0, "
        "await c1, done 1, await b2, c2, await c2, done 2"
    )
    told_of = [entry for entry in wanted.split(", ") if leader or entry.split()[-1][0] != "b"]
    assert log == told_of


def test_after_an_error_nobody_waits_for_a_bucket_under_way():
    log: list[str] = []
    pipeline = Pipeline()
    pipeline.add(told(0, True, log), partial(log.append, "done 0"), last=False)

    def fails() -> Iterator[Work | None]:
        yield Level("a1", log)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipeline.add(fails(), partial(log.append, "done 1"), last=True)
    pipeline.abandon()
    assert log[-2:] == ["done 0", "done 1"]


@pytest.mark.parametrize(
    "kind", [Hierarchical, Sliced, lambda: HalfPrecision(Hierarchical(), torch.bfloat16)]
)
def test_pipelined_sums_are_those_of_one_by_one(kind: Callable[[], Reduction]):
    numels = [7, 12, 1, 30]

    def body(
        comm: SimulatedCommunicator,
    ) -> tuple[list[Tensor], list[Tensor], dict[str, int], dict[str, int]]:
        generator = torch.Generator().manual_seed(comm.rank)
        buckets = [torch.randn(numel, generator=generator) for numel in numels]
        together, counts = [bucket.clone() for bucket in buckets], []
        for index, bucket in enumerate(buckets):
            kind().sum(bucket, index, [tuple(bucket.shape)], comm)
        counts.append(dict(comm.traffic.verbs))
        comm.traffic.clear()
        pipeline = Pipeline()
        for index, bucket in enumerate(together):
            levels = kind().levels(bucket, index, [tuple(bucket.shape)], comm)
            pipeline.add(levels, lambda: None, last=index == len(together) - 1)
        counts.append(dict(comm.traffic.verbs))
        return buckets, together, *counts

    for one_by_one, together, *counts in on_ranks([2, 2], body):
        assert all(torch.equal(a, b) for a, b in zip(one_by_one, together, strict=True))
        assert counts[0] == counts[1]


# ---------------------------------------------------------------- PowerSGD


@given(
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    rank=st.integers(1, 3),
    nodes=st.sampled_from([[1], [2, 1], [3], [2, 2]]),
    warm_start=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_nothing_is_lost_with_error_feedback(
    n: int, m: int, rank: int, nodes: list[int], warm_start: bool, seed: int
):
    gradients, steps = noise((n, m), (2,), seed=seed), 5
    make = powersgd(inner=Hierarchical(), rank=rank, min_compression=1e-3, warm_start=warm_start)
    ranks = compress(make, nodes, gradients, steps)
    applied = [step[0] for step in ranks[0][1]]
    owed = [reduction.errors[0][0] for reduction, _ in ranks]
    wanted = [gradients(r, step)[0] for r in range(len(ranks)) for step in range(steps)]
    assert (torch.stack(applied + owed).sum(0) - torch.stack(wanted).sum(0)).abs().max() < 1e-9
    for _, history in ranks[1:]:
        for mine, first in zip(history, ranks[0][1], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def test_vectors_and_small_matrices_are_summed_as_they_are():
    shapes = [(3,), (20, 20), (2, 2), (), (0, 4), (8, 5, 5)]
    gradients = noise(*shapes)
    for reduction, history in compress(powersgd(), [2], gradients, 3):
        for step, result in enumerate(history):
            for shape, got, a, b in zip(shapes, result, gradients(0, step), gradients(1, step), strict=True):
                assert torch.equal(got, a + b) == (shape not in ((20, 20), (8, 5, 5)))
        assert [tuple(error.shape) for error in reduction.errors[0]] == [(20, 20), (8, 25)]
        # (20 + 20)·1 · 2 < 400 and (8 + 25)·1 · 2 < 200, but (2 + 2)·1 · 2 > 4.
        assert reduction.ratio() == (3 + 400 + 4 + 1 + 200) / (3 + 40 + 4 + 1 + 33)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_gradient_that_was_zero_comes_back(rank: int):
    def gradients(rank: int, step: int) -> list[Tensor]:
        return [torch.zeros(8, 8, dtype=torch.float64) if step < 2 else torch.ones(8, 8, dtype=torch.float64)]

    reduction, history = compress(powersgd(rank=rank, min_compression=0.1), [1], gradients, 3)[0]
    assert (history[1][0] == 0).all()
    assert (history[2][0] - 1).abs().max() < 1e-9
    assert all(factor.isfinite().all() for factor in reduction.factors[0])


def test_what_is_not_finite_is_not_hidden():
    def gradients(rank: int, step: int) -> list[Tensor]:
        return [torch.full((8, 8), float("nan")), torch.ones(1)]

    for rank in (1, 3):
        _, history = compress(powersgd(rank=rank, min_compression=0.1), [2], gradients, 2)[0]
        assert history[0][0].isnan().all()
        assert history[0][1].item() == 2


def test_another_cut_into_buckets_compresses_alike():
    shapes = [(12, 10), (4,), (10, 12), (12, 10)]
    whole = compress(powersgd(start_steps=2), [2], noise(*shapes), 5)[0][1]
    cut = compress(powersgd(start_steps=2), [2], noise(*shapes), 5, lambda g: [[3, 2], [1], [0]])[0][1]
    for one, other in zip(whole, cut, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a, b, atol=1e-12)


def test_a_resume_with_other_buckets_is_refused():
    reduction = compress(powersgd(), [1], noise((20, 20)), 1)[0][0]
    with pytest.raises(RuntimeError, match="other buckets"):
        on_ranks([1], lambda comm: reduction.sum(torch.zeros(420), 0, [(20, 21)], comm))


@pytest.mark.parametrize("shape", [(6, 1), (6, 3), (3, 3)])
def test_orthonormal_spans_what_it_is_given(shape: tuple[int, int]):
    given = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    basis = orthonormal(given)
    assert torch.allclose(basis.T @ basis, torch.eye(shape[1], dtype=torch.float64), atol=1e-12)
    assert torch.allclose(basis @ (basis.T @ given), given, atol=1e-12)
