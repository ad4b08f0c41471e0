"""Helper modules, benches and scripts have plain names in imports; CI repeats the same random examples."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).parent
for name in ("strategies", "datasets", "bench", "../scripts", "runner", "conformance", "mutants"):
    sys.path.insert(0, str(TESTS / name))
for folder in sorted((TESTS / "runner").rglob("*/")):
    if folder.name != "__pycache__":
        sys.path.append(str(folder))

torch.set_num_threads(1)
_fsync = os.fsync


def fsync(descriptor: Any) -> None:
    """Tests end processes and no machine: only who takes pages out of the cache waits for the disk."""
    if sys._getframe(1).f_globals["__name__"].endswith(".page_cache"):
        _fsync(descriptor)


os.fsync = fsync


def pytest_configure(config: pytest.Config) -> None:
    """Ranks of ordinary tests are CPUs, also where there is a GPU: `-m gpu` alone asks for it."""
    if config.getoption("markexpr") != "gpu" and torch.cuda.device_count():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


# A developer's run explores; a landing must not hang on which examples are drawn today.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
