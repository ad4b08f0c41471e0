"""Training batches of one rank, made when they are asked for or ahead of time by worker processes.

What is in a batch is the same either way: the feed says which samples, (seed, epoch, sample) how each of them
is changed. Worker processes stand still while training pauses (evaluations, checkpoints): nothing that a step
needs is made in a time that does not count.
"""

import multiprocessing
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ..datasets.augmentation import epoch_key
from ..datasets.data import Samples, training_batch
from ..strategies.progress import Progress
from .feed import Feed, Place
from .forkserver_guard import die_with_parent

_LOOK_S = 5.0  # how often a waiting worker looks whether its rank still lives

Images = tuple[Tensor, Tensor]
"""Inputs float32 [b, C, H, W], and targets of as many samples."""


class Loader(ABC):
    """Gives the batches of `feed`, one after the other. `seed`: of the random changes, already derived."""

    def __init__(self, samples: Samples, feed: Feed, seed: int) -> None:
        self.samples, self.feed, self.seed = samples, feed, seed

    @abstractmethod
    def next(self, progress: Progress) -> Images:
        """The batch of the present step."""

    def restart(self) -> None:  # noqa: B027 (there may be nothing ahead of time)
        """What was to come is no longer so: the feed is at another place, or is split in another way."""

    def training(self, on: bool) -> None:  # noqa: B027
        """Training begins or pauses."""

    def close(self) -> None:  # noqa: B027
        """No more batches are wanted."""


class Direct(Loader):
    """Makes each batch in the rank's own process, when it is asked for."""

    def next(self, progress: Progress) -> Images:
        key = epoch_key(self.seed, self.feed.place(progress)[0])
        return training_batch(self.samples, self.feed.piece(progress), key)


class Ahead(Loader):
    """Has `workers` processes make batches ahead of time, `prefetch` for each of them.

    `pin`: the batches lie in pinned memory, to be copied to a GPU while it computes.
    """

    def __init__(
        self, samples: Samples, feed: Feed, seed: int, *, workers: int, prefetch: int, pin: bool
    ) -> None:
        super().__init__(samples, feed, seed)
        # A rank is the child of a fork server, and by default its children would be that one's: not to wait
        # for, nor to take along when the rank ends.
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._open = context.Event()
        self._upcoming = _Upcoming(feed, seed)
        self._loader: DataLoader[Images] = DataLoader(
            _Fetch(samples, self._open, os.getpid()),
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
        self._batches: Iterator[tuple[Tensor, Images]] | None = None

    def next(self, progress: Progress) -> Images:
        if self._batches is None:
            self._upcoming.progress = progress
            self._open.set()
            self._batches = iter(self._loader)  # pyright: ignore[reportAttributeAccessIssue] (batch_size=None)
        place, images = next(self._batches)
        if place != self.feed.place(progress):
            raise RuntimeError(f"the loader is at {place}, the step at {self.feed.place(progress)}")
        return images

    def restart(self) -> None:
        self._batches = None

    def training(self, on: bool) -> None:
        if on:
            self._open.set()
        else:
            self._open.clear()

    def close(self) -> None:
        self._open.set()
        self._batches = None
        # The worker processes end with the iterator that they belong to.
        del self._loader


class _Upcoming(Sampler[tuple[Place, int, Tensor]]):
    """What is to come from `progress` on: places, keys and sample indices."""

    def __init__(self, feed: Feed, seed: int) -> None:
        self.feed, self.seed = feed, seed
        self.progress: Progress | None = None

    def __iter__(self) -> Iterator[tuple[Place, int, Tensor]]:
        assert self.progress is not None, "the loader has told where training stands"
        for place, indices in self.feed.upcoming(self.progress):
            yield place, epoch_key(self.seed, place[0]), indices


class _Fetch(Dataset[Any]):
    """What worker processes do, unless training pauses."""

    def __init__(self, samples: Samples, opened: Any, rank_pid: int) -> None:
        self.samples, self.opened, self.rank_pid = samples, opened, rank_pid

    def __getitem__(self, item: tuple[Place, int, Tensor]) -> tuple[Place, Images]:
        while not self.opened.wait(_LOOK_S):
            if os.getppid() != self.rank_pid:
                os._exit(1)
        place, key, indices = item
        return place, training_batch(self.samples, indices, key)


def _as_it_is(item: Any) -> Any:
    return item


class _Init:
    """Where a worker process begins. It must not outlive its rank, however that ends."""

    def __init__(self, rank_pid: int) -> None:
        self.rank_pid = rank_pid

    def __call__(self, worker: int) -> None:
        die_with_parent(self.rank_pid)
