"""Helpers of these tests are found by their plain module name; no test sees its own shell's variables."""

import os
import sys
from pathlib import Path

import pytest

from daso_bench.runner.machine import facts

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name in (*facts.THREAD_VARIABLES, *facts.RANK_VARIABLES, *facts.SLOWING_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for name in (
        "GLOO_SOCKET_IFNAME",
        "NCCL_SOCKET_IFNAME",
        "MASTER_ADDR",
        "CUDA_VISIBLE_DEVICES",
        "PYTHONPATH",
    ):
        monkeypatch.delenv(name, raising=False)
