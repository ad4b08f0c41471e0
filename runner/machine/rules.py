"""The rules of `daso-bench doctor` on one process: what was seen, why it is wrong, and the way out.

A rule is a function of the facts that yields a `Finding` for each thing that is wrong. The two tables at the
end list them: `PROCESS_RULES` hold for every rank of a job, too, `MACHINE_RULES` only where the doctor is
asked about a machine. The rules on a job's ranks together are in `job_rules`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from sysconfig import get_path
from typing import Any, Literal

from .facts import SLOWING_VARIABLES, THREAD_VARIABLES, MachineFacts, ProcessFacts

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
NAMED_HOSTS = 3

MIB, GIB = 2**20, 2**30
RANK_GIB = 0.6  # torch alone, once loaded
LITTLE_BYTES, NO_BYTES = GIB, 64 * MIB
LITTLE_INODES = 1000
LITTLE_SHARED_BYTES = 256 * MIB
LONGEST_TMPDIR = 70  # a socket's path has 107 characters, and Python adds its own names
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch/local", "/local", "/localscratch")
GPUS_OF_JOB = (
    "SLURM_GPUS_ON_NODE",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS",
)
WATCHED = ("torch", "torchvision", "numpy", "hydra", "omegaconf", "submitit", "psutil")
UNSET_SLURM = "unset $(compgen -e SLURM_ | grep -v -x SLURM_CONF) (in bash; or open a new shell)"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (error), will hurt (warning), or is good to know (note).

    `what` was seen, with its numbers; `fix` is one line: a command or a KEY=VALUE.
    """

    severity: Severity
    topic: str
    what: str
    cause: str
    fix: str

    def __post_init__(self) -> None:
        assert self.severity in SEVERITIES, self.severity
        assert self.fix, "a finding needs a way out"
        assert "\n" not in self.fix, self.fix

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def apply(rules: Iterable[Callable[[Any], Iterable[Finding]]], facts: Any) -> list[Finding]:
    """What all `rules` find in `facts`, worst first."""
    return worst_first(finding for rule in rules for finding in rule(facts))


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, warnings, notes; among equals the order stays. Nothing occurs twice."""
    return sorted(dict.fromkeys(findings), key=lambda finding: SEVERITIES.index(finding.severity))


def troubles(findings: Iterable[Finding]) -> list[Finding]:
    """Errors and warnings, which make the doctor's exit code 3."""
    return [finding for finding in findings if finding.severity != "note"]


def merged(findings: Sequence[tuple[str, Finding]], hosts: int) -> list[Finding]:
    """(host, finding) of some of `hosts` hosts; equal findings become one that names their hosts."""
    groups: dict[tuple[str, ...], list[tuple[str, Finding]]] = {}
    for host, finding in findings:
        key = (finding.severity, finding.topic, finding.cause, finding.fix)
        groups.setdefault(key, []).append((host, finding))
    return [
        replace(group[0][1], what=f"{on([host for host, _ in group], hosts)}: {group[0][1].what}")
        for group in groups.values()
    ]


def on(hosts: Iterable[str], of: int) -> str:
    """`on n1`, `on n1, n2, n3 and 5 more (8 of 16 hosts)`."""
    names = list(dict.fromkeys(hosts))
    shown = ", ".join(names[:NAMED_HOSTS])
    if len(names) > NAMED_HOSTS:
        shown += f" and {len(names) - NAMED_HOSTS} more"
    return f"on {shown}" + (f" ({len(names)} of {of} hosts)" if len(names) > 1 else "")


# ------------------------------------------------------------------ cores, memory, limits


def thread_variables(facts: ProcessFacts) -> Iterator[Finding]:
    """OMP_NUM_THREADS and its like: no number, or more threads than there are cores."""
    cores = facts.usable_cores
    for name in THREAD_VARIABLES:
        text = facts.variables.get(name, "").strip()
        first = text.partition(",")[0].strip()
        if not text:
            continue
        if not first.isdecimal() or int(first) < 1:
            what = f"{name}={text}"
            cause = "is no number of threads: the libraries ignore it or take all cores"
        elif int(first) > cores:
            what = f"{name}={text}, {cores} usable cores"
            cause = "more threads than cores wait for each other, and every step gets slower"
        else:
            continue
        yield Finding("warning", "threads", what, cause, f"unset {name}")


