"""The exact sampler: every sample once per epoch, equal steps, the same global batches on any ranks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.sampler import Sampler, evaluation_indices, split
from daso_bench.datasets.stream_seeds import stream_seed

Drawn = tuple[Sampler, tuple[float, ...] | None, int]
"""A sampler, shares of a full batch, and the smallest piece of a short one."""


@st.composite
def joining(draw: st.DrawFn) -> Drawn:
    """Samplers whose short batch joins the one before."""
    ranks = draw(st.integers(1, 8))
    sampler = Sampler(
        samples=draw(st.integers(ranks, 300)),
        global_batch_size=draw(st.integers(ranks, 80)),
        ranks=ranks,
        seed=draw(st.integers(0, 2**63 - 1)),
        piece_shift=draw(st.integers(0, 20)),
    )
    shares = st.none() | st.lists(st.floats(0.01, 50), min_size=ranks, max_size=ranks).map(tuple)
    return sampler, draw(shares), 1


@st.composite
def keeping(draw: st.DrawFn) -> Drawn:
    """Samplers that keep their short batch; the shares are whole numbers of samples."""
    ranks, minimum = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    shares = tuple(draw(st.lists(st.integers(minimum, 40), min_size=ranks, max_size=ranks)))
    samples = draw(st.integers(ranks, 300))
    return Sampler(samples, sum(shares), ranks, 5, short_batch="keep"), shares, minimum


def epoch_of(
    sampler: Sampler, epoch: int, shares: tuple[float, ...] | None = None, minimum: int = 1
) -> list[list[list[int]]]:
    """Indices by step and rank."""
    return [
        [sampler.piece(epoch, batch, rank, shares, minimum).tolist() for rank in range(sampler.ranks)]
        for batch in range(sampler.steps_per_epoch)
    ]


@given(joining() | keeping(), st.integers(0, 5))
def test_an_epoch_uses_every_sample_once_and_no_piece_is_too_small(drawn: Drawn, epoch: int) -> None:
    sampler, shares, minimum = drawn
    steps = epoch_of(sampler, epoch, shares, minimum)
    assert sorted(index for step in steps for piece in step for index in piece) == list(
        range(sampler.samples)
    )
    assert sampler.left_out == 0
    for batch, step in enumerate(steps):
        sizes = sampler.samples_of_rank(batch, shares, minimum)
        assert [len(piece) for piece in step] == list(sizes)
        assert sum(sizes) == sampler.sizes(batch)
        if sampler.short_batch == "join":
            assert min(sizes) >= 1
        else:
            assert all(size == 0 or size >= min(minimum, sum(sizes)) for size in sizes)
            assert sum(sizes) < sampler.global_batch_size or sizes == shares
    if sampler.short_batch == "keep":
        assert len(steps) == -(-sampler.samples // sampler.global_batch_size)


@given(joining())
def test_only_the_last_batch_differs_in_size_and_leaves_no_rank_with_one_sample(drawn: Drawn) -> None:
    sampler = drawn[0]
    sizes = [sampler.sizes(batch) for batch in range(sampler.steps_per_epoch)]
    assert all(size == sampler.global_batch_size for size in sizes[:-1])
    assert sizes[-1] < sampler.global_batch_size + 2 * sampler.ranks
    if len(sizes) > 1 and sizes[-1] != sampler.global_batch_size:
        two_each = sampler.global_batch_size >= 2 * sampler.ranks
        assert min(sampler.samples_of_rank(len(sizes) - 1)) >= (2 if two_each else 1)


@given(st.integers(1, 300), st.integers(1, 80), st.integers(0, 99), st.integers(1, 8), st.integers(0, 20))
def test_global_batches_do_not_depend_on_ranks_shares_or_shift(
    samples: int, batch_size: int, seed: int, ranks: int, shift: int
) -> None:
    samples, batch_size = max(samples, ranks), max(batch_size, ranks)
    alone = Sampler(samples, batch_size, 1, seed)
    many = Sampler(samples, batch_size, ranks, seed, piece_shift=shift)
    shares = tuple(float(1 + rank) for rank in range(ranks))
    tail = samples % batch_size
    common = samples // batch_size - 1 if 0 < tail < 2 * ranks else many.steps_per_epoch
    for batch in range(max(0, common)):
        whole = alone.piece(3, batch, 0).tolist()
        pieces = [many.piece(3, batch, rank, shares).tolist() for rank in range(ranks)]
        assert sorted(index for piece in pieces for index in piece) == sorted(whole)
        assert many.sizes(batch) == len(whole)


def test_the_order_is_pinned_and_another_one_in_each_epoch_and_for_each_seed() -> None:
    """Changing the order changes every recorded run: only with a new schema version."""
    orders = []
    for sampler in (Sampler(8, 8, 1, seed) for seed in (7, 8)):
        orders += [sampler.piece(epoch, 0, 0).tolist() for epoch in (1, 0)]  # 1 first, as after a resume
    assert orders[1] == [7, 0, 1, 4, 3, 2, 5, 6]
    assert len({tuple(order) for order in orders}) == 4
    assert stream_seed(0, "data-order", 0) == 4_987_831_230_155_830_758


@given(st.integers(0, 200), st.integers(1, 20))
def test_evaluation_covers_every_sample_once(samples: int, ranks: int) -> None:
    pieces = [evaluation_indices(samples, rank, ranks) for rank in range(ranks)]
    assert torch.cat(pieces).tolist() == list(range(samples))
    lengths = [len(piece) for piece in pieces]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("arguments", "shares", "pieces"),
    [
        ((33, 32, 2), None, [(17, 16)]),  # the odd sample would be a batch of one
        ((35, 32, 2), None, [(18, 17)]),
        ((36, 32, 2), None, [(16, 16), (2, 2)]),
        ((5, 64, 4), None, [(2, 1, 1, 1)]),  # fewer samples than a batch
        ((12, 4, 4), None, [(1, 1, 1, 1)] * 3),  # one per rank is the user's choice
        ((100, 40, 2), (32, 8), [(32, 8), (32, 8), (16, 4)]),
        ((40, 40, 2), (1.0, 0.0), [(39, 1)]),  # a tiny share still takes part
        ((524, 512, 3), (236, 236, 40), [(236, 236, 40), (6, 5, 1)]),
    ],
)
def test_joined_batches_by_hand(
    arguments: tuple[int, int, int], shares: tuple[float, ...] | None, pieces: list[tuple[int, ...]]
) -> None:
    sampler = Sampler(*arguments, 0)
    batches = range(sampler.steps_per_epoch)
    assert [sampler.samples_of_rank(batch, shares) for batch in batches] == pieces


def test_a_shift_moves_whole_pieces_between_ranks() -> None:
    plain, shifted = Sampler(10, 10, 4, 3), Sampler(10, 10, 4, 3, piece_shift=1)
    for rank in range(4):
        assert torch.equal(shifted.piece(0, 0, rank), plain.piece(0, 0, (rank + 1) % 4))
    assert shifted.samples_of_rank(0) == (3, 2, 2, 3)
    assert shifted.samples_of_rank(0, (7, 1, 1, 1)) == (7, 1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "keys", "message"),
    [
        ((3, 16, 4), {}, r"training samples=3: must be at least the number of ranks \(4\)$"),
        ((3, 16, 0), {}, r"ranks=0: must be >= 1$"),
        ((5, 64, 4), {"short_batch": "drop"}, "train.short_batch=drop: leaves out all 5 training"),
    ],
)
def test_impossible_samplers_are_refused(
    arguments: tuple[int, int, int], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Sampler(*arguments, 0, **keys)


@given(keeping())
def test_kept_global_batches_do_not_depend_on_shares(drawn: Drawn) -> None:
    sampler, shares, minimum = drawn
    assert shares is not None
    alone = Sampler(sampler.samples, sampler.global_batch_size, 1, 5, short_batch="keep")
    assert alone.steps_per_epoch == sampler.steps_per_epoch
    for batch in range(sampler.steps_per_epoch):
        for given_shares in (None, shares, tuple(1 + (7 * share) % 5 for share in shares)):
            pieces = [sampler.piece(2, batch, rank, given_shares, minimum) for rank in range(sampler.ranks)]
            assert torch.equal(torch.cat(pieces), alone.piece(2, batch, 0))


@pytest.mark.parametrize(
    ("samples", "minimum", "last"),
    [
        (100, 1, (16, 4)),
        (101, 1, (17, 4)),
        (83, 1, (2, 1)),
        (83, 2, (3, 0)),
        (81, 1, (1, 0)),
        (120, 1, (32, 8)),
    ],
)
def test_short_batches_by_hand(samples: int, minimum: int, last: tuple[int, int]) -> None:
    sampler = Sampler(samples, 40, 2, 0, short_batch="keep")
    sizes = [sampler.samples_of_rank(batch, (32, 8), minimum) for batch in range(sampler.steps_per_epoch)]
    assert sizes == [(32, 8), (32, 8), last]
    dropped = Sampler(samples, 40, 2, 0, short_batch="drop")
    assert (sampler.left_out, dropped.left_out, dropped.sizes(1)) == (0, samples % 40, 40)


@pytest.mark.parametrize(
    ("samples", "shares", "minimum", "last"),
    [
        (44, (10, 10, 10, 10), 2, (4, 0, 0, 0)),  # all pieces are too small: together they are not
        (49, (20, 15, 5), 3, (6, 3, 0)),  # of 4.5, 3.375, 1.125: (5, 3, 1)
        (47, (8, 16, 16), 2, (0, 4, 3)),  # 1.4, 2.8, 2.8: the lower of the two largest gets it
    ],
)
def test_small_pieces_go_to_the_largest(samples, shares, minimum, last) -> None:
    sampler = Sampler(samples, 40, len(shares), 0, short_batch="keep")
    assert sampler.samples_of_rank(1, shares, minimum) == last


def test_a_joined_short_batch_leaves_no_rank_without_samples() -> None:
    sampler = Sampler(524, 512, 3, 0)
    assert [sampler.samples_of_rank(1, (236, 236, 40), minimum) for minimum in (1, 2, 4)] == [
        (6, 5, 1),
        (5, 5, 2),
        (4, 4, 4),
    ]
    # Fewer than that for each: small pieces go to the largest, as elsewhere.
    assert sampler.samples_of_rank(1, (236, 236, 40), 5) == (7, 5, 0)


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any),
    st.integers(0, 40),
    st.integers(0, 500),
)
def test_a_split_sums_exactly_and_follows_the_shares(shares: list[int], minimum: int, extra: int) -> None:
    size = minimum * len(shares) + extra
    numbers = split(size, tuple(shares), minimum=minimum)
    assert sum(numbers) == size
    assert min(numbers) >= minimum
    for share, number in zip(shares, numbers, strict=True):
        assert minimum or abs(number - size * share / sum(shares)) < 1 + 1e-6
        for other_share, other in zip(shares, numbers, strict=True):
            assert share <= other_share or number >= other


@pytest.mark.parametrize(
    ("size", "shares", "minimum", "numbers"),
    [
        (10, (1, 1, 1), 0, (4, 3, 3)),
        (2, (1, 3), 0, (1, 1)),  # a tie of remainders goes to the lower position, not to the larger share
        (100, (70, 25, 5), 0, (70, 25, 5)),
        (10, (98, 1, 1), 2, (6, 2, 2)),
        (6, (0.1, 0.1, 0.1), 0, (2, 2, 2)),
    ],
)
def test_splits_by_hand(size: int, shares: tuple[float, ...], minimum: int, numbers: tuple[int, ...]) -> None:
    assert split(size, shares, minimum=minimum) == numbers


@pytest.mark.parametrize(
    ("shares", "minimum"),
    [
        ((), 0),
        ((0.0, 0.0), 0),
        ((1.0, float("nan")), 0),
        ((1.0, float("inf")), 0),
        ((2.0, -1.0), 0),
        ((1.0, 1.0), 3),
    ],
    ids=["none", "zero", "nan", "inf", "negative", "too few samples"],
)
def test_impossible_splits_are_refused(shares: tuple[float, ...], minimum: int) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot"):
        split(5, shares, minimum=minimum)
