"""No test of the doctor sees the variables of its own shell."""

import os

import pytest

from daso_bench.runner.machine import facts

HURTING = (*facts.THREAD_VARIABLES, *facts.RANK_VARIABLES, *facts.SLOWING_VARIABLES)
OTHERS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_") or name in HURTING + OTHERS]:
        monkeypatch.delenv(name)