def threads_wanted(facts: MachineFacts) -> Iterator[Finding]:
    """Ranks x threads asked for on this host, against its cores."""
    wanted, cores = facts.wanted, facts.usable_cores
    ranks, threads = wanted["ranks_here"] or 1, wanted["threads"]
    if threads is None or ranks * threads <= cores or wanted["launcher"] in ("slurm", "simulated"):
        return
    yield Finding(
        "warning",
        "threads",
        f"{ranks} ranks x {threads} threads, {cores} usable cores",
        "ranks wait for each other's cores: the run works, its timing is not valid",
        f"launcher.threads_per_rank={max(1, cores // ranks)}",
    )


def cores_of_task(facts: ProcessFacts) -> Iterator[Finding]:
    """A task of Slurm with fewer cores than it was asked for: since 22.05 srun forgets --cpus-per-task."""
    text = facts.variables.get("SLURM_CPUS_PER_TASK", "")
    cores = len(facts.cores)
    if "SLURM_PROCID" in facts.variables and text.isdecimal() and int(text) > cores:
        yield Finding(
            "warning",
            "affinity",
            f"SLURM_CPUS_PER_TASK={text}, and the process may use {cores} core{'s' * (cores != 1)}",
            "the step did not repeat --cpus-per-task (Slurm 22.05 and later do not inherit it)",
            f"srun --cpus-per-task={text} (or export SRUN_CPUS_PER_TASK={text})",
        )


def memory(facts: MachineFacts) -> Iterator[Finding]:
    """Memory for the ranks: torch alone takes more than half a GiB in each."""
    ranks = facts.wanted["ranks_here"] or 1
    available = facts.memory["available_bytes"] / GIB
    if available < RANK_GIB * ranks and facts.wanted["launcher"] != "slurm":
        yield Finding(
            "warning",
            "memory",
            f"{available:.1f} GiB of {facts.memory['total_bytes'] / GIB:.1f} GiB are free",
            f"{ranks} rank{'s' * (ranks != 1)} need {RANK_GIB * ranks:.1f} GiB for torch alone; "
            "the kernel kills what does not fit",
            "cluster.ranks_per_node=1 (or end other programs)",
        )


def slowing_variables(facts: ProcessFacts) -> Iterator[Finding]:
    """Variables for debugging that slow training down."""
    for name, values in SLOWING_VARIABLES.items():
        value = facts.variables.get(name, "")
        if value.upper() in values:
            yield Finding(
                "warning",
                "timing",
                f"{name}={value}",
                "a setting for finding faults: it slows training down, so that timings mean nothing",
                f"unset {name}",
            )


# ------------------------------------------------------------------ GPUs


def cpu_build(facts: ProcessFacts) -> Iterator[Finding]:
    """GPUs, and a build of torch that cannot use them."""
    present = gpus_present(facts)
    if present is None or not _is_cpu_build(facts):
        return
    yield Finding(
        "warning",
        "devices",
        f"{present}, and torch {facts.versions['torch']} is a build for CPUs",
        "training would run on the CPU and leave the GPUs idle",
        "pip install --force-reinstall torch torchvision (a CUDA or ROCm build: pytorch.org, Get Started)",
    )


def no_device(facts: ProcessFacts) -> Iterator[Finding]:
    """GPUs, a build of torch that could use them, and none that torch finds."""
    files, torch = facts.device_files, facts.torch or {}
    if not files or torch.get("devices") != 0 or _is_cpu_build(facts):
        return
    if facts.visible_devices == []:
        yield Finding(
            "note",
            "devices",
            f"CUDA_VISIBLE_DEVICES is empty, and {len(files)} GPUs are here",
            "torch sees none of them and runs on the CPU",
            "unset CUDA_VISIBLE_DEVICES",
        )
    elif "SLURM_JOB_ID" not in facts.variables or _given_by_slurm(facts):
        yield Finding(
            "warning",
            "devices",
            f"{len(files)} GPUs are here ({', '.join(files[:4])}), torch {torch['version']} finds none",
            "the driver is missing, too old for this build of torch, or this user may not open the devices",
            "nvidia-smi (its message names the reason; then a torch build for the driver's CUDA version)",
        )


