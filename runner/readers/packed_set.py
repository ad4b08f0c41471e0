"""The training split of a data set as one packed file: where it lies, writing it, opening it and no other."""

import contextlib
import dataclasses
import glob
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...datasets.data import Data
from ...datasets.dataset import Dataset, Tell
from ...datasets.packed.format import DamagedFile, Description
from ...datasets.packed.orders import chunks, shuffled
from ...datasets.packed.packed_file import Packed
from ...datasets.packed.readers import CHUNK_BYTES
from ...datasets.packed.stored import Stored, stored
from ...datasets.packed.writer import Writer
from ...datasets.preparation import locked
from ...strategies.errors import ConfigError, MachineError
from .base import PackedReader
from .free_path import refuse_taken
from .none import NoReader


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PackedSet:
    """An open packed file of the samples of a split. order: int64 [n], which sample each record is."""

    packed: Packed
    stored: Stored
    order: Tensor

    def about(self) -> dict[str, Any]:
        """For records: what the file is."""
        told = self.packed.description
        return {
            "path": str(self.packed.path),
            "records": len(self.packed),
            "bytes": self.packed.start_of(len(self.packed)),
            "encoding": told.encoding,
            "shuffle_seed": told.shuffle_seed,
            "source": told.source,
            "made": told.made,
        }


def path_of(dataset: Dataset, reader: PackedReader) -> Path:
    """Where the packed file of `dataset` is, or will be. Raises ConfigError where the user has to say."""
    if reader.path:
        return Path(reader.path)
    order = "unshuffled" if reader.shuffle_seed is None else f"shuffled{reader.shuffle_seed}"
    beside = dataset.beside()
    if beside is None:
        raise ConfigError(
            f"reader={reader.name}: {dataset.name} has no folder of its own for a packed file; say where "
            "it is to be: reader.path=FILE"
        )
    return beside.with_name(f"{beside.name}-{order}.packed")


def open_set(dataset: Dataset, reader: PackedReader, data: Data) -> PackedSet:
    """The packed file of `data`, which is `dataset` as loaded.

    Raises ConfigError: there is none, it is damaged, or it is of other samples; MachineError: unreadable.
    """
    packed = _opened(dataset, reader)
    try:
        form = _form(data, reader)
        wanted = _description(dataset, reader, data, form)
        difference = _difference(packed, wanted, len(data.train))
        if difference is not None:
            raise ConfigError(f"{packed.path}: {difference}; make the file again: {command(dataset, reader)}")
    except BaseException:
        packed.close()
        raise
    return PackedSet(packed=packed, stored=form, order=_order(data, reader))


def look_at(dataset: Dataset, reader: PackedReader, nodes: int) -> None:
    """Refuse a packed file as far as that goes without the data set: missing, damaged, of another order.

    nodes: as many as there are to deal it to. Raises as `open_set` does.
    """
    with _opened(dataset, reader) as packed:
        difference = _other_order(packed, reader.shuffle_seed)
        if difference is not None:
            raise ConfigError(f"{packed.path}: {difference}; make the file again: {command(dataset, reader)}")
        reader.check(packed, nodes)


def of_run(dataset: Dataset, reader: NoReader | PackedReader, data: Data) -> PackedSet | None:
    """As `open_set`; None for a run without a packed file."""
    return open_set(dataset, reader, data) if isinstance(reader, PackedReader) else None


def write_set(dataset: Dataset, reader: PackedReader, data: Data, tell: Tell) -> bool:
    """Write the packed file of `data`, unless it is there and whole; returns whether it was written.

    One of the same set and order that is damaged or of other samples is replaced, anything else is left.
    One process at a time does so, others wait. `tell` hears how many samples are done, checked or written.
    Raises ConfigError, ValueError and OSError that name what is wrong.
    """
    path, form = path_of(dataset, reader), _form(data, reader)
    description, count = _description(dataset, reader, data, form), len(data.train)
    with locked(path.parent):
        refuse_taken(path, description)
        with contextlib.suppress(ConfigError, DamagedFile), open_set(dataset, reader, data).packed as packed:
            _check_records(packed, tell)
            return False
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):  # by a process that was killed
            left.unlink()
        with Writer(path, description, record_bytes=form.record_bytes) as writer:
            for done, index in enumerate(_order(data, reader).tolist(), start=1):
                writer.add(*form.sample(index))
                tell(done, count)
    return True


