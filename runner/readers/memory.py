"""How much memory readers take for what they have read: told before a run, refused where it has less."""

import psutil

from ...datasets.packed.packed_file import Packed
from ...datasets.packed.slots import Geometry
from ...strategies.errors import ConfigError
from ..schema import RunConfig
from .base import PackedReader
from .packed_set import path_of

TOLD_BYTES = 200 * 10**6
_LESS = "a smaller train.global_batch_size or reader.prefetch_batches needs less"


def told(config: RunConfig) -> str | None:
    """What the readers of a machine take at most, in words; None where that is little, or nothing is read.

    Pages that are never used do not count: of records of many sizes it is a bound.
    Raises ConfigError where it is more than this machine has. The file is there, as `look_at` has seen.
    """
    reader = config.reader
    if not isinstance(reader, PackedReader):
        return None
    with Packed(path_of(config.dataset, reader)) as packed:
        each, readers = _of_reader(packed, reader, config), _readers(reader, config)
    start = f"reader={reader.name}: {readers} on a machine, each up to {each / 1e6:.0f} MB for what is read"
    have = psutil.virtual_memory().total
    if each * readers > have:
        raise ConfigError(f"{start}: more than the {have / 1e6:.0f} MB that this one has; {_LESS}")
    return f"{start}; {_LESS}" if each > TOLD_BYTES else None


def _of_reader(packed: Packed, reader: PackedReader, config: RunConfig) -> int:
    ranks_of_nodes = config.cluster.ranks_of_nodes
    ranks = max(ranks_of_nodes) if reader.by_node else 1
    records = -(-config.train.global_batch_size * ranks // sum(ranks_of_nodes))
    slots = Geometry.of(packed, records, depth=reader.prefetch_batches + 1)
    return slots.depth * slots.slot_bytes + reader.own_bytes(packed, slots.content_bytes)


def _readers(reader: PackedReader, config: RunConfig) -> int:
    """How many are on the machine that has most of them."""
    ranks_of_nodes = config.cluster.ranks_of_nodes
    of_nodes = [1 if reader.by_node else ranks for ranks in ranks_of_nodes]
    return sum(of_nodes) if config.launcher.name == "local" else max(of_nodes)
