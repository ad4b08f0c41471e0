"""Rules about Python: the package in use, torch's import, encodings, variables of another launcher."""

import json
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .findings import Facts, Finding

WATCHED = ("torch", "torchvision", "numpy", "hydra", "omegaconf", "submitit", "psutil")
SLOW_IMPORT_S = 20.0


def shadowed(facts: Facts) -> Iterator[Finding]:
    """PYTHONPATH holds a second copy of what is installed, and wins."""
    variable = facts["variables"].get("PYTHONPATH", "")
    entries = [Path(entry) for entry in variable.split(":") if entry]
    site = Path(sysconfig.get_path("purelib"))
    own = installed_package()
    homes = {name: _module_at(site, name) for name in WATCHED} | {"daso_bench": own}
    for name, home in homes.items():
        found = next((copy for entry in entries if (copy := _module_at(entry, name)) is not None), None)
        if home is None or found is None or found.resolve() == home.resolve():
            continue
        yield Finding(
            "warning",
            "python",
            f"PYTHONPATH has {found}",
            f"it is used in place of the installed {home}: versions in records are not of what runs",
            "unset PYTHONPATH",
        )


def installed_package() -> Path | None:
    """Where the installed daso_bench lies (editable: the checkout); None if it is not installed."""
    for found in distributions(name="daso-bench"):
        direct = json.loads(found.read_text("direct_url.json") or "{}")
        if direct.get("dir_info", {}).get("editable"):
            return Path(unquote(urlsplit(direct["url"]).path))
    return _module_at(Path(sysconfig.get_path("purelib")), "daso_bench")


def _module_at(folder: Path, name: str) -> Path | None:
    for path in (folder / name, folder / f"{name}.py"):
        if path.is_file() or (path / "__init__.py").is_file():
            return path
    return None


def torch_import(facts: Facts) -> Iterator[Finding]:
    """torch is missing, broken, or slow to load."""
    torch = facts.get("torch") or {}
    if facts["versions"]["torch"] is None or torch.get("error"):
        missing = facts["versions"]["torch"] is None
        yield Finding(
            "error",
            "python",
            "torch is not installed" if missing else f"import torch: {torch['error']}",
            "nothing can be trained",
            "pip install torch torchvision" if missing else "pip install --force-reinstall torch torchvision",
        )
    elif torch.get("seconds", 0.0) > SLOW_IMPORT_S:
        yield Finding(
            "note",
            "python",
            f"import torch took {torch['seconds']:.0f} s",
            "the environment lies on a slow file system, or it was read for the first time",
            "daso-bench doctor (again: the second import tells which)",
        )


def encoding(facts: Facts) -> Iterator[Finding]:
    """Names of runs are text of any kind."""
    for what, name in facts["encoding"].items():
        if name is not None and name.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig"):
            yield Finding(
                "warning",
                "encoding",
                f"{name} for {what}",
                "names with letters outside it (run.name=Zürich) cannot be written",
                "export LC_ALL=C.UTF-8 PYTHONUTF8=1",
            )
            return


def launched_elsewhere(facts: Facts) -> Iterator[Finding]:
    """RANK and WORLD_SIZE by halves: left over from another launcher."""
    variables = facts["variables"]
    given = [name for name in ("RANK", "WORLD_SIZE") if name in variables]
    if len(given) == 1:
        other = "WORLD_SIZE" if given == ["RANK"] else "RANK"
        yield Finding(
            "warning",
            "ranks",
            f"{given[0]}={variables[given[0]]} and no {other}",
            "left over from another launcher; torch would wait for ranks that nobody starts",
            f"unset {given[0]}",
        )
