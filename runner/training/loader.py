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
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...datasets.data import Samples, training_batch
from ...datasets.image_files import FilesOnDisk
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
"""To a worker: the place, the slot for it, the key, and the samples [b]."""

Sent = tuple[list[torch.Size], list[Tensor] | None, NDArray[np.int64] | None]
"""What is pickled of a batch: the shapes of pixels and masks, these themselves where they do not fit into
their slot, and labels [b] where there are no masks."""


class BatchMemory:
    """Memory through which worker processes hand batches to their rank, as bytes, in `slots` slots.

    Handing over float32 in memory made for each batch takes a third as long as making it from photographs.
    Masks go as bytes too, and become int64 at the rank. With each request the rank names the next slot,
    and it normalises the batch out of the slot into memory of its own:

        rank:   "batch 7, slot 2" · · · recv, normalise slot 2 · "batch 12, slot 2"
        worker: recv, fill slot 2, "batch 7 is in slot 2" · · ·

    A slot has room for `samples` samples of `sample_bytes`, and `MARGIN` more.
    """

    def __init__(self, slots: int, samples: int, sample_bytes: int) -> None:
        self._content = torch.empty(slots, (samples + MARGIN) * sample_bytes, dtype=torch.uint8)
        self._content.share_memory_()

    def put(self, slot: int, pixels: Tensor, targets: Tensor) -> Sent:
        """Copy pixels and masks, uint8, into a slot if they fit; returns what is to be pickled."""
        masks = targets.dtype == torch.uint8
        large = [pixels, targets] if masks else [pixels]
        # A pickled tensor is an open file, which costs more than the bytes of labels.
        labels, shapes = None if masks else targets.numpy(), [part.shape for part in large]
        if sum(part.numel() for part in large) > self._content.shape[1]:
            return shapes, large, labels
        for room, part in zip(self._views(slot, shapes), large, strict=True):
            room.copy_(part)
        return shapes, None, labels

    def get(self, slot: int, sent: Sent) -> tuple[Tensor, Tensor]:
        """Pixels uint8, valid until the slot is filled again, and targets int64."""
        shapes, large, labels = sent
        pixels, *masks = self._views(slot, shapes) if large is None else large
        targets = masks[0] if labels is None else torch.as_tensor(labels)
        return pixels, targets.to(torch.int64)

    def _views(self, slot: int, shapes: Sequence[torch.Size]) -> list[Tensor]:
        ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
        places = zip(pairwise(ends), shapes, strict=True)
        return [self._content[slot, start:end].view(shape) for (start, end), shape in places]


class Loader(Callback):
    """Makes the batches of `batch_order`, one after the other, in the rank's own process.

    `seed`: derived, of the augmentation.

    `still_cached`: the share of the pages of the files of the data that was in the page cache before
    training; None where training reads no file, where the system does not report it, and where another rank
    has measured it.
    `lacking`: the share that was not in the cache, or not out of it, as configured; worst of all attempts.
    `workers`: processes that make batches.
    """

    still_cached: float | None = None
    lacking: float = 0.0
    workers: int = 0

    def __init__(self, samples: Samples, batch_order: BatchOrder, seed: int) -> None:
        self.samples, self.batch_order, self.seed = samples, batch_order, seed

    def next(self, progress: Progress) -> Images:
        key = epoch_key(self.seed, self.batch_order.place(progress)[0])
        return training_batch(self.samples, self.batch_order.piece(progress), key)

    def restart(self) -> None:
        """Drop batches made ahead, because the position or the split of the batch order has changed."""

    def close(self) -> None:
        """End the loader and its processes."""

    def counters(self) -> Counters | None:
        """Counters of reading so far; None where no file is read in training."""
        return None