def fewer_than_ranks(facts: MachineFacts) -> Iterator[Finding]:
    """Ranks asked for on this host, against the GPUs that one process sees."""
    wanted = facts.wanted
    ranks, seen = wanted["ranks_here"], (facts.torch or {}).get("devices") or 0
    in_step = "SLURM_PROCID" in facts.variables  # there, each task may see GPUs of its own
    if ranks is None or not 0 < seen < ranks or in_step or wanted["launcher"] in ("slurm", "simulated"):
        return
    yield Finding(
        "warning" if wanted["share_gpus"] else "error",
        "devices",
        f"{ranks} ranks on this host, {seen} visible GPU{'s' * (seen != 1)}",
        "ranks would share a GPU and slow each other down; NCCL refuses two ranks on one",
        f"cluster.ranks_per_node={seen}",
    )


def gpus_present(facts: ProcessFacts) -> str | None:
    """The GPUs of this host, in words; None if there are none."""
    if facts.device_files:
        count = len(facts.device_files)
        return f"{count} GPU{'s' * (count != 1)} ({', '.join(facts.device_files[:4])})"
    name = _given_by_slurm(facts)
    return None if name is None else f"GPUs given by Slurm ({name}={facts.variables[name]})"


def _given_by_slurm(facts: ProcessFacts) -> str | None:
    """The variable that names GPUs of the job. A job without GPUs may still see the device files."""
    return next((name for name in GPUS_OF_JOB if facts.variables.get(name, "0") != "0"), None)


def _is_cpu_build(facts: ProcessFacts) -> bool:
    torch = facts.torch or {}
    if "cuda" in torch:
        return torch["cuda"] is None and torch.get("hip") is None
    return (facts.versions["torch"] or "").partition("+")[2] == "cpu"


# ------------------------------------------------------------------ network


def gloo_interface(facts: ProcessFacts) -> Iterator[Finding]:
    """GLOO_SOCKET_IFNAME takes names with commas, and neither prefixes nor exclusions as NCCL does."""
    value = facts.variables.get("GLOO_SOCKET_IFNAME", "")
    if not value.strip():
        return
    interfaces, fix = facts.interfaces, f"export GLOO_SOCKET_IFNAME={outward(facts) or 'lo'}"
    if (sign := value.lstrip()[0]) in "^=":
        cause = f"{sign} is NCCL's syntax; gloo takes the name of an interface"
        yield Finding("error", "network", f"GLOO_SOCKET_IFNAME={value}", cause, fix)
        return
    for name in (part.strip() for part in value.split(",")):
        if name not in interfaces:
            cause = f"there is no interface {name or '(empty)'} here; there are {_names(interfaces)}"
        elif not interfaces[name]["up"]:
            cause = f"the interface {name} is down"
        elif not interfaces[name]["addresses"]:
            cause = f"the interface {name} has no IP address"
        else:
            continue
        yield Finding("error", "network", f"GLOO_SOCKET_IFNAME={value}", cause, fix)


