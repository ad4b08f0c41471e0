"""Healthy facts, to be spoiled by tests; and rows of real processes."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from daso_bench.runner.machine.facts import MachineFacts
from daso_bench.runner.machine.rules import Finding

GIB = 2**30
Row = dict[str, Any]


def row(host: str = "n1", rank: int = 0, local_rank: int = 0, **changes: Any) -> Row:
    """A healthy rank on a host of 8 cores. A change: `key=value`, or `a__b=value` for `b` inside of `a`."""
    number = int(host[1:]) if host[1:].isdecimal() else 1
    folder = {"exists": True, "error": None, "locks": True, "free_bytes": 500 * GIB}
    folder |= {"total_bytes": 900 * GIB, "free_inodes": 10**6, "device": 1, "inode": 2}
    healthy: Row = {
        "schema_version": 1,
        "host": host,
        "pid": 1,
        "uid": 1000,
        "rank": rank,
        "local_rank": local_rank,
        "time_unix": 1.8e9,
        "host_addresses": [f"10.0.0.{number}"],
        "host_error": None,
        "interfaces": {
            "lo": {"up": True, "loopback": True, "speed_mbit": 0, "addresses": ["127.0.0.1", "::1"]},
            "eth0": {"up": True, "loopback": False, "speed_mbit": 1000, "addresses": [f"10.0.0.{number}"]},
            "ib0": {"up": True, "loopback": False, "speed_mbit": 100000, "addresses": [f"10.1.0.{number}"]},
            "eth9": {"up": False, "loopback": False, "speed_mbit": 0, "addresses": []},
        },
        "route": {"to": "n1", "address": f"10.0.0.{number}", "interface": "eth0", "error": None},
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
        "prefix": "/home/user/venv",
        "package": "/home/user/daso-bench",
        "folders": {
            name: {"path": path, "tried": path, **folder}
            for name, path in (
                ("results", "/home/user/results"),
                ("tmp", "/tmp"),
                ("shm", "/dev/shm"),
            )
        },
        "open_files": {"soft": 1024, "hard": 4096},
        "memory": {"total_bytes": 64 * GIB, "available_bytes": 60 * GIB},
        "torch": None,
    }
    return changed(healthy, **changes)


def machine(**changes: Any) -> MachineFacts:
    """A healthy laptop without GPUs and Slurm."""
    healthy = row() | {
        "wanted": {
            "launcher": None,
            "port": None,
            "threads": None,
            "ranks_of_nodes": None,
            "ranks_here": None,
            "share_gpus": False,
        },
        "route": None,
        "commands": dict.fromkeys(("sbatch", "srun", "scontrol", "squeue", "sacct", "scancel")),
        "slurm": {
            "version": None,
            "controller": "no scontrol here",
            "job_known": None,
        },
        "submitit": "1.5.4",
        "torchrun": "/home/user/venv/bin/torchrun",
        "emulation": {"error": None, "netem": True},
        "port_error": None,
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
        "seconds": 1.5,
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


def child_row(
    results: Path | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> Row:
    """The facts of a real process of its own: with `variables`, after `before` was called in it."""
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from daso_bench.runner.machine.facts import process_facts\n"
        "folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None\n"
        "print(json.dumps(process_facts(folder, with_commit=False).as_row()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *([] if results is None else [str(results)])],
        env={**os.environ, **(variables or {})},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)
