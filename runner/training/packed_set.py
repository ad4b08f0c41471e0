"""The packed file of a training split: writing it, and opening it with checks."""

import contextlib
import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...datasets.atomic_files import BadFile, locked
from ...datasets.data import Data
from ...datasets.dataset import Dataset, Tell
from ...datasets.packed.packed_file import MAGIC, Description, Packed, writing
from ...datasets.packed.readers import CHUNK_BYTES
from ...datasets.packed.record_codec import RecordCodec, codec_of
from ...datasets.packed.record_order import chunks, records_of, shuffled
from ...strategies.errors import ConfigError, MachineError
from ..config.reader_config import PackedReader, ReaderConfig


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PackedSet:
    """An open packed file of the samples of a split. order: int64 [n], which sample each record is."""

    packed: Packed
    codec: RecordCodec
    order: Tensor

    def about(self) -> dict[str, Any]:
        """For records: what the file is."""
        description = self.packed.description
        return {
            "path": str(self.packed.path),
            "records": len(self.packed),
            "bytes": self.packed.start_of(len(self.packed)),
            "encoding": description.encoding,
            "shuffle_seed": description.shuffle_seed,
            "source": description.source,
            "made": description.made,
        }


def file_of(dataset: Dataset, reader: PackedReader) -> Path:
    """Where the packed file of `dataset` is, or will be."""
    if reader.path:
        return Path(reader.path)
    order = "unshuffled" if reader.shuffle_seed is None else f"shuffled{reader.shuffle_seed}"
    beside = dataset.beside()
    assert beside is not None, "the configuration was checked (check_place)"
    return beside.with_name(f"{beside.name}-{order}.packed")


def open_set(dataset: Dataset, reader: PackedReader, data: Data) -> PackedSet:
    """The packed file of `data`, which is `dataset` as loaded.

    Raises ConfigError: there is none, it is damaged, or it is of other samples; MachineError: unreadable.
    """
    packed = _opened(dataset, reader)
    try:
        codec, order, wanted = _wanted(dataset, reader, data)
        held = packed.description
        facts = {
            "name": (held.name, wanted.name),
            "shuffle_seed": (held.shuffle_seed, wanted.shuffle_seed),
            "number of samples": (len(packed), len(data.train)),
            "encoding": (held.encoding, wanted.encoding),
            "number of classes": (held.classes, wanted.classes),
            "digest of the samples": (held.source, wanted.source),
        }
        _must_agree(packed, facts, dataset, reader)
    except BaseException:
        packed.close()
        raise
    return PackedSet(packed=packed, codec=codec, order=order)


def look_at(dataset: Dataset, reader: PackedReader, nodes: int) -> None:
    """Check a packed file without the data set: whether it exists, is whole, and has the configured order.

    nodes: among which it is divided. Raises as `open_set` does.
    """
    with _opened(dataset, reader) as packed:
        order = {"shuffle_seed": (packed.description.shuffle_seed, reader.shuffle_seed)}
        _must_agree(packed, order, dataset, reader)
        reader.check(packed, nodes)


def of_run(dataset: Dataset, reader: ReaderConfig, data: Data) -> PackedSet | None:
    """As `open_set`; None for a run without a packed file."""
    return open_set(dataset, reader, data) if isinstance(reader, PackedReader) else None


def write_set(dataset: Dataset, reader: PackedReader, data: Data, tell: Tell) -> bool:
    """Write the packed file of `data`, unless it is there and whole; returns whether it was written.

    A file of the same data set and order that is damaged or has other samples is replaced; any other file is
    kept. One process at a time writes, others wait. `tell` is called with the samples checked or written.
    Raises ConfigError, ValueError and OSError that name what is wrong.
    """
    path, count = file_of(dataset, reader), len(data.train)
    codec, order, description = _wanted(dataset, reader, data)
    with locked(path.parent):
        if (content := _other_content(path, description)) is not None:
            raise ConfigError(f"{path}: {content}; delete it or take another reader.path")
        with contextlib.suppress(ConfigError, BadFile), open_set(dataset, reader, data).packed as packed:
            for run in chunks(packed.starts(), CHUNK_BYTES):
                content = memoryview(bytearray(packed.size_of(run.start, len(run))))
                packed.read(run.start, len(run), content)
                packed.check(records_of([run]), content)
                tell(run.stop, len(packed))
            return False
        with writing(path, description, record_bytes=codec.record_bytes) as add:
            for done, index in enumerate(order.tolist(), start=1):
                add(*codec.sample(index))
                tell(done, count)
    return True


