"""What environment.json holds: versions, commit, variables, and the device, cores and threads of each rank.

Nothing here imports torch.
"""

import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import PACKAGE
from .cores import affinity, usable_cores

ENVIRONMENT_SCHEMA_VERSION = 1
RULES_VERSION = "3.0"  # of the measuring rules, docs/method.md
RUNS_READ = ("--", ".", ":(top,exclude)results")  # of a checkout: the files that runs may read
_PACKAGES = ("torch", "torchvision", "numpy", "scipy", "hydra-core", "omegaconf", "greenlet")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)


def visible_devices() -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES; None if it is not set (all are visible)."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if value is None else [item.strip() for item in value.split(",") if item.strip()]


def processor() -> str | None:
    """The model name of the processor; None if the system does not give one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), platform.processor() or None)


def rank_row(
    *,
    rank: int,
    node: int,
    local_rank: int,
    device: str,
    threads: int,
    device_model: str | None = None,
    interop_threads: int | None = None,
) -> dict[str, Any]:
    """The row of environment.json of the rank that calls this."""
    return {
        "rank": rank,
        "node": node,
        "local_rank": local_rank,
        "host": socket.gethostname(),
        "device": device,
        "device_model": device_model,
        "visible_devices": visible_devices(),
        "cores": affinity(),
        "threads": threads,
        "interop_threads": interop_threads,
    }


def environment(
    ranks: Sequence[Mapping[str, Any]],
    *,
    backend: str,
    world: str,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of environment.json. `ranks`: the `rank_row` of every rank, in rank order."""
    return {
        "schema_version": ENVIRONMENT_SCHEMA_VERSION,
        "rules_version": RULES_VERSION,
        **versions(),
        "packages": {name: installed(name) for name in _PACKAGES},
        "hostname": socket.gethostname(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "executable": sys.executable,
        "cores": usable_cores(),
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "visible_devices": visible_devices(),
        "backend": backend,
        "world": world,
        "ranks": [dict(row) for row in ranks],
        **(extra or {}),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python, torch and this package, its commit and a hash of the changes to it."""
    commit, dirty = commit_of(PACKAGE)
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "daso_bench": installed("daso-bench"),
        "commit": commit,
        "dirty": dirty,
    }


def installed(package: str) -> str | None:
    """The installed version of `package`, without importing it; None if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit_of(source: Path) -> tuple[str | None, str | None]:
    """The commit of a checkout, and a hash of the changes to it; (None, None) if it is no git checkout.

    The hash is None for a clean tree, else 16 hex digits over the diff and the untracked files. What lies
    below results/ does not count, as no run reads it.
    """
    if not (source / ".git").exists():
        return None, None
    try:
        commit = _git(source, "rev-parse", "HEAD").decode().strip()
        diff = _git(source, "diff", "HEAD", "--binary", *RUNS_READ)
        untracked = _git(source, "ls-files", "--others", "--exclude-standard", "-z", *RUNS_READ).split(b"\0")
    except (OSError, subprocess.SubprocessError):  # no git, or no commit yet
        return None, None
    names = sorted(name for name in untracked if name)
    if not diff and not names:
        return commit, None
    digest = hashlib.blake2b(diff, digest_size=8)
    for name in names:
        path = source / os.fsdecode(name)
        digest.update(name + b"\0")
        digest.update(hashlib.blake2b(path.read_bytes()).digest() if path.is_file() else b"")
    return commit, digest.hexdigest()


def _git(source: Path, *arguments: str) -> bytes:
    # Without optional locks: this must not disturb a commit that the user makes at the same time.
    command = ["git", "--no-optional-locks", "-C", str(source), *arguments]
    return subprocess.run(command, check=True, capture_output=True, timeout=20).stdout
