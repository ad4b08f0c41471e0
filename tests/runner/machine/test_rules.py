"""Rules on one process: each finds its trouble, and none finds any on a healthy machine."""

from pathlib import Path
from typing import Any

import pytest
from doctor_rows import machine, only, row, torch

from daso_bench.runner.machine.facts import ProcessFacts, process_facts
from daso_bench.runner.machine.rules import (
    PROCESS_RULES,
    Finding,
    launcher,
    machine_findings,
    on,
    process_findings,
)

RULES = (*PROCESS_RULES, launcher)
MIB = 2**20
UNWRITABLE = "/proc/daso-bench"  # nobody can make it, root neither
GPUS: dict[str, Any] = {"device_files": ["nvidia0", "nvidia1"], "torch": torch(2)}
STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
IN_STEP: dict[str, Any] = {f"variables__{name}": value for name, value in STEP.items()}
ON_LOGIN_NODE: dict[str, Any] = {"commands__sbatch": "/usr/bin/sbatch", "slurm__controller": "up"}

HEALTHY = {
    "a laptop": {},
    "a GPU machine": GPUS,
    "one GPU chosen": GPUS | {"visible_devices": ["1"]},
    "GPUs hidden": GPUS | {"visible_devices": [], "torch": torch(0)},
    "a login node": ON_LOGIN_NODE,
    "a login node, asked for Slurm": ON_LOGIN_NODE | {"launcher": "slurm"},
    "a bound task of Slurm": IN_STEP | {"variables__SLURM_CPU_BIND": "quiet,mask_cpu:0x3", "cores": [0, 1]},
    "a job without GPUs on a node with some": IN_STEP | GPUS | {"torch": torch(0)},
    "Slurm's commands, no cluster": ON_LOGIN_NODE | {"slurm__controller": "fatal: no configuration"},
    "interfaces chosen as NCCL lets one": GPUS | {"variables__NCCL_SOCKET_IFNAME": "^lo,docker"},
    "NCCL's variable without GPUs": {"variables__NCCL_SOCKET_IFNAME": "hsn"},
    "gloo over two interfaces": {"variables__GLOO_SOCKET_IFNAME": "eth0,ib0"},
    "small shared memory, no GPUs": {"folders__shm__free_bytes": 64 * MIB},
    "debugging switched off": {"variables__TORCH_DISTRIBUTED_DEBUG": "OFF"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_a_healthy_machine(name: str) -> None:
    assert machine_findings(machine(**HEALTHY[name])) == []


# What is spoiled -> severity, topic, words of what was seen, words of the fix.
SPOILED: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "cores_of_task": (
        IN_STEP | {"variables__SLURM_CPUS_PER_TASK": "8", "cores": [0]},
        "warning", "affinity", "SLURM_CPUS_PER_TASK=8, and the process may use 1 core",
        "srun --cpus-per-task=8",
    ),
    "slowing_variables": (
        {"variables__TORCH_DISTRIBUTED_DEBUG": "detail"},
        "warning", "timing", "TORCH_DISTRIBUTED_DEBUG=detail", "unset TORCH_DISTRIBUTED_DEBUG",
    ),
    "idle_gpus: a build for CPUs": (
        {"device_files": ["nvidia0"], "torch": torch(0, cuda=None), "versions__torch": "2.14.1+cpu"},
        "warning", "devices", "1 GPU (nvidia0), and torch 2.14.1+cpu", "pip install",
    ),
    "idle_gpus: Slurm gave GPUs, torch not asked": (
        IN_STEP | {"variables__SLURM_GPUS_ON_NODE": "4", "versions__torch": "2.14.1+cpu", "torch": None},
        "warning", "devices", "SLURM_GPUS_ON_NODE=4", "pip install",
    ),
    "idle_gpus: the driver": (
        {"device_files": ["nvidia0"], "torch": torch(0)},
        "warning", "devices", "1 GPU (nvidia0), and torch 2.14.1 can use none", "nvidia-smi",
    ),
    "gloo_interface: one of two missing": (
        {"variables__GLOO_SOCKET_IFNAME": "eth0,enp1s0"},
        "error", "network", "GLOO_SOCKET_IFNAME=eth0,enp1s0", "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "gloo_interface: NCCL's syntax": (
        {"variables__GLOO_SOCKET_IFNAME": "^docker0"},
        "error", "network", "GLOO_SOCKET_IFNAME=^docker0", "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "gloo_interface: down": (
        {"variables__GLOO_SOCKET_IFNAME": "eth9"},
        "error", "network", "GLOO_SOCKET_IFNAME=eth9", "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "gloo_interface: no address": (
        {"variables__GLOO_SOCKET_IFNAME": "eth9", "interfaces__eth9__up": True},
        "error", "network", "GLOO_SOCKET_IFNAME=eth9", "export GLOO_SOCKET_IFNAME=eth0",
    ),
    "nccl_interface: excludes all": (
        GPUS | {"variables__NCCL_SOCKET_IFNAME": "^lo,eth,ib"},
        "error", "network", "NCCL_SOCKET_IFNAME=^lo,eth,ib", "export NCCL_SOCKET_IFNAME=eth0",
    ),
    "nccl_interface: no such name": (
        GPUS | {"variables__NCCL_SOCKET_IFNAME": "=eth"},
        "error", "network", "NCCL_SOCKET_IFNAME==eth", "export NCCL_SOCKET_IFNAME=eth0",
    ),
    "folders: results not writable": (
        {"folders__results__error": "Permission denied"},
        "error", "results", "results_dir=/home/user/results: Permission denied", "results_dir=PATH",
    ),
    "folders: results nearly full": (
        {"folders__results__free_bytes": 300 * MIB},
        "warning", "results", "300 MiB free of 900.0 GiB", "results_dir=PATH",
    ),
    "folders: TMPDIR not writable": (
        {"folders__tmp__path": "/scratch", "folders__tmp__error": "Read-only file system"},
        "warning", "tmp", "TMPDIR=/scratch: Read-only file system", "export TMPDIR=PATH",
    ),
    "folders: shared memory of two GPUs": (
        GPUS | {"folders__shm__free_bytes": 64 * MIB},
        "warning", "shm", "shared memory=/dev/shm: 64 MiB free", "--shm-size=1g",
    ),
    "launcher: no torch": (
        {"versions__torch": None, "torch": {"error": "No module named 'torch'"}},
        "error", "launcher", "launcher=local: torch is not installed", "pip install torch",
    ),
    "launcher: a broken torch": (
        {"torch": {"error": "ImportError: libcudart.so.13"}},
        "error", "launcher", "launcher=local: ImportError: libcudart.so.13", "--force-reinstall",
    ),
    "launcher: no sbatch": (
        {"launcher": "slurm"},
        "error", "launcher", "launcher=slurm: no sbatch on the PATH", "launcher=local",
    ),
    "launcher: no submitit": (
        ON_LOGIN_NODE | {"launcher": "slurm", "submitit": None},
        "error", "launcher", "submitit is not installed", "pip install submitit",
    ),
    "launcher: no controller": (
        ON_LOGIN_NODE | {"launcher": "slurm", "slurm__controller": "no answer within 2 s"},
        "error", "launcher", "controller: no answer within 2 s", "scontrol ping",
    ),
    "launcher: no torchrun": (
        {"launcher": "torchrun", "torchrun": None}, "error", "launcher", "no command torchrun", "pip install",
    ),
    "launcher: no namespaces": (
        {"launcher": "emulated", "emulation": {"error": "forbidden", "netem": False}},
        "error", "launcher", "launcher=emulated: forbidden", "launcher.network=modelled",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_found_with_its_numbers_and_a_fix(name: str) -> None:
    changes, severity, topic, seen, fix = SPOILED[name]
    facts = machine(**changes)
    finding = only(machine_findings(facts))
    assert (finding.severity, finding.topic) == (severity, topic)
    assert seen in finding.what
    assert fix in finding.fix
    assert "\n" not in finding.fix
    rule = next(rule for rule in RULES if rule.__name__ == name.partition(":")[0])
    assert list(rule(facts)) == [finding]


def test_every_rule_has_something_that_it_finds() -> None:
    assert {rule.__name__ for rule in RULES} == {name.partition(":")[0] for name in SPOILED}


def test_the_worst_is_shown_first() -> None:
    facts = machine(variables__CUDA_LAUNCH_BLOCKING="1", folders__results__error="Permission denied")
    assert [finding.severity for finding in machine_findings(facts)] == ["error", "warning"]


def test_hosts_are_named_up_to_three() -> None:
    assert on(["n1"], 4) == "on n1"
    assert on(["n1", "n1", "n2"], 4) == "on n1, n2 (2 of 4 hosts)"
    assert on([f"n{number}" for number in range(1, 9)], 16) == "on n1, n2, n3 and 5 more (8 of 16 hosts)"


# ------------------------------------------------------------------ the real machine


def diagnose(results: Path) -> list[Finding]:
    return list(process_findings(process_facts(results)))


def test_this_machine_and_a_healthy_rank_have_no_trouble(tmp_path: Path) -> None:
    full = ("results", "tmp", "shm")  # this machine may be short of these just now
    assert [finding for finding in diagnose(tmp_path) if finding.topic not in full] == []
    assert list(process_findings(ProcessFacts.of(row()))) == []


@pytest.mark.parametrize(
    ("name", "value", "topic"),
    [
        ("GLOO_SOCKET_IFNAME", "lo,nosuch0", "network"),
        ("CUDA_LAUNCH_BLOCKING", "1", "timing"),
        ("TMPDIR", UNWRITABLE, "tmp"),
    ],
)
def test_a_variable_that_hurts_is_found(
    name: str, value: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert only(diagnose(tmp_path), topic).what.startswith(f"{name}={value}")


def test_results_that_cannot_be_written_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (Path(UNWRITABLE), tmp_path / "file", tmp_path / "file" / "below"):
        finding = only(diagnose(folder), "results")
        assert (finding.severity, str(folder) in finding.what) == ("error", True)
