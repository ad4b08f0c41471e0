"""`report(directory, output)`: one offline page, tables and figures as files, from run directories alone."""

from collections.abc import Mapping, Sequence
from importlib import import_module, resources
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pandas as pd
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ...strategies.errors import ConfigError
from ..machine.folders import writing
from ..records.json_lines import encode
from . import sections, words
from .plots.pictures import picture
from .plots.style import swatch
from .reproduce import script_of
from .results import Results, results_of
from .section import Section


def report(directory: Path, output: Path, config_dir: Path | None = None) -> Path:
    """Write index.html, tables and figures to `output`; returns the page's path.

    Reads only run directories at or below `directory`, and claims, stored points and sections in
    `config_dir`; equal input gives equal bytes, wherever any of them lies. Raises ConfigError if there is no
    such folder, no run in it, something wrong in `config_dir` or `output` cannot be written, MachineError if
    the disk is full.
    """
    output = Path(output)
    results = results_of(Path(directory), "report", config_dir)
    page_sections = [kind(results) for kind in section_classes(config_dir)]
    with writing(f"report {output}"):
        output.mkdir(parents=True, exist_ok=True)
        # Tables first: a figure that fails must not cost them.
        tables = [file for section in page_sections for file in _write_tables(section, output)]
        html = _page(results, page_sections, output, tables, own=config_dir is not None)
        page = output / "index.html"
        page.write_text(html, encoding="utf-8")
    return page


def _write_tables(section: Section, output: Path) -> list[str]:
    """Write the tables that have rows; returns the names of the files."""
    printed = {name: rows for name, rows in section.printed().items() if rows}
    tables = {name: rows for name, rows in section.tables().items() if rows} | printed
    for name, rows in tables.items():
        write_csv(output / f"{name}.csv", rows)
    for name, rows in printed.items():
        (output / f"{name}.tex").write_text(latex(rows), encoding="utf-8")
    return [f"{name}.csv" for name in tables] + [f"{name}.tex" for name in printed]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """One header, one line per row; a missing value is empty, NaN is `NaN`, infinity is `Infinity`."""
    cells = [{key: encode(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    frame.where(frame.notna(), None).to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def latex(rows: Sequence[Mapping[str, str]]) -> str:
    """A tabular with the rules of the package booktabs, special signs escaped; a cell is one line."""
    cells = [{key: words.printable(" ".join(cell.split("\n"))) for key, cell in row.items()} for row in rows]
    return pd.DataFrame(cells).to_latex(index=False, escape=True)


def section_classes(config_dir: Path | None) -> list[type[Section]]:
    """The subclasses of Section in this package's `sections` and in that of `config_dir`, in page order.

    Raises ConfigError for a file that cannot be imported or holds no section.
    """
    modules = [import_module(f"{sections.__name__}.{info.name}") for info in iter_modules(sections.__path__)]
    if config_dir:
        modules += map(_imported, sorted((config_dir / "sections").glob("*.py")))
    return sorted((kind for module in modules for kind in _sections_in(module)), key=lambda kind: kind.order)


def _imported(file: Path) -> ModuleType:
    spec = spec_from_file_location(f"report_section_{file.stem}", file)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{file}: cannot be imported: {type(error).__name__}: {error}") from error
    if not _sections_in(module):
        raise ConfigError(f"{file}: no subclass of daso_bench.runner.report.section.Section in it")
    return module


def _sections_in(module: ModuleType) -> list[type[Section]]:
    values = [value for value in vars(module).values() if isinstance(value, type)]
    return [kind for kind in values if issubclass(kind, Section) and kind.__module__ == module.__name__]


def _page(
    results: Results, page_sections: Sequence[Section], output: Path, tables: Sequence[str], *, own: bool
) -> str:
    folder = resources.files(__name__.rpartition(".")[0])
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.globals.update(results=results, words=words, swatch=swatch, script_of=script_of, own=own)
    environment.globals["page"] = environment.get_template("macros.html.j2").module
    blocks = list[Markup]()
    for section in page_sections:
        pictures = [picture(plot, output) for plot in section.plots()]
        template = environment.from_string(section.template)
        blocks.append(Markup(template.render(section=section, pictures=pictures)))
    css = Markup((folder / "style.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html.j2").render(blocks=blocks, tables=tables, css=css)
