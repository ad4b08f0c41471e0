"""Checkpoint files: written so that a kill at any moment leaves a whole one, read without running code.

A checkpoint is a folder `checkpoints/step_<n>/` with one file per rank, the averaged model, and a manifest of
sizes and checksums, which also has the checksum of the manifest before it. Each rank's file names the run. It
is written under a temporary name; rank 0 renames it once all ranks have flushed their files. The checkpoint
before it is kept. Files are read with `weights_only=True`: numbers, strings, containers
and tensors, no code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...strategies.errors import ConfigError, MachineError

KEEP = 2
MANIFEST = "manifest.json"
MODEL = "model.pt"
FINAL = "final"


def rank_file(rank: int) -> str:
    """The name of a rank's file inside a checkpoint."""
    return f"rank_{rank}.pt"


def write_file(path: Path, content: Any) -> None:
    """`torch.save` and flush to the disk. Raises MachineError: the disk is full or not writable."""
    try:
        with path.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
    # torch's writer reports a full disk as RuntimeError, the file itself as OSError.
    except (OSError, RuntimeError) as error:
        raise MachineError(
            f"{path}: cannot be saved ({error}); earlier checkpoints are kept: free space, "
            "then `daso-bench resume`"
        ) from error


def save(
    folder: Path,
    step: int,
    rank: int,
    state: dict[str, Any],
    model: dict[str, Any] | None,
    barrier: Callable[[], None],
    ranks: int,
) -> Path:
    """Write this rank's part of the checkpoint of `step`; returns its folder once it is complete.

    folder: the run's `checkpoints/`; model: the evaluable model's state, from rank 0 only.
    """
    partial = folder / f".partial_step_{step:010d}"
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier()
    write_file(partial / rank_file(rank), state)
    if rank == 0:
        write_file(partial / MODEL, model)
    barrier()
    if rank == 0:
        publish(partial, step, ranks)
        for old in complete(folder)[KEEP:]:
            shutil.rmtree(old)
    barrier()
    return folder_of(folder, step)


def folder_of(folder: Path, step: int) -> Path:
    """The folder of the checkpoint of `step` below the run's `checkpoints/`."""
    return folder / f"step_{step:010d}"


def publish(partial: Path, step: int, ranks: int) -> None:
    """Write the manifest of the files in `partial`, and rename the folder to the final name of `step`."""
    final = folder_of(partial.parent, step)
    names = [*map(rank_file, range(ranks)), MODEL]
    before = _before(final)
    manifest = {
        "step": step,
        "parent": _checksum(before / MANIFEST) if before else "",
        "files": {n: [(partial / n).stat().st_size, _checksum(partial / n)] for n in names},
    }
    with (partial / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(manifest, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _sync(partial.parent)


def complete(folder: Path) -> list[Path]:
    """Checkpoint folders that carry their final name, newest first.

    Leftovers of a killed save are not among them.
    """
    folders = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d{10}", path.name)]
    return sorted(folders, reverse=True)


def newest_valid(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose files are whole, and a sentence on each newer one that is damaged."""
    damage = []
    for path in complete(folder):
        try:
            verify(path)
        except ConfigError as error:
            damage.append(str(error))
        else:
            return path, damage
    return None, damage


def verify(path: Path) -> dict[str, Any]:
    """Check sizes and checksums against the manifest and return it.

    Raises:
        ConfigError: a file is missing, cut or changed, or the checkpoint does not follow the one before it.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): (int(size), str(digest)) for name, (size, digest) in manifest["files"].items()}
        parent = str(manifest["parent"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path / MANIFEST}: is missing or damaged ({error})") from error
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            raise ConfigError(f"{file}: is missing")
        if file.stat().st_size != size:
            raise ConfigError(f"{file}: has {file.stat().st_size} bytes, {size} were written")
        if _checksum(file) != digest:
            raise ConfigError(f"{file}: its content has changed since it was written")
    before = _before(path)
    if before and _checksum(before / MANIFEST) != parent:
        raise ConfigError(f"{path}: does not follow {before.name}, which lies beside it")
    return manifest


def _before(path: Path) -> Path | None:
    """The checkpoint with the next smaller step beside `path`; None without one or without its manifest."""
    earlier = next((other for other in complete(path.parent) if other.name < path.name), None)
    if earlier is None:
        return None
    try:
        return earlier if "files" in json.loads((earlier / MANIFEST).read_text(encoding="utf-8")) else None
    except (OSError, ValueError, TypeError):
        return None


def read(file: Path) -> Any:
    """Load one file of a checkpoint without running code in it. Raises ConfigError."""
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises errors of many types, by where the damage is
        raise ConfigError(f"{file}: cannot be read ({type(error).__name__}: {error})") from error


def save_final(folder: Path, model: dict[str, Any]) -> None:
    """Keep the finished run's model as `final/model.pt`."""
    final = folder / FINAL
    final.mkdir(parents=True, exist_ok=True)
    partial = final / f".{MODEL}.partial"
    write_file(partial, model)
    partial.rename(final / MODEL)
    _sync(final)


def drop_resume_states(folder: Path) -> None:
    """Remove all checkpoints of a finished run; its final model stays."""
    for old in complete(folder):
        shutil.rmtree(old)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
