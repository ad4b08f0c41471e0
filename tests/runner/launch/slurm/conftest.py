"""A Slurm for every test that asks for one: `cluster(version, **settings)` (tests/fake_slurm)."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3]))  # where the folder fake_slurm lies

from fake_slurm import fake
from fake_slurm.fake import Cluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Installs a fake Slurm, goes under its environment, and ends all its processes afterwards."""
    made: list[dict[str, str]] = []

    def make(version: str = "23.11", **settings: Any) -> dict[str, str]:
        for name in list(os.environ):
            if name.startswith(("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SINFO")):
                monkeypatch.delenv(name)
        given: dict[str, Any] = {"kill_wait_s": 1} | settings
        env = fake.install(tmp_path / f"slurm{len(made)}", version, **given)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        made.append(env)
        return env

    yield make
    for env in made:
        fake.stop(env)
