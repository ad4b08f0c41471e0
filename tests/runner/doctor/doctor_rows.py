"""Healthy facts, to be spoiled by tests."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from daso_bench.runner.machine.facts import MachineFacts
from daso_bench.runner.machine.rules import Finding

GIB = 2**30
Row = dict[str, Any]


def row(host: str = "n1", rank: int = 0, local_rank: int = 0, **changes: Any) -> Row:
    """A healthy rank on a host of 8 cores. A change: `key=value`, or `a__b=value` for `b` inside of `a`."""
    number = int(host[1:]) if host[1:].isdecimal() else 1
    folder = {"error": None, "free_bytes": 500 * GIB, "total_bytes": 900 * GIB}
    healthy: Row = {
        "host": host,
        "rank": rank,
        "local_rank": local_rank,
        "interfaces": {
            "lo": {"up": True, "loopback": True, "speed_mbit": 0, "addresses": ["127.0.0.1", "::1"]},
            "eth0": {"up": True, "loopback": False, "speed_mbit": 1000, "addresses": [f"10.0.0.{number}"]},
            "ib0": {"up": True, "loopback": False, "speed_mbit": 100000, "addresses": [f"10.1.0.{number}"]},
            "eth9": {"up": False, "loopback": False, "speed_mbit": 0, "addresses": []},
        },
        "route_interface": "eth0",
        "cores": list(range(8)),
        "usable_cores": 8,
        "cores_of_machine": 8,
        "variables": {},
        "visible_devices": None,
        "device_files": [],
        "versions": {
            "python": "3.11.7",
            "torch": "2.14.1",
            "daso_bench": "0.1.0",
            "commit": "9240bbdd23a9bc75",
            "dirty": None,
        },
        "executable": "/home/user/venv/bin/python",
        "package": "/home/user/daso-bench",
        "folders": {
            name: {"path": path, **folder}
            for name, path in (
                ("results", "/home/user/results"),
                ("tmp", "/tmp"),
                ("shm", "/dev/shm"),
            )
        },
        "memory": {"total_bytes": 64 * GIB, "available_bytes": 60 * GIB},
        "torch": None,
    }
    return changed(healthy, **changes)


def machine(**changes: Any) -> MachineFacts:
    """A healthy laptop without GPUs and Slurm."""
    healthy = row() | {
        "launcher": None,
        "route_interface": None,
        "commands": dict.fromkeys(("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")),
        "slurm": {"version": None, "controller": "no scontrol here"},
        "submitit": "1.5.4",
        "torchrun": "/home/user/venv/bin/torchrun",
        "emulation": {"error": None, "netem": True},
        "torch": torch(),
    }
    return MachineFacts.of(changed(healthy, **changes))


def torch(devices: int = 0, **changes: Any) -> Row:
    """Facts of torch, with so many GPUs."""
    return {
        "version": "2.14.1",
        "cuda": "13.0",
        "hip": None,
        "devices": devices,
        "names": ["H200"] * devices,
        "uuids": [f"GPU-{number}" for number in range(devices)],
        "memory_bytes": [139 * GIB] * devices,
        "backends": ["gloo", "nccl"],
        "error": None,
    } | changes


def job(*ranks_of_nodes: int, **changes: Any) -> list[Row]:
    """Healthy rows of a job; each change is made to every row."""
    rows: list[Row] = []
    for node, ranks in enumerate(ranks_of_nodes, 1):
        rows += [row(f"n{node}", len(rows) + local, local, **changes) for local in range(ranks)]
    return rows


def changed(healthy: Mapping[str, Any], **changes: Any) -> Row:
    """A copy with changes: `key=value`, or `a__b=value` for `b` inside of `a`."""
    new = copy.deepcopy(dict(healthy))
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = new
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return new


def only(findings: Iterable[Finding], topic: str | None = None) -> Finding:
    """The one finding there is (of a topic)."""
    matching = [finding for finding in findings if topic in (None, finding.topic)]
    assert len(matching) == 1, matching
    return matching[0]
