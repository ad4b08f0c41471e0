"""A figure on the page: written as two files; one that fails says why and costs nothing else."""

from pathlib import Path

from matplotlib.figure import Figure

from daso_bench.runner.report.plots.pictures import Plot, picture
from daso_bench.runner.report.section import one_each


def plot(draw: object) -> Plot:
    (made,) = one_each(
        "mine",
        ["item"],
        title="My title",
        caption="What it shows.",
        corner=lambda item: f"corner of {item}",
        draw=draw,  # pyright: ignore[reportArgumentType]
        alternative=lambda item: f"words of {item}",
    )
    return made


def broken(_: str) -> Figure:
    raise RuntimeError("no fonts here")


def test_a_figure_is_written_as_two_files_with_its_words(tmp_path: Path):
    made = picture(plot(lambda _: Figure()), tmp_path)
    assert (made.files, made.table) == (("mine.svg", "mine.pdf"), "mine")
    assert (made.title, made.caption, made.alternative) == ("My title", "What it shows.", "words of item")
    assert 'id="mine-figure_1"' in str(made.svg)
    assert "<!-- corner of item -->" in (tmp_path / "mine.svg").read_text()
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_that_fails_says_why(tmp_path: Path):
    made = picture(plot(broken), tmp_path)
    assert (made.title, made.svg) == ("My title", None)
    assert made.failure == "not drawn: RuntimeError: no fonts here"
    assert list(tmp_path.iterdir()) == []
