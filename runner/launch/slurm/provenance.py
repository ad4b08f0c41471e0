"""What a run was submitted with, and whether it is still there when the job starts, hours later."""

import hashlib
import platform
import shutil
from pathlib import Path
from typing import Any

from ....strategies.errors import ConfigError
from ... import PACKAGE
from ...machine.environment import commit_of, installed
from ...records.json_lines import read_json, write_json
from ...records.run_directory import RunDirectory

FILE = "submitted.json"
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*", "tests", "results", "build", "dist", "docs", "*.egg-info", "node_modules"
)


def present() -> dict[str, Any]:
    """The code and the interpreter as they are now: versions, commit, and a hash over the package's files."""
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "commit": commit_of(PACKAGE)[0],
        "code": code_hash(PACKAGE),
    }


def record(directory: RunDirectory, state: dict[str, Any]) -> None:
    """Keep what the run is submitted with beside its configuration."""
    write_json(directory.path / FILE, state)


def compare(directory: RunDirectory) -> None:
    """Raise ConfigError if the code or the interpreter is no longer what the run was submitted with.

    A study whose runs are of different code compares nothing. A run that was never submitted is not checked.
    """
    file = directory.path / FILE
    if not file.is_file():
        return
    then, now = read_json(file), present()
    changed = [key for key in ("python", "torch", "code") if then.get(key) != now[key]]
    if changed:
        what = ", ".join(f"{key} {_short(then.get(key))} -> {_short(now[key])}" for key in changed)
        raise ConfigError(
            f"changed since the run was submitted: {what}; `daso-bench resume {directory.path}` submits it "
            "with what is here now, launcher.snapshot=true keeps a copy from the start"
        )


def code_hash(package: Path) -> str:
    """16 hex digits over the Python and YAML files of the package (not its tests and documents)."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in ("conf", "datasets", "models", "runner", "strategies"):
        for file in sorted((package / folder).rglob("*")):
            if file.suffix in (".py", ".yaml") and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def snapshot(folder: Path) -> Path:
    """A copy of the package in `folder`, made once for each state of the code; what PYTHONPATH is to name."""
    target = folder / f"code-{code_hash(PACKAGE)}"
    if not target.is_dir():
        half = folder / f".{target.name}.{platform.node()}"
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(PACKAGE, half / "daso_bench", ignore=_LEFT_OUT)
        half.rename(target)
    return target


def _short(value: Any) -> str:
    return str(value)[:12]
