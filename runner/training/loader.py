"""Loaders: training batches of one rank, made in its process or ahead of time by worker processes.

Batches are the same either way: the batch order chooses the samples, and (seed, epoch, sample) determines how
each is augmented. Worker processes pause while training pauses (evaluations, checkpoints), so that no batch
is made outside of training time.
"""

import math
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ...datasets.data import Compact, Samples, training_batch
from ...datasets.packed.readers import Counters
from ...datasets.transforms import epoch_key
from ...strategies.progress import Progress
from ..machine.signals import die_with_parent
from .batch_order import BatchOrder, Place
from .callbacks import Callback

MARGIN = 2  # samples by which the last batch of an epoch may be longer than the others
_LOOK_S = 5.0  # how often a waiting worker looks whether its rank still lives

Images = tuple[Tensor, Tensor]
"""Inputs float32 [b, C, H, W], and targets of as many samples."""

Request = tuple[Place, int, int, NDArray[np.int64]]
"""To a worker: the place, the slot that is free for it, the key, and the samples [b]."""

NO_SLOT = -1


class BatchMemory:
    """Memory through which worker processes hand batches to their rank, as bytes, in `slots` slots.

    Handing over float32 in memory made for each batch takes a third as long as making it from photographs.
    Masks go as bytes too, and become int64 at the rank. With each request the rank names a free slot, and it
    normalises the batch out of the slot into memory of its own:

        rank:   "batch 7, slot 2" · · · recv, normalise slot 2, slot 2 is free · "batch 12, slot 2"
        worker: recv, fill slot 2, "batch 7 is in slot 2" · · ·

    A slot has room for `samples` samples of `sample_bytes`, and `MARGIN` more.
    """

    def __init__(self, slots: int, samples: int, sample_bytes: int) -> None:
        self._content = torch.empty(slots, (samples + MARGIN) * sample_bytes, dtype=torch.uint8)
        self._content.share_memory_()
        self.free: list[int] = []
        self.all_free()

    def all_free(self) -> None:
        """Mark all slots as free: no requested batch is still to come."""
        self.free = list(range(len(self._content)))

    def put(self, slot: int, parts: Sequence[Tensor]) -> bool:
        """Copy uint8 tensors into a slot; False, and nothing is copied, where they do not fit."""
        if sum(part.numel() for part in parts) > self._content.shape[1]:
            return False
        for room, part in zip(self.get(slot, [part.shape for part in parts]), parts, strict=True):
            room.copy_(part)
        return True

    def get(self, slot: int, shapes: Sequence[torch.Size]) -> list[Tensor]:
        """Views of the tensors of these shapes in a slot, valid until it is filled again."""
        ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
        places = zip(pairwise(ends), shapes, strict=True)
        return [self._content[slot, start:end].view(shape) for (start, end), shape in places]


class Unfinished:
    """A uint8 batch from a worker; the rank makes float32 inputs and int64 targets of it.

    Images and uint8 masks are put into `slot` of `memory`; where they do not fit they are pickled.
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
        # A pickled tensor is an open file, which costs more than the bytes of labels.
        self._labels = None if masks else targets.numpy()
        self._shapes = [part.shape for part in large]
        self._large = None if memory.put(slot, large) else large
        self._normalise, self._slot = normalise, slot

    def finished(self, memory: BatchMemory) -> tuple[Tensor, Tensor]:
        """Inputs float32 and targets int64; the slot may be filled again afterwards."""
        pixels, *masks = memory.get(self._slot, self._shapes) if self._large is None else self._large
        targets = masks[0] if self._labels is None else torch.as_tensor(self._labels)
        return self._normalise(pixels), targets.to(torch.int64)


class Loader(Callback, ABC):
    """Gives the batches of `batch_order`, one after the other. `seed`: derived, of the augmentation.

    `still_cached`: the share of the pages of a packed file that was in the page cache before training; None
    without such a file, where the system does not report it, and where another rank has measured it.
    `lacking`: the share that was not in the cache, or not out of it, as configured; worst of all attempts.
    """

    still_cached: float | None = None
    lacking: float = 0.0

    def __init__(self, samples: Samples, batch_order: BatchOrder, seed: int) -> None:
        self.samples, self.batch_order, self.seed = samples, batch_order, seed

    @abstractmethod
    def next(self, progress: Progress) -> Images:
        """The batch of the present step."""

    def restart(self) -> None:
        """Drop batches made ahead, because the position or the split of the batch order has changed."""

    def close(self) -> None:
        """End the loader and its processes."""

    def counters(self) -> Counters | None:
        """Counters of reading so far; None where no file is read in training."""
        return None


class Direct(Loader):
    """Makes each batch in the rank's own process, when it is asked for."""

    def next(self, progress: Progress) -> Images:
        key = epoch_key(self.seed, self.batch_order.place(progress)[0])
        return training_batch(self.samples, self.batch_order.piece(progress), key)


