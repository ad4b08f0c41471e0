"""The rules of `daso-bench doctor` on one process: what was seen, why it is wrong, and the way out.

A rule is a function of the facts that yields a `Finding` for each thing that is wrong. `PROCESS_RULES` also
hold for every rank of a job, `launcher` only for a machine. The rules on a job's ranks together are in
`job_rules`. There is no rule for what a run itself refuses with a clear message before it starts.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from .facts import GPUS_OF_JOB, SLOWING_VARIABLES, MachineFacts, ProcessFacts

Severity = Literal["error", "warning"]
NAMED_HOSTS = 3

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong (error) or will hurt (warning).

    `what` was seen, with its numbers; `fix` is one line: a command or a KEY=VALUE.
    """

    severity: Severity
    topic: str
    what: str
    cause: str
    fix: str


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings; among equals the order stays. Nothing occurs twice."""
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.severity != "error")


def merged(findings: Iterable[tuple[str, Finding]], hosts: int) -> list[Finding]:
    """(host, finding) of some of `hosts` hosts; those of one cause and fix become one, which names them."""
    groups: dict[Finding, list[tuple[str, str]]] = {}
    for host, finding in findings:
        groups.setdefault(replace(finding, what=""), []).append((host, finding.what))
    return [
        replace(finding, what=f"{on([host for host, _ in seen], hosts)}: {seen[0][1]}")
        for finding, seen in groups.items()
    ]


def on(hosts: Iterable[str], of: int) -> str:
    """`on n1`, `on n1, n2, n3 and 5 more (8 of 16 hosts)`."""
    names = list(dict.fromkeys(hosts))
    shown = ", ".join(names[:NAMED_HOSTS])
    if len(names) > NAMED_HOSTS:
        shown += f" and {len(names) - NAMED_HOSTS} more"
    return f"on {shown}" + (f" ({len(names)} of {of} hosts)" if len(names) > 1 else "")


# ------------------------------------------------------------------ cores and time


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


def slowing_variables(facts: ProcessFacts) -> Iterator[Finding]:
    """Variables for debugging that slow training down."""
    for name, slow in SLOWING_VARIABLES.items():
        value = facts.variables.get(name, "")
        if value.upper() == slow:
            yield Finding(
                "warning",
                "timing",
                f"{name}={value}",
                "a setting for finding faults: it slows training down, so that timings mean nothing",
                f"unset {name}",
            )


# ------------------------------------------------------------------ GPUs


def idle_gpus(facts: ProcessFacts) -> Iterator[Finding]:
    """GPUs that torch cannot use: training would run on the CPU without a word."""
    present, torch = gpus_present(facts), facts.torch or {}
    if present is None or facts.visible_devices == []:
        return
    if _is_cpu_build(facts):
        cause = "torch is a build for CPUs; the GPUs would be idle"
        fix = "pip install --force-reinstall torch torchvision (a CUDA or ROCm build, see pytorch.org)"
    elif torch.get("devices") == 0 and ("SLURM_JOB_ID" not in facts.variables or _given_by_slurm(facts)):
        cause = "the driver is missing or too old for this torch, or this user may not open the devices"
        fix = "nvidia-smi (its message names the reason; then a torch build for the driver's CUDA version)"
    else:
        return
    what = f"{present}, and torch {facts.versions['torch']} can use none"
    yield Finding("warning", "devices", what, cause, fix)


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
    usable = [name for name, entry in facts.interfaces.items() if entry["up"] and entry["addresses"]]
    if value.strip() and not {name.strip() for name in value.split(",")} <= set(usable):
        yield Finding(
            "error",
            "network",
            f"GLOO_SOCKET_IFNAME={value}",
            f"gloo takes names of interfaces that are up and have an IP address: {', '.join(usable)}",
            f"export GLOO_SOCKET_IFNAME={outward(facts) or 'lo'}",
        )


def nccl_interface(facts: ProcessFacts) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME takes prefixes with commas; `=` exact names, `^` all but these."""
    value = facts.variables.get("NCCL_SOCKET_IFNAME", "").strip()
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = [part for part in value.lstrip("^=").split(",") if part]
    up = [name for name, entry in facts.interfaces.items() if entry["up"]]
    chosen = [
        name
        for name in up
        if any(name == part if exact else name.startswith(part) for part in parts) != exclude
    ]
    if value and not chosen and facts.device_files:
        yield Finding(
            "error",
            "network",
            f"NCCL_SOCKET_IFNAME={value}",
            f"it leaves none of the interfaces that are up: {', '.join(up)}",
            f"export NCCL_SOCKET_IFNAME={outward(facts) or 'NAME'}",
        )


