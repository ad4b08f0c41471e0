"""Execution traces: what the timeline holds of a rank, in the format that Chakra's own library reads."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner import chakra
from daso_bench.runner.chakra import COLLECTIVE, COMPUTE, RECEIVE, SEND
from daso_bench.runner.device import Scripted
from daso_bench.runner.network import AlphaBeta
from daso_bench.runner.simulated_world import Stage, play
from daso_bench.runner.trace import Timeline
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.topology import Topology

STEPS = 5


def traced(folder: Path, strategy: str = "ddp", *, ranks: list[int] | None = None) -> list[dict[str, Any]]:
    """Export a short run to `folder`, and tell the events of its timeline."""
    nodes = ranks or [2, 2]
    timeline = Timeline(Topology.of(nodes))
    stage = Stage(
        network=AlphaBeta(1e-5, 1e8, 1e-4, 1e6),
        device=lambda rank: Scripted(rank, lambda rank, samples: 3_000_000 + 1000 * rank),
        timeline=timeline,
    )
    made = config(strategy, ranks=nodes, max_steps=STEPS)
    play(made, made.dataset.load(), stage)
    timeline.write(folder / "timeline.json")
    assert chakra.export(folder / "timeline.json", folder / "et") == sum(nodes)
    rows = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    return [row for row in rows if row["ph"] == "X"]


# A second reader of protobuf's wire format, written from its description.


def varint(stream: io.BytesIO) -> int | None:
    value, shift = 0, 0
    while byte := stream.read(1):
        value |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            return value
    return None


def messages(content: bytes) -> Iterator[bytes]:
    stream = io.BytesIO(content)
    while (length := varint(stream)) is not None:
        yield stream.read(length)


def fields(message: bytes) -> dict[int, list[Any]]:
    stream, found = io.BytesIO(message), {}
    while (tag := varint(stream)) is not None:
        value = varint(stream)
        assert value is not None
        assert tag & 7 in (0, 2)
        found.setdefault(tag >> 3, []).append(value if tag & 7 == 0 else stream.read(value))
    return found


def attributes(node: dict[int, list[Any]]) -> dict[str, Any]:
    values = {}
    for attribute in map(fields, node[10]):
        name = attribute.pop(1)[0].decode()
        ((place, (value,)),) = attribute.items()
        values[name] = {27: bool, 9: int, 29: lambda text: text.decode()}[place](value)
    return values


def packed(content: bytes) -> list[int]:
    stream = io.BytesIO(content)
    return [value for value in iter(lambda: varint(stream), None) if value is not None]


def read(path: Path) -> list[dict[int, list[Any]]]:
    head, *nodes = messages(path.read_bytes())
    assert fields(head) == {1: [b"1.0.0"]}
    return [fields(node) for node in nodes]


@pytest.mark.parametrize("strategy", ["ddp", "daso", "sgp"])
def test_every_pass_and_transfer_of_a_rank_is_a_node_with_its_times_and_size(tmp_path: Path, strategy: str):
    events = traced(tmp_path, strategy)
    groups = json.loads((tmp_path / "et" / "comm_groups.json").read_text())
    for rank in range(4):
        nodes = read(tmp_path / "et" / f"rank.{rank}.et")
        assert [node[1] for node in nodes] == [[number] for number in range(len(nodes))]
        found = []
        for node in nodes:
            what, start, took = attributes(node), node[6][0], node[7][0]
            if node[3] == [COMPUTE]:
                found.append((node[2][0].decode(), start, took))
            elif node[3] == [COLLECTIVE]:
                members = tuple(groups[what["pg_name"]])
                assert what["comm_type"] == chakra.COLLECTIVES[node[2][0].decode()]
                found.append((node[2][0].decode(), start, took, what["comm_size"], members))
            else:
                ends = (what["comm_src"], what["comm_dst"])
                assert node[3] == [SEND if rank == ends[0] else RECEIVE]
                found.append((node[2][0].decode(), start, took, what["comm_size"], ends))
        expected = []
        for row in {row["args"].get("transfer", -place): row for place, row in enumerate(events, 1)}.values():
            start = round(row["ts"])
            times = (start, round(row["ts"] + row["dur"]) - start)
            if row["cat"] == "compute" and row["tid"] == rank:
                expected.append((row["name"], *times))
            elif row["cat"] in ("intra", "inter"):
                members = tuple(map(int, row["args"]["members"].split(",")))
                if rank in members:
                    expected.append((row["name"], *times, row["args"]["payload_bytes"], members))
        assert sorted(found) == sorted(expected)
        assert sum(node[3] == [COMPUTE] for node in nodes) >= 2 * STEPS


def test_a_node_comes_after_what_had_ended_and_everything_that_had_ended_comes_before(tmp_path: Path):
    traced(tmp_path)
    nodes = read(tmp_path / "et" / "rank.1.et")
    before: list[set[int]] = []
    for node in nodes:
        direct = packed(node[4][0]) if 4 in node else []
        assert all(nodes[other][6][0] + nodes[other][7][0] <= node[6][0] + 1 for other in direct)
        before.append(set(direct).union(*(before[other] for other in direct)))
        for other in range(node[1][0]):
            if nodes[other][6][0] + nodes[other][7][0] < node[6][0] - 1:  # whole µs: ends may be rounded
                assert other in before[-1]
        assert not any(other in before[third] for other in direct for third in direct), "told twice"
    assert len(before[-1]) > 2 * STEPS


@dataclass
class Sum:
    """What a timeline is told of an all-reduce of two ranks."""

    start: int | None
    end: int | None
    verb: str = "all_reduce"
    members: tuple[int, ...] = (0, 1)


def test_what_ran_at_the_same_time_is_waited_for_alike(tmp_path: Path):
    timeline = Timeline(Topology.of([1, 1]))
    for start, end in ((0, 100_000), (100_000, 300_000), (300_000, 400_000)):
        timeline.compute(0, start, end, "backward")
    for start, end in ((120_000, 180_000), (200_000, 250_000), (280_000, 350_000)):
        timeline.transfer(Sum(start, end), 8, "gradients", start)
    timeline.write(tmp_path / "timeline.json")
    assert chakra.export(tmp_path / "timeline.json", tmp_path) == 2
    nodes = read(tmp_path / "rank.0.et")
    assert [node[6][0] for node in nodes] == [0, 100, 120, 200, 280, 300]
    after = [packed(node[4][0]) if 4 in node else [] for node in nodes]
    assert after == [[], [0], [0], [2], [3], [1, 3]]


def test_chakras_own_library_reads_the_same(tmp_path: Path):
    schema = pytest.importorskip(
        "chakra.schema.protobuf.et_def_pb2", reason="pip install --no-deps mlc-chakra protobuf"
    )
    traced(tmp_path)
    path = tmp_path / "et" / "rank.0.et"
    head, *rest = messages(path.read_bytes())
    metadata = schema.GlobalMetadata()
    metadata.ParseFromString(head)
    assert metadata.version == "1.0.0"
    for content, own in zip(rest, read(path), strict=True):
        node = schema.Node()
        node.ParseFromString(content)
        assert set(own) <= {1, 2, 3, 4, 6, 7, 10}, "no field but those compared here"
        assert (node.id, node.name.encode(), node.type) == (own[1][0], own[2][0], own[3][0])
        assert (node.start_time_micros, node.duration_micros) == (own[6][0], own[7][0])
        assert list(node.ctrl_deps) == (packed(own[4][0]) if 4 in own else [])
        values = {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}
        assert values == attributes(own)
    assert {name.lower(): number for name, number in schema.CollectiveCommType.items()}.items() >= (
        chakra.COLLECTIVES.items()
    )


def test_a_timeline_that_is_cut_or_hides_members_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="does not name all of them"):
        chakra._members("0, 1, 2, ... (17 ranks)", 18)  # pyright: ignore[reportPrivateUsage]
    assert len(chakra._members("0, 1, 2, ... (18 ranks)", 18)) == 18  # pyright: ignore[reportPrivateUsage]
    timeline = Timeline(Topology.of([2]), most=1)
    for step in range(2):
        timeline.compute(0, 10 * step, 10 * step + 5, "forward")
    timeline.write(tmp_path / "timeline.json")
    with pytest.raises(ConfigError, match="1 events after the first 1 are left out"):
        chakra.export(tmp_path / "timeline.json", tmp_path / "et")
