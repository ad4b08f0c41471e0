"""Rules on one process: each finds its trouble, and none finds any on a healthy machine."""

from typing import Any

import pytest
from doctor_rows import GIB, machine, only, row, torch

from daso_bench.runner.machine.facts import ProcessFacts
from daso_bench.runner.machine.rules import (
    MACHINE_RULES,
    PROCESS_RULES,
    Finding,
    apply,
    machine_findings,
    on,
    troubles,
)

RULES = (*PROCESS_RULES, *MACHINE_RULES)
MIB = 2**20
GPUS: dict[str, Any] = {"device_files": ["nvidia0", "nvidia1"], "torch": torch(2)}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
}
IN_STEP: dict[str, Any] = {f"variables__{name}": value for name, value in STEP.items()}
ON_LOGIN_NODE: dict[str, Any] = {
    "commands__sbatch": "/usr/bin/sbatch",
    "commands__squeue": "/usr/bin/squeue",
    "slurm__controller": "up",
    "slurm__version": "slurm 24.11.1",
}

HEALTHY = {
    "a laptop": {},
    "nested threads": {"variables__OMP_NUM_THREADS": "4,2"},
    "a GPU machine": GPUS,
    "one GPU chosen": GPUS | {"variables__CUDA_VISIBLE_DEVICES": "1", "visible_devices": ["1"]},
    "a login node": ON_LOGIN_NODE,
    "a login node, asked for Slurm": ON_LOGIN_NODE | {"wanted__launcher": "slurm"},
    "a task of Slurm": ON_LOGIN_NODE | IN_STEP | {"slurm__job_known": True},
    "a bound task of Slurm": IN_STEP | {"variables__SLURM_CPU_BIND": "quiet,mask_cpu:0x3", "cores": [0, 1]},
    "a job without GPUs on a node with some": IN_STEP | GPUS | {"torch": torch(0), "visible_devices": None},
    "Slurm's commands, no cluster": ON_LOGIN_NODE | {"slurm__controller": "fatal: no configuration"},
    "interfaces chosen as NCCL lets one": GPUS | {"variables__NCCL_SOCKET_IFNAME": "^lo,docker"},
    "gloo over two interfaces": {"variables__GLOO_SOCKET_IFNAME": "eth0,ib0"},
    "more ranks than cores": {"wanted__ranks_here": 32, "wanted__ranks_of_nodes": [16, 16]},
    "small shared memory, no GPUs": {"folders__shm__free_bytes": 64 * MIB},
    "a file system without inodes": {"folders__results__free_inodes": None},
    "debugging switched off": {"variables__TORCH_DISTRIBUTED_DEBUG": "OFF"},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_wrong_with_a_healthy_machine(name: str) -> None:
    assert troubles(machine_findings(machine(**HEALTHY[name]))) == []


def test_a_healthy_laptop_has_not_even_a_note() -> None:
    assert machine_findings(machine()) == []
    assert apply(PROCESS_RULES, ProcessFacts.of(row())) == []


# What is spoiled -> severity, topic, words of what was seen, words of the fix.
SPOILED: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "thread_variables: more than cores": (
        {"variables__MKL_NUM_THREADS": "16"},
        "warning", "threads", "MKL_NUM_THREADS=16, 8 usable cores", "unset MKL_NUM_THREADS",
    ),
    "thread_variables: no number": (
        {"variables__OMP_NUM_THREADS": "auto"},
        "warning", "threads", "OMP_NUM_THREADS=auto", "unset OMP_NUM_THREADS",
    ),
    "threads_wanted": (
        {"wanted__threads": 4, "wanted__ranks_here": 4},
        "warning", "threads", "4 ranks x 4 threads, 8 usable cores", "launcher.threads_per_rank=2",
    ),
    "cores_of_task": (
        IN_STEP | {"variables__SLURM_CPUS_PER_TASK": "8", "cores": [0]},
        "warning", "affinity", "SLURM_CPUS_PER_TASK=8, and the process may use 1 core",
        "srun --cpus-per-task=8",
    ),
    "memory": (
        {"memory__available_bytes": 2 * GIB, "wanted__ranks_here": 8},
        "warning", "memory", "2.0 GiB of 64.0 GiB are free", "cluster.ranks_per_node=1",
    ),
    "slowing_variables": (
        {"variables__CUDA_LAUNCH_BLOCKING": "1"},
        "warning", "timing", "CUDA_LAUNCH_BLOCKING=1", "unset CUDA_LAUNCH_BLOCKING",
    ),
    "slowing_variables: whatever its case": (
        {"variables__TORCH_DISTRIBUTED_DEBUG": "detail"},
        "warning", "timing", "TORCH_DISTRIBUTED_DEBUG=detail", "unset TORCH_DISTRIBUTED_DEBUG",
    ),
    "cpu_build: GPUs are here": (
        {"device_files": ["nvidia0"], "torch": torch(0, cuda=None), "versions__torch": "2.14.1+cpu"},
        "warning", "devices", "1 GPU (nvidia0), and torch 2.14.1+cpu", "pip install",
    ),
    "cpu_build: Slurm gave GPUs, torch not asked": (
        IN_STEP | {"variables__SLURM_GPUS_ON_NODE": "4", "versions__torch": "2.14.1+cpu", "torch": {}},
        "warning", "devices", "SLURM_GPUS_ON_NODE=4", "pip install",
    ),
    "no_device: the driver": (
        {"device_files": ["nvidia0"], "torch": torch(0)},
        "warning", "devices", "1 GPUs are here (nvidia0), torch 2.14.1 finds none", "nvidia-smi",
    ),
    "no_device: hidden": (
        {"device_files": ["nvidia0"], "torch": torch(0), "visible_devices": []},
        "note", "devices", "CUDA_VISIBLE_DEVICES is empty, and 1 GPUs", "unset CUDA_VISIBLE_DEVICES",
    ),
    "fewer_than_ranks: and they may share": (
        GPUS | {"wanted__ranks_here": 4, "wanted__share_gpus": True},
        "warning", "devices", "4 ranks on this host, 2 visible GPUs", "cluster.ranks_per_node=2",
    ),
    "fewer_than_ranks": (
        GPUS | {"wanted__ranks_here": 4},
        "error", "devices", "4 ranks on this host, 2 visible GPUs", "cluster.ranks_per_node=2",
    ),
    "gloo_interface: one of two missing": (
        {"variables__GLOO_SOCKET_IFNAME": "eth0,enp1s0"},
        "error", "network", "GLOO_SOCKET_IFNAME=eth0,enp1s0", "export GLOO_SOCKET_IFNAME=eth0",
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
    "nccl_interface: without GPUs": (
        {"variables__NCCL_SOCKET_IFNAME": "hsn"},
        "note", "network", "NCCL_SOCKET_IFNAME=hsn", "export NCCL_SOCKET_IFNAME=eth0",
    ),
    "port": (
        {"wanted__port": 29500, "port_error": "Address already in use"},
        "error", "network", "launcher.port=29500: Address already in use", "launcher.port=null",
    ),
    "results: not writable": (
        {"folders__results__error": "Permission denied"},
        "error", "results", "results_dir=/home/user/results: Permission denied", "results_dir=PATH",
    ),
    "results: no locks": (
        {"folders__results__locks": False},
        "error", "results", "files cannot be locked there", "results_dir=PATH",
    ),
    "results: nearly full": (
        {"folders__results__free_bytes": 300 * MIB},
        "warning", "results_dir", "300 MiB free of 900.0 GiB", "results_dir=PATH",
    ),
    "results: full": (
        {"folders__results__free_bytes": 3 * MIB},
        "error", "results_dir", "3 MiB free", "results_dir=PATH",
    ),
    "results: no inodes": (
        {"folders__results__free_inodes": 12},
        "warning", "results_dir", "room for 12 more files", "results_dir=PATH",
    ),
    "temporary: not writable": (
        {"variables__TMPDIR": "/scratch", "folders__tmp__path": "/scratch"}
        | {"folders__tmp__error": "Read-only"},
        "warning", "TMPDIR", "TMPDIR=/scratch: Read-only", "export TMPDIR=/tmp",
    ),
    "temporary: nowhere": (
        {"folders__tmp__error": "Read-only file system"},
        "error", "TMPDIR", "TMPDIR=/tmp: Read-only file system", "export TMPDIR=PATH",
    ),
    "temporary: too long": (
        {"variables__TMPDIR": "/scratch/" + "a" * 80, "folders__tmp__path": "/scratch/" + "a" * 80},
        "error", "TMPDIR", "TMPDIR has 89 characters", "export TMPDIR=/tmp",
    ),
    "temporary: nearly full": (
        {"folders__tmp__free_bytes": 100 * MIB},
        "warning", "TMPDIR", "TMPDIR=/tmp: 100 MiB free", "export TMPDIR=PATH",
    ),
    "shared_memory: two GPUs": (
        GPUS | {"folders__shm__free_bytes": 64 * MIB},
        "warning", "shared memory", "/dev/shm: 64 MiB free", "--shm-size=1g",
    ),
    "shared_memory: a plain container": (
        {"folders__shm__free_bytes": 64 * MIB},
        "note", "shared memory", "/dev/shm: 64 MiB free", "--shm-size=1g",
    ),
    "leaked_job: ended": (
        ON_LOGIN_NODE | IN_STEP | {"slurm__job_known": False},
        "warning", "slurm", "SLURM_JOB_ID=7, which squeue does not know", "unset ",
    ),
    "submitting: no sbatch": (
        {"wanted__launcher": "slurm"},
        "error", "slurm", "no sbatch on the PATH", "launcher=local",
    ),
    "submitting: no submitit": (
        ON_LOGIN_NODE | {"submitit": None},
        "note", "slurm", "/usr/bin/sbatch, and submitit is not installed", "pip install submitit",
    ),
    "submitting: no controller": (
        ON_LOGIN_NODE | {"wanted__launcher": "slurm", "slurm__controller": "no answer within 2 s"},
        "error", "slurm", "no answer within 2 s", "scontrol ping",
    ),
    "node_local_environment": (
        IN_STEP | {"prefix": "/scratch/local/venv"},
        "warning", "slurm", "Python's environment is /scratch/local/venv", "python3 -m venv PATH",
    ),
    "node_local_environment: before submitting": (
        ON_LOGIN_NODE | {"wanted__launcher": "slurm", "package": "/tmp/daso-bench"},
        "warning", "slurm", "the package is /tmp/daso-bench", "python3 -m venv PATH",
    ),
    "torch_import: missing": (
        {"versions__torch": None, "torch": {"error": "No module named 'torch'"}},
        "error", "python", "torch is not installed", "pip install torch",
    ),
    "torch_import: broken": (
        {"torch": {"error": "ImportError: libcudart.so.13", "seconds": 0.5}},
        "error", "python", "import torch: ImportError: libcudart.so.13", "--force-reinstall",
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
    rule = next(rule for rule in RULES if rule.__name__ == name.partition(":")[0])
    assert list(rule(facts)) == [finding]


def test_every_rule_has_something_that_it_finds() -> None:
    shown = {name.partition(":")[0] for name in SPOILED} | {"shadowed"}  # a real one: test_seeded
    assert {rule.__name__ for rule in RULES} == shown


def test_one_machine_with_many_troubles_shows_the_worst_first() -> None:
    findings = machine_findings(
        machine(
            variables__OMP_NUM_THREADS="999",
            folders__results__error="Permission denied",
            folders__shm__free_bytes=64 * MIB,
        )
    )
    assert [finding.severity for finding in findings] == ["error", "warning", "note"]


def test_hosts_are_named_up_to_three() -> None:
    assert on(["n1"], 4) == "on n1"
    assert on(["n1", "n1", "n2"], 4) == "on n1, n2 (2 of 4 hosts)"
    assert on([f"n{number}" for number in range(1, 9)], 16) == "on n1, n2, n3 and 5 more (8 of 16 hosts)"


@pytest.mark.parametrize("fix", ["", "two\nlines"])
def test_a_fix_is_one_line(fix: str) -> None:
    with pytest.raises(AssertionError):
        Finding("note", "topic", "seen", "why", fix)
