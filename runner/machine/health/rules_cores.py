"""Rules about cores, threads, memory and limits of one process."""

from collections.abc import Iterator

from ..facts import SLOWING_VARIABLES, THREAD_VARIABLES
from .findings import Facts, Finding

GIB = 2**30
RANK_GIB = 0.6  # torch alone, once loaded
LOW_OPEN_FILES = 256
CPU_BIND = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE")


def thread_variables(facts: Facts) -> Iterator[Finding]:
    """Numbers of threads that libraries read: no number, or more than there are cores."""
    cores = facts["usable_cores"]
    for name in THREAD_VARIABLES:
        text = facts["variables"].get(name, "").strip()
        first = text.partition(",")[0].strip()
        if not text:
            continue
        if not first.isdecimal() or int(first) < 1:
            what, cause = (
                f"{name}={text}",
                "is no number of threads: the libraries ignore it or take all cores",
            )
        elif int(first) > cores:
            what = f"{name}={text}, {cores} usable cores"
            cause = "more threads than cores wait for each other, and every step gets slower"
        else:
            continue
        yield Finding("warning", "threads", what, cause, f"unset {name}")


def threads_wanted(facts: Facts) -> Iterator[Finding]:
    """Ranks x threads asked for on this host, against its cores."""
    wanted, cores = facts.get("wanted", {}), facts["usable_cores"]
    ranks, threads = wanted.get("ranks_here") or 1, wanted.get("threads")
    if threads is None or ranks * threads <= cores or wanted.get("launcher") in ("slurm", "simulated"):
        return
    yield Finding(
        "warning",
        "threads",
        f"{ranks} ranks x {threads} threads, {cores} usable cores",
        "ranks wait for each other's cores: the run works, its timing is not valid",
        f"launcher.threads_per_rank={max(1, cores // ranks)}",
    )


def cores_of_task(facts: Facts) -> Iterator[Finding]:
    """Slurm gave the task fewer cores than it was asked for: since 22.05 srun forgets --cpus-per-task."""
    text = facts["variables"].get("SLURM_CPUS_PER_TASK", "")
    cores = len(facts["cores"])
    if "SLURM_PROCID" in facts["variables"] and text.isdecimal() and int(text) > cores:
        yield Finding(
            "warning",
            "affinity",
            f"SLURM_CPUS_PER_TASK={text}, and the process may use {cores} core{'s' * (cores != 1)}",
            "the step did not repeat --cpus-per-task (Slurm 22.05 and later do not inherit it)",
            f"srun --cpus-per-task={text} (or export SRUN_CPUS_PER_TASK={text})",
        )


def inherited_binding(facts: Facts) -> Iterator[Finding]:
    """SLURM_CPU_BIND of an interactive step, which jobs submitted from there would take over."""
    variables = facts["variables"]
    bind = variables.get("SLURM_CPU_BIND", "")
    submits = facts.get("wanted", {}).get("launcher") == "slurm" or "SLURM_STEP_ID" not in variables
    if is_binding(bind) and submits:
        yield Finding(
            "warning",
            "affinity",
            f"SLURM_CPU_BIND={bind} in the environment",
            "another step's; what is started from here inherits it, and all ranks share these cores",
            f"unset {' '.join(CPU_BIND)}",
        )


def is_binding(bind: str) -> bool:
    """Whether a value of SLURM_CPU_BIND names cores."""
    return any(word in bind for word in ("mask_cpu:", "map_cpu:"))


def memory(facts: Facts) -> Iterator[Finding]:
    """Room for the processes: torch alone takes more than half a GiB in each."""
    ranks = facts.get("wanted", {}).get("ranks_here") or 1
    available = facts["memory"]["available_bytes"] / GIB
    if available < RANK_GIB * ranks and facts.get("wanted", {}).get("launcher") != "slurm":
        yield Finding(
            "warning",
            "memory",
            f"{available:.1f} GiB of {facts['memory']['total_bytes'] / GIB:.1f} GiB are free",
            f"{ranks} rank{'s' * (ranks != 1)} need {RANK_GIB * ranks:.1f} GiB for torch alone; "
            "the kernel kills what does not fit",
            "cluster.ranks_per_node=1 (or end other programs)",
        )


def open_files(facts: Facts) -> Iterator[Finding]:
    """Every rank holds a connection to every other, in several groups."""
    soft, hard = facts["open_files"]["soft"], facts["open_files"]["hard"]
    if soft is None or soft >= LOW_OPEN_FILES:
        return
    enough = 4096 if hard is None else min(hard, 4096)
    yield Finding(
        "warning",
        "limits",
        f"a process may open {soft} files",
        f"ranks hold many connections and files at once; below {LOW_OPEN_FILES} a start may fail",
        f"ulimit -n {enough}" + (" (more: ask the administrator)" if enough < LOW_OPEN_FILES else ""),
    )


def slowing_variables(facts: Facts) -> Iterator[Finding]:
    """Settings made for hunting a bug, which spoil every timing."""
    for name, values in SLOWING_VARIABLES.items():
        value = facts["variables"].get(name, "")
        if value.upper() in values:
            yield Finding(
                "warning",
                "timing",
                f"{name}={value}",
                "a setting for finding faults: it slows training down, so that timings mean nothing",
                f"unset {name}",
            )
