"""Records on disk: JSON Lines that survive a kill, and JSON written atomically.

One writer per file. Every line is valid JSON: NaN and the infinities are the strings "NaN", "Infinity" and
"-Infinity", a missing number is null. The fields of every file are listed in docs/records.md.
"""

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

Row = dict[str, Any]

SCHEMA_VERSION = 1
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """`value` with every float that JSON does not know replaced by its string; containers are copied."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """The inverse of `encode`: a value that is exactly one of the three strings becomes a float again."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


class RecordWriter:
    """Appends rows to a JSON Lines file, one whole line at a time, each handed to the system at once.

    If a kill left the file without a newline at its end, the next row starts on a fresh line: the cut line
    stays for the reader to report and costs nothing but itself. Raises OSError if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._file: BinaryIO = open(self.path, "ab+")  # noqa: SIM115 (held until close)
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")  # at the end, wherever the file was read

    def write(self, row: Mapping[str, Any]) -> None:
        """Append `row`. Raises TypeError for a value that JSON cannot hold (a tensor, a path)."""
        line = json.dumps(encode(row), allow_nan=False) + "\n"
        self._file.write(line.encode("ascii"))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Read:
    """The whole records of a file in their order, and a sentence for each line that was not one record."""

    rows: list[Row]
    damage: list[str]


def read_records(path: Path) -> Read:
    """Read every whole record of a JSON Lines file; damage is reported by line, never raised.

    Damage in the last line is explained by a kill; in the middle it is serious. Raises FileNotFoundError or
    another OSError only if the file itself cannot be read.
    """
    lines = Path(path).read_bytes().split(b"\n")
    used_lines = [number for number, line in enumerate(lines, 1) if line.strip()]
    rows: list[Row] = []
    damage: list[str] = []
    decoder = json.JSONDecoder()
    for number in used_lines:
        records, trouble = _records_of(lines[number - 1], decoder)
        rows += records
        if trouble is not None:
            where = "last line" if number == used_lines[-1] else "DAMAGE IN THE MIDDLE"
            damage.append(f"line {number} ({where}): {trouble}; whole records used: {len(records)}")
    return Read(rows, damage)


def _records_of(line: bytes, decoder: json.JSONDecoder) -> tuple[list[Row], str | None]:
    """All whole records at the start of `line`, and what is wrong with it (None: exactly one record)."""
    rest = line.decode("utf-8", errors="replace").strip()
    # Most lines hold none of the three strings: looking for them in every value takes most of the time.
    plain = not any(sign in rest for sign in ('NaN"', 'Infinity"', "\\"))
    records: list[Row] = []
    while rest:
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            # A line whose writer was killed begins like a record; anything else never was one.
            return records, "the line is cut" if rest.startswith("{") and not rest.endswith(
                "}"
            ) else "not a record"
        if not isinstance(value, dict):
            return records, "not a record"
        records.append(value if plain else decode(value))
        rest = rest[end:].lstrip()
    return records, None if len(records) == 1 else "several records"


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically: a reader, or a crash, sees the old file or the new one."""
    path = Path(path)
    text = json.dumps(encode(value), allow_nan=False, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(text.encode("ascii"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any:
    """The value `write_json` wrote. Raises OSError if unreadable, ValueError if it is not JSON."""
    return decode(json.loads(Path(path).read_text(encoding="utf-8")))


def surviving(rows: Iterable[Row]) -> list[Row]:
    """The rows of the work that survived, in file order; the file keeps the rows of every attempt.

    An attempt that began at step s (its row of kind "start"; without one, just before its smallest step)
    replaces all that earlier attempts recorded after s. Where two attempts recorded the same step of one
    kind, the later wins.
    """
    rows = list(rows)
    first_new = _first_new_steps(rows)
    winner: dict[tuple[Any, int], int] = {}
    for row in rows:
        if "step" in row:
            key = (row.get("kind"), row["step"])
            winner[key] = max(winner.get(key, 0), _attempt(row))
    kept: list[Row] = []
    for row in rows:
        step, attempt = row.get("step"), _attempt(row)
        if step is not None:
            replaced = any(later > attempt and step >= first for later, first in first_new.items())
            if replaced or winner[(row.get("kind"), step)] != attempt:
                continue
        kept.append(row)
    return kept


def _attempt(row: Row) -> int:
    return row.get("attempt") or 1


def _first_new_steps(rows: Sequence[Row]) -> dict[int, int]:
    """Attempt -> the first step that it does itself."""
    steps: dict[int, list[int]] = defaultdict(list)
    starts: dict[int, int] = {}
    for row in rows:
        if row.get("kind") == "start" and row.get("step") is not None:
            starts[_attempt(row)] = row["step"]
        elif row.get("step") is not None:
            steps[_attempt(row)].append(row["step"])
    from_rows = {attempt: min(numbers) for attempt, numbers in steps.items()}
    return from_rows | {attempt: step + 1 for attempt, step in starts.items()}
