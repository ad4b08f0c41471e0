"""Facts about the machine as one process sees them, for the rules of the doctor. No torch unless asked."""

import os
import platform
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

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
)
# Not the dozens of others, some of which hold whole host lists.
_SLURM = (
    "JOB_ID",
    "STEP_ID",
    "NNODES",
    "NTASKS",
    "NTASKS_PER_NODE",
    "PROCID",
    "LOCALID",
    "NODEID",
    "CPUS_PER_TASK",
    "GPUS",
    "GPUS_ON_NODE",
    "GPUS_PER_NODE",
    "GPUS_PER_TASK",
    "JOB_GPUS",
    "STEP_GPUS",
    "CPU_BIND",
    "DISTRIBUTION",
    "JOB_NODELIST",
)


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """What one process sees of its machine. JSON can hold all of it (`as_row`, `of`).

    `route`: of `interfaces.route` to the host of rank 0; None if there is no such host. `usable_cores`:
    `cores`, cut to a container's quota. `visible_devices`: the entries of CUDA_VISIBLE_DEVICES, None if it is
    not set. `folders`: `folder_facts` of results, tmp and shm, as far as they are known. `open_files`: soft
    and hard limit, None if there is none. `torch`: of `torch_facts`, None if torch was not imported.

    Only in a job: `sees_token` (the file that rank 0 wrote into the folder of results is there) and
    `clock_offset_s` (this host's clock minus that of rank 0).
    """

    schema_version: int
    host: str
    pid: int
    uid: int
    time_unix: float
    rank: int | None
    local_rank: int | None
    host_addresses: Sequence[str]
    host_error: str | None
    interfaces: Mapping[str, Any]
    route: Mapping[str, Any] | None
    cores: Sequence[int]
    usable_cores: int
    cores_of_machine: int
    variables: Mapping[str, str]
    visible_devices: Sequence[str] | None
    device_files: Sequence[str]
    versions: Mapping[str, str | None]
    executable: str
    prefix: str
    package: str
    folders: Mapping[str, Mapping[str, Any]]
    open_files: Mapping[str, int | None]
    memory: Mapping[str, int]
    torch: Mapping[str, Any] | None
    sees_token: bool | None = None
    clock_offset_s: float | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of `as_row`, which may hold more keys."""
        return cls(**{field.name: row[field.name] for field in fields(cls) if field.name in row})

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MachineFacts(ProcessFacts):
    """More facts for `daso-bench doctor`, once per machine.

    `wanted`: what the user means to run here (launcher, port, threads, ranks_of_nodes, ranks_here,
    share_gpus; None: not stated). `commands`: path of each command of Slurm. `slurm`: version, controller
    (`up`, or why not) and job_known (whether the job of SLURM_JOB_ID still exists, None: unknown).
    """

    wanted: Mapping[str, Any]
    commands: Mapping[str, str | None]
    slurm: Mapping[str, Any]
    submitit: str | None
    torchrun: str | None
    emulation: Mapping[str, Any]
    port_error: str | None


def process_facts(
    results_dir: Path | None,
    *,
    master: str | None = None,
    with_commit: bool = True,
    with_torch: bool = False,
) -> ProcessFacts:
    """The facts of this process.

    `results_dir`: the folder of runs (None: not looked at). `master`: the host of rank 0, to which the route
    is looked up; MASTER_ADDR if None. `with_commit` asks git about the source (0.1 s); `with_torch` imports
    torch (seconds) and counts devices.
    """
    variables = _variables()
    master = master or variables.get("MASTER_ADDR")
    host = socket.gethostname()
    host_addresses, host_error = interfaces.addresses_of(host)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = psutil.virtual_memory()
    return ProcessFacts(
        schema_version=FACTS_SCHEMA_VERSION,
        host=host,
        pid=os.getpid(),
        uid=os.getuid(),
        time_unix=time.time(),
        rank=_number(variables, "RANK", "SLURM_PROCID"),
        local_rank=_number(variables, "LOCAL_RANK", "SLURM_LOCALID"),
        host_addresses=host_addresses,
        host_error=host_error,
        interfaces=interfaces.interfaces(),
        route=interfaces.route(master) if master else None,
        cores=environment.affinity(),
        usable_cores=environment.usable_cores(),
        cores_of_machine=os.cpu_count() or 1,
        variables=variables,
        visible_devices=environment.visible_devices(),
        device_files=_device_files(Path("/dev")),
        versions=_versions(with_commit),
        executable=sys.executable,
        prefix=sys.prefix,
        package=str(PACKAGE),
        folders=_folders(results_dir),
        open_files={"soft": _limit(soft), "hard": _limit(hard)},
        memory={"total_bytes": memory.total, "available_bytes": memory.available},
        torch=torch_facts() if with_torch else None,
    )


def torch_facts() -> dict[str, Any]:
    """torch's build, devices, and the backends it was built with. Imports torch."""
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
    paths: dict[str, Path] = {} if results_dir is None else {"results": results_dir}
    try:
        paths["tmp"] = Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    except FileNotFoundError:  # Python can write into none of its candidates
        paths["tmp"] = Path("/tmp")
    if os.path.isdir("/dev/shm"):
        paths["shm"] = Path("/dev/shm")
    return {name: folder_facts(path) for name, path in paths.items()}


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value
