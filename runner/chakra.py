"""A run's timeline as execution traces of MLCommons' Chakra, a file a rank: what ASTRA-sim and others read.

`python -m daso_bench.runner.chakra RUN/timeline.json FOLDER` writes FOLDER/rank.0.et, rank.1.et, … and
FOLDER/comm_groups.json, the ranks of each `pg_name`. Schema: et_def.proto of mlc-chakra 1.0.0, in protobuf's
wire format, which needs no library: messages with their length before them.

A rank's forward and backward passes are compute nodes, its transfers collectives, sends or receives; waits
are no nodes. A node depends on what the rank had finished when it began and nothing else had waited for. So a
trace tells this run's order of events, not which other orders would have been right. Times are whole µs.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..strategies.errors import ConfigError

VERSION = "1.0.0"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7  # NodeType
COLLECTIVES = {  # CollectiveCommType
    "all_reduce": 0,
    "reduce": 1,
    "all_gather": 2,
    "broadcast": 5,
    "reduce_scatter": 7,
    "barrier": 9,
}
_VARINT, _BYTES = 0, 2
_BOOL, _STRING, _INT64 = 27, 29, 9  # fields of AttributeProto


@dataclass
class Node:
    """What a rank did from `start_us` to `end_us`."""

    name: str
    kind: int
    start_us: float
    end_us: float
    attributes: dict[str, bool | int | str]
    after: list[int] = field(default_factory=list)  # nodes of this rank by their number


def export(timeline: Path, folder: Path) -> int:
    """Write the traces of all ranks, and say of how many. Raises ConfigError for a timeline that is cut."""
    content = json.loads(timeline.read_text(encoding="ascii"))
    if "cut" in content["otherData"]:
        raise ConfigError(f"{timeline}: {content['otherData']['cut']}; a trace needs them all")
    rows = content["traceEvents"]
    names = [row for row in rows if row["name"] == "thread_name" and row["args"]["name"].startswith("rank ")]
    ranks = len(names)
    groups: dict[tuple[int, ...], str] = {}
    traces: list[list[Node]] = [[] for _ in range(ranks)]
    seen: set[int] = set()
    for row in rows:
        if row["ph"] != "X":
            continue
        if row["cat"] == "compute":
            traces[row["tid"]].append(_node(row, row["name"], COMPUTE))
        elif row["cat"] != "wait" and row["args"]["transfer"] not in seen:  # it stands on each of its nodes
            seen.add(row["args"]["transfer"])
            members = _members(row["args"]["members"], ranks)
            for rank in members:
                traces[rank].append(_transfer(row, rank, members, groups))
    folder.mkdir(parents=True, exist_ok=True)
    for rank, nodes in enumerate(traces):
        _link(nodes)
        _write(folder / f"rank.{rank}.et", b"".join(encode(nodes)))
    listed = {name: list(members) for members, name in groups.items()}
    _write(folder / "comm_groups.json", json.dumps(listed).encode("ascii"))
    return ranks


def encode(nodes: list[Node]) -> Iterator[bytes]:
    """The bytes of a rank's trace: metadata, then nodes."""
    yield _framed(_text(1, VERSION))
    for number, node in enumerate(nodes):
        parts = [_number(1, number), _text(2, node.name), _number(3, node.kind)]
        if node.after:
            parts.append(_chunk(4, b"".join(_varint(other) for other in node.after)))
        parts += [_number(6, round(node.start_us)), _number(7, round(node.end_us) - round(node.start_us))]
        parts += [_chunk(10, _attribute(name, value)) for name, value in node.attributes.items()]
        yield _framed(b"".join(parts))


def _node(row: dict[str, Any], name: str, kind: int, **attributes: bool | int | str) -> Node:
    return Node(name, kind, row["ts"], row["ts"] + row["dur"], {"is_cpu_op": False, **attributes})


def _transfer(
    row: dict[str, Any], rank: int, members: tuple[int, ...], groups: dict[tuple[int, ...], str]
) -> Node:
    """`rank`'s part of a transfer; a group gets a name when it is first met."""
    verb, size, number = row["name"], row["args"]["payload_bytes"], row["args"]["transfer"]
    if verb == "send":
        source, destination = members
        kind = SEND if rank == source else RECEIVE
        return _node(row, verb, kind, comm_src=source, comm_dst=destination, comm_tag=number, comm_size=size)
    group = groups.setdefault(members, str(len(groups)))
    return _node(row, verb, COLLECTIVE, comm_type=COLLECTIVES[verb], comm_size=size, pg_name=group)


def _members(listed: str, ranks: int) -> tuple[int, ...]:
    """Ranks of a transfer; of a large group the timeline tells them only if they are all."""
    if "..." not in listed:
        return tuple(int(member) for member in listed.split(","))
    count = int(listed.rpartition("(")[2].split()[0])
    if count < ranks:
        raise ConfigError(f"members {listed}: the timeline does not name all of them; use fewer ranks")
    return tuple(range(ranks))


def _link(nodes: list[Node]) -> None:
    """Order by start, and let each node come after those that were finished and that no other came after."""
    nodes.sort(key=lambda node: (node.start_us, node.end_us))
    by_end = sorted(range(len(nodes)), key=lambda number: nodes[number].end_us)
    last: list[int] = []  # finished, and nothing finished has begun since
    place = 0
    for number, node in enumerate(nodes):
        while place < len(by_end) and nodes[by_end[place]].end_us <= node.start_us:
            if by_end[place] >= number:  # of no duration, at this very moment
                break
            ended = nodes[by_end[place]]
            last = [other for other in last if nodes[other].end_us > ended.start_us]
            last.append(by_end[place])
            place += 1
        node.after = sorted(last)


def _attribute(name: str, value: bool | int | str) -> bytes:
    if isinstance(value, bool):
        return _text(1, name) + _number(_BOOL, int(value))
    return _text(1, name) + (_text(_STRING, value) if isinstance(value, str) else _number(_INT64, value))


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the eighth bit set."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(place: int, value: int) -> bytes:
    return _varint(place << 3 | _VARINT) + _varint(value)


def _chunk(place: int, content: bytes) -> bytes:
    return _varint(place << 3 | _BYTES) + _framed(content)


def _text(place: int, content: str) -> bytes:
    return _chunk(place, content.encode())


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("python -m daso_bench.runner.chakra RUN/timeline.json FOLDER")
    try:
        print(f"{export(Path(sys.argv[1]), Path(sys.argv[2]))} ranks in {sys.argv[2]}")
    except (ConfigError, OSError) as error:
        sys.exit(str(error))
