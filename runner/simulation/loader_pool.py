"""Loader workers of virtual time: one set of processes makes the batches of all ranks ahead of time.

Each rank has some batches of its own under way, so that ranks may be at different steps. Evaluations read
image files through the same processes.
"""

import math
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...datasets.data import SPLITS, Data, Samples, training_batch
from ...datasets.image_files import FilesOnDisk
from ...datasets.transforms import epoch_key
from ...strategies.errors import MachineError
from ...strategies.progress import Progress
from ..config.run_config import RunConfig
from ..machine.cores import usable_cores
from ..training.batch_order import Place
from ..training.loader import BatchMemory, Images, Loader, begin_worker, portable, worker_ended
from ..training.workload import free_shared_memory, loader_workers

Numbers = NDArray[np.int64]


def pool_of(config: RunConfig, data: Data, device: torch.device) -> "LoaderPool | None":
    """The workers of a run whose ranks compute on `device`, by `launcher.loader_workers`; None without.

    Raises MachineError: the workers were asked for, and shared memory does not hold a batch of each rank.
    """
    room, asked, ranks = free_shared_memory(), config.launcher.loader_workers, config.cluster.ranks
    workers = loader_workers(config, data, device, cores=usable_cores(), room=room)
    if not workers:
        return None
    samples = -(-config.train.global_batch_size // ranks)
    files = data.train if isinstance(data.train, FilesOnDisk) else None
    sample_bytes = math.prod(files.shape) + files.target_bytes if files is not None else 0
    of_all = ranks * samples * sample_bytes
    ahead = min(config.launcher.prefetch_batches, room // max(1, of_all))
    if ahead:
        memory = BatchMemory(ranks * ahead, samples, sample_bytes) if files is not None else None
        return LoaderPool(data, workers, ahead, memory, device)
    if asked == "auto":
        return None
    raise MachineError(
        f"launcher.loader_workers={asked}: a batch of each of {ranks} ranks takes {of_all / 2**30:.2f} GiB "
        f"of shared memory, and {room / 2**30:.2f} GiB are there for it; take launcher.loader_workers=0"
    )


class LoaderPool:
    """`workers` processes, which make `ahead` batches of each rank ahead of time.

    memory: through which pixels of files are handed over; None: batches are sent as they are. device: where
    ranks compute.
    """

    def __init__(
        self, data: Data, workers: int, ahead: int, memory: BatchMemory | None, device: torch.device
    ) -> None:
        self.workers, self.ahead = workers, ahead
        self._memory, self._device = memory, device
        judged = {name: data.split(name) for name in SPLITS if name != "train"}
        self._files = {name: split for name, split in judged.items() if isinstance(split, FilesOnDisk)}
        self._slots = count()
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        given = ({"train": data.train, **self._files}, memory, os.getpid())
        self._executor = ProcessPoolExecutor(workers, context, _begin, given)

    def close(self) -> None:
        """End the processes."""
        self._executor.shutdown(cancel_futures=True)

    def loader(self, plain: Loader) -> Loader:
        """A loader of the batches that `plain` would make."""
        return PooledLoader(plain, self, [next(self._slots) for _ in range(self.ahead)])

    def reading(self, data: Data) -> Data:
        """The data, with evaluations that read image files through this pool."""
        return replace(data, **{name: PooledFiles(self, name, files) for name, files in self._files.items()})

    def submit(self, make: Any, *arguments: Any) -> "Future[Any]":
        try:
            return self._executor.submit(make, *arguments)
        except BrokenProcessPool as error:
            raise worker_ended(self.workers) from error

    def result(self, made: "Future[Any]") -> Any:
        """What a process made. Raises its error, RuntimeError if the process has ended."""
        try:
            result = made.result()
        except BrokenProcessPool as error:
            raise worker_ended(self.workers) from error
        if isinstance(result, Exception):
            raise result
        return result

    def batch(self, made: "Future[Any]", slot: int, samples: Samples) -> Images:
        """A training batch, where ranks compute if it was read from files: bytes take less time to copy."""
        sent = self.result(made)
        if self._memory is None or not isinstance(samples, FilesOnDisk):
            inputs, targets = map(torch.from_numpy, sent)
            return inputs, targets
        pixels, targets = self._memory.get(slot, sent)
        if self._device.type == "cuda":
            pixels, targets = pixels.pin_memory(), targets.pin_memory()
        pixels = pixels.to(self._device, non_blocking=True)
        return samples.normalise(pixels), targets.to(self._device, non_blocking=True)


class PooledLoader(Loader):
    """The batches of one rank, as many ahead as it has `slots`."""

    def __init__(self, loader: Loader, pool: LoaderPool, slots: list[int]) -> None:
        super().__init__(loader.samples, loader.batch_order, loader.seed)
        self.workers, self._pool, self._free = pool.workers, pool, deque(slots)
        self._ahead: deque[tuple[Place, int, Future[Any]]] = deque()
        self._upcoming: Iterator[tuple[Place, Tensor]] | None = None

    def next(self, progress: Progress) -> Images:
        if self._upcoming is None:
            self._upcoming = self.batch_order.upcoming(progress)
        self._request()
        place, slot, made = self._ahead.popleft()
        if place != (here := self.batch_order.place(progress)):
            raise RuntimeError(f"the loader is at {place}, the step at {here}")
        batch = self._pool.batch(made, slot, self.samples)
        self._free.append(slot)
        self._request()
        return batch

    def _request(self) -> None:
        """Have batches made for all slots that are free."""
        assert self._upcoming is not None
        while self._free and (coming := next(self._upcoming, None)) is not None:
            place, indices = coming
            slot, key = self._free.popleft(), epoch_key(self.seed, place[0])
            self._ahead.append((place, slot, self._pool.submit(_make, slot, indices.numpy(), key)))

    def restart(self) -> None:
        for _, slot, made in self._ahead:
            if not made.cancel():
                made.exception()  # until it has ended its slot is being written
            self._free.append(slot)
        self._ahead.clear()
        self._upcoming = None

    def close(self) -> None:
        self.restart()


class PooledFiles:
    """Image files of a split, read by all processes of a pool."""

    def __init__(self, pool: LoaderPool, split: str, files: Samples) -> None:
        self._pool, self._split, self._files = pool, split, files

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, indices: Tensor) -> Images:
        parts = indices.chunk(self._pool.workers)
        made = [self._pool.submit(_read, self._split, part.numpy()) for part in parts]
        inputs, targets = zip(*map(self._pool.result, made), strict=True)
        return torch.from_numpy(np.concatenate(inputs)), torch.from_numpy(np.concatenate(targets))


_splits: dict[str, Samples] = {}  # of a worker process
_memory: BatchMemory | None = None


def _begin(splits: dict[str, Samples], memory: BatchMemory | None, rank_pid: int) -> None:
    global _memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that trains says what happened
    begin_worker(rank_pid)
    torch.set_num_threads(1)
    _splits.update(splits)
    _memory = memory


def _make(slot: int, numbers: Numbers, key: int) -> Any:
    """A training batch in the slot, or as it is; or the error, for the process that trains to raise."""
    samples, indices = _splits["train"], torch.from_numpy(numbers)
    try:
        if _memory is not None and isinstance(samples, FilesOnDisk):
            return _memory.put(slot, *samples.changed(indices, key))
        return tuple(part.numpy() for part in training_batch(samples, indices, key))
    except Exception as error:
        return portable(error)


def _read(split: str, numbers: Numbers) -> Any:
    """A batch of an evaluation, or the error."""
    try:
        return tuple(part.numpy() for part in _splits[split].batch(torch.from_numpy(numbers)))
    except Exception as error:
        return portable(error)
