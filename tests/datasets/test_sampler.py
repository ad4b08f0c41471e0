"""The exact sampler: every sample once per epoch, equal steps, the same global batches on any ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daso_bench.datasets.sampler import Sampler, evaluation_indices, split, stream_seed


@st.composite
def samplers(draw: st.DrawFn) -> tuple[Sampler, tuple[float, ...] | None]:
    ranks = draw(st.integers(1, 8))
    sampler = Sampler(
        samples=draw(st.integers(ranks, 300)),
        global_batch_size=draw(st.integers(ranks, 80)),
        ranks=ranks,
        seed=draw(st.integers(0, 2**63 - 1)),
        piece_shift=draw(st.integers(0, 20)),
    )
    equal = draw(st.booleans())
    shares = None if equal else tuple(draw(st.lists(st.floats(0.01, 50), min_size=ranks, max_size=ranks)))
    return sampler, shares


def epoch_of(sampler: Sampler, epoch: int, shares: tuple[float, ...] | None = None) -> list[list[list[int]]]:
    """Indices by step and rank."""
    return [
        [sampler.piece(epoch, batch, rank, shares).tolist() for rank in range(sampler.ranks)]
        for batch in range(sampler.steps_per_epoch)
    ]


@given(samplers(), st.integers(0, 5))
def test_an_epoch_uses_every_sample_exactly_once(
    drawn: tuple[Sampler, tuple[float, ...] | None], epoch: int
) -> None:
    sampler, shares = drawn
    steps = epoch_of(sampler, epoch, shares)
    used = [index for step in steps for piece in step for index in piece]
    assert sorted(used) == list(range(sampler.samples))
    assert sampler.left_out == 0


@given(samplers())
def test_every_rank_has_samples_in_every_step_and_the_sizes_agree(
    drawn: tuple[Sampler, tuple[float, ...] | None],
) -> None:
    sampler, shares = drawn
    for batch, step in enumerate(epoch_of(sampler, 0, shares)):
        sizes = sampler.samples_of_rank(batch, shares)
        assert [len(piece) for piece in step] == list(sizes)
        assert sum(sizes) == sampler.sizes(batch)
        assert min(sizes) >= 1


@given(samplers())
def test_only_the_last_batch_differs_in_size_and_leaves_no_rank_with_one_sample(
    drawn: tuple[Sampler, tuple[float, ...] | None],
) -> None:
    sampler, _ = drawn
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


def test_each_epoch_and_seed_has_its_own_order_and_it_is_reproducible() -> None:
    """A16: 8 samples on 2 ranks."""
    first, again, other = Sampler(8, 4, 2, 7), Sampler(8, 4, 2, 7), Sampler(8, 4, 2, 8)
    zero, one = epoch_of(first, 0), epoch_of(first, 1)
    assert zero != one
    assert epoch_of(again, 1) == one  # epoch 1 first, as after a resume
    assert epoch_of(first, 0) == zero
    assert epoch_of(other, 0) != zero
    for steps in (zero, one):
        assert sorted(index for step in steps for piece in step for index in piece) == list(range(8))


def test_the_order_is_pinned() -> None:
    """Changing the order changes every recorded run: only with a new schema version."""
    assert Sampler(8, 8, 1, 7).piece(0, 0, 0).tolist() == [7, 0, 1, 4, 3, 2, 5, 6]
    assert stream_seed(0, "data-order", 0) == 4_987_831_230_155_830_758


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_seven_samples_are_each_evaluated_once(ranks: int) -> None:
    """A15: a model right only on sample 0 scores 1/7, not 2/8."""
    pieces = [evaluation_indices(7, rank, ranks) for rank in range(ranks)]
    hits = sum(int((piece == 0).sum()) for piece in pieces)
    assert hits / sum(len(piece) for piece in pieces) == 1 / 7


@given(st.integers(0, 200), st.integers(1, 20))
def test_evaluation_covers_every_sample_once(samples: int, ranks: int) -> None:
    pieces = [evaluation_indices(samples, rank, ranks) for rank in range(ranks)]
    assert torch.cat(pieces).tolist() == list(range(samples))
    lengths = [len(piece) for piece in pieces]
    assert max(lengths) - min(lengths) <= 1


def test_a_tail_too_small_is_joined_to_the_batch_before_it() -> None:
    """A17: 33 images, 2 ranks of 16; the odd image would be a batch of one."""
    sampler = Sampler(33, 32, 2, 0)
    assert sampler.steps_per_epoch == 1
    assert sampler.samples_of_rank(0) == (17, 16)
    assert Sampler(35, 32, 2, 0).steps_per_epoch == 1
    assert [Sampler(36, 32, 2, 0).sizes(batch) for batch in range(2)] == [32, 4]


def test_fewer_samples_than_a_global_batch_are_one_batch() -> None:
    sampler = Sampler(5, 64, 4, 0)
    assert sampler.steps_per_epoch == 1
    assert sampler.samples_of_rank(0) == (2, 1, 1, 1)


def test_a_batch_of_one_per_rank_is_the_users_choice_and_keeps_its_size() -> None:
    sampler = Sampler(12, 4, 4, 0)
    assert [sampler.samples_of_rank(batch) for batch in range(3)] == [(1, 1, 1, 1)] * 3


def test_unequal_shares_keep_the_steps_equal() -> None:
    """A22: 100 samples, batches of 32 and 8."""
    sampler = Sampler(100, 40, 2, 0)
    assert [sampler.samples_of_rank(batch, (32, 8)) for batch in range(3)] == [(32, 8), (32, 8), (16, 4)]


def test_a_tiny_share_still_takes_part() -> None:
    assert Sampler(100, 40, 2, 0).samples_of_rank(0, (1.0, 0.0)) == (39, 1)


def test_a_shift_moves_whole_pieces_between_ranks() -> None:
    plain, shifted = Sampler(10, 10, 4, 3), Sampler(10, 10, 4, 3, piece_shift=1)
    for rank in range(4):
        assert torch.equal(shifted.piece(0, 0, rank), plain.piece(0, 0, (rank + 1) % 4))
    assert shifted.samples_of_rank(0) == (3, 2, 2, 3)
    assert shifted.samples_of_rank(0, (7, 1, 1, 1)) == (7, 1, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, 2, 4, 0), r"train\.global_batch_size=2: must be at least the number of ranks \(4\)"),
        ((3, 16, 4, 0), r"training samples=3: must be at least the number of ranks \(4\)"),
        ((3, 16, 0, 0), r"ranks=0: must be >= 1"),
    ],
)
def test_impossible_splits_are_refused(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Sampler(*arguments)


def test_wrong_positions_are_refused() -> None:
    sampler = Sampler(10, 5, 2, 0)
    with pytest.raises(IndexError, match="batch 2"):
        sampler.piece(0, 2, 0)
    with pytest.raises(IndexError, match="rank 2"):
        sampler.piece(0, 0, 2)
    with pytest.raises(ValueError, match="3 shares"):
        sampler.samples_of_rank(0, (1, 1, 1))


@st.composite
def splits(draw: st.DrawFn) -> tuple[int, tuple[int, ...], int, int | None, int]:
    shares = tuple(draw(st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any)))
    quantum = draw(st.integers(1, 8))
    minimum = quantum * draw(st.integers(0, 5))
    maximum = draw(st.none() | st.integers(0, 20).map(lambda extra: minimum + quantum * extra))
    high = 500 if maximum is None else maximum * len(shares)
    size = draw(st.integers(minimum * len(shares), max(high, minimum * len(shares))))
    return size, shares, minimum, maximum, quantum


@given(splits())
def test_a_split_sums_exactly_respects_bounds_and_follows_the_shares(
    drawn: tuple[int, tuple[int, ...], int, int | None, int],
) -> None:
    size, shares, minimum, maximum, quantum = drawn
    numbers = split(size, shares, minimum=minimum, maximum=maximum, quantum=quantum)
    assert sum(numbers) == size
    assert min(numbers) >= minimum
    assert maximum is None or max(numbers) <= maximum
    assert sum(number % quantum != 0 for number in numbers) <= (size % quantum != 0)
    for share, number in zip(shares, numbers, strict=True):
        for other_share, other in zip(shares, numbers, strict=True):
            assert share <= other_share or number >= other


@given(st.integers(0, 400), st.lists(st.integers(1, 100), min_size=1, max_size=12))
def test_without_bounds_every_number_is_within_one_of_its_quota(size: int, shares: list[int]) -> None:
    for share, number in zip(shares, split(size, tuple(shares)), strict=True):
        assert abs(number - size * share / sum(shares)) < 1 + 1e-6


@pytest.mark.parametrize(
    ("size", "shares", "bounds", "numbers"),
    [
        (10, (1, 1, 1), {}, (4, 3, 3)),
        (2, (1, 3), {}, (1, 1)),  # a tie of remainders goes to the lower position, not to the larger share
        (100, (70, 25, 5), {}, (70, 25, 5)),
        (512, (236, 236, 40), {"quantum": 8}, (240, 232, 40)),
        (20, (5, 1, 1), {"minimum": 4, "maximum": 8, "quantum": 4}, (8, 8, 4)),
        (21, (5, 1, 1), {"quantum": 4}, (13, 4, 4)),
        (10, (98, 1, 1), {"minimum": 2}, (6, 2, 2)),
        (6, (0.1, 0.1, 0.1), {}, (2, 2, 2)),
    ],
)
def test_splits_by_hand(
    size: int, shares: tuple[float, ...], bounds: dict[str, int], numbers: tuple[int, ...]
) -> None:
    assert split(size, shares, **bounds) == numbers


@pytest.mark.parametrize(
    ("size", "shares", "bounds"),
    [
        (5, (), {}),
        (5, (0.0, 0.0), {}),
        (5, (1.0, float("nan")), {}),
        (5, (1.0, float("inf")), {}),
        (5, (2.0, -1.0), {}),
        (5, (1.0, 1.0), {"minimum": 3}),
        (5, (1.0, 1.0), {"maximum": 2}),
        (5, (1.0, 1.0), {"minimum": 1, "maximum": 4, "quantum": 2}),
        (5, (1.0,), {"quantum": 0}),
    ],
)
def test_impossible_requests_are_refused(
    size: int, shares: tuple[float, ...], bounds: dict[str, int]
) -> None:
    with pytest.raises(ValueError, match=r"must be|cannot"):
        split(size, shares, **bounds)
