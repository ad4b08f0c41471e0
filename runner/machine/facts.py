"""Facts about the machine and its network as one process sees them. No torch unless asked."""

import ipaddress
import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Self

import psutil

from .. import PACKAGE
from .cores import affinity, usable_cores
from .environment import versions, visible_devices
from .folders import folder_facts

SLOWING_VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}
GPUS_OF_JOB = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS")
_VARIABLES = (
    *SLOWING_VARIABLES,
    *GPUS_OF_JOB,
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_GPUS_PER_TASK",
)

RESOLVE_S = 1.5  # a name server that answers later would delay every start
_ANY_PORT = 9  # connecting a datagram socket sends nothing, but looks up a route
_INTERNET = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, kw_only=True)
class ProcessFacts:
    """What one process sees of its machine. JSON can hold all of it (`as_row`, `of`).

    `route_interface`: by which this process reaches the host of rank 0; None if it is not known.
    `usable_cores`: `cores`, cut to a container's quota. `visible_devices`: the entries of
    CUDA_VISIBLE_DEVICES, None if it is not set. `folders`: `folder_facts` of results, tmp and shm.
    `torch`: of `torch_facts`, None if torch was not imported. `rank`, `local_rank`: only in a job.
    """

    host: str
    interfaces: Mapping[str, Any]
    route_interface: str | None
    cores: Sequence[int]
    usable_cores: int
    cores_of_machine: int
    memory: Mapping[str, int]
    variables: Mapping[str, str]
    visible_devices: Sequence[str] | None
    device_files: Sequence[str]
    versions: Mapping[str, str | None]
    executable: str
    package: str
    folders: Mapping[str, Mapping[str, Any]]
    torch: Mapping[str, Any] | None
    rank: int | None = None
    local_rank: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of `as_row`, which may hold more keys."""
        return cls(**{field.name: row[field.name] for field in fields(cls) if field.name in row})

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class MachineFacts(ProcessFacts):
    """More facts for `daso-bench doctor`, once per machine.

    `launcher`: the one that is to start runs here, None if not stated. `commands`: path of each command of
    Slurm. `slurm`: version and controller (`up`, or why not). `torchrun`: its path. `emulation`: `error`, why
    no nodes can be emulated here, and `netem`, whether their links have latencies.
    """

    launcher: str | None
    commands: Mapping[str, str | None]
    slurm: Mapping[str, Any]
    submitit: str | None
    torchrun: str | None
    emulation: Mapping[str, Any]


def process_facts(results_dir: Path, *, master: str | None = None, with_torch: bool = False) -> ProcessFacts:
    """The facts of this process.

    `results_dir`: the folder of runs. `master`: the host of rank 0. `with_torch` imports torch (seconds) and
    counts devices.
    """
    memory = psutil.virtual_memory()
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")
    folders = {"results": results_dir, "tmp": tmp, "shm": Path("/dev/shm")}
    route = None
    if master is not None:
        with suppress(OSError):
            route = route_to(master)
    return ProcessFacts(
        host=socket.gethostname(),
        interfaces=interfaces(),
        route_interface=route,
        cores=affinity(),
        usable_cores=usable_cores(),
        cores_of_machine=os.cpu_count() or 1,
        memory={"total_bytes": memory.total, "available_bytes": memory.available},
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        visible_devices=visible_devices(),
        device_files=_device_files(Path("/dev")),
        versions=versions(),
        executable=sys.executable,
        package=str(PACKAGE),
        folders={name: folder_facts(path) for name, path in folders.items()},
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


def _device_files(folder: Path) -> list[str]:
    """NVIDIA's and AMD's device files: there whether or not torch can use them."""
    nvidia = sorted(path.name for path in folder.glob("nvidia[0-9]*"))
    return nvidia or sorted(
        path.name for path in (folder / "dri").glob("renderD*") if (folder / "kfd").exists()
    )


# ------------------------------------------------------------------ network


def interfaces() -> dict[str, dict[str, Any]]:
    """By name: `up`, `loopback`, `speed_mbit` (0: unknown) and `addresses` of each interface."""
    states = psutil.net_if_stats()
    known: dict[str, dict[str, Any]] = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address.partition("%")[0] for entry in entries if entry.family in _INTERNET]
        state = states.get(name)
        known[name] = {
            "up": bool(state and state.isup),
            "loopback": any(is_loopback(address) for address in addresses) or name == "lo",
            "speed_mbit": state.speed if state else 0,
            "addresses": addresses,
        }
    return known


def is_loopback(address: str) -> bool:
    """Whether `address` is one of the loopback interface."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def interface_of(address: str) -> str | None:
    """The interface that has `address`; the loopback has all of 127.0.0.0/8."""
    loopback = is_loopback(address)
    return next(
        (
            name
            for name, entry in interfaces().items()
            if address in entry["addresses"] or (loopback and entry["loopback"])
        ),
        None,
    )


def route_to(host: str) -> str | None:
    """The interface by which this process reaches `host`; nothing is sent.

    Raises OSError if the name is unknown or there is no route.
    """
    error: OSError = OSError(f"no address of {host}")
    for family, kind, _, _, target in _resolved(host):
        with closing(socket.socket(family, kind)) as probe:
            try:
                probe.connect(target)
            except OSError as refused:
                error = refused
                continue
            return interface_of(probe.getsockname()[0].partition("%")[0])
    raise error


def _resolved(host: str) -> list[Any]:
    """`getaddrinfo` for datagrams that gives up after RESOLVE_S. Raises OSError."""
    with ThreadPool(1) as pool:  # leaving it waits for no thread
        answer = pool.apply_async(socket.getaddrinfo, (host, _ANY_PORT), {"type": socket.SOCK_DGRAM})
        try:
            return answer.get(RESOLVE_S)
        except multiprocessing.TimeoutError:
            raise TimeoutError(f"no answer about {host} within {RESOLVE_S:g} s") from None
        except UnicodeError as error:
            raise OSError(str(error)) from error
