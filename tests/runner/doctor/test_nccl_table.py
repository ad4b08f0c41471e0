"""`daso-bench calibrate links=FILE`: what the tables of nccl-tests look like, and what comes of one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from asking import code_of

from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.compose import compose_one
from daso_bench.runner.config.typed import plain, typed
from daso_bench.runner.doctor.calibration_file import cluster_of
from daso_bench.runner.doctor.nccl_table import NcclTable, calibrated, modelled_s, read_table
from daso_bench.strategies.errors import ConfigError

SIZES = tuple(8 * 2**power for power in range(28))  # 8 bytes to 1 GiB
NEW = "#   size    count    type   redop    root     time   algbw   busbw  #wrong   time   algbw   busbw"
OLD = "   size    count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error"


def text_of(
    times_us: Sequence[float], nodes: dict[str, int], sizes: Sequence[int] = SIZES, *, header: str = NEW
) -> str:
    """As all_reduce_perf prints it; in-place times are others."""
    ranks = sum(nodes.values())
    lines = ["# Using devices"]
    for node, of_node in nodes.items():
        lines += [
            f"#  Rank {r:2} Group  0 Pid 7 on {node} device {r:2} [0x07] NVIDIA A100" for r in range(of_node)
        ]
    lines += ["# out-of-place   in-place", header, "#  (B)  (elements)  (us)  (GB/s)  (GB/s)"]
    root = "-1  " if header == NEW else ""
    for size, us in zip(sizes, times_us, strict=True):
        rate = size / us / 1e3
        bus = rate * 2 * (ranks - 1) / ranks
        lines.append(f"{size:12} {size // 4:10} float sum {root}{us:.2f} {rate:.6f} {bus:.6f} 0 9 9 9 0")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 66.2"])


def named(*words: str) -> ClusterConfig:
    return typed(ClusterConfig, plain(compose_one(words))["cluster"], "cluster")


def curve_us(cluster: ClusterConfig) -> list[float]:
    return [1e6 * modelled_s(cluster, size) for size in SIZES]


@pytest.mark.parametrize(
    "words", [["cluster.nodes=2"], ["cluster.nodes=1"], ["cluster.nodes=4", "cluster.links.nics=2"]]
)
@pytest.mark.parametrize("choice", ["a100_hdr", "h100_ndr"])
def test_the_links_that_made_a_table_come_back(here: Path, choice: str, words: list[str]):
    """Another cluster's latency, rate and ramp are replaced by those that the table was made with."""
    kind = "intra" if words == ["cluster.nodes=1"] else "inter"
    rate = "nvls_gbit" if (kind, choice) == ("intra", "h100_ndr") else f"{kind}.rate_gbit"
    truth = {f"{kind}.latency_us": 21.0, "ramp": 0.35, rate: 100 if kind == "inter" else 4000}
    made = named(
        f"cluster={choice}", *words, *(f"cluster.links.{key}={value}" for key, value in truth.items())
    )
    hosts = {f"node{number}": 8 for number in range(made.nodes)}
    Path("table.txt").write_text(text_of(curve_us(made), hosts))
    assert code_of("calibrate", "links=table.txt", f"cluster={choice}", *words[1:], "--name", "mine") == 0
    found = cluster_of(Path("calibrated/cluster/mine.yaml").read_text())
    link = getattr(found.links, kind)
    assert (found.nodes, found.ranks_per_node) == (made.nodes, made.ranks_per_node)
    assert found.links.ramp == pytest.approx(0.35, abs=0.02)
    assert link.latency_us == pytest.approx(21, rel=0.01)  # sizes up to 1 KiB take a little longer than none
    rates = {"nvls_gbit": found.links.nvls_gbit, f"{kind}.rate_gbit": link.rate_gbit}
    assert rates[rate] == pytest.approx(truth[rate], rel=2e-3)
    assert curve_us(found) == pytest.approx(curve_us(made), rel=0.02)
    assert found.device == made.device


def test_where_no_card_is_fast_enough_the_links_inside_get_the_rate():
    """Two nodes of A100 at 1.02 of what their NVLinks let through, as published."""
    made = named("cluster=a100_hdr", "cluster.links.intra.rate_gbit=1958")
    table = NcclTable(SIZES, tuple(us / 1e6 for us in curve_us(made)), 1.875, (8, 8))
    links = calibrated(named("cluster=a100_hdr"), table, "links=f").links
    assert links.inter.rate_gbit == 200
    assert links.intra.rate_gbit == pytest.approx(1958, rel=2e-3)


