"""Sampler: cuts the order of an epoch into batches and pieces, each sample once, for any number of ranks.

The order of an epoch is drawn from (seed, epoch), and cut into global batches; each of these is cut into one
piece per rank, equal or in the ratio of shares. So the global batches depend neither on the number of ranks
(except for the tail, below) nor on shares, and all ranks take the same number of steps.

The tail, what remains after the last complete global batch, by `short_batch`:
  join   joined to the batch before it if it has fewer than 2 samples per rank (batch normalisation refuses a
         single sample), else a batch of its own; no sample is left out, no rank is without samples;
  keep   a batch of its own, in which ranks may have no sample;
  drop   left out.
Fewer samples than a global batch make one batch of all samples, except with `drop`.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from .stream_seeds import stream_seed


class Sampler:
    """Cuts `samples` indices into global batches and those into pieces, one per rank.

    samples: size of the training split; global_batch_size: samples per step over all ranks;
    seed: of the data order, already derived; piece_shift: rank r gets piece (r + piece_shift) % ranks;
    short_batch: what becomes of the tail.
    `left_out` samples of each epoch are in no batch.
    Raises ValueError if a rank could never get a sample, or all samples are left out.
    """

    def __init__(
        self,
        samples: int,
        global_batch_size: int,
        ranks: int,
        seed: int,
        piece_shift: int = 0,
        *,
        short_batch: str = "join",
    ) -> None:
        if ranks < 1:
            raise ValueError(f"ranks={ranks}: must be >= 1")
        if samples < ranks:
            raise ValueError(f"training samples={samples}: must be at least the number of ranks ({ranks})")
        self.samples = samples
        self.global_batch_size = global_batch_size
        self.ranks = ranks
        self.seed = seed
        self.piece_shift = piece_shift % ranks
        self.short_batch = short_batch
        full, tail = divmod(samples, global_batch_size)
        own_batch = {"join": tail >= 2 * ranks or full == 0, "keep": True, "drop": False}[short_batch]
        self.steps_per_epoch = full + (1 if tail and own_batch else 0)
        self.left_out = 0 if own_batch or short_batch == "join" else tail
        if self.steps_per_epoch == 0:
            raise ValueError(
                f"train.short_batch={short_batch}: leaves out all {samples} training samples, for they are "
                f"fewer than train.global_batch_size={global_batch_size}"
            )
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def sizes(self, batch: int) -> int:
        """Samples of global batch number `batch` (0-based) over all ranks."""
        if not 0 <= batch < self.steps_per_epoch:
            raise IndexError(f"batch {batch}: an epoch has {self.steps_per_epoch}")
        if batch == self.steps_per_epoch - 1:
            return self.samples - self.left_out - batch * self.global_batch_size
        return self.global_batch_size

    def samples_of_rank(
        self, batch: int, shares: Sequence[float] | None = None, minimum: int = 1
    ) -> tuple[int, ...]:
        """Samples each rank gets of global batch `batch`; length ranks, sums to `sizes(batch)`.

        shares: by rank, any scale; None means equal. Whole numbers that sum to a batch are its pieces; other
        batches are cut in their ratio by largest remainders. minimum: a piece of fewer samples, but not 0,
        goes to the largest piece (ties: the lower rank). With `short_batch` join every rank gets at least
        `minimum` wherever the batch has so many.
        """
        return self._cut_of(batch, shares, minimum)[0]

    def piece(
        self, epoch: int, batch: int, rank: int, shares: Sequence[float] | None = None, minimum: int = 1
    ) -> Tensor:
        """Indices int64 of the samples that `rank` uses in step `batch` of `epoch` (all 0-based)."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank}: there are {self.ranks}")
        of_rank, starts = self._cut_of(batch, shares, minimum)
        start = batch * self.global_batch_size + starts[rank]
        if epoch != self._epoch:
            self._order, self._epoch = _order(self.samples, self.seed, epoch), epoch
        return self._order[start : start + of_rank[rank]]

    def digest(self, batches: int) -> str:
        """Digest of the samples of the first `batches` global batches, whatever their ranks."""
        seen = hashlib.blake2b(digest_size=8)
        for epoch in range(-(-batches // self.steps_per_epoch)):
            order = _order(self.samples, self.seed, epoch)
            for batch in range(min(self.steps_per_epoch, batches - epoch * self.steps_per_epoch)):
                start = batch * self.global_batch_size
                seen.update(order[start : start + self.sizes(batch)].numpy().tobytes())
        return seen.hexdigest()

    def _cut_of(self, batch: int, shares: Sequence[float] | None, minimum: int) -> "Cut":
        size = self.sizes(batch)
        by_rank = None if shares is None else tuple(shares)
        all_get = self.short_batch == "join" and minimum * self.ranks <= size
        return _cut(size, self.ranks, self.piece_shift, by_rank, minimum, minimum if all_get else 0)


Cut = tuple[tuple[int, ...], tuple[int, ...]]
"""The pieces of a global batch: number of samples and first place in the batch, by rank."""


@lru_cache(maxsize=256)  # an epoch has batches of two sizes, and ranks may share a process (virtual time)
def _cut(
    size: int, ranks: int, shift: int, shares: tuple[float, ...] | None, minimum: int, least: int
) -> Cut:
    """See `Cut`. size: of the batch; rank r gets piece (r + shift) % ranks; least: the minimum of `split`."""
    by_rank = (1.0,) * ranks if shares is None else shares
    if len(by_rank) != ranks:
        raise ValueError(f"{len(by_rank)} shares: must be one for each of {ranks} ranks")
    by_piece = by_rank[ranks - shift :] + by_rank[: ranks - shift]
    pieces = without_crumbs(split(size, by_piece, minimum=least), minimum)
    starts = tuple(accumulate(pieces, initial=0))[:-1]
    return pieces[shift:] + pieces[:shift], starts[shift:] + starts[:shift]


_orders: WeakValueDictionary[tuple[int, int, int], Tensor] = WeakValueDictionary()


def _order(samples: int, seed: int, epoch: int) -> Tensor:
    key = (samples, seed, epoch)
    order = _orders.get(key)
    if order is None:
        generator = torch.Generator().manual_seed(stream_seed(seed, "data-order", epoch))
        order = _orders[key] = torch.randperm(samples, generator=generator)
    return order


def evaluation_indices(samples: int, rank: int, ranks: int) -> Tensor:
    """Indices int64 of the samples that `rank` evaluates: a contiguous run, each sample on exactly one rank.

    Empty for some ranks when there are fewer samples than ranks.
    """
    return torch.arange(samples * rank // ranks, samples * (rank + 1) // ranks)


@lru_cache(maxsize=1024)  # strategies call it every step, with the same few arguments
def split(size: int, shares: tuple[float, ...], *, minimum: int = 0) -> tuple[int, ...]:
    """Whole numbers >= minimum in proportion to `shares` that sum to `size`: the largest-remainder method.

    Ties go to the lower position. A larger share never gets a smaller number (shares that differ by less than
    1e-9 of `size` are a tie). Raises ValueError if a share is negative or not finite, all shares are zero, or
    the minima alone exceed `size`.
    """
    if not shares or not all(math.isfinite(share) and share >= 0 for share in shares) or sum(shares) <= 0:
        raise ValueError(f"shares={shares}: must be finite, >= 0 and not all zero")
    if minimum * len(shares) > size:
        raise ValueError(f"size={size}: {len(shares)} parts of at least {minimum} cannot sum to it")
    # Rounded, for 2.9999999999 is 3 and remainders that differ by less are a tie.
    wanted = [round(value, 9) for value in _water_fill(size, shares, minimum)]
    numbers = [math.floor(value) for value in wanted]
    by_remainder = sorted(range(len(shares)), key=lambda i: (round(numbers[i] - wanted[i], 9), i))
    for i in by_remainder[: size - sum(numbers)]:
        numbers[i] += 1
    return tuple(numbers)


def _water_fill(size: int, shares: tuple[float, ...], minimum: int) -> list[float]:
    """Real numbers max(scale · share, minimum) that sum to `size`.

    Divide the rest among the free positions, fix those below the minimum, repeat.
    """
    values = [float(minimum)] * len(shares)
    free = list(range(len(shares)))
    while free:
        left = size - minimum * (len(shares) - len(free))
        total = sum(shares[i] for i in free)
        for i in free:
            values[i] = left * (shares[i] / total) if total > 0 else left / len(free)
        short = [i for i in free if values[i] < minimum]
        if not short:
            break
        for i in short:
            values[i] = float(minimum)
        free = [i for i in free if i not in set(short)]
    return values


def without_crumbs(pieces: tuple[int, ...], minimum: int) -> tuple[int, ...]:
    """Pieces of fewer than `minimum` samples, but not 0, added to the largest piece (the first of equals)."""
    if all(piece >= minimum for piece in pieces):
        return pieces
    kept = [piece if piece >= minimum else 0 for piece in pieces]
    kept[pieces.index(max(pieces))] += sum(pieces) - sum(kept)
    return tuple(kept)