class Ahead(Loader):
    """Has `workers` processes make batches ahead of time, `prefetch` for each of them.

    `pin`: batches are in pinned memory, so that they can be copied to a GPU while it computes.
    """

    def __init__(
        self, samples: Samples, batch_order: BatchOrder, seed: int, *, workers: int, prefetch: int, pin: bool
    ) -> None:
        super().__init__(samples, batch_order, seed)
        self.workers = workers
        # By default workers would be children of the fork server: the rank could not wait for them, and they
        # would not end with it.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._open = context.Event()
        self._fetch = _Fetch(samples, self._open, os.getpid())
        self._upcoming: Iterator[tuple[Place, Tensor]] = iter(())
        # One slot more than batches in flight: the next is requested before the present one leaves its slot.
        self._slots = workers * prefetch + 1
        self._pin = pin
        self._loader: DataLoader[Images] = DataLoader(
            self._fetch,
            sampler=self,
            batch_size=None,  # an item is a batch
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=prefetch,
            persistent_workers=True,
            multiprocessing_context=context,
            pin_memory=pin,
            worker_init_fn=partial(begin_worker, os.getpid()),
            # Each pass draws a number, which must not come from the rank's generator (dropout).
            generator=torch.Generator(),
        )
        self._batches: Iterator[tuple[Place, int, Any]] | None = None

    def next(self, progress: Progress) -> Images:
        if self._batches is None:
            self._upcoming = self.batch_order.upcoming(progress)
            self._share_memory(progress)
            self._open.set()
            self._batches = iter(self._loader)  # pyright: ignore[reportAttributeAccessIssue] (batch_size=None)
        try:
            place, slot, batch = next(self._batches)
        except (OSError, EOFError) as error:  # a worker died while it sent
            raise worker_ended(self.workers) from error
        if isinstance(batch, Exception):
            raise batch
        here = self.batch_order.place(progress)
        if tuple(place) != here:  # PyTorch 2.9 makes lists of tuples where it pins
            raise RuntimeError(f"the loader is at {place}, the step at {here}")
        memory = self._fetch.memory
        if memory is None:
            inputs, targets = batch  # a list where it was pinned
            return inputs, targets
        assert isinstance(self.samples, FilesOnDisk), "they have memory"
        pixels, targets = memory.get(slot, batch)
        return self.samples.normalise(pixels), targets

    def __iter__(self) -> Iterator[Request]:
        """The requests for all batches from the present step on."""
        for number, (place, indices) in enumerate(self._upcoming):
            yield place, number % self._slots, epoch_key(self.seed, place[0]), indices.numpy()

    def _share_memory(self, progress: Progress) -> None:
        """Make the memory before the workers start: they inherit it."""
        samples = self.samples
        # Pinned batches must be float32 already when they arrive here.
        if self._fetch.memory is None and not self._pin and isinstance(samples, FilesOnDisk):
            count = len(self.batch_order.piece(progress))
            sample_bytes = math.prod(samples.shape) + samples.target_bytes
            self._fetch.memory = BatchMemory(self._slots, count, sample_bytes)

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


class _Fetch(Dataset[Any]):
    """Makes the requested batch in a worker process, unless training pauses."""

    def __init__(self, samples: Samples, opened: Any, rank_pid: int) -> None:
        self.samples, self.opened, self.rank_pid = samples, opened, rank_pid
        self.memory: BatchMemory | None = None

    def __getitem__(self, item: Request) -> tuple[Place, int, Images | Sent | Exception]:
        while not self.opened.wait(_LOOK_S):
            if os.getppid() != self.rank_pid:
                os._exit(1)
        place, slot, key, numbers = item
        indices = torch.from_numpy(numbers)
        try:
            if self.memory is None or not isinstance(self.samples, FilesOnDisk):
                return place, slot, training_batch(self.samples, indices, key)
            return place, slot, self.memory.put(slot, *self.samples.changed(indices, key))
        except Exception as error:  # the rank raises it: PyTorch would wrap it
            return place, slot, portable(error)


def worker_ended(workers: int) -> RuntimeError:
    """The error where one of so many worker processes is gone."""
    return RuntimeError(
        f"a process that loads batches has ended (killed? out of memory?): launcher.loader_workers={workers}"
    )


def portable(error: Exception) -> Exception:
    """The error with the worker's traceback as a note; a RuntimeError instead if it cannot be pickled."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _as_it_is(item: Any) -> Any:
    return item


def begin_worker(rank_pid: int, worker: int = 0) -> None:
    """Begin a worker process, which must not outlive its rank.

    It ignores SIGTERM, which the whole process group may get: the rank needs its workers until it has saved.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(rank_pid)
