"""A figure on the page: written as two files; one that fails says why and costs nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from daso_bench.runner.report.plots.pictures import picture
from daso_bench.runner.report.section import one_each


def broken(_: str) -> Figure:
    raise RuntimeError("no fonts here")


@pytest.mark.parametrize("draw", [lambda _: Figure(), broken])
def test_a_figure_is_two_files_with_its_words_and_one_that_fails_says_why(
    tmp_path: Path, draw: Callable[[str], Figure]
):
    (plot,) = one_each(
        "mine",
        ["item"],
        title="My title",
        caption="What it shows.",
        corner=lambda item: f"corner of {item}",
        draw=draw,
        alternative=lambda item: f"words of {item}",
    )
    made = picture(plot, tmp_path)
    assert (made.files, made.table) == (("mine.svg", "mine.pdf"), "mine")
    assert (made.title, made.caption, made.alternative) == ("My title", "What it shows.", "words of item")
    if draw is broken:
        assert (made.svgs, made.failure) == ((), "not drawn: RuntimeError: no fonts here")
        assert list(tmp_path.iterdir()) == []
        return
    assert 'id="mine-figure_1"' in str(made.svgs[0])
    assert "<!-- corner of item -->" in (tmp_path / "mine.svg").read_text()
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")
