"""Workload of one rank: model, task, batch order and loader, made from a run's configuration."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...datasets.data import Augmentable, Data, Movable, Split
from ...datasets.image_files import ImageFiles, MaskedFiles
from ...datasets.sampler import Sampler
from ...datasets.stream_seeds import stream_seed
from ...models.spec import InputSpec
from ...strategies.base import AsynchronousStrategy
from ..communication.traffic import CountedCommunicator
from ..config.model_building import build, check_batch_norm, normalises
from ..config.reader_config import PackedReader
from ..config.run_config import RunConfig
from ..config.tasks import Task
from ..machine.page_cache import cached
from .batch_order import BatchOrder, GlobalOrder, IndependentOrder
from .loader import Ahead, Loader
from .packed_loader import PackedLoader, ReaderOrder
from .packed_set import PackedSet
from .precision import DTYPES

MOST_WORKERS = 16  # of a rank, where their number is auto
_SHARED_MEMORY = Path("/dev/shm")  # through which workers hand over their batches


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What one rank trains; `model` is on the rank's device, in training mode."""

    model: nn.Module
    task: Task
    batch_order: BatchOrder
    loader: Loader


def workload_of(
    config: RunConfig,
    data: Data,
    comm: CountedCommunicator,
    device: torch.device,
    *,
    packed: PackedSet | None = None,
    reads: bool = True,
    own_workers: bool = True,
) -> Workload:
    """The workload of a configuration.

    `packed`: the open file of a reader; `reads`: whether training reads it, else it only orders the samples.
    `own_workers`: the rank may have loader workers of its own.
    The model is initialised from torch's generator, which is then seeded for this rank's dropout. Raises
    ConfigError: batch normalisation would see a single sample.
    """
    sampler = Sampler(
        len(data.train),
        config.train.global_batch_size,
        comm.topology.ranks,
        stream_seed(config.seed, "data"),
        config.strategy_class.piece_shift,
        short_batch=config.train.short_batch,
    )
    batch_order = _batch_order(config, sampler, comm, packed)
    model = _model(config, data, comm.rank, device)
    if normalises(model):
        check_batch_norm(sampler, config.train.accumulate)
    return Workload(
        model=model,
        task=config.task(data.classes),
        batch_order=batch_order,
        loader=_loader(config, data, batch_order, comm, device, reads=reads, own_workers=own_workers),
    )


def memory_format(config: RunConfig) -> torch.memory_format:
    """The memory format of images and convolutions; preserve_format: no change."""
    return torch.channels_last if config.train.channels_last else torch.preserve_format


def seed_generators(seed: int) -> None:
    """Seed torch's own random generators.

    `torch.manual_seed` also records the seed, with a stack trace, for each kind of device that is missing: a
    millisecond each time, a second with a thousand virtual ranks.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """States of the generators from which a pass on `device` may draw."""
    cuda = {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def set_generators(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore `generator_states`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _model(config: RunConfig, data: Data, rank: int, device: torch.device) -> nn.Module:
    channels, height, width = data.shape
    # Layers draw from torch's generator: the run's stream for initialisation, then a stream per rank.
    seed_generators(stream_seed(config.seed, "init"))
    model = build(config.model, InputSpec(channels, height, width, data.classes))
    dtype = DTYPES[config.train.precision]
    model = model.to(device, dtype, memory_format=memory_format(config)).train()  # pyright: ignore[reportCallIssue] (PyTorch's stub has each alone)
    seed_generators(stream_seed(config.seed, "dropout", rank))
    return model


def _batch_order(
    config: RunConfig, sampler: Sampler, comm: CountedCommunicator, packed: PackedSet | None
) -> BatchOrder:
    topology, rank = comm.topology, comm.rank
    if isinstance(config.reader, PackedReader):
        assert packed is not None, "the caller has opened the reader's file"
        seed = stream_seed(config.seed, "data")
        return ReaderOrder(sampler, rank, topology.ranks_of_nodes, config.reader, packed, seed)
    if issubclass(config.strategy_class, AsynchronousStrategy):
        return IndependentOrder(sampler, topology, rank, config.seed)
    return GlobalOrder(sampler, rank)


def _loader(
    config: RunConfig,
    data: Data,
    batch_order: BatchOrder,
    comm: CountedCommunicator,
    device: torch.device,
    *,
    reads: bool,
    own_workers: bool,
) -> Loader:
    launcher, seed = config.launcher, stream_seed(config.seed, "augmentation")
    if isinstance(batch_order, ReaderOrder) and reads:
        return PackedLoader(batch_order, data.train, seed, comm)
    loader = Loader(data.train, batch_order, seed)
    if not own_workers:
        return loader
    room = free_shared_memory() // len(comm.topology.on_node(comm.node))
    workers = loader_workers(config, data, device, cores=torch.get_num_threads(), room=room)
    if workers > 0:
        loader = Ahead(
            data.train,
            batch_order,
            seed,
            workers=workers,
            prefetch=launcher.prefetch_batches,
            pin=device.type == "cuda",
        )
    if isinstance(data.train, ImageFiles | MaskedFiles) and launcher.real_time and comm.local_rank == 0:
        loader.still_cached = cached(Path(data.train.root), data.train.paths)
    return loader


def free_shared_memory() -> int:
    """Bytes of shared memory for batches: half of what is free, the rest is left to others."""
    return shutil.disk_usage(_SHARED_MEMORY).free // 2


def loader_workers(config: RunConfig, data: Data, device: torch.device, *, cores: int, room: int) -> int:
    """Loader workers for a rank, or for all virtual ranks, with so many cores and bytes of shared memory.

    On CPUs they would take cores from the ranks; samples that lie in memory as they are need none.
    """
    launcher, samples = config.launcher, data.train
    if isinstance(samples, Movable) and samples.device.type != "cpu":
        return 0
    if isinstance(launcher.loader_workers, int):
        return launcher.loader_workers
    in_memory = not isinstance(samples, Augmentable) or (isinstance(samples, Split) and not samples.augment)
    if device.type != "cuda" or in_memory or launcher.asked_network != "none":
        return 0
    of_rank = -(-config.train.global_batch_size // config.cluster.ranks)
    ahead = of_rank * math.prod(data.shape) * torch.float32.itemsize * launcher.prefetch_batches
    # Too little memory (a container has 64 MiB) would kill the workers.
    return min(MOST_WORKERS, cores - 1, room // ahead)
