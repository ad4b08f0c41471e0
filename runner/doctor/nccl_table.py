"""`daso-bench calibrate links=FILE`: a cluster's links from the output of nccl-tests' all_reduce_perf."""

import datetime
import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from ...strategies.errors import ConfigError
from ...strategies.topology import Topology
from ..communication.collectives import NVLS_RANKS
from ..communication.link_costs import ClusterNetwork
from ..config.cluster import ClusterConfig, LinksConfig
from ..config.typed import typed
from ..records.trees import dump_yaml, flatten, nested
from .calibration_file import number, percent
from .calibration_fit import ramp_fit, small_end

RATES_GBIT = (1e-3, 1e7)  # between which a link's rate is looked for
_TAG = re.compile(r"\[\d+,\d+\]<stdout>:")  # of mpirun --tag-output
_RANK = re.compile(r"#?\s*Rank\s+\d+\s.*\son\s+(\S+)\s+device")


@dataclass(frozen=True)
class NcclTable:
    """All-reduces out of place: payloads in bytes, ascending, and seconds.

    bus_over_payload: busbw over algbw of the last row. ranks_of_nodes: () if the file names no devices.
    """

    sizes: tuple[int, ...]
    times_s: tuple[float, ...]
    bus_over_payload: float
    ranks_of_nodes: tuple[int, ...]


def read_table(path: Path) -> NcclTable:
    """The one table of a file; lines of other programs are passed over. Raises ConfigError with the line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"links={path}: cannot be read: {error.strerror}") from error
    rows: list[tuple[int, float, float]] = [(0, 0.0, 0.0)]
    columns: list[str] = []
    nodes: Counter[str] = Counter()
    for place, line in enumerate(lines, 1):
        text = _TAG.sub("", line.strip())
        words = text.lstrip("# ").split()
        if device := _RANK.match(text):
            nodes[device[1]] += 1
        elif words[:2] == ["size", "count"]:
            columns = words
        elif columns and len(words) > 1 and words[0].isdigit() and words[1].isdigit() and int(words[0]):
            row = _row(words, columns)
            if row is None or row[0] <= rows[-1][0]:
                raise ConfigError(
                    f"links={path}: line {place} is no row of one table of all_reduce_perf, in which sizes "
                    f"grow and times are above 0: {text}"
                )
            rows.append(row)
    if len(rows) == 1:
        raise ConfigError(f"links={path}: none of {len(lines)} lines is a row of all_reduce_perf")
    sizes, times_s, ratios = zip(*rows[1:], strict=True)
    return NcclTable(sizes, times_s, ratios[-1], tuple(nodes.values()))


def _row(words: list[str], columns: list[str]) -> tuple[int, float, float] | None:
    """Bytes, seconds, busbw over algbw; None for what is no all-reduce's."""
    try:
        time_us, payload_rate, bus_rate = map(float, words[columns.index("time") :][:3])
        reduced = words[columns.index("redop")] != "none"
    except (ValueError, IndexError):
        return None
    if not reduced or not 0 < time_us < math.inf:
        return None
    return int(words[0]), time_us / 1e6, bus_rate / payload_rate if payload_rate else 0.0


