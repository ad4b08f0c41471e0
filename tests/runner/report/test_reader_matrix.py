"""The report's table of readers, and the curve of their gain over the size of a record."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sharing import Make, agree, all_compared, section_of, table

from daso_bench.runner.report.build import report
from daso_bench.runner.report.sections.reader_matrix import ReadersSection, draw, gains

SIZES = {"4 KiB": 4096, "100 KiB": 102_400}
RATES = {"strided": 1000.0, "node_batch": 2000.0}
SPREAD = (0.99, 1.0, 1.01)


def make(make_run: Make, root: Path, *, cold: bool = True, sizes: dict[str, int] = SIZES) -> None:
    """Three runs of each arm and size; the gain of `node_batch` halves with the larger record."""
    for place, (size, record) in enumerate(sizes.items()):
        for arm, rate in RATES.items():
            for seed, factor in enumerate(SPREAD):
                path = make_run(
                    root,
                    "hsgd",
                    seed,
                    arm=f"{arm} {size}",
                    place={"arm": arm, "size": size, "baseline": "strided"},
                    target=None,
                )
                told = rate * factor / (2**place if arm == "node_batch" else 1)
                _spoil(path, arm, record, told, 0.01 * seed if cold else None)


def _spoil(path: Path, arm: str, record: int, rate: float, cached: float | None) -> None:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    samples = rows[-1]["samples"]
    reads = samples if arm == "strided" else 10
    rows[-1] |= {
        "samples_per_s": rate,
        "reader": {
            "requested_bytes": 2 * record * samples,
            "useful_bytes": record * samples,
            "reads": reads,
            "jumps": reads,
            "read_s": 1.5,
            "checked_s": 0.5,
            "waited_s": 0.25,
        },
    }
    start: dict[str, Any] = {"kind": "start", "attempt": 1, "step": 0}
    if cached is not None:
        start["still_cached"] = cached
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [start, *rows]))
    agree(path)


def test_counts_are_means_and_gains_are_ratios_of_rates_with_their_intervals(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path)
    section = section_of(ReadersSection, all_compared(tmp_path))
    small, large = sorted((rows for _, rows in section.readings), key=lambda rows: rows[0]["record_bytes"])
    assert [rows[0]["record_bytes"] for rows in (small, large)] == [4100.0, 102_000.0], "to three digits"
    lines = {row["arm"]: row for row in small}
    assert set(lines) == {"strided", "node_batch"}
    assert lines["node_batch"]["reads"] == 10
    assert lines["strided"]["reads"] == 4000
    assert lines["strided"]["requested_bytes"] == 2 * 4096 * 4000
    assert lines["strided"]["still_cached"] == pytest.approx(0.01), "the mean of 0, 1 and 2 %"
    assert lines["strided"]["times_as_fast"] is None, "the baseline has none"
    gain = lines["node_batch"]
    assert gain["times_as_fast"] == pytest.approx(2.0)
    # ln rates scatter by 1 % in both arms: Welch with 4 degrees of freedom, t = 2.776.
    half = 2.776 * math.sqrt(2 * 0.01**2 / 3)
    ends = gain["times_as_fast_low"], gain["times_as_fast_high"]
    assert ends == pytest.approx((2 * math.exp(-half), 2 * math.exp(half)), rel=1e-3)
    (sizes,) = section.over_sizes
    assert list(gains(sizes)) == ["node_batch"]
    (line, *_) = draw(sizes).axes[0].get_lines()
    assert list(np.asarray(line.get_xdata())) == [4100.0, 102_000.0]
    assert list(np.asarray(line.get_ydata())) == pytest.approx([2.0, 1.0])


def test_runs_that_were_dropped_from_the_cache_and_others_are_no_one_curve(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path)
    make(make_run, tmp_path, sizes={"1 KiB": 1024}, cold=False)
    section = section_of(ReadersSection, all_compared(tmp_path))
    assert sorted(rows[0]["still_cached"] is not None for _, rows in section.readings) == [False, True, True]
    assert [len(sizes) for sizes in section.over_sizes] == [2], "one size alone is no curve"


@pytest.mark.usefixtures("undrawn")
def test_the_report_has_table_and_figure(make_run: Make, tmp_path: Path):
    make(make_run, tmp_path / "runs")
    page = report(tmp_path / "runs", tmp_path / "out").read_text()
    assert "Reading a packed file" in page
    assert 'href="readers.svg"' in page
    rows = table(tmp_path / "out" / "readers.csv")
    assert len(rows) == 4
    node = next(row for row in rows if (row["arm"], row["size"]) == ("node_batch", "4 KiB"))
    assert float(node["times_as_fast"]) == pytest.approx(2.0)
    assert (float(node["waited_s"]), node["baseline"]) == (0.25, "strided")
