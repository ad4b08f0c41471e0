"""Training batches of one rank, made when they are asked for or ahead of time by worker processes.

What is in a batch is the same either way: the batch order decides which samples, (seed, epoch, sample) how
each of them is changed. Worker processes stand still while training pauses (evaluations, checkpoints):
nothing that a step needs is made in a time that does not count.
"""

import math
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
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
from .batch_memory import BatchMemory, Unfinished
from .batch_order import BatchOrder, Place
from .callbacks import Callback

_LOOK_S = 5.0  # how often a waiting worker looks whether its rank still lives

Images = tuple[Tensor, Tensor]
"""Inputs float32 [b, C, H, W], and targets of as many samples."""


Request = tuple[Place, int, int, NDArray[np.int64]]
"""To a worker: the place, the slot that is free for it, the key, and the samples [b]."""


NO_SLOT = -1


class Loader(Callback, ABC):
    """Gives the batches of `batch_order`, one after the other. `seed`: of the random changes, derived.

    `still_cached`: of a file that is read, the share of its pages that was in the system's cache before
    training began; None without one, where the system does not tell, and where another rank has looked.
    `lacking`: the share that was not in it, or out of it, as asked for, at the worst of all attempts.
    """

    still_cached: float | None = None
    lacking: float = 0.0

    def __init__(self, samples: Samples, batch_order: BatchOrder, seed: int) -> None:
        self.samples, self.batch_order, self.seed = samples, batch_order, seed

    @abstractmethod
    def next(self, progress: Progress) -> Images:
        """The batch of the present step."""

    def restart(self) -> None:
        """The batch order is at another place or is split in another way: forget what was made ahead."""

    def close(self) -> None:
        """No more batches are wanted."""

    def counters(self) -> Counters | None:
        """What reading has cost so far; None where no file is read in training."""
        return None


class Direct(Loader):
    """Makes each batch in the rank's own process, when it is asked for."""

    def next(self, progress: Progress) -> Images:
        key = epoch_key(self.seed, self.batch_order.place(progress)[0])
        return training_batch(self.samples, self.batch_order.piece(progress), key)


class Ahead(Loader):
    """Has `workers` processes make batches ahead of time, `prefetch` for each of them.

    `pin`: the batches lie in pinned memory, to be copied to a GPU while it computes.
    """

    def __init__(
        self, samples: Samples, batch_order: BatchOrder, seed: int, *, workers: int, prefetch: int, pin: bool
    ) -> None:
        super().__init__(samples, batch_order, seed)
        # A rank is the child of a fork server, and by default its children would be that one's: not to wait
        # for, nor to take along when the rank ends.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._open = context.Event()
        self._upcoming, self._fetch = _Upcoming(batch_order, seed), _Fetch(samples, self._open, os.getpid())
        # One more than are asked for: the next is asked for before the one at hand is out of its slot. What
        # is to be pinned has to be float32 before it comes here.
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
            # Its own: each pass draws a number, which the rank's generator (dropout) is not to miss.
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
        except (OSError, EOFError) as error:  # what a dead worker has left half sent
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
        """Before the workers begin: they inherit it."""
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
    """What is to come from `progress` on."""

    def __init__(self, batch_order: BatchOrder, seed: int) -> None:
        self.batch_order, self.seed = batch_order, seed
        self.progress: Progress | None = None
        self.memory: BatchMemory | None = None

    def now(self) -> Progress:
        """Where training stands."""
        assert self.progress is not None, "the loader has told"
        return self.progress

    def __iter__(self) -> Iterator[Request]:
        memory = self.memory
        if memory is not None:
            memory.all_free()  # the workers are done with what came before
        for place, indices in self.batch_order.upcoming(self.now()):
            slot = NO_SLOT if memory is None else memory.free.pop()
            yield place, slot, epoch_key(self.seed, place[0]), indices.numpy()


class _Fetch(Dataset[Any]):
    """What worker processes do, unless training pauses."""

    def __init__(self, samples: Samples, opened: Any, rank_pid: int) -> None:
        self.samples, self.opened, self.rank_pid = samples, opened, rank_pid
        self.memory: BatchMemory | None = None

    def __getitem__(self, item: Request) -> tuple[Place, int, Images | Unfinished | Exception]:
        while not self.opened.wait(_LOOK_S):
            if os.getppid() != self.rank_pid:
                os._exit(1)
        try:
            return self._made(item)
        except Exception as error:  # raised by the rank, in its own words: PyTorch would wrap them in others
            return item[0], NO_SLOT, _portable(error)

    def _made(self, item: Request) -> tuple[Place, int, Images | Unfinished]:
        place, slot, key, numbers = item
        indices = torch.from_numpy(numbers)
        if self.memory is None or not isinstance(self.samples, Compact):
            return place, NO_SLOT, training_batch(self.samples, indices, key)
        pixels, targets = self.samples.changed(indices, key)
        return place, slot, Unfinished(pixels, targets, self.samples.normalise, self.memory, slot)


def _portable(error: Exception) -> Exception:
    """The error, with the worker's traceback as a note; one like it, if it cannot go to another process."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _as_it_is(item: Any) -> Any:
    return item


class _Init:
    """Where a worker process begins. It must not outlive its rank, however that ends.

    A signal to end that the whole process group gets is the rank's to obey: it saves, and needs its workers.
    """

    def __init__(self, rank_pid: int) -> None:
        self.rank_pid = rank_pid

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        die_with_parent(self.rank_pid)
