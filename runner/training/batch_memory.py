"""How a batch gets from a loader's worker process to its rank: as bytes, through memory that both have.

Handing over float32 through memory made for each batch takes a third as long as making it from photographs.
Masks go as bytes too, and become int64 at the rank.
The rank says with each request which slot is free, and normalises out of the slot into memory of its own:

    rank:   "batch 7, slot 2" · · · recv, normalise slot 2, slot 2 is free · "batch 12, slot 2"
    worker: recv, fill slot 2, "batch 7 is in slot 2" · · ·
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

MARGIN = 2  # samples by which the last batch of an epoch may be longer than the others


class BatchMemory:
    """`slots` places for batches of `samples` samples of `sample_bytes`, shared from the start."""

    def __init__(self, slots: int, samples: int, sample_bytes: int) -> None:
        self._content = torch.empty(slots, (samples + MARGIN) * sample_bytes, dtype=torch.uint8)
        self._content.share_memory_()
        self.free: list[int] = []
        self.all_free()

    def all_free(self) -> None:
        """Nothing that was asked for is still to come."""
        self.free = list(range(len(self._content)))

    def put(self, slot: int, parts: Sequence[Tensor]) -> bool:
        """Whether the tensors uint8 had room, all of them, and so are there."""
        if sum(part.numel() for part in parts) > self._content.shape[1]:
            return False
        for room, part in zip(self.get(slot, [part.shape for part in parts]), parts, strict=True):
            room.copy_(part)
        return True

    def get(self, slot: int, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """The tensors of these shapes in a slot, until it is filled again."""
        ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
        places = zip(pairwise(ends), shapes, strict=True)
        return [self._content[slot, start:end].view(shape) for (start, end), shape in places]


class Unfinished:
    """A batch uint8 on its way, which becomes one float32, with targets int64, at its rank.

    Images, and masks uint8, are left in `slot` of `memory`; where they have no room they travel along.
    """

    def __init__(
        self,
        pixels: Tensor,
        targets: Tensor,
        normalise: Callable[[Tensor], Tensor],
        memory: BatchMemory,
        slot: int,
    ) -> None:
        large, masks = [pixels], targets.dtype == torch.uint8
        if masks:
            large.append(targets)
        # A tensor on its way is an open file, which costs more than the bytes of labels.
        self._labels = None if masks else targets.numpy()
        self._shapes = [part.shape for part in large]
        self._large = None if memory.put(slot, large) else large
        self._normalise, self._slot = normalise, slot

    def finished(self, memory: BatchMemory) -> tuple[Tensor, Tensor]:
        """The batch; its slot may be filled again."""
        pixels, *masks = memory.get(self._slot, self._shapes) if self._large is None else self._large
        targets = masks[0] if self._labels is None else torch.as_tensor(self._labels)
        return self._normalise(pixels), targets.to(torch.int64)
