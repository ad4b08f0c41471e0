"""Which samples each rank sees in each step: every sample once per epoch, for any number of ranks.

Order of work: the epoch's order is drawn from (seed, epoch); it is cut into global batches; each
global batch is cut into one piece per rank. The global batches therefore do not depend on the number of ranks
(except for the tail, below) and all ranks take the same number of steps.

Tail: a last global batch with fewer than 2 samples per rank is joined to the batch before it, because batch
normalisation refuses a single sample. No sample is ever left out. Fewer samples than a global batch make one
batch of all samples.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


class Sampler:
    """Cuts `samples` indices into global batches and those into pieces, one per rank.

    samples: size of the training split; global_batch_size: samples per step over all ranks;
    seed: of the data order, already derived; piece_shift: rank r gets piece (r + piece_shift) % ranks.
    Raises ValueError when a rank could get no sample.
    """

    def __init__(
        self, samples: int, global_batch_size: int, ranks: int, seed: int, piece_shift: int = 0
    ) -> None:
        if ranks < 1:
            raise ValueError(f"ranks={ranks}: must be >= 1")
        if global_batch_size < ranks:
            raise ValueError(
                f"train.global_batch_size={global_batch_size}: must be at least the number of ranks ({ranks})"
            )
        if samples < ranks:
            raise ValueError(f"training samples={samples}: must be at least the number of ranks ({ranks})")
        self.samples = samples
        self.global_batch_size = global_batch_size
        self.ranks = ranks
        self.seed = seed
        self.piece_shift = piece_shift % ranks
        full, tail = divmod(samples, global_batch_size)
        tail_stands = tail >= 2 * ranks or full == 0
        self.steps_per_epoch = full + (1 if tail and tail_stands else 0)
        self.left_out = 0  # by the tail rule; recorded so that readers need not know the rule
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def sizes(self, batch: int) -> int:
        """Samples of global batch number `batch` (0-based) over all ranks."""
        if not 0 <= batch < self.steps_per_epoch:
            raise IndexError(f"batch {batch}: an epoch has {self.steps_per_epoch}")
        if batch == self.steps_per_epoch - 1:
            return self.samples - batch * self.global_batch_size
        return self.global_batch_size

    def samples_of_rank(self, batch: int, shares: Sequence[float] | None = None) -> tuple[int, ...]:
        """Samples each rank gets of global batch `batch`; length ranks, sums to `sizes(batch)`.

        shares: real shares by rank, any scale; None means equal. Every rank gets at least one sample
        whatever its share, for no rank may skip a step.
        """
        pieces = self._pieces(batch, shares)
        return tuple(pieces[(rank + self.piece_shift) % self.ranks] for rank in range(self.ranks))

    def piece(self, epoch: int, batch: int, rank: int, shares: Sequence[float] | None = None) -> Tensor:
        """Indices int64 of the samples that `rank` uses in step `batch` of `epoch` (all 0-based)."""
        if not 0 <= rank < self.ranks:
            raise IndexError(f"rank {rank}: there are {self.ranks}")
        pieces = self._pieces(batch, shares)
        number = (rank + self.piece_shift) % self.ranks
        start = batch * self.global_batch_size + sum(pieces[:number])
        return self._order_of(epoch)[start : start + pieces[number]]

    def _pieces(self, batch: int, shares: Sequence[float] | None) -> tuple[int, ...]:
        by_rank = (1.0,) * self.ranks if shares is None else tuple(shares)
        if len(by_rank) != self.ranks:
            raise ValueError(f"{len(by_rank)} shares: must be one for each of {self.ranks} ranks")
        shift = self.piece_shift
        by_piece = by_rank[-shift:] + by_rank[:-shift] if shift else by_rank
        return split(self.sizes(batch), by_piece, minimum=1)

    def _order_of(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(stream_seed(self.seed, "data-order", epoch))
            self._order = torch.randperm(self.samples, generator=generator)
            self._epoch = epoch
        return self._order


def stream_seed(seed: int, *names: str | int) -> int:
    """Seed of the random stream called `names`: 63 bits of BLAKE2b, the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def evaluation_indices(samples: int, rank: int, ranks: int) -> Tensor:
    """Indices int64 of the samples that `rank` evaluates: a contiguous run, each sample on exactly one rank.

    Empty for some ranks when there are fewer samples than ranks.
    """
    return torch.arange(samples * rank // ranks, samples * (rank + 1) // ranks)


@lru_cache(maxsize=1024)  # the train loop asks every step, with the same few arguments
def split(
    size: int,
    shares: tuple[float, ...],
    *,
    minimum: int = 0,
    maximum: int | None = None,
    quantum: int = 1,
) -> tuple[int, ...]:
    """Whole numbers in proportion to `shares` that sum to `size`: the largest-remainder method.

    Each number lies in [minimum, maximum] and is a multiple of quantum, except that what `size` has beyond a
    multiple of quantum goes to one of the largest numbers with room. Ties go to the lower position.
    A larger share never gets a smaller number (shares that differ by less than 1e-9 of `size` are a tie).
    Raises ValueError when a bound is no multiple of quantum, a share is negative or not finite, all shares
    are zero, or no split respects the bounds.
    """
    _check_split(size, shares, minimum, maximum, quantum)
    low = minimum // quantum
    units, rest = divmod(size, quantum)
    high = units if maximum is None else maximum // quantum
    # Rounded, for 2.9999999999 is 3 and remainders that differ by less are a tie.
    wanted = [round(value, 9) for value in _water_fill(units, shares, low, high)]
    numbers = [math.floor(value) for value in wanted]
    by_remainder = sorted(range(len(shares)), key=lambda i: (round(numbers[i] - wanted[i], 9), i))
    # Only positions below their bound have a remainder, and they are more than the units left over.
    for i in by_remainder[: units - sum(numbers)]:
        numbers[i] += 1
    numbers = [number * quantum for number in numbers]
    if rest:
        roomy = [i for i in range(len(shares)) if maximum is None or numbers[i] < maximum]
        numbers[max(roomy, key=lambda i: (numbers[i], shares[i], -i))] += rest
    return tuple(numbers)


def _check_split(
    size: int, shares: tuple[float, ...], minimum: int, maximum: int | None, quantum: int
) -> None:
    if not shares or not all(math.isfinite(share) and share >= 0 for share in shares) or sum(shares) <= 0:
        raise ValueError(f"shares={shares}: must be finite, >= 0 and not all zero")
    if quantum < 1 or minimum < 0 or minimum % quantum or (maximum or 0) % quantum:
        raise ValueError(f"minimum={minimum}, maximum={maximum}: must be multiples >= 0 of quantum={quantum}")
    fits = minimum * len(shares) <= size and (maximum is None or size <= maximum * len(shares))
    if not fits or (maximum is not None and maximum < minimum):
        raise ValueError(f"size={size}: {len(shares)} parts between {minimum} and {maximum} cannot sum to it")


def _water_fill(units: int, shares: tuple[float, ...], low: int, high: int) -> list[float]:
    """Real numbers clamp(scale · share, low, high) that sum to `units`.

    As flexible boxes are laid out (W3C, CSS Flexible Box Layout 1, section 9.7): divide what is left among
    the free positions, fix those beyond the bound that is broken more in total, repeat.
    """
    values = [0.0] * len(shares)
    free = list(range(len(shares)))
    while free:
        left = units - sum(values[i] for i in range(len(shares)) if i not in set(free))
        total = sum(shares[i] for i in free)
        for i in free:
            values[i] = left * (shares[i] / total) if total > 0 else left / len(free)
        clamped = {i: min(high, max(low, values[i])) for i in free}
        violation = sum(clamped[i] - values[i] for i in free)
        fixed = [
            i
            for i in free
            if (violation >= 0 and clamped[i] > values[i]) or (violation <= 0 and clamped[i] < values[i])
        ]
        for i in fixed:
            values[i] = float(clamped[i])
        if not fixed:
            break
        free = [i for i in free if i not in set(fixed)]
    return values
