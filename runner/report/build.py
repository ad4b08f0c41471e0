"""`report(directory, output)`: one offline page, tables and figures as files, from run directories alone."""

from collections.abc import Sequence
from importlib import import_module, resources
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ...strategies.errors import ConfigError
from ..machine.folders import writing
from . import sections, words
from .plots.arm_style import swatch
from .plots.pictures import picture
from .reproduce import command_of, script_of
from .results import Results, results_of
from .section import Section
from .tables import latex, write_csv

SECTIONS = "sections"  # the folder of sections in --config-dir
MANY_RUNS = 100  # of more in one comparison the commands are a script


def report(directory: Path, output: Path, config_dir: Path | None = None) -> Path:
    """Write index.html, tables and figures to `output`; returns the page's path.

    Reads only run directories at or below `directory`, and claims, stored points and sections in
    `config_dir`; equal input gives equal bytes, wherever any of them lies. Raises ConfigError if there is no
    such folder, no run in it, something wrong in `config_dir` or `output` cannot be written, MachineError if
    the disk is full.
    """
    output = Path(output)
    folders = [config_dir] if config_dir else []
    results = results_of(Path(directory), "report", config_dir)
    made = [section(results) for section in section_classes(folders)]
    with writing(f"report {output}"):
        output.mkdir(parents=True, exist_ok=True)
        # Tables first: a figure that fails must not cost them.
        tables = [file for section in made for file in _write_tables(section, output)]
        page = output / "index.html"
        page.write_text(_page(results, made, output, tables, own=config_dir is not None), encoding="utf-8")
    return page


def _write_tables(section: Section, output: Path) -> list[str]:
    """Returns the names of the files."""
    printed = section.printed()
    tables = {**section.tables(), **printed}
    for name, rows in tables.items():
        write_csv(output / f"{name}.csv", rows)
    for name, rows in printed.items():
        (output / f"{name}.tex").write_text(latex(rows), encoding="utf-8")
    return [f"{name}.csv" for name in tables] + [f"{name}.tex" for name in printed]


def section_classes(folders: Sequence[Path]) -> list[type[Section]]:
    """The subclasses of Section in this package's `sections` and in that of `folders`, in page order.

    Raises ConfigError for a file that cannot be imported or holds no section.
    """
    modules = [import_module(f"{sections.__name__}.{info.name}") for info in iter_modules(sections.__path__)]
    files = [file for folder in folders for file in sorted((folder / SECTIONS).glob("*.py"))]
    modules += [_imported(file) for file in files]
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
    results: Results, made: Sequence[Section], output: Path, tables: Sequence[str], *, own: bool
) -> str:
    folder = resources.files(__name__.rpartition(".")[0])
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.globals.update(
        results=results,
        words=words,
        swatch=swatch,
        command_of=command_of,
        script_of=script_of,
        many=MANY_RUNS,
        own=own,
    )
    environment.globals["page"] = environment.get_template("macros.html.j2").module
    blocks = []
    for section in made:
        pictures = [picture(plot, output) for plot in section.plots()]
        blocks.append(environment.from_string(section.template).render(section=section, pictures=pictures))
    return environment.get_template("page.html.j2").render(
        blocks=[Markup(block) for block in blocks],
        tables=tables,
        css=Markup((folder / "style.css").read_text(encoding="utf-8")),
    )
