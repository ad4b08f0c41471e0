"""Rules about Slurm: variables of another place, a request that differs, what submitting needs."""

from collections.abc import Iterator
from pathlib import Path

from .findings import Facts, Finding

NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/scratch/local", "/local", "/localscratch")
_OWN = "SLURM_CONF"  # set by users, not by a job
UNSET = "unset $(compgen -e SLURM_ | grep -v -x SLURM_CONF) (in bash; or open a new shell)"


def leaked_job(facts: Facts) -> Iterator[Finding]:
    """SLURM_* of a job that has ended, or of a step that this process is no part of."""
    variables, slurm = facts["variables"], facts.get("slurm", {})
    job = variables.get("SLURM_JOB_ID")
    if job is None:
        task = next((name for name in ("SLURM_PROCID", "SLURM_STEP_ID") if name in variables), None)
        if task is not None:
            yield _leak(f"{task}={variables[task]}, and no SLURM_JOB_ID", "a task without a job")
    elif slurm.get("job_known") is False:
        yield _leak(f"SLURM_JOB_ID={job}, which squeue does not know", "the job has ended, or never was")
    elif slurm.get("job_known") is None and slurm and not slurm["under_slurm"] and not _has_squeue(facts):
        yield _leak(
            f"SLURM_JOB_ID={job}, and nothing of Slurm started this process", "this is no job's shell"
        )


def _leak(what: str, why: str) -> Finding:
    cause = f"{why}: programs that read SLURM_* believe they are in it, and wait for ranks that nobody starts"
    return Finding("warning", "slurm", what, cause, UNSET)


def _has_squeue(facts: Facts) -> bool:
    return facts.get("commands", {}).get("squeue") is not None


def missing_conf(facts: Facts) -> Iterator[Finding]:
    """SLURM_CONF names a file that is not there: no command of Slurm works."""
    path = facts["variables"].get("SLURM_CONF")
    if path and not Path(path).is_file():
        yield Finding(
            "error", "slurm", f"SLURM_CONF={path}: no such file", "no command of Slurm works", f"unset {_OWN}"
        )


def submitting(facts: Facts) -> Iterator[Finding]:
    """What launcher=slurm needs here: sbatch, a controller, submitit. A note where nobody asked for it."""
    if "commands" not in facts:
        return
    asked, sbatch = facts["wanted"]["launcher"] == "slurm", facts["commands"]["sbatch"]
    if sbatch is None and asked:
        yield Finding(
            "error",
            "slurm",
            "no sbatch on the PATH",
            "launcher=slurm submits with it",
            "module load slurm (or run on a login node; here: launcher=local)",
        )
    if sbatch is not None and facts["submitit"] is None:
        yield Finding(
            "error" if asked else "note",
            "slurm",
            f"{sbatch}, and submitit is not installed",
            "launcher=slurm submits through it",
            "pip install submitit",
        )
    if sbatch is not None and asked and facts["slurm"]["controller"] != "up":
        yield Finding(
            "error",
            "slurm",
            f"scontrol ping: {facts['slurm']['controller']}",
            "Slurm's controller does not answer: nothing can be submitted",
            "scontrol ping (again later, or SLURM_CONF=PATH of the cluster's file)",
        )


def tasks(facts: Facts) -> Iterator[Finding]:
    """Tasks that Slurm started, against the ranks asked for; without these, against its own other numbers."""
    variables = facts["variables"]
    nodes, started = _count(variables, "SLURM_NNODES"), _count(variables, "SLURM_NTASKS")
    per_node = _count(variables, "SLURM_NTASKS_PER_NODE")
    asked = facts.get("wanted", {}).get("ranks_of_nodes")
    if started is None:
        return
    if asked is not None and started != sum(asked):
        yield Finding(
            "error",
            "ranks",
            f"{sum(asked)} ranks asked for (cluster.nodes={len(asked)}, cluster.ranks_per_node={asked}), "
            f"SLURM_NTASKS={started}",
            "ranks that nobody starts are waited for",
            f"sbatch --nodes={len(asked)} --ntasks={sum(asked)} --ntasks-per-node={max(asked)}",
        )
    elif asked is None and nodes and per_node and nodes * per_node > started:
        yield Finding(
            "note",
            "ranks",
            f"SLURM_NTASKS={started}, SLURM_NNODES={nodes} x SLURM_NTASKS_PER_NODE={per_node}",
            "right for nodes of unequal ranks; otherwise ranks that nobody starts would be waited for",
            f"sbatch --nodes={nodes} --ntasks={nodes * per_node} --ntasks-per-node={per_node}",
        )


def node_local_environment(facts: Facts) -> Iterator[Finding]:
    """Python, or the package, lies where other nodes have another folder."""
    several = (_count(facts["variables"], "SLURM_NNODES") or 1) > 1
    if not several and facts.get("wanted", {}).get("launcher") != "slurm":
        return
    for what, path in (("Python's environment", facts["prefix"]), ("the package", facts["package"])):
        local = next((folder for folder in NODE_LOCAL if Path(path).is_relative_to(folder)), None)
        if local is not None:
            yield Finding(
                "warning",
                "slurm",
                f"{what} is {path}",
                f"{local} is mostly each node's own: the other nodes do not have it",
                "python3 -m venv PATH (on a file system of all nodes, such as your home; then install anew)",
            )
            return


def _count(variables: Facts, name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None
