"""The references against numbers worked out by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from equations import reference_of
from numpy_models import Array, NumpyModel, Part, Slope, Springs
from numpy_optimizers import PLAIN, Recipe
from references.daso import DEFAULTS as DASO
from references.daso import Schedule
from references.ddp import Compressor
from references.sgp import mixing
from world import Setting, World, bfloat16, float16, narrow_sum


def springs_on(*springs: tuple[float, float]) -> Callable[[int, int], tuple[Array, Array]]:
    """(stiffness a, rest position c) of each rank."""
    return lambda rank, step: (np.array([springs[rank]]), np.zeros(1))


TEST_PROBLEM = springs_on((1.0, 0.0), (2.0, 4.0))
"""½θ² and (θ - 4)², gradients θ and 2(θ - 4)."""


def walk(
    name: str,
    ranks: Sequence[int],
    steps: int,
    *,
    model: NumpyModel | None = None,
    piece: Callable[[int, int], tuple[Array, Array]] = TEST_PROBLEM,
    lr: float = 0.5,
    start: Sequence[float] | None = None,
    epochs: int = 1,
    keys: dict[str, Any] | None = None,
    **setting: Any,
) -> tuple[list[list[float]], list[float]]:
    """(the first parameter of all ranks after each step; in the end)."""
    world = World(
        Setting(
            model=model or Springs(),
            piece=piece,
            recipe=Recipe(lr=lr),
            ranks_of_nodes=ranks,
            steps_per_epoch=steps,
            epochs=epochs,
            start=None if start is None else lambda rank: np.array([start[rank]]),
            **setting,
        )
    )
    seen = [world.theta[:, 0].tolist() for _ in reference_of(name)(world, **(keys or {}))]
    return seen, world.theta[:, 0].tolist()


def exactly(values: Any) -> Any:
    return pytest.approx(values, abs=1e-12)


# ------------------------------------------------------------------ gradients


@pytest.mark.parametrize("name", ["ddp", "placebo", "hsgd"])
def test_synchronous_strategies_on_the_test_problem(name: str):
    assert walk(name, [1, 1], 2)[0] == [[2.0, 2.0], [2.5, 2.5]]


@pytest.mark.parametrize(
    ("name", "keys", "gradient"),
    [
        ("ddp", {}, 4.0),
        ("ddp", {"weighting": "uniform"}, 6.0),
        ("hsgd", {}, 4.0),
        ("heterogeneous", {"balancing": "manual", "shares": (3, 1)}, 4.0),
        ("heterogeneous", {"balancing": "manual", "shares": (3, 1), "weighting": "speed"}, 4.0),
        ("heterogeneous", {"balancing": "manual", "shares": (3, 1), "weighting": "uniform"}, 6.0),
        # Two samples each: (1 + 2)/2 and (3 + 10)/2.
        ("heterogeneous", {"balancing": "equal"}, 4.0),
    ],
)
def test_weights_of_uneven_batches(name: str, keys: dict[str, Any], gradient: float):
    def piece(rank: int, step: int) -> tuple[Array, Array]:
        x = np.array([[1.0], [2.0], [3.0]] if rank == 0 else [[10.0]])
        return x, np.zeros(len(x))

    final = walk(name, [1, 1], 1, model=Slope(), piece=piece, lr=1.0, keys=keys)[1]
    assert final == exactly([1 - gradient] * 2)


def test_half_precision_rounds_the_sum():
    # bf16 has 8 bits: 128 and 0.5 of two ranks with 256 and 1 sum to 128; in fp32 it would be 128.5.
    assert narrow_sum(np.array([[128.0], [0.5]]), "bfloat16") == [128.0]
    assert bfloat16(np.array([1.00390625, 1.01171875, -3.0])).tolist() == [1.0, 1.015625, -3.0]
    assert float16(np.array([1 + 2**-11, 1 + 2**-10])).tolist() == [1.0, 1 + 2**-10]


class Square(NumpyModel):
    """One 2×2 matrix."""

    parts = (Part("m", (2, 2)),)
    start = np.zeros(4)

    def descend(self, theta, buffers, x, t):
        raise NotImplementedError


def compressor(ranks: int, rank: int, factor: Array) -> Compressor:
    world = World(
        Setting(
            model=Square(),
            piece=TEST_PROBLEM,
            recipe=PLAIN,
            ranks_of_nodes=[ranks],
            steps_per_epoch=1,
            factor=lambda draw, n, m, r: factor,
        )
    )
    return Compressor(world, rank, 0, 0.1, feedback=True, warm=True)


def test_powersgd_of_a_diagonal_matrix():
    one = compressor(1, 1, np.array([[1.0], [0.0]]))
    gradient = np.array([[2.0, 0.0, 0.0, 1.0]])
    for k, owed in ((1, 1.0), (2, 2.0)):
        assert one.sum(gradient, k) == exactly([2, 0, 0, 0])
        assert one.errors[0] == exactly([0, 0, 0, owed])


# ------------------------------------------------------------------ periodic


def test_local_sgd_on_the_test_problem():
    assert walk("local_sgd", [1, 1], 2, keys={"sync_every": 2})[1] == [2.0, 2.0]


def rounds(seen: list[list[float]]) -> list[int]:
    """Steps after which all ranks were equal."""
    return [k for k, row in enumerate(seen, 1) if max(row) - min(row) < 1e-12]


@pytest.mark.parametrize(("lr", "period"), [(0.8, 2), (0.4, 2), (0.2, 4), (0.1, 16), (0.05, 64)])
def test_rounds_of_qsr(lr: float, period: int):
    keys = {"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.4}
    assert rounds(walk("local_sgd", [1, 1], 65, lr=lr, keys=keys)[0])[0] == period


def test_slowmo_on_the_test_problem():
    keys = {"sync_every": 1, "slow_momentum": 0.5, "slow_lr": 1.0}
    assert walk("slowmo", [1, 1], 3, keys=keys)[0] == [[2.0] * 2, [3.5] * 2, [3.625] * 2]


def test_diloco_by_hand():
    def piece(rank: int, step: int) -> tuple[Array, Array]:
        return np.array([[(0.2, 0.4)[rank] if step == 0 else 0.1]]), np.zeros(1)

    keys = {"sync_every": 1, "outer_lr": 0.7, "outer_momentum": 0.9}
    seen, _ = walk("diloco", [1, 1], 2, model=Slope(), piece=piece, lr=1.0, keys=keys)
    assert seen[0] == exactly([0.601] * 2)
    assert seen[1] == exactly([0.2979] * 2)


@pytest.mark.parametrize("name", ["slowmo", "diloco"])
def test_a_partial_round_is_averaged_only(name: str):
    seen, final = walk(name, [1, 1], 7, keys={"sync_every": 4})
    assert final == exactly([sum(seen[-1]) / 2] * 2)


@pytest.mark.parametrize(
    ("ranks", "period", "final"),
    [((1, 1), 1, 1.0), ((1, 1), 2, 1.25), ((3, 1), 1, 1.5625), ((3, 1), 2, 1.75)],
)
def test_ednncomm_by_hand(ranks: Sequence[int], period: int, final: float):
    springs = [(1.0, 0.0)] * ranks[0] + [(3.0, 0.0)] * ranks[1]
    keys = {"sync_every": period, "sync_at_epoch_end": False}
    got = walk("ednncomm", ranks, 2, model=Springs(4.0), piece=springs_on(*springs), lr=0.25, keys=keys)[1]
    assert got == exactly([final] * sum(ranks))


# ------------------------------------------------------------------ gossip


def gossip(start: Sequence[float], steps: int, **keys: Any) -> list[list[float]]:
    piece = springs_on(*[(1.0, 0.0)] * len(start))
    return walk("sgp", [len(start)], steps, piece=piece, lr=0.0, start=start, keys=keys)[0]


def test_four_ranks_agree_after_two_hops():
    assert gossip([0, 4, 8, 12], 2) == [[6, 2, 6, 10], [6, 6, 6, 6]]


def test_six_ranks_do_not_agree_after_three_hops():
    assert gossip([0, 1, 2, 3, 4, 5], 3)[-1] == exactly([2.5, 2, 2.25, 2.5, 2.75, 3])


def test_nine_ranks_with_two_peers_agree_after_two_hops():
    assert gossip(list(range(9)), 2, num_peers=2)[-1] == exactly([4.0] * 9)


def test_push_pull_is_symmetric():
    assert gossip([0, 3, 6, 9], 1, direction="push_pull")[-1] == exactly([4, 3, 6, 5])
    for matrix in mixing(6, 2, "exponential", "push_pull"):
        assert (matrix == matrix.T).all()


# ------------------------------------------------------------------ DASO


def constant(nodes: int, steps: int, **keys: Any) -> list[float]:
    """One parameter from 0 with gradient 1 and learning rate 1 on nodes of one rank: after each batch."""

    def piece(rank: int, step: int) -> tuple[Array, Array]:
        return np.ones((1, 1)), np.zeros(1)

    keys = {"warmup_epochs": 0, "cooldown_epochs": 0, **keys}
    seen, _ = walk("daso", [1] * nodes, steps, model=Slope((0.0,)), piece=piece, lr=1.0, keys=keys)
    return [row[0] for row in seen]


def test_daso_under_a_constant_gradient():
    assert constant(2, 10, sync_every=4) == exactly([-1, -1.5, -2.5, -3.5, -4.5, -5, -6, -7, -8, -9])
    assert constant(2, 6, sync_every=1) == exactly([-1, -1.5, -2.25, -2.875, -3.5625, -4.5625])
    assert constant(2, 7, sync_every=2)[-1] == exactly(-5.5)
    assert constant(2, 19, sync_every=8, wait_batches=2)[-1] == exactly(-53 / 3)


def test_daso_merges_by_hand():
    """s = (0, 2), y = (1, 3), one batch between: (1, 2)."""

    def piece(rank: int, step: int) -> tuple[Array, Array]:
        return np.array([[0.0 if step == 0 else -1.0]]), np.zeros(1)

    keys = {"warmup_epochs": 0, "cooldown_epochs": 0}
    seen, _ = walk("daso", [1, 1], 5, model=Slope(), piece=piece, lr=1.0, start=[0, 2], keys=keys)
    assert seen[1] == exactly([1, 2])


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_daso_narrows_differences_only(narrow: str):
    """θ = 1 and 100 steps of -1e-4: 0.99, though bfloat16 cannot tell 0.9999 from 1."""

    def piece(rank: int, step: int) -> tuple[Array, Array]:
        return np.ones((1, 1)), np.zeros(1)

    keys = {"warmup_epochs": 1, "cooldown_epochs": 0, "transport_dtype": narrow}
    final = walk("daso", [1, 1], 100, model=Slope(), piece=piece, lr=1e-4, keys=keys)[1]
    assert final == pytest.approx([0.99] * 2, abs=5e-5)


def periods(losses: Sequence[float], **keys: Any) -> list[tuple[int, int]]:
    merged = {**DASO, **keys}
    schedule = Schedule(
        merged["sync_every"], merged["wait_batches"], merged["max_sync_every"] or merged["sync_every"], merged
    )
    found = []
    for loss in losses:
        schedule.observe(loss)
        found.append((schedule.sync_every, schedule.wait_batches))
    return found


def test_the_plateau_rule():
    # The first loss improves on nothing; every third that does not improve is a plateau.
    flat = periods([1.0] * 16)
    assert flat == [(4, 1)] * 3 + [(2, 1)] * 3 + [(1, 1)] * 3 + [(4, 1)] * 3 + [(2, 1)] * 3 + [(1, 1)]
    eager = {"plateau_patience": 0, "sync_every": 8, "wait_batches": 4}
    assert periods([1.0] * 5, **eager)[1:] == [(4, 3), (2, 2), (1, 1), (8, 2)]
    assert set(periods([-(1.03**e) for e in range(9)])) == {(4, 1)}
    assert periods([float("nan")] * 6) == [(4, 1)] * 2 + [(2, 1)] * 3 + [(1, 1)]
    assert periods([1.0] * 11, max_sync_every=8)[9:] == [(8, 2)] * 2


# ------------------------------------------------------------------ LASGD


def test_lasgd_keeps_what_was_learnt_in_flight():
    """Snapshots 1 and 3, -0.5 and +0.25 in flight: 1.5 and 2.25."""

    def piece(rank: int, step: int) -> tuple[Array, Array]:
        return np.array([[0.0 if step == 0 else (0.5, -0.25)[rank]]]), np.zeros(1)

    times: dict[str, Any] = {"step_time": lambda rank, samples: 1, "round_time": 1}
    seen, _ = walk("lasgd", [1, 1], 2, model=Slope(), piece=piece, lr=1.0, start=[1, 3], **times)
    assert seen[1] == [1.0, 3.0]
    assert seen[3] == exactly([1.5, 2.25])


def test_lasgd_on_the_test_problem():
    """Sums of one step: (0, 4), (2, 2), (1, 4)."""
    times: dict[str, Any] = {"step_time": lambda rank, samples: 1, "round_time": 1}
    assert walk("lasgd", [1, 1], 3, **times)[0][1:6:2] == [[0, 4], [2, 2], [1, 4]]