def calibrated(cluster: ClusterConfig, table: NcclTable, where: str) -> ClusterConfig:
    """`cluster`, the all-reduce of which goes through both ends of the table, with the ramp of the rows.

    The latency is that of the links between nodes, of one node that inside it. Raises ConfigError.
    """
    if cluster.links.model != "nccl":
        raise ConfigError(
            f"cluster.links.model={cluster.links.model}: {where} completes a cluster of model nccl, such as "
            "cluster=a100_hdr"
        )
    of_nodes = table.ranks_of_nodes or cluster.ranks_of_nodes
    cluster = replace(cluster, nodes=len(of_nodes), ranks_per_node=of_nodes, validated_ranks=0)
    latency_s = _latency_s(table, cluster.ranks, where)
    kind = "inter" if cluster.nodes > 1 else "intra"
    ramp, _ = ramp_fit(table.sizes, table.times_s, latency_s)
    keys = ["inter.rate_gbit"] if cluster.nodes > 1 else []
    keys += ["nvls_gbit"] if cluster.links.nvls_gbit and max(of_nodes) >= NVLS_RANKS else []
    keys += ["intra.rate_gbit"] if max(of_nodes) > 1 else []

    def changed(launch_us: float, hop_us: float, key: str, rate_gbit: float) -> ClusterConfig:
        values: dict[str, Any] = {"launch_us": launch_us, "ramp": ramp, f"{kind}.latency_us": hop_us}
        flat = flatten(asdict(cluster.links)) | values | {key: rate_gbit}
        return replace(cluster, links=typed(LinksConfig, nested(flat), "cluster.links"))

    launch_us = cluster.links.launch_us
    without_s, with_one_s = (modelled_s(changed(launch_us, us, keys[0], 1), 0) for us in (0, 1))
    hop_us = (latency_s - without_s) / (with_one_s - without_s)
    if hop_us < 0:  # the launch is shorter than that of `cluster`
        hop_us, launch_us = 0.0, launch_us + 1e6 * (latency_s - without_s)
    if launch_us < 0:
        raise ConfigError(
            f"cluster.links.intra.latency_us={cluster.links.intra.latency_us}: these hops alone take longer "
            f"than the {1e6 * latency_s:.3g} us of {where}"
        )

    def late_s(power: float, key: str) -> float:
        return modelled_s(changed(launch_us, hop_us, key, 10**power), table.sizes[-1]) - table.times_s[-1]

    # The cards limit the rate, or, where none would be fast enough, the links inside.
    low, high = map(math.log10, RATES_GBIT)
    for key in keys:
        if late_s(low, key) > 0 > late_s(high, key):
            power: Any = brentq(late_s, low, high, (key,))
            launch, hop, rate = (float(number(value)) for value in (launch_us, hop_us, 10**power))
            return changed(launch, hop, key, rate)
    raise ConfigError(
        f"cluster.links.{keys[-1]}: with no value of {' or '.join(keys)} the last row of {where} comes out"
    )


def _latency_s(table: NcclTable, ranks: int, where: str) -> float:
    """Seconds of a payload that takes none. Raises ConfigError for a table that has no two ends."""
    if ranks < 2 or abs(table.bus_over_payload - 2 * (ranks - 1) / ranks) > 0.03:
        raise ConfigError(
            f"{where}: busbw is {table.bus_over_payload:.3g} of algbw, which is no all-reduce of {ranks} "
            "ranks (cluster.nodes, cluster.ranks_per_node)"
        )
    latency_s = small_end(table.sizes, table.times_s)
    if latency_s is None or table.times_s[-1] <= latency_s:
        raise ConfigError(
            f"{where}: needs three sizes up to 1 KiB, and a last one that takes longer: "
            "all_reduce_perf -b 8 -e 1G -f 2"
        )
    return latency_s


def modelled_s(cluster: ClusterConfig, size: int) -> float:
    """Seconds of an all-reduce of `size` bytes over all ranks of `cluster`."""
    topology = Topology.of(cluster.ranks_of_nodes)
    network = ClusterNetwork(cluster.links, topology)
    return network.cost(topology, "all_reduce", tuple(range(cluster.ranks)), size).duration_ns / 1e9


def render_links(cluster: ClusterConfig, named: ClusterConfig, table: NcclTable, command: str) -> str:
    """The text of the cluster's file; its first line describes it in `daso-bench list clusters`."""
    before, links = flatten(asdict(named.links)), flatten(asdict(cluster.links))
    found = [f"links.{key}: {value:g}" for key, value in links.items() if value != before[key]]
    about = [
        f"Links of a table of nccl-tests with {' + '.join(map(str, cluster.ranks_of_nodes))} ranks "
        "(virtual time)",
        "",
        command,
        f"{datetime.date.today()}; out of place. Latency: the median of sizes up to 1 KiB. Rate: the last",
        f"row. Ramp: least squares of relative errors. Of the table are {', '.join(found)}.",
        "All other numbers are those of the cluster that was named.",
        "",
        *table_lines(cluster, table),
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in about) + dump_yaml(asdict(cluster))


def table_lines(cluster: ClusterConfig, table: NcclTable) -> list[str]:
    """The rows beside the curve of `cluster`, each with its error, and the worst."""
    modelled = [modelled_s(cluster, size) for size in table.sizes]
    errors = [model / time_s - 1 for model, time_s in zip(modelled, table.times_s, strict=True)]
    lines = [f"{'bytes':>12}  {'table us':>10}  {'curve us':>10}   error"]
    for size, time_s, model, error in zip(table.sizes, table.times_s, modelled, errors, strict=True):
        lines.append(f"{size:12}  {1e6 * time_s:10.1f}  {1e6 * model:10.1f}  {percent(error):>8}")
    worst = max(range(len(errors)), key=lambda row: abs(math.log1p(errors[row])))
    return [*lines, f"worst: {table.sizes[worst]} bytes, {percent(errors[worst])}"]
