"""Rules about folders: where results, temporary files, shared memory and caches go."""

from collections.abc import Iterator
from typing import Any

from .findings import Facts, Finding

MIB, GIB = 2**20, 2**30
LITTLE_BYTES, NO_BYTES = GIB, 64 * MIB
LITTLE_INODES = 1000
LITTLE_SHARED_BYTES = 256 * MIB
LONGEST_TMPDIR = 70  # a socket's path has 107 characters, and Python adds its own names


def results(facts: Facts) -> Iterator[Finding]:
    """Runs must be written and locked, and must fit."""
    folder = facts["folders"].get("results")
    if folder is None:
        return
    path = folder["path"]
    if folder["error"]:
        where = "" if folder["exists"] else f" (it does not exist; {folder['tried']} does)"
        cause = "runs are written there"
        yield Finding(
            "error",
            "results",
            f"results_dir={path}{where}: {folder['error']}",
            cause,
            "results_dir=PATH (writable)",
        )
        return
    if folder["locks"] is False:
        yield Finding(
            "error",
            "results",
            f"results_dir={path}: files cannot be locked there",
            "a run holds a lock on its folder, so that no second process writes into it",
            "results_dir=PATH (on a file system with locks; Lustre: mounted with -o flock)",
        )
    yield from _room(folder, "results_dir", "results_dir=PATH (with more room)")


def temporary(facts: Facts) -> Iterator[Finding]:
    """Processes meet over sockets in the folder for temporary files."""
    folder = facts["folders"].get("tmp")
    if folder is None:
        return
    given = facts["variables"].get("TMPDIR")
    path = folder["path"]
    if folder["error"] or not folder["exists"]:
        seen = folder["error"] or "no such folder"
        if given:
            cause = "Python falls back to another folder, other programs of a run fail"
        else:
            cause = "processes cannot be started without a folder for their sockets"
        yield Finding(
            "warning" if given else "error",
            "TMPDIR",
            f"TMPDIR={given or path}: {seen}",
            cause,
            "export TMPDIR=PATH (a folder you can write)" if path == "/tmp" else "export TMPDIR=/tmp",
        )
        return
    if given and len(given) > LONGEST_TMPDIR:
        yield Finding(
            "error",
            "TMPDIR",
            f"TMPDIR has {len(given)} characters",
            "ranks are started over a socket in it, whose whole path may have 107",
            "export TMPDIR=/tmp",
        )
    yield from _room(folder, "TMPDIR", "export TMPDIR=PATH (with more room)")


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """NCCL and data loading pass tensors through /dev/shm; containers give it 64 MiB unless told."""
    folder = facts["folders"].get("shm")
    if folder is None or (not folder["error"] and folder.get("free_bytes", 0) >= LITTLE_SHARED_BYTES):
        return
    free = folder.get("free_bytes", 0)
    uses_nccl = len(facts["device_files"]) > 1
    yield Finding(
        "warning" if uses_nccl else "note",
        "shared memory",
        f"/dev/shm: {folder['error'] or f'{free / MIB:.0f} MiB free'}",
        "NCCL moves data between the GPUs of a host through it"
        + ("" if uses_nccl else " (of little matter without GPUs: ranks share memory that has no folder)"),
        "docker run --shm-size=1g (outside a container: remove what is left in /dev/shm)",
    )


def home(facts: Facts) -> Iterator[Finding]:
    """Libraries keep caches there; all of ours does without."""
    folder = facts["folders"].get("home")
    if folder is not None and folder["error"]:
        yield Finding(
            "note",
            "HOME",
            f"HOME={folder['path']}: {folder['error']}",
            "libraries cannot keep caches there (downloaded weights, fonts, compiled kernels)",
            "export XDG_CACHE_HOME=PATH TORCH_HOME=PATH MPLCONFIGDIR=PATH (folders you can write)",
        )


def _room(folder: Any, name: str, fix: str) -> Iterator[Finding]:
    free, inodes, path = folder.get("free_bytes"), folder.get("free_inodes"), folder["path"]
    if free is not None and free < LITTLE_BYTES:
        yield Finding(
            "error" if free < NO_BYTES else "warning",
            name,
            f"{name}={path}: {free / MIB:.0f} MiB free of {folder['total_bytes'] / GIB:.1f} GiB",
            "checkpoints and records need room; a run on a full disk fails",
            fix,
        )
    if inodes is not None and inodes < LITTLE_INODES:
        yield Finding(
            "warning",
            name,
            f"{name}={path}: room for {inodes} more files",
            "each run makes some dozens of files",
            fix,
        )
