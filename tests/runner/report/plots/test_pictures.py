"""A figure on the page: written as two files; one that fails says why and costs nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from daso_bench.runner.report.plots.pictures import Plot, picture


def broken() -> Figure:
    raise RuntimeError("no fonts here")


@pytest.mark.parametrize("draw", [Figure, broken])
def test_a_figure_is_two_files_and_one_that_fails_says_why(tmp_path: Path, draw: Callable[[], Figure]):
    text: dict[str, Any] = dict.fromkeys(("title", "caption", "table", "alternative"), "")
    made = picture(Plot(file="mine", **text, corner="small corner", draw=(draw,)), tmp_path)
    assert made.files == ("mine.svg", "mine.pdf")
    if draw is broken:
        assert (made.svgs, made.failure) == ((), "not drawn: RuntimeError: no fonts here")
        assert list(tmp_path.iterdir()) == []
        return
    assert 'id="mine-figure_1"' in str(made.svgs[0])
    assert "<!-- small corner -->" in (tmp_path / "mine.svg").read_text()
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")
