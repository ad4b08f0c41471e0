"""Figures on the page, each with its words; one that cannot be drawn says why and costs nothing else."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..data.arms import Comparison

if TYPE_CHECKING:
    from .style import Drawn


# Figure, and table behind it -> the module that draws it: TITLE, CAPTION, draw() and alternative().
MODULES = {
    "sensitivity": "assumptions_plot",
    "speedups": "speedup_plot",
    "bandwidth": "bandwidth_plot",
    "readers": "record_sizes",
}


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure on the page; `svg` is None if it could not be drawn, and `failure` says why.

    `files`: the names of the same figure as SVG and as PDF. `table`: of the CSV file behind it.
    """

    title: str
    files: tuple[str, ...]
    caption: str
    alternative: str
    table: str
    svg: Markup | None
    failure: str


def pictures(comparison: Comparison, output: Path, prefix: str) -> list[Picture]:
    """The figures of `comparison`, written to `output` with `prefix` before their names."""
    try:
        # Imported here: without a working plotting library the tables are still worth having.
        with _no_backend_asked_for():
            from .figures import alternative, draw, plans
    except Exception as error:
        return [_failed("Figures", error)]
    found = []
    for plan in plans(comparison):
        try:
            drawn = draw(plan, comparison)
        except Exception as error:
            found.append(_failed(plan.title, error))
            continue
        file = output / f"{prefix}{plan.name}.svg"
        said = alternative(plan, comparison)
        found.append(_written(drawn, file, plan.title, plan.said(comparison), said, plan.table))
    return found


def picture(name: str, file: Path, *told: object) -> Picture:
    """The one figure of a section called `name` (a key of `MODULES`), written to `file` and beside it as PDF.

    `told`: what the module's `draw` and `alternative` take.
    """
    try:
        with _no_backend_asked_for():
            made = import_module(f".{MODULES[name]}", __package__)
    except Exception as error:
        return _failed("Figure", error)
    try:
        drawn = made.draw(*told)
    except Exception as error:
        return _failed(made.TITLE, error)
    return _written(drawn, file, made.TITLE, made.CAPTION, made.alternative(*told), f"{name}.csv")


def _written(drawn: "Drawn", file: Path, title: str, caption: str, alternative: str, table: str) -> Picture:
    other = file.with_suffix(".pdf")
    file.write_text(drawn.svg, encoding="utf-8")
    other.write_bytes(drawn.pdf)
    return Picture(
        title=title,
        files=(file.name, other.name),
        caption=caption,
        alternative=alternative,
        table=table,
        svg=_inline(drawn.svg, f"{file.stem}-"),
        failure="",
    )


@contextmanager
def _no_backend_asked_for() -> Iterator[None]:
    """Without MPLBACKEND while matplotlib is imported: nothing opens a window, a wrong name would raise."""
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


def _failed(title: str, error: Exception) -> Picture:
    said = f"not drawn: {type(error).__name__}: {error}"
    return Picture(title=title, files=(), caption="", alternative="", table="", svg=None, failure=said)


def _inline(svg: str, prefix: str) -> Markup:
    """The `<svg>` element alone, its ids made unique on the page."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'\bid="', f'id="{prefix}', element)
    element = re.sub(r'href="#', f'href="#{prefix}', element)
    element = re.sub(r"url\(#", f"url(#{prefix}", element)
    return Markup(element)
