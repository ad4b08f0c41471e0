"""What one process finds where it is: a row, as JSON, that the rules judge. No torch unless asked."""

import locale
import os
import platform
import resource
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from .. import PACKAGE
from . import environment, interfaces
from .environment import installed
from .folders import folder_facts

FACTS_SCHEMA_VERSION = 1
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
SLOWING_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": ("1",),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_SHM_DISABLE": ("1",),
    "NCCL_IB_DISABLE": ("1",),
}
_VARIABLES = (
    *THREAD_VARIABLES,
    *RANK_VARIABLES,
    *SLOWING_VARIABLES,
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PYTHONPATH",
    "TMPDIR",
    "HOME",
    "LANG",
    "LC_ALL",
)
# What Slurm says of the place; not its dozens of others, some of which hold whole host lists.
_SLURM = [
    "JOB_ID",
    "STEP_ID",
    "NNODES",
    "NTASKS",
    "NTASKS_PER_NODE",
    "PROCID",
    "LOCALID",
    "NODEID",
    "CPUS_PER_TASK",
    "CPUS_ON_NODE",
    "GPUS",
    "GPUS_ON_NODE",
    "GPUS_PER_NODE",
    "GPUS_PER_TASK",
    "NTASKS_PER_GPU",
    "JOB_GPUS",
    "STEP_GPUS",
    "GPU_BIND",
    "CPU_BIND",
    "CPU_BIND_LIST",
    "CPU_BIND_TYPE",
    "CPU_BIND_VERBOSE",
    "DISTRIBUTION",
    "RESTART_COUNT",
    "CONF",
    "JOB_NODELIST",
]


def rank_facts(
    results_dir: Path | None,
    *,
    master: str | None = None,
    with_commit: bool = True,
    with_torch: bool = False,
) -> dict[str, Any]:
    """This process, as one row.

    `results_dir`: the folder that runs go to (None: not looked at). `master`: the host of rank 0, to which
    the route is looked up; MASTER_ADDR if None. `with_commit` asks git about the source (0.1 s);
    `with_torch` imports torch (seconds) and counts devices.

    A launcher may overwrite or add: `rank`, `local_rank`, `node` (index of the node, where the host name
    does not tell: virtual nodes), `sees_token` (the file that rank 0 wrote into results_dir is there),
    `clock_offset_s` (this host's clock minus rank 0's).
    """
    variables = _variables()
    master = master or variables.get("MASTER_ADDR")
    host = socket.gethostname()
    host_addresses, host_error = interfaces.addresses_of(host)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = psutil.virtual_memory()
    return {
        "schema_version": FACTS_SCHEMA_VERSION,
        "host": host,
        "pid": os.getpid(),
        "uid": os.getuid(),
        "time_unix": time.time(),
        "rank": _number(variables, "RANK", "SLURM_PROCID"),
        "local_rank": _number(variables, "LOCAL_RANK", "SLURM_LOCALID"),
        "host_addresses": host_addresses,
        "host_error": host_error,
        "interfaces": interfaces.interfaces(),
        "route": interfaces.route(master) if master else None,
        "cores": environment.affinity(),
        "usable_cores": environment.usable_cores(),
        "cores_of_machine": os.cpu_count() or 1,
        "variables": variables,
        "visible_devices": environment.visible_devices(),
        "device_files": _device_files(Path("/dev")),
        "versions": _versions(with_commit),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "package": str(PACKAGE),
        "folders": _folders(results_dir),
        "open_files": {"soft": _limit(soft), "hard": _limit(hard)},
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
        "encoding": {
            "files": sys.getfilesystemencoding(),
            "text": locale.getpreferredencoding(False),
            "output": getattr(sys.stdout, "encoding", None),
        },
        "torch": torch_facts() if with_torch else None,
    }


def torch_facts() -> dict[str, Any]:
    """What torch says once it is imported: build, devices, and the backends it was built with."""
    import torch

    devices = torch.cuda.device_count()
    properties = [torch.cuda.get_device_properties(device) for device in range(devices)]
    distributed = hasattr(torch._C, "_c10d_init")
    nccl = distributed and torch.version.cuda is not None and hasattr(torch._C, "_nccl_version")
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "devices": devices,
        "names": [entry.name for entry in properties],
        "uuids": [str(getattr(entry, "uuid", "")) for entry in properties],
        "memory_bytes": [entry.total_memory for entry in properties],
        "backends": ["gloo"] * distributed + ["nccl"] * nccl,
        "error": None,
    }


def _variables() -> dict[str, str]:
    names = [*_VARIABLES, *(f"SLURM_{name}" for name in _SLURM)]
    return {name: os.environ[name] for name in names if name in os.environ}


def _number(variables: dict[str, str], *names: str) -> int | None:
    texts = (variables.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _device_files(folder: Path) -> list[str]:
    """NVIDIA's and AMD's device files: there whether or not torch can use them."""
    nvidia = sorted(path.name for path in folder.glob("nvidia[0-9]*"))
    return nvidia or sorted(
        path.name for path in (folder / "dri").glob("renderD*") if (folder / "kfd").exists()
    )


def _versions(with_commit: bool) -> dict[str, str | None]:
    commit, dirty = environment.commit_of(PACKAGE) if with_commit else (None, None)
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "daso_bench": installed("daso-bench"),
        "commit": commit,
        "dirty": dirty,
    }


def _folders(results_dir: Path | None) -> dict[str, dict[str, Any]]:
    wanted: dict[str, Path] = {} if results_dir is None else {"results": results_dir}
    try:
        wanted["tmp"] = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    except FileNotFoundError:  # Python has tried them all
        wanted["tmp"] = Path("/tmp")
    if os.path.isdir("/dev/shm"):
        wanted["shm"] = Path("/dev/shm")
    if os.environ.get("HOME"):
        wanted["home"] = Path(os.environ["HOME"])
    return {name: folder_facts(path) for name, path in wanted.items()}


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value