def command(dataset: Dataset, reader: PackedReader) -> str:
    folder = dataset.folder()
    words = ["daso-bench prepare", f"dataset={dataset.name}", f"reader={reader.name}"]
    words += [f"dataset.root={folder}"] * (folder is not None)
    words += [f"reader.path={reader.path}"] * bool(reader.path)
    if reader.shuffle_seed != PackedReader.shuffle_seed:
        words.append(f"reader.shuffle_seed={'null' if reader.shuffle_seed is None else reader.shuffle_seed}")
    return f"{' '.join(words)} (and the run's other dataset keys)"


def _opened(dataset: Dataset, reader: PackedReader) -> Packed:
    """The open file, not compared with anything. Raises ConfigError or MachineError."""
    again, path = command(dataset, reader), file_of(dataset, reader)
    try:
        return Packed(path, random_access=reader.random_access)
    except FileNotFoundError as error:
        raise ConfigError(f"reader={reader.name}: there is no file {path}; make it: {again}") from error
    except BadFile as error:
        raise ConfigError(f"{error}: {again}") from error
    except OSError as error:
        raise MachineError(f"reader={reader.name}: {path} cannot be read: {error}") from error


def _must_agree(
    packed: Packed, facts: dict[str, tuple[Any, Any]], dataset: Dataset, reader: PackedReader
) -> None:
    """Raise ConfigError at the first of `facts`, (of the file, wanted), that differs."""
    for name, (held, wanted) in facts.items():
        if held != wanted:
            again = f"make the file again: {command(dataset, reader)}"
            raise ConfigError(f"{packed.path}: its {name} is {held}, and must be {wanted}; {again}")


def _other_content(path: Path, wanted: Description) -> str | None:
    """What a new file at `path` would overwrite, in words.

    None where `path` is free, empty, or a packed file (also a damaged one) of `wanted`'s data set and order.
    """
    if not path.exists():
        return None
    if not path.is_file():
        return "is no regular file"
    content_bytes = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, content_bytes - len(MAGIC)))
        if content_bytes and file.read() != MAGIC:
            return "is no packed file, or cut short"
    try:
        with Packed(path) as packed:
            held = packed.description
    except BadFile:
        return None
    if (held.name, held.shuffle_seed) == (wanted.name, wanted.shuffle_seed):
        return None
    return f"is the packed file of {held.name}, shuffle_seed {held.shuffle_seed}"


def _wanted(dataset: Dataset, reader: PackedReader, data: Data) -> tuple[RecordCodec, Tensor, Description]:
    """How samples are records, which sample each record is, and the description of that file."""
    try:
        codec = codec_of(data.train)
    except ValueError as error:
        raise ConfigError(f"reader={reader.name}: {data.name} {error}") from error
    order = torch.from_numpy(shuffled(len(data.train), reader.shuffle_seed))
    source = hashlib.blake2b(codec.digest(dataset.fingerprint()), digest_size=16)
    source.update(order.numpy().data)
    description = Description(
        name=data.name,
        classes=data.classes,
        shape=data.shape,
        encoding=codec.encoding,
        made=f"training split of {data.name}, daso-bench prepare, shuffle_seed={reader.shuffle_seed}",
        source=source.hexdigest(),
        shuffle_seed=reader.shuffle_seed,
    )
    return codec, order, description