def outward(facts: ProcessFacts) -> str | None:
    """The interface by which others are reached: that of the route, else the first that is up."""
    usable = usable_interfaces(facts)
    return facts.route_interface if facts.route_interface in usable else next(iter(usable), None)


def usable_interfaces(facts: ProcessFacts) -> list[str]:
    """Names of those that are up, have an address and are not the loopback."""
    return [
        name
        for name, interface in facts.interfaces.items()
        if interface["up"] and not interface["loopback"] and interface["addresses"]
    ]


# ------------------------------------------------------------------ folders


def folders(facts: ProcessFacts) -> Iterator[Finding]:
    """Whether the folders of results, temporary files and shared memory can be written and have room."""
    fix = "{}=PATH (a folder that you can write, with room)"
    why = "records and checkpoints are written there"
    wanted = [("results", "results_dir", GIB, why, fix.format("results_dir"))]
    why = "ranks are started over sockets in it, and programs of a run write there"
    wanted.append(("tmp", "TMPDIR", GIB, why, fix.format("export TMPDIR")))
    if len(facts.device_files) > 1:  # a container has 64 MiB by default
        why = "NCCL moves data between the GPUs of a host through it"
        fix = "docker run --shm-size=1g (outside a container: remove what is left in /dev/shm)"
        wanted.append(("shm", "shared memory", 256 * MIB, why, fix))
    for name, shown, least_bytes, why, fix in wanted:
        folder = facts.folders[name]
        free = folder.get("free_bytes", least_bytes)
        if problem := folder["error"]:
            # Without a folder for results nothing can run; for another one, other folders may serve.
            severity: Severity = "error" if name == "results" else "warning"
            yield Finding(severity, name, f"{shown}={folder['path']}: {problem}", why, fix)
        elif free < least_bytes:
            room = f"{free / MIB:.0f} MiB free of {folder['total_bytes'] / GIB:.1f} GiB"
            yield Finding("warning", name, f"{shown}={folder['path']}: {room}", why, fix)


# ------------------------------------------------------------------ launchers


def launcher_error(facts: MachineFacts, name: str) -> tuple[str, str] | None:
    """Why a launcher cannot work here, and the way out; None if it can."""
    torch = facts.torch or {}
    if facts.versions["torch"] is None:
        return "torch is not installed", "pip install torch torchvision"
    if torch.get("error"):
        return torch["error"], "pip install --force-reinstall torch torchvision"
    if name == "slurm":
        if facts.commands["sbatch"] is None:
            fix = "module load slurm (or run on a login node; here: launcher=local)"
            return "no sbatch on the PATH", fix
        if facts.submitit is None:
            return "submitit is not installed", "pip install submitit"
        if facts.slurm["controller"] != "up":
            fix = "scontrol ping (again later, or SLURM_CONF=PATH of the cluster's file)"
            return f"controller: {facts.slurm['controller']}", fix
    if name == "torchrun" and facts.torchrun is None:
        return "no command torchrun", "pip install --force-reinstall torch (torchrun comes with it)"
    if name == "emulated" and facts.emulation["error"]:
        return facts.emulation["error"], "launcher.network=modelled (the ranks hold messages back themselves)"
    return None


def launcher(facts: MachineFacts) -> Iterator[Finding]:
    """The launcher asked for, by default the local one, works here."""
    name = facts.launcher or "local"
    if error := launcher_error(facts, name):
        why, fix = error
        yield Finding("error", "launcher", f"launcher={name}: {why}", "no run can start here with it", fix)


# ------------------------------------------------------------------ all rules

PROCESS_RULES: tuple[Callable[[ProcessFacts], Iterable[Finding]], ...] = (
    cores_of_task,
    slowing_variables,
    idle_gpus,
    gloo_interface,
    nccl_interface,
    folders,
)


def process_findings(facts: ProcessFacts) -> Iterator[Finding]:
    """What is wrong with one process."""
    for rule in PROCESS_RULES:
        yield from rule(facts)


def machine_findings(facts: MachineFacts) -> list[Finding]:
    """What is wrong with a laptop, a login node, or the place of a task."""
    return worst_first([*process_findings(facts), *launcher(facts)])