class Ahead(Loader):
    """Has `workers` processes make batches ahead of time, `prefetch` for each of them.

    `pin`: batches are in pinned memory, so that they can be copied to a GPU while it computes.
    """

    def __init__(
        self, samples: Samples, batch_order: BatchOrder, seed: int, *, workers: int, prefetch: int, pin: bool
    ) -> None:
        super().__init__(samples, batch_order, seed)
        # By default workers would be children of the fork server: the rank could not wait for them, and they
        # would not end with it.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._open = context.Event()
        self._upcoming, self._fetch = _Upcoming(batch_order, seed), _Fetch(samples, self._open, os.getpid())
        # One slot more than batches in flight: the next is requested before the present one leaves its slot.
        # Pinned batches must be float32 already when they arrive here.
        self._slots = 0 if pin else workers * prefetch + 1
        self._loader: DataLoader[Images] = DataLoader(
            self._fetch,
            sampler=self._upcoming,
            batch_size=None,  # an item is a batch,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent_workers=True,
            multiprocessing_context=context,
            pin_memory=pin,
            worker_init_fn=_Init(os.getpid()),
            # Each pass draws a number, which must not come from the rank's generator (dropout).
            generator=torch.Generator(),
        )
        self._batches: Iterator[tuple[Place, int, Images | Unfinished | Exception]] | None = None

    def next(self, progress: Progress) -> Images:
        if self._batches is None:
            self._upcoming.progress = progress
            self._share_memory()
            self._open.set()
            self._batches = iter(self._loader)  # pyright: ignore[reportAttributeAccessIssue] (batch_size=None)
        try:
            place, slot, batch = next(self._batches)
        except (OSError, EOFError) as error:  # a worker died while it sent
            raise RuntimeError(
                "a process that loads batches has ended (killed? out of memory?): launcher.loader_workers="
                f"{self._loader.num_workers}"
            ) from error
        if isinstance(batch, Exception):
            raise batch
        if tuple(place) != self.batch_order.place(
            progress
        ):  # PyTorch 2.9 makes lists of tuples where it pins
            raise RuntimeError(f"the loader is at {place}, the step at {self.batch_order.place(progress)}")
        if not isinstance(batch, Unfinished):
            inputs, targets = batch
            return inputs, targets
        memory = self._fetch.memory
        assert memory is not None, "the batch came through it"
        images = batch.finished(memory)
        memory.free.append(slot)
        return images

    def _share_memory(self) -> None:
        """Make the memory before the workers start: they inherit it."""
        samples = self.samples
        if self._fetch.memory is None and self._slots and isinstance(samples, Compact):
            count = len(self.batch_order.piece(progress=self._upcoming.now()))
            sample_bytes = math.prod(samples.shape) + samples.target_bytes
            self._fetch.memory = self._upcoming.memory = BatchMemory(self._slots, count, sample_bytes)

    def restart(self) -> None:
        self._batches = None

    def on_train_start(self) -> None:
        self._open.set()

    def on_pause(self) -> None:
        self._open.clear()

    def close(self) -> None:
        self._open.set()
        self._batches = None
        # The worker processes end with the iterator that they belong to.
        del self._loader


class _Upcoming(Sampler[Request]):
    """The requests for all batches from `progress` on."""

    def __init__(self, batch_order: BatchOrder, seed: int) -> None:
        self.batch_order, self.seed = batch_order, seed
        self.progress: Progress | None = None
        self.memory: BatchMemory | None = None

    def now(self) -> Progress:
        """The present progress of training."""
        assert self.progress is not None, "the loader sets it first"
        return self.progress

    def __iter__(self) -> Iterator[Request]:
        memory = self.memory
        if memory is not None:
            memory.all_free()  # the workers have finished all earlier requests
        for place, indices in self.batch_order.upcoming(self.now()):
            slot = NO_SLOT if memory is None else memory.free.pop()
            yield place, slot, epoch_key(self.seed, place[0]), indices.numpy()


class _Fetch(Dataset[Any]):
    """Makes the requested batch in a worker process, unless training pauses."""

    def __init__(self, samples: Samples, opened: Any, rank_pid: int) -> None:
        self.samples, self.opened, self.rank_pid = samples, opened, rank_pid
        self.memory: BatchMemory | None = None

    def __getitem__(self, item: Request) -> tuple[Place, int, Images | Unfinished | Exception]:
        while not self.opened.wait(_LOOK_S):
            if os.getppid() != self.rank_pid:
                os._exit(1)
        try:
            return self._made(item)
        except Exception as error:  # the rank raises it: PyTorch would wrap it
            return item[0], NO_SLOT, _portable(error)

    def _made(self, item: Request) -> tuple[Place, int, Images | Unfinished]:
        place, slot, key, numbers = item
        indices = torch.from_numpy(numbers)
        if self.memory is None or not isinstance(self.samples, Compact):
            return place, NO_SLOT, training_batch(self.samples, indices, key)
        pixels, targets = self.samples.changed(indices, key)
        return place, slot, Unfinished(pixels, targets, self.samples.normalise, self.memory, slot)


def _portable(error: Exception) -> Exception:
    """The error with the worker's traceback as a note; a RuntimeError instead if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _as_it_is(item: Any) -> Any:
    return item


class _Init:
    """Start of a worker process, which must not outlive its rank.

    It ignores SIGTERM, which the whole process group may get: the rank needs its workers until it has saved.
    """

    def __init__(self, rank_pid: int) -> None:
        self.rank_pid = rank_pid

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        die_with_parent(self.rank_pid)