def test_what_others_print_between_the_rows_is_passed_over(here: Path):
    """Old columns, a header without #, tags of mpirun, empty payloads, logs; in-place times do not count."""
    times = curve_us(named("cluster=a100_hdr"))
    lines = text_of(times, {"a": 8, "b": 8}, header=OLD).splitlines()
    lines[21:21] = ["           0  0 float sum 3.91 0.00 0.00 0", "8 more processes have sent help message"]
    lines[21:21] = ["ip-1:38:38 [0] NCCL INFO Launch mode Parallel", "1024 elements were checked"]
    Path("table.txt").write_text("\n".join(f"[1,0]<stdout>:{line}" for line in lines))
    table = read_table(Path("table.txt"))
    assert table.sizes == SIZES
    assert [1e6 * time_s for time_s in table.times_s] == pytest.approx(times, abs=0.005)
    assert table.ranks_of_nodes == (8, 8)
    assert table.bus_over_payload == pytest.approx(2 * 15 / 16, rel=1e-3)


ROW = "        2048         512     float     sum      -1   40.00   0.05   0.09      0"


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        (ROW.replace("40.00", "4o.00"), "line 7 is no row of one table of all_reduce_perf"),
        (ROW.replace("40.00", "0"), "line 7 is no row"),
        (ROW.replace("  sum  ", " none "), "line 7 is no row"),
        ("        2048         512     float     sum", "line 7 is no row"),
        (ROW.replace("2048", "8"), "line 7 is no row"),  # a second table
    ],
)
def test_a_row_that_is_none_is_refused_with_its_line(here: Path, row: str, wrong: str):
    text = text_of([10.0, 11.0], {"a": 1}, [8, 1024]).splitlines()
    Path("table.txt").write_text("\n".join([*text[:6], row]))
    with pytest.raises(ConfigError, match=r"^links=table.txt: ") as error:
        read_table(Path("table.txt"))
    assert wrong in str(error.value)


def test_no_table_is_refused(here: Path):
    Path("table.txt").write_text("# nThread 1 nGpus 8\n8 2 float sum\n")
    with pytest.raises(ConfigError, match="none of 2 lines is a row of all_reduce_perf"):
        read_table(Path("table.txt"))


GOOD = NcclTable(SIZES, tuple(us / 1e6 for us in range(40, 68)), 1.75, (8,))


@pytest.mark.parametrize(
    ("words", "changes", "wrong"),
    [
        (
            ["cluster=ethernet_10g"],
            {},
            "cluster.links.model=alpha_beta: links=f completes a cluster of model nccl",
        ),
        (
            ["cluster=a100_hdr"],
            {"bus_over_payload": 0.875},
            "links=f: busbw is 0.875 of algbw, which is no all-red",
        ),
        (
            ["cluster=a100_hdr"],
            {"sizes": SIZES[6:], "times_s": GOOD.times_s[6:]},
            "links=f: needs three sizes up",
        ),
        (
            ["cluster=a100_hdr"],
            {"times_s": (1e-5,) * 28},
            "links=f: needs three sizes up to 1 KiB, and a last one",
        ),
        (
            ["cluster=h100_ndr"],
            {"times_s": tuple(1e-5 * 2**p for p in range(28))},
            "cluster.links.intra.rate_gbit: with no value of",
        ),
    ],
)
def test_a_table_that_gives_no_links_is_refused(words: list[str], changes: dict[str, Any], wrong: str):
    table = NcclTable(**(vars(GOOD) | changes))
    with pytest.raises(ConfigError) as error:
        calibrated(named(*words), table, "links=f")
    assert str(error.value).startswith(wrong)


def test_a_launch_that_is_longer_than_the_table_gives_way():
    table = NcclTable(SIZES, tuple(5e-6 + size / 1e11 for size in SIZES), 1.75, (8,))
    made = calibrated(named("cluster=a100_hdr"), table, "links=f")
    assert (made.links.launch_us, made.links.intra.latency_us) == (pytest.approx(5, abs=0.01), 0)


@pytest.mark.parametrize("word", ["model=mlp", "links=other.txt"])
def test_nothing_else_is_asked_for_beside_a_table(here: Path, word: str, capsys: pytest.CaptureFixture[str]):
    assert code_of("calibrate", "links=table.txt", "cluster=a100_hdr", word) == 2
    assert "links=FILE takes one table, cluster=NAME and keys of the cluster alone" in capsys.readouterr().err
