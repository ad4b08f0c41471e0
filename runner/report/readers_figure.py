"""The curves of `make bench only=readers`: `python -m daso_bench.runner.report.readers_figure JSON FOLDER`.

Over the size of a record, and for `node_batch` on two nodes over the length of its runs: useful bytes per
second as parts of a plain sequential read's, medians and ranges of alternations.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .record_sizes import with_ranges
from .style import WIDTH, drawn

ARMS = ("chunked_shuffle", "node_batch", "strided")
LIMIT = 0.8

Points = dict[float, tuple[float, Sequence[float]]]


def main(arguments: list[str]) -> int:
    """Draw; returns the exit code."""
    if len(arguments) != 2:
        print("usage: readers_figure BENCH.json FOLDER", file=sys.stderr)
        return 2
    source, folder = map(Path, arguments)
    rows = {row["name"]: row for row in json.loads(source.read_text(encoding="utf-8"))}
    told = f"measured, cold cache, {rows['readers_load']['detail'].rpartition('; ')[2]}"
    files = drawn("readers", lambda: curves(rows), told=told)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "readers.svg").write_text(files.svg, encoding="utf-8")
    (folder / "readers.pdf").write_bytes(files.pdf)
    return 0


def curves(rows: Mapping[str, dict]) -> Figure:
    """Two panels with one axis of ratios."""
    figure = Figure(figsize=(WIDTH, 3.7))
    left, right = figure.subplots(1, 2, sharey=True)
    for place, arm in enumerate(ARMS):
        _curve(
            left,
            points(rows, rf"{arm}_over_sequential_(\d+)_kb"),
            place,
            f"{arm}, its better way" if arm == "strided" else arm,
        )
    _curve(right, points(rows, r"(\d+)_kib_runs_over_sequential"), ARMS.index("node_batch"), "node_batch")
    warm = points(rows, r"(\d+)_kib_runs_over_sequential_warm")
    if warm:
        _curve(right, warm, len(ARMS), "node_batch, both from the page cache")
    left.set_xlabel("record in kB")
    right.set_xlabel("run of a node in KiB, on two nodes")
    left.set_ylabel("part of a plain sequential read")
    for axes in (left, right):
        axes.axhline(LIMIT, color="#444444", linewidth=1.1, linestyle=(0, (1.5, 2)), zorder=1)
        axes.set_ylim(bottom=0)
    known = [axes.get_legend_handles_labels() for axes in (left, right)]
    labels = {label: handle for handles, names in known for handle, label in zip(handles, names, strict=True)}
    figure.legend(labels.values(), labels.keys(), loc="outside lower left", ncols=2, frameon=False)
    return figure


def points(rows: Mapping[str, dict], pattern: str) -> Points:
    """Median and samples of the figures whose names match, by the number in the name."""
    found = {name: re.fullmatch(pattern, name) for name in rows}
    return {
        float(match[1]): (rows[name]["value"], rows[name]["samples"])
        for name, match in found.items()
        if match is not None and rows[name]["samples"]
    }


def _curve(axes: Axes, found: Points, place: int, label: str) -> None:
    ends = {size: (median, min(samples), max(samples)) for size, (median, samples) in found.items()}
    with_ranges(axes, ends, place, label)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
