"""The curve of `collectives` against all-reduces that others measured, in the half that fitted no constant.

conf/published has the points and the halves. Errors are symmetric, exp|ln(modelled / measured)| - 1.
"""

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

from daso_bench.runner.communication.collectives import ends, seconds, through
from daso_bench.runner.config.cluster import LinkConfig, LinksConfig
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.doctor.calibration_fit import SMALL_BYTES, ramp_fit, small_end

KIB, MIB = 2**10, 2**20
RAMP = 0.7
CLASSES = {"2 KiB": (2 * KIB, MIB), "1 MiB": (MIB, 64 * MIB), "64 MiB": (64 * MIB, math.inf)}

Points = dict[int, float]
Model = Callable[[int], float]
"""Modelled seconds of a payload in bytes."""


def _points() -> dict[str, Points]:
    """By table: seconds by bytes, in order of size."""
    points: dict[str, Points] = defaultdict(dict)
    with (CONF / "published" / "collectives.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            points[row["table"]][int(row["bytes"])] = float(row["us"]) / 1e6
    return {table: dict(sorted(times.items())) for table, times in points.items()}


POINTS = _points()
TABLES: dict[str, dict[str, Any]] = yaml.safe_load((CONF / "published" / "collectives.yaml").read_text())
TEST = [table for table, about in TABLES.items() if about["half"] == "test"]

# Launch and hops between nodes are of the fit half; rates of a rank are what NCCL's search reaches. µs, GB/s.
LAUNCH_US = {"mpi": 7.6, "torch": 7.6, "one process": 28.0}
HOP_US = {"ib": 12, "roce": 12, "efa": 48, "tcp": 39, None: 0}
INSIDE_US = {"nvl": 0.6, "pci": 1.0, "shm": 1.0, None: 0}
NVLINK = {"volta": 120, "ampere": 240, "hopper": 360, "blackwell": 720}
SWITCHES = {"hopper": 476, "blackwell": 829}
PCIE, CARD, STAGED = 12, 0.96, 0.45


def measured(table: str, ramp: float = RAMP) -> Model | None:
    """The curve through both ends of the table; None where it has no small end."""
    sizes, times = list(POINTS[table]), list(POINTS[table].values())
    latency = small_end(sizes, times)
    if latency is None:
        return None
    curve = through(latency, sizes[-1], times[-1], ramp)
    return lambda size: seconds(size, curve, ramp)


def blind(table: str) -> Model:
    """The curve by the rule of `collectives`, from the configuration alone."""
    about = TABLES[table]["config"]
    inside = NVLINK[about["gpu"]] if about["intra"] == "nvl" else PCIE
    switches = SWITCHES.get(about["gpu"])
    links = LinksConfig(
        model="nccl",
        launch_us=LAUNCH_US[about["launch"]],
        ramp=RAMP,
        intra=LinkConfig(rate_gbit=8 * inside, latency_us=INSIDE_US[about["intra"]]),
        inter=LinkConfig(latency_us=HOP_US[about["net"]]),
        nvls_gbit=switches and 8 * switches,
    )
    net = about["nics"] * about["rate_gbit"] / 8 * 1e9 * CARD * (STAGED if about["staged"] else 1)
    nodes, most = about["nodes"], about["ranks_per_node"]
    curve = ends("all_reduce", nodes, most, nodes * most, net, links)
    return lambda size: seconds(size, curve, RAMP)


def errors(
    modelled: Callable[[str], Model | None], *, with_ends: bool
) -> dict[str, tuple[int, float, float]]:
    """By class of sizes: points, median and 90th percentile of the errors of the test half, in per cent."""
    by_class: dict[str, list[float]] = {name: [] for name in CLASSES}
    for table in TEST:
        model = modelled(table)
        if model is None:
            continue
        for size, time_s in POINTS[table].items():
            if with_ends or size < max(POINTS[table]):  # the small end is below all classes
                for name, (low, high) in CLASSES.items():
                    if low <= size < high:
                        by_class[name].append(100 * math.expm1(abs(math.log(model(size) / time_s))))
    return {
        name: (len(all_of), float(np.median(all_of)), float(np.percentile(all_of, 90)))
        for name, all_of in by_class.items()
    }


def test_the_points_and_their_halves():
    """869 points of 39 tables; origins in their order, the odd ones to fit, the even ones to test."""
    assert list(POINTS) == list(TABLES)
    origins = list(dict.fromkeys(about["origin"] for about in TABLES.values()))
    assert len(origins) == 24
    for about in TABLES.values():
        assert about["half"] == ("test" if origins.index(about["origin"]) % 2 else "fit")
    points = Counter({"fit": 0, "test": 0})
    for table, about in TABLES.items():
        points[about["half"]] += len(POINTS[table])
    assert (len(TEST), dict(points)) == (19, {"fit": 445, "test": 424})


def test_with_both_ends_measured_the_curve_holds_on_the_test_half():
    """Points, median and p90 of three curves: both ends measured, the same ends as α–β, the rule alone."""
    measured_ends = errors(measured, with_ends=False)
    straight = errors(lambda table: measured(table, 0), with_ends=False)
    by_rule = errors(blind, with_ends=True)
    for name, most in {"2 KiB": (16, 42), "1 MiB": (16, 40), "64 MiB": (4, 15)}.items():
        print(f"from {name}, %: {measured_ends[name]}; as alpha-beta {straight[name]}; blind {by_rule[name]}")
        assert measured_ends[name][1] <= most[0]
        assert measured_ends[name][2] <= most[1]
    held = {
        "2 KiB": [(90, 14, 37), (90, 20, 68), (117, 53, 161)],
        "1 MiB": [(60, 13, 36), (60, 39, 94), (107, 16, 81)],
        "64 MiB": [(47, 2, 14), (47, 6, 43), (118, 5, 35)],
    }
    for name, rows in held.items():
        got = [of_sizes[name] for of_sizes in (measured_ends, straight, by_rule)]
        assert [tuple(map(round, row)) for row in got] == rows, "docs/simulation.md has these numbers"


def test_tables_without_a_small_end_are_left_out():
    """They begin above 1 KiB, or with it: no latency shows in them."""
    without = [table for table in TEST if measured(table) is None]
    assert len(without) == 9
    assert all(min(POINTS[table]) >= SMALL_BYTES for table in without)


def test_a_ramp_that_is_fitted_is_found_and_stays_within_0_and_1():
    curve = through(40e-6, 2**30, 10e-3, 0.35)
    sizes = [2**power for power in range(3, 31)]
    times = [seconds(size, curve, 0.35) for size in sizes]
    assert ramp_fit(sizes, times, 40e-6) == (0.35, curve)
    slower = [time + 1e-3 * (KIB < size < 2**30) for size, time in zip(sizes, times, strict=True)]
    assert ramp_fit(sizes, slower, 40e-6)[0] == 1