def nccl_interface(facts: ProcessFacts) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME takes prefixes with commas; `=` exact names, `^` all but these."""
    value = facts.variables.get("NCCL_SOCKET_IFNAME", "").strip()
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = [part for part in value.lstrip("^=").split(",") if part]
    chosen = [
        name
        for name, interface in facts.interfaces.items()
        if interface["up"]
        and any(name == part if exact else name.startswith(part) for part in parts) != exclude
    ]
    if not value or chosen:
        return
    uses_nccl = bool(facts.device_files)
    yield Finding(
        "error" if uses_nccl else "note",
        "network",
        f"NCCL_SOCKET_IFNAME={value}, interfaces {_names(facts.interfaces)}",
        "it leaves no interface that is up"
        + ("" if uses_nccl else "; of no matter without GPUs, as NCCL is not used"),
        f"export NCCL_SOCKET_IFNAME={outward(facts) or 'NAME'}",
    )


def port(facts: MachineFacts) -> Iterator[Finding]:
    """The port asked for is in use, or this user may not open it."""
    if facts.port_error:
        yield Finding(
            "error",
            "network",
            f"launcher.port={facts.wanted['port']}: {facts.port_error}",
            "another program, perhaps another run, listens there; ranks could join the wrong run",
            "launcher.port=null (a free port for every run)",
        )


def outward(facts: ProcessFacts) -> str | None:
    """The interface by which others are reached: that of the route, else the first that is up."""
    interfaces = facts.interfaces
    name = (facts.route or {}).get("interface")
    if name is not None and name in interfaces and not interfaces[name]["loopback"]:
        return name
    usable = (
        name
        for name, interface in interfaces.items()
        if interface["up"] and not interface["loopback"] and interface["addresses"]
    )
    return next(usable, None)


def _names(interfaces: Mapping[str, Any]) -> str:
    return ", ".join(interfaces) or "none"


# ------------------------------------------------------------------ folders


def results(facts: ProcessFacts) -> Iterator[Finding]:
    """The folder of results can be written and locked, and has room."""
    folder = facts.folders.get("results")
    if folder is None:
        return
    path = folder["path"]
    if folder["error"]:
        where = "" if folder["exists"] else f" (it does not exist; {folder['tried']} does)"
        yield Finding(
            "error",
            "results",
            f"results_dir={path}{where}: {folder['error']}",
            "runs are written there",
            "results_dir=PATH (writable)",
        )
        return
    if folder["locks"] is False:
        yield Finding(
            "error",
            "results",
            f"results_dir={path}: files cannot be locked there",
            "a run holds a lock on its folder, so that no second process writes into it",
            "results_dir=PATH (on a file system with locks; Lustre: mounted with -o flock)",
        )
    yield from _room(folder, "results_dir", "results_dir=PATH (with more room)")


def temporary(facts: ProcessFacts) -> Iterator[Finding]:
    """The folder for temporary files: ranks are started over a socket in it."""
    folder = facts.folders.get("tmp")
    if folder is None:
        return
    variable = facts.variables.get("TMPDIR")
    path = folder["path"]
    if folder["error"] or not folder["exists"]:
        yield Finding(
            "warning" if variable else "error",
            "TMPDIR",
            f"TMPDIR={variable or path}: {folder['error'] or 'no such folder'}",
            "Python falls back to another folder, other programs of a run fail"
            if variable
            else "processes cannot be started without a folder for their sockets",
            "export TMPDIR=PATH (a folder you can write)" if path == "/tmp" else "export TMPDIR=/tmp",
        )
        return
    if variable and len(variable) > LONGEST_TMPDIR:
        yield Finding(
            "error",
            "TMPDIR",
            f"TMPDIR has {len(variable)} characters",
            "ranks are started over a socket in it, whose whole path may have 107",
            "export TMPDIR=/tmp",
        )
    yield from _room(folder, "TMPDIR", "export TMPDIR=PATH (with more room)")


def shared_memory(facts: ProcessFacts) -> Iterator[Finding]:
    """Room in /dev/shm, through which NCCL passes tensors; a container has 64 MiB by default."""
    folder = facts.folders.get("shm")
    if folder is None or (not folder["error"] and folder.get("free_bytes", 0) >= LITTLE_SHARED_BYTES):
        return
    free = folder.get("free_bytes", 0)
    uses_nccl = len(facts.device_files) > 1
    yield Finding(
        "warning" if uses_nccl else "note",
        "shared memory",
        f"/dev/shm: {folder['error'] or f'{free / MIB:.0f} MiB free'}",
        "NCCL moves data between the GPUs of a host through it"
        + ("" if uses_nccl else " (of little matter without GPUs: ranks share memory that has no folder)"),
        "docker run --shm-size=1g (outside a container: remove what is left in /dev/shm)",
    )


def _room(folder: Mapping[str, Any], name: str, fix: str) -> Iterator[Finding]:
    free, inodes, path = folder.get("free_bytes"), folder.get("free_inodes"), folder["path"]
    if free is not None and free < LITTLE_BYTES:
        yield Finding(
            "error" if free < NO_BYTES else "warning",
            name,
            f"{name}={path}: {free / MIB:.0f} MiB free of {folder['total_bytes'] / GIB:.1f} GiB",
            "checkpoints and records need room; a run on a full disk fails",
            fix,
        )
    if inodes is not None and inodes < LITTLE_INODES:
        what = f"{name}={path}: room for {inodes} more files"
        yield Finding("warning", name, what, "each run makes some dozens of files", fix)


# ------------------------------------------------------------------ Slurm


def leaked_job(facts: MachineFacts) -> Iterator[Finding]:
    """SLURM_* of a job that has ended."""
    if facts.slurm["job_known"] is False:
        yield Finding(
            "warning",
            "slurm",
            f"SLURM_JOB_ID={facts.variables['SLURM_JOB_ID']}, which squeue does not know",
            "the job has ended, or never was: programs that read SLURM_* believe they are in it, "
            "and wait for ranks that nobody starts",
            UNSET_SLURM,
        )


def submitting(facts: MachineFacts) -> Iterator[Finding]:
    """What launcher=slurm needs: sbatch, submitit, a controller that answers. Else at most a note."""
    wanted, sbatch = facts.wanted["launcher"] == "slurm", facts.commands["sbatch"]
    if sbatch is None and wanted:
        yield Finding(
            "error",
            "slurm",
            "no sbatch on the PATH",
            "launcher=slurm submits with it",
            "module load slurm (or run on a login node; here: launcher=local)",
        )
    if sbatch is not None and facts.submitit is None:
        yield Finding(
            "error" if wanted else "note",
            "slurm",
            f"{sbatch}, and submitit is not installed",
            "launcher=slurm submits through it",
            "pip install submitit",
        )
    if sbatch is not None and wanted and facts.slurm["controller"] != "up":
        yield Finding(
            "error",
            "slurm",
            f"scontrol ping: {facts.slurm['controller']}",
            "Slurm's controller does not answer: nothing can be submitted",
            "scontrol ping (again later, or SLURM_CONF=PATH of the cluster's file)",
        )


def node_local_environment(facts: MachineFacts) -> Iterator[Finding]:
    """Python, or the package, is on a file system that other nodes do not see."""
    if facts.variables.get("SLURM_NNODES", "1") == "1" and facts.wanted["launcher"] != "slurm":
        return
    for name, path in (("Python's environment", facts.prefix), ("the package", facts.package)):
        local = next((folder for folder in NODE_LOCAL if Path(path).is_relative_to(folder)), None)
        if local is not None:
            yield Finding(
                "warning",
                "slurm",
                f"{name} is {path}",
                f"{local} is mostly each node's own: the other nodes do not have it",
                "python3 -m venv PATH (on a file system of all nodes, such as your home; then install anew)",
            )
            return


# ------------------------------------------------------------------ Python


def shadowed(facts: ProcessFacts) -> Iterator[Finding]:
    """A package on PYTHONPATH that is installed, too: the one on PYTHONPATH is imported."""
    folders = [Path(entry) for entry in facts.variables.get("PYTHONPATH", "").split(":") if entry]
    for name in WATCHED:
        installed = _module_in([Path(get_path("purelib"))], name)
        imported = _module_in(folders, name)
        if installed is None or imported is None or imported.resolve() == installed.resolve():
            continue
        yield Finding(
            "warning",
            "python",
            f"PYTHONPATH has {imported}",
            f"it is used in place of the installed {installed}: versions in records are not of what runs",
            "unset PYTHONPATH",
        )


def _module_in(folders: Iterable[Path], name: str) -> Path | None:
    for path in (path for folder in folders for path in (folder / name, folder / f"{name}.py")):
        if path.is_file() or (path / "__init__.py").is_file():
            return path
    return None


def torch_import(facts: MachineFacts) -> Iterator[Finding]:
    """torch is missing, or cannot be imported."""
    torch, missing = facts.torch or {}, facts.versions["torch"] is None
    if missing or torch.get("error"):
        yield Finding(
            "error",
            "python",
            "torch is not installed" if missing else f"import torch: {torch['error']}",
            "nothing can be trained",
            "pip install torch torchvision" if missing else "pip install --force-reinstall torch torchvision",
        )


# ------------------------------------------------------------------ the tables

PROCESS_RULES: tuple[Callable[[ProcessFacts], Iterable[Finding]], ...] = (
    thread_variables,
    cores_of_task,
    slowing_variables,
    cpu_build,
    no_device,
    gloo_interface,
    nccl_interface,
    results,
    temporary,
    shared_memory,
)
MACHINE_RULES: tuple[Callable[[MachineFacts], Iterable[Finding]], ...] = (
    threads_wanted,
    memory,
    fewer_than_ranks,
    port,
    leaked_job,
    submitting,
    node_local_environment,
    shadowed,
    torch_import,
)


def machine_findings(facts: MachineFacts) -> list[Finding]:
    """What is wrong with a laptop, a login node, or the place of a task."""
    return apply([*PROCESS_RULES, *MACHINE_RULES], facts)