def _opened(dataset: Dataset, reader: PackedReader) -> Packed:
    """The file, whatever it holds."""
    path, again = path_of(dataset, reader), command(dataset, reader)
    try:
        return Packed(path, random_access=reader.random_access)
    except FileNotFoundError as error:
        raise ConfigError(
            f"reader={reader.name}: there is no packed file {path}; make it: {again}"
        ) from error
    except DamagedFile as error:
        raise ConfigError(f"{error}: {again}") from error
    except OSError as error:
        raise MachineError(f"reader={reader.name}: {path} cannot be read: {error}") from error


def _check_records(packed: Packed, tell: Tell) -> None:
    """Read all records. Raises DamagedFile for the first that is not as it was written."""
    for run in chunks(packed.starts(), CHUNK_BYTES):
        content = memoryview(bytearray(packed.size_of(run.first, run.count)))
        packed.read(run.first, run.count, content)
        packed.check(run.records(), content)
        tell(run.end, len(packed))


def command(dataset: Dataset, reader: PackedReader) -> str:
    """What makes the file, to be typed."""
    folder = dataset.folder()
    words = ["daso-bench prepare", f"dataset={dataset.name}", f"reader={reader.name}"]
    words += [f"dataset.root={folder}"] * (folder is not None)
    words += [f"reader.path={reader.path}"] * bool(reader.path)
    if reader.shuffle_seed != PackedReader.shuffle_seed:
        words.append(f"reader.shuffle_seed={'null' if reader.shuffle_seed is None else reader.shuffle_seed}")
    return f"{' '.join(words)} (and the run's other dataset keys)"


def _form(data: Data, reader: PackedReader) -> Stored:
    try:
        return stored(data.train)
    except ValueError as error:
        raise ConfigError(f"reader={reader.name}: {data.name} {error}") from error


def _order(data: Data, reader: PackedReader) -> Tensor:
    return torch.from_numpy(shuffled(len(data.train), reader.shuffle_seed))


def _description(dataset: Dataset, reader: PackedReader, data: Data, form: Stored) -> Description:
    seen = hashlib.blake2b(form.digest(dataset.fingerprint()), digest_size=16)
    seen.update(_order(data, reader).numpy().data)
    return Description(
        name=data.name,
        classes=data.classes,
        shape=data.shape,
        encoding=form.encoding,
        made=f"training split of {data.name}, daso-bench prepare, shuffle_seed={reader.shuffle_seed}",
        source=seen.hexdigest(),
        shuffle_seed=reader.shuffle_seed,
    )


def _difference(packed: Packed, wanted: Description, samples: int) -> str | None:
    """In which way a file is not the one that is wanted, in words."""
    found = packed.description
    if found.name != wanted.name:
        return f"holds {found.name}, and the data set is {wanted.name}"
    if (difference := _other_order(packed, wanted.shuffle_seed)) is not None:
        return difference
    if len(packed) != samples:
        return f"holds {len(packed)} samples, and the training split has {samples}"
    if (found.encoding, found.classes) != (wanted.encoding, wanted.classes):
        return (
            f"holds {found.encoding} of {found.classes} classes, and the data set is {wanted.encoding} of "
            f"{wanted.classes}"
        )
    if found.source != wanted.source:
        return "holds other samples than the data set has now"
    return None


def _other_order(packed: Packed, wanted: int | None) -> str | None:
    found = packed.description.shuffle_seed
    return None if found == wanted else f"its order is that of shuffle_seed {found}, asked for is {wanted}"
