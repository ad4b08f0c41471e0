"""A Slurm for every test that asks for one: `cluster(**settings)` (tests/fake_slurm)."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3]))  # where the folder fake_slurm lies

from fake_slurm import fake
from fake_slurm.fake import Cluster

from daso_bench.runner.launch.slurm import queue, slurm_status, submit


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Installs a fake Slurm and goes under its environment; nobody waits long."""
    monkeypatch.setattr(queue, "PAUSE_S", 0.01)
    monkeypatch.setattr(submit, "KNOWN_S", 0.3)
    monkeypatch.setattr(slurm_status, "POLL_S", 0.01)

    def make(**settings: Any) -> dict[str, str]:
        for name in list(os.environ):
            if name.startswith(("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SINFO")):
                monkeypatch.delenv(name)
        env = fake.install(tmp_path / f"slurm{len(list(tmp_path.glob('slurm*')))}", **settings)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        return env

    return make
