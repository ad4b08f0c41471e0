"""The format of a packed file: header, description, records, index; and the error that names what is damaged.

All numbers are little-endian.

    0               header, 56 bytes: see `Header`
    56              description, JSON
    data_offset     records, one after another without gaps; a multiple of 4096
    index_offset    index: labels int64 [n], ends uint64 [n] (only where sizes differ), CRC-32 uint32 [n]

The index comes last, so that a writer need not know how many records there will be. `ends` count from
data_offset: record k lies in [ends[k-1], ends[k]).
"""

import json
import struct
import zlib
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

MAGIC, VERSION = b"DASOPACK", 1
ALIGNMENT = 4096  # a page: records of whole pages touch no page more than they must
INDEX_ALIGNMENT = 8
LABEL_BYTES, END_BYTES, CHECKSUM_BYTES = 8, 8, 4

_LAYOUT = struct.Struct("<8sIIQQQQII")
HEADER_BYTES = _LAYOUT.size


class DamagedFile(OSError):
    """A packed file cannot be used; the message names the file, the place and the reason.

    record: number of the record, offset: byte of the file; None if the error is not at a single place.
    """

    def __init__(
        self, path: Path, reason: str, *, record: int | None = None, offset: int | None = None
    ) -> None:
        places = [("record", record), ("byte", offset)]
        where = ", ".join(f"{name} {number}" for name, number in places if number is not None)
        super().__init__(f"{path}: {where + ': ' if where else ''}{reason}")
        self.path, self.reason, self.record, self.offset = path, reason, record, offset


def located(error: OSError, path: Path, offset: int | None = None) -> OSError:
    """The system's error with the file and byte at which it occurred, unless it names a file already."""
    if error.errno is None or error.filename is not None:
        return error
    where = "" if offset is None else f" at byte {offset}"
    return OSError(error.errno, f"{error.strerror}{where}", str(path))


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a packed file.

    name: of the data set; classes: labels are below it; shape: of one sample; encoding: of a record, such as
    `uint8`, `float32` or `jpeg`; made: how the file was made, in words, so that it can be made again;
    source: a digest of the samples in the file's order; shuffle_seed: of that order
    (`record_order.shuffled`), None for that of the data set.
    """

    name: str
    classes: int
    shape: tuple[int, ...]
    encoding: str
    made: str
    source: str = ""
    shuffle_seed: int | None = None

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Description":
        """The inverse of `to_bytes`; raises ValueError, KeyError or TypeError for other content."""
        values = json.loads(content)
        return cls(**{**values, "shape": tuple(values["shape"])})


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first bytes of a file.

    In order: magic (8 bytes), version uint32, bytes of the description uint32, records uint64, record_bytes
    uint64 (0: sizes differ), data_offset uint64, index_offset uint64, CRC-32 of the index uint32, CRC-32 of
    the header (with this number 0) and the description uint32.
    """

    description_bytes: int
    records: int
    record_bytes: int
    data_offset: int
    index_offset: int
    index_crc: int

    @property
    def index_bytes(self) -> int:
        """Length of the index."""
        return self.records * (LABEL_BYTES + CHECKSUM_BYTES + (0 if self.record_bytes else END_BYTES))

    @property
    def file_bytes(self) -> int:
        """Length of the whole file."""
        return self.index_offset + self.index_bytes

    def to_bytes(self, description: bytes) -> bytes:
        """56 bytes, with a checksum of themselves and the description."""
        numbers = astuple(self)
        crc = zlib.crc32(_LAYOUT.pack(MAGIC, VERSION, *numbers, 0) + description)
        return _LAYOUT.pack(MAGIC, VERSION, *numbers, crc)


def aligned(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` that is not below `offset`."""
    return -(-offset // alignment) * alignment


def parse(path: Path, start: bytes, file_bytes: int) -> tuple[Header, Description]:
    """Header and description from the first bytes of a file of so many bytes.

    start: at least the header and the description.
    Raises DamagedFile: empty, another kind of file, a newer version, cut short, too long, damaged.
    """
    if file_bytes == 0:
        raise DamagedFile(path, "is empty; make it again")
    if not start.startswith(MAGIC):
        raise DamagedFile(path, f"is no packed file (starts with {start[:8].hex(' ')})", offset=0)
    if len(start) < HEADER_BYTES:
        raise DamagedFile(path, f"cut short in its header ({file_bytes} bytes); make it again")
    _, version, *numbers, _ = _LAYOUT.unpack_from(start)
    if version > VERSION:
        reason = f"has format version {version}, this daso-bench reads up to {VERSION}; use a newer one"
        raise DamagedFile(path, reason, offset=8)
    header = Header(**dict(zip([field.name for field in fields(Header)], numbers, strict=True)))
    description = start[HEADER_BYTES : HEADER_BYTES + header.description_bytes]
    if file_bytes < HEADER_BYTES + header.description_bytes:
        raise DamagedFile(path, f"cut short in its description ({file_bytes} bytes); make it again")
    if header.to_bytes(description) != start[:HEADER_BYTES]:
        raise DamagedFile(path, "checksum of the header is wrong; make the file again", offset=0)
    if header.records == 0:
        raise DamagedFile(path, "holds no records; make it again")
    if file_bytes != header.file_bytes:
        kind = "cut short" if file_bytes < header.file_bytes else "too long"
        reason = f"{kind}: {file_bytes} bytes where {header.file_bytes} belong; make it again"
        raise DamagedFile(path, reason, offset=min(file_bytes, header.file_bytes))
    return header, Description.from_bytes(description)
