"""Who may import whom, what is packaged, and that every YAML shows every key."""

import ast
import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import daso_bench
from daso_bench.runner.config.typed import locate_target, typed

ROOT = Path(daso_bench.__file__).parent
FOLDERS = ("runner", "strategies", "models", "datasets")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
STANDARD = {"torch", "numpy", "torchvision", "PIL"}  # PIL: Pillow, which torchvision brings


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth; the project's own without `daso_bench.`."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("daso_bench.") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *(node.module or "").split(".")]).strip(".").removeprefix("daso_bench.")
            for alias in node.names:
                inner = f"{stem}.{alias.name}"
                yield inner if (ROOT / Path(*inner.split("."))).with_suffix(".py").exists() else stem


def test_only_the_runner_reaches_into_other_folders():
    for path in SOURCES:
        home = path.relative_to(ROOT).parts[0]
        for name in imports(path):
            top = name.split(".")[0]
            if top in FOLDERS and home != "runner":
                assert top == home, f"{path} imports {name}"


def test_strategies_models_and_datasets_need_little():
    import sys

    for path in SOURCES:
        home = path.relative_to(ROOT).parts[0]
        if home == "runner":
            continue
        allowed = STANDARD - ({"torchvision", "numpy", "PIL"} if home == "strategies" else set())
        for name in imports(path):
            top = name.split(".")[0]
            assert top in FOLDERS or top in allowed or top in sys.stdlib_module_names, (
                f"{path} imports {name}"
            )


def test_torch_distributed_has_one_place():
    for path in SOURCES:
        if path.name != "torch_communicator.py":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"torch\.distributed\.|import torch\.distributed|_distributed_c10d", text), (
                path
            )


@pytest.mark.parametrize("heavy", ["pandas", "matplotlib", "jinja2"])
def test_tables_and_figures_stay_off_the_training_path(heavy: str):
    for path in SOURCES:
        if any(name.split(".")[0] == heavy for name in imports(path)):
            assert path.relative_to(ROOT).parts[:2] == ("runner", "report"), path


def test_no_import_cycle():
    graph = {module_of(path): {n for n in imports(path) if n.split(".")[0] in FOLDERS} for path in SOURCES}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name in done or name not in graph:
            return
        for other in sorted(graph[name] - {name}):
            visit(other, (*trail, name))
        done.add(name)

    for name in graph:
        visit(name, ())


def test_every_folder_of_code_is_packaged():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {".".join(["daso_bench", *path.relative_to(ROOT).parent.parts]) for path in SOURCES}
    # Hydra looks for plugins below its own name; the folder is packaged there.
    found = {
        name.replace("daso_bench.runner.config.sweep_plugin", "hydra_plugins.daso_bench") for name in found
    }
    assert found | {"daso_bench"} == listed


# The rooms of `runner/`, higher ones first: a room imports from itself and from rooms below it.
ROOMS = (
    "cli",
    "doctor",
    "studies",
    "conformance",
    "launch",
    "simulation",
    "training",
    "communication",
    "report",
    "config",
    "records",
    "machine",
)


def test_no_room_imports_from_a_room_above_it():
    for path in SOURCES:
        parts = path.relative_to(ROOT).parts
        if parts[0] != "runner" or len(parts) < 3:
            continue
        for name in imports(path):
            room = name.split(".")[1:2]
            if name.startswith("runner.") and room[0] in ROOMS:
                assert ROOMS.index(room[0]) >= ROOMS.index(parts[1]), f"{path} imports {name}"


def test_the_runner_has_its_rooms_and_no_loose_file():
    entries = {path.name for path in (ROOT / "runner").iterdir()} - {"__pycache__"}
    assert entries == {"__init__.py", *ROOMS}


# Several modules may have one name only for a reason.
SAME_NAME = {
    "checks": "of a run's configuration, and of a strategy by the conformance kit",
    "load": "of a configuration, and of run directories",
}


def test_a_module_name_occurs_once():
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        if path.stem not in ("__init__", "__main__"):
            places.setdefault(path.stem, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1}.keys() == SAME_NAME.keys()


def test_a_class_name_occurs_once():
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


YAMLS = sorted(
    path
    for group in (
        "strategy",
        "dataset",
        "reader",
        "optimizer",
        "schedule",
    )  # models: tests/models/test_conf.py
    for path in (ROOT / "conf" / group).glob("*.yaml")
)
OTHER_VALUES = {"imagenet_sized"}  # the class of another file


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_yaml_shows_every_key_with_its_default(path: Path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# "), "the first line is what `daso-bench list` shows"
    values = yaml.safe_load(text)
    target = locate_target(values, path.parent.name)
    values.pop("_target_", None)
    kind = getattr(target, "Config", target)
    assert values.keys() == {field.name for field in dataclasses.fields(kind)}
    assert (typed(kind, values, path.parent.name) == kind()) == (path.stem not in OTHER_VALUES)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "conf" / "strategy").glob("*.yaml")), ids=lambda path: path.stem
)
def test_a_strategy_says_rule_bytes_paper_and_difference(path: Path):
    module = importlib.import_module(f"daso_bench.strategies.{path.stem}")
    assert module.__doc__ is not None
    places = [module.__doc__.find(word) for word in ("Update rule", "Bytes:", "Paper:", "Ours differs")]
    assert -1 not in places
    assert places == sorted(places)
    assert (ROOT / "tests" / "conformance" / "references" / path.name).with_suffix(".py").exists()


def test_tests_start_where_a_python_has_pytest_benchmark(tmp_path: Path):
    """It warns where tests run in several processes, and a warning is an error here."""
    (tmp_path / "benchmark_stub.py").write_text(
        "import warnings\n\ndef pytest_configure(config):\n    warnings.warn('disabled', stacklevel=1)\n"
    )
    installed = tmp_path / "pytest_benchmark-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-benchmark\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\nbenchmark = benchmark_stub\n")
    (tmp_path / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "--collect-only", "-q", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
