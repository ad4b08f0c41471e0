"""How a batch gets from a loader's worker process to its rank: as bytes, through memory that both have.

Handing over float32 through memory made for each batch takes a third as long as making it from photographs.
The rank says with each request which slot is free, and normalises out of the slot into memory of its own:

    rank:   "batch 7, slot 2" · · · recv, normalise slot 2, slot 2 is free · "batch 12, slot 2"
    worker: recv, fill slot 2, "batch 7 is in slot 2" · · ·
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

FEW_BYTES = 2**16
MARGIN = 2  # images by which the last batch of an epoch may be longer than the others


class BatchMemory:
    """`slots` places for batches of `images` images uint8 of `shape` [C, H, W], shared from the start."""

    def __init__(self, slots: int, images: int, shape: tuple[int, ...]) -> None:
        self._content = torch.empty(slots, (images + MARGIN) * math.prod(shape), dtype=torch.uint8)
        self._content.share_memory_()
        self.free: list[int] = []
        self.all_free()

    def all_free(self) -> None:
        """Nothing that was asked for is still to come."""
        self.free = list(range(len(self._content)))

    def put(self, slot: int, pixels: Tensor) -> bool:
        """Whether the images had room, and so are there."""
        room = self._content[slot]
        if pixels.numel() > len(room):
            return False
        room[: pixels.numel()].view(pixels.shape).copy_(pixels)
        return True

    def get(self, slot: int, shape: torch.Size) -> Tensor:
        """The images in a slot, until it is filled again."""
        return self._content[slot, : math.prod(shape)].view(shape)


class Unfinished:
    """A batch uint8 on its way, which becomes one float32 at its rank.

    slot: where its images are; None where they had no room, and travel by themselves.
    """

    def __init__(
        self, pixels: Tensor, targets: Tensor, normalise: Callable[[Tensor], Tensor], slot: int | None
    ) -> None:
        self._shape, self._pixels = pixels.shape, pixels if slot is None else None
        # A tensor on its way is an open file, which costs more than the bytes of a few labels.
        self._targets = targets.numpy() if targets.nbytes <= FEW_BYTES else targets
        self._normalise, self._slot = normalise, slot

    def finished(self, memory: BatchMemory) -> tuple[Tensor, Tensor]:
        """The batch; its slot may be filled again."""
        pixels = self._pixels if self._slot is None else memory.get(self._slot, self._shape)
        assert pixels is not None, "images are in a slot or here"
        return self._normalise(pixels), torch.as_tensor(self._targets)
