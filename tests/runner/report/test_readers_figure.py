"""The curves of the bench of readers are drawn from its JSON alone."""

import json
import re
from pathlib import Path

from daso_bench.runner.report.readers_figure import main, points


def row(name: str, value: float, samples: list[float], detail: str = "") -> dict:
    return {"name": name, "value": value, "samples": samples, "detail": detail}


ROWS = [
    *(
        row(f"{arm}_over_sequential_{size}_kb", 0.9, [0.8, 0.9, 1.0])
        for arm in ("chunked_shuffle", "node_batch", "strided")
        for size in (4, 16, 100)
    ),
    row("64_kib_runs_over_sequential", 0.3, [0.2, 0.3]),
    row("1024_kib_runs_over_sequential", 0.9, [0.9, 0.9]),
    row("16_kib_runs_over_sequential", float("nan"), []),  # refused
    row("readers_load", 2, [], "load before each read, 1.0 to 3.0; 2 cores"),
]


def test_a_refused_figure_is_no_point_of_a_curve() -> None:
    rows = {one["name"]: one for one in ROWS}
    found = points(rows, r"(\d+)_kib_runs_over_sequential")
    assert found == {64: (0.3, [0.2, 0.3]), 1024: (0.9, [0.9, 0.9])}
    assert set(points(rows, r"strided_over_sequential_(\d+)_kb")) == {4, 16, 100}


def test_equal_numbers_give_equal_files_that_say_how_they_were_measured(tmp_path: Path) -> None:
    source = tmp_path / "bench.json"
    source.write_text(json.dumps(ROWS), encoding="utf-8")
    for folder in ("a", "b"):
        assert main([str(source), str(tmp_path / folder)]) == 0
    for name in ("readers.svg", "readers.pdf"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert len(re.findall("<svg", (tmp_path / "a" / "readers.svg").read_text(encoding="utf-8"))) == 1
    assert main([]) == 2
