"""No test of the doctor sees the variables of its own shell."""

import os

import pytest

from daso_bench.runner.machine.facts import SLOWING_VARIABLES

HURTING = (*SLOWING_VARIABLES, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_") or name in HURTING]:
        monkeypatch.delenv(name)
