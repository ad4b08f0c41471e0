"""The one figure of a section: written as two files; where it fails it says why and costs nothing else."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from daso_bench.runner.report.plots import pictures
from daso_bench.runner.report.plots.pictures import MODULES, picture
from daso_bench.runner.report.plots.style import Drawn


def module(name: str) -> ModuleType:
    return import_module(f"daso_bench.runner.report.plots.{MODULES[name]}")


@pytest.mark.parametrize("name", MODULES)
def test_a_figure_is_written_as_two_files_with_the_words_of_its_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[object, ...]] = []

    def draw(*told: object) -> Drawn:
        asked.append(told)
        return Drawn(svg='<svg id="a"></svg>', pdf=b"pdf")

    monkeypatch.setattr(module(name), "draw", draw)
    monkeypatch.setattr(module(name), "alternative", lambda *told: f"words of {told}")
    found = picture(name, tmp_path / "2_it.svg", "one", "two")
    assert asked == [("one", "two")]
    assert (found.files, found.table) == (("2_it.svg", "2_it.pdf"), f"{name}.csv")
    assert (found.title, found.caption) == (module(name).TITLE, module(name).CAPTION)
    assert found.alternative == "words of ('one', 'two')"
    assert str(found.svg) == '<svg id="2_it-a"></svg>'
    assert (tmp_path / "2_it.pdf").read_bytes() == b"pdf"


def test_a_figure_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def draw(*_: object) -> Drawn:
        raise RuntimeError("no fonts here")

    monkeypatch.setattr(module("bandwidth"), "draw", draw)
    found = picture("bandwidth", tmp_path / "it.svg", None)
    assert (found.svg, found.failure) == (None, "not drawn: RuntimeError: no fonts here")
    assert found.title == module("bandwidth").TITLE
    assert list(tmp_path.iterdir()) == []


def test_without_a_plotting_library_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> ModuleType:
        raise ImportError("no matplotlib")

    monkeypatch.setattr(pictures, "import_module", missing)
    assert picture("bandwidth", tmp_path / "it.svg", None).failure == "not drawn: ImportError: no matplotlib"
