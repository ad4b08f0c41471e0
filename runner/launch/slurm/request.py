"""What a run is submitted to Slurm with: the options and environment of sbatch and srun, and its code."""

import hashlib
import platform
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....strategies.errors import ConfigError
from ... import PACKAGE
from ...config.launchers import SlurmConfig, limit_in_words
from ...config.run_config import RunConfig
from ...machine.environment import commit_of, installed
from ...records.json_lines import read_json
from ...records.run_directory import RunDirectory
from ..launcher import refuse_uneven_nodes
from .queue import partition_of_nodes

CODE_FILE = "submitted.json"
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*", "tests", "results", "build", "dist", "docs", "*.egg-info", "node_modules"
)

# A command started inside a job inherits what that job was given, and Slurm's commands read many of these
# variables as options (`man sbatch` and `man srun`, "INPUT ENVIRONMENT VARIABLES"): an inherited
# SLURM_CPU_BIND pinned eight ranks to four cores (goodfire-ai/spd#955), inherited array indices mixed up
# results (facebookincubator/submitit#1782), and scrubbing all of them took SLURM_CONF away (submitit#1814).
#
# Of these families nothing is kept but _KEPT: the job that set them is not the one that will read them. Also
# what process managers gave the outer job's ranks, by which a library would take our process for one of them.
_OF_A_JOB = re.compile(r"(SLURM|SLURMD|SRUN|PMI|PMI2|PMIX|SUBMITIT)_")
# Where the cluster is and who the user is; no job changes their meaning.
_KEPT = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_DEBUG_FLAGS"}
# `man sbatch`, "OUTPUT ENVIRONMENT VARIABLES": the only SBATCH_ ones that a job sets. The others are the
# user's defaults (SBATCH_ACCOUNT, SBATCH_PARTITION, SBATCH_CONSTRAINT, ...) and stay.
_SET_BY_A_JOB = re.compile(r"SBATCH_(CPU|MEM)_BIND")
# They override the batch file, and each of these would break what the launcher builds on: one job per
# request, its output where it is looked for, requeueing as promised, an answer at once.
_OURS = {
    "SBATCH_ARRAY_INX", "SBATCH_ERROR", "SBATCH_EXPORT", "SBATCH_INPUT", "SBATCH_JOB_NAME",
    "SBATCH_NO_REQUEUE", "SBATCH_OPEN_MODE", "SBATCH_OUTPUT", "SBATCH_REQUEUE", "SBATCH_SIGNAL",
    "SBATCH_TIMELIMIT", "SBATCH_WAIT",
}  # fmt: skip
# Variables that are not named like their option.
_NAMES = {"mem": "SBATCH_MEM_PER_NODE", "time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX"}
_GPUS_SHOWN = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"}

# What describes a step and not the allocation (`man srun`, input and output variables): how tasks are laid
# out and bound, who this task is, the options of the outer srun. Our srun has its own on its command line, so
# also the cores per task: one rule then serves every version (22.05 and 23.02 read SRUN_CPUS_PER_TASK, the
# others SLURM_CPUS_PER_TASK, those from 23.11 on SLURM_TRES_PER_TASK as well). The export list of an outer
# step would take variables away, its output mode would overwrite logs.
_OF_A_STEP = re.compile(
    r"SRUN_|PMI_|PMI2_|PMIX_|SBATCH_(CPU|MEM)_BIND|SLURM_("
    r"CPU_BIND|MEM_BIND|GPU_BIND|TRES_BIND|ACCEL_BIND|CPU_FREQ_REQ|"
    r"NTASKS|NPROCS|DISTRIBUTION|DIST_PLANESIZE|CPUS_PER_TASK|CPUS_PER_GPU|TRES_PER_TASK|"
    r"THREADS_PER_CORE|HINT|"
    r"STEP_|STEPID|PROCID|LOCALID|NODEID|GTIDS|TASK_|SRUN_|LAUNCH_NODE_IPADDR|PMI|"
    r"EXACT|OVERLAP|OVERCOMMIT|EXCLUSIVE|WHOLE|CORE_SPEC|THREAD_SPEC|THREADS$|IMMEDIATE|"
    r"EXPORT_ENV|LABELIO|UNBUFFEREDIO|STD(IN|OUT|ERR)MODE|OPEN_MODE|REMOTE_CWD|WORKING_DIR|MULTI_PROG|"
    r"KILL_BAD_EXIT|NO_KILL|WAIT$|TIMELIMIT|SIGNAL|DEPENDENCY|EPILOG|PROLOG|BCAST)"
)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job: `nodes` with as many tasks each."""

    launcher: SlurmConfig
    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int

    def describe(self) -> list[str]:
        """The request line by line, for the user."""
        launcher = self.launcher
        lines = [
            f"{self.nodes} node{'s' * (self.nodes != 1)} x {self.tasks_per_node} tasks, "
            f"{self.cpus_per_task} CPU{'s' * (self.cpus_per_task != 1)} a task, "
            f"{self.gpus_per_node or 'no'} GPU{'s' * (self.gpus_per_node != 1)} a node, "
            f"partition {launcher.partition or '(default)'}"
        ]
        if launcher.submit:
            lines.append(
                f"time limit {limit_in_words(launcher.limit_min)}, "
                f"warned {launcher.notice_s} s before, then requeued up to {launcher.max_requeues} times"
            )
        else:
            lines.append("in the allocation around the command, whose own time limit counts")
        extra = _words(launcher.sbatch)
        return [*lines, f"also: {' '.join(extra)}"] if extra else lines

    def parameters(self) -> dict[str, Any]:
        """For submitit's Slurm executor. Nothing is written that does not follow from a key."""
        launcher = self.launcher
        more: dict[str, Any] = {name: value or True for name, value in launcher.sbatch.items()}
        more["requeue" if launcher.max_requeues else "no-requeue"] = True
        given = {
            "time": launcher.limit_min,
            "nodes": self.nodes,
            "ntasks_per_node": self.tasks_per_node,
            "cpus_per_task": self.cpus_per_task,
            "gpus_per_node": self.gpus_per_node or None,
            "partition": launcher.partition,
            "account": launcher.account,
            "qos": launcher.qos,
            "mem": launcher.mem,
            "exclusive": launcher.exclusive or None,
            "setup": list(launcher.setup) or None,
        }
        return {
            **{name: value for name, value in given.items() if value is not None},
            "signal_delay_s": launcher.notice_s,
            "array_parallelism": launcher.array_parallelism,
            "additional_parameters": more,
            "wckey": None,  # submitit's own, which sites that check such keys refuse
            "stderr_to_stdout": True,
            "use_srun": False,  # the batch step supervises; it starts the ranks itself
        }

    def srun(self) -> list[str]:
        """The words of srun up to the program.

        The job's options are repeated: since Slurm 22.05 a step does not inherit --cpus-per-task, and a step
        without options takes the whole job.
        """
        words = [
            "srun",
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes * self.tasks_per_node}",
            f"--ntasks-per-node={self.tasks_per_node}",
            f"--cpus-per-task={self.cpus_per_task}",
            "--distribution=block",
            "--kill-on-bad-exit=0",  # the supervisor ends the others, and knows whose fault it was
            "--wait=0",
            "--unbuffered",
            "--input=none",
        ]
        if self.gpus_per_node:
            words.append(f"--gpus-per-node={self.gpus_per_node}")  # all of a node's for each of its tasks
        return words + _words(self.launcher.srun)


def _words(options: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def request_of(
    config: RunConfig,
    nodes_of: Callable[[str | None], Sequence[tuple[int, int]]] = partition_of_nodes,
) -> JobRequest:
    """What `config` asks for.

    `nodes_of`: (CPUs, GPUs) of a partition's kinds of nodes, asked only where a key says `auto`.
    Raises ConfigError if the partition has no such nodes, SlurmError if Slurm does not answer.
    """
    launcher = config.launcher
    assert isinstance(launcher, SlurmConfig)
    refuse_uneven_nodes(config)
    nodes = config.cluster.ranks_of_nodes
    ranks = nodes[0]
    cpus, gpus = launcher.cpus_per_rank, launcher.gpus_per_rank
    if isinstance(cpus, str) or isinstance(gpus, str):
        kinds = nodes_of(launcher.partition)
        if not kinds:
            raise ConfigError(f"launcher.partition={launcher.partition}: Slurm knows no nodes of it (sinfo)")
        if isinstance(gpus, str):
            gpus = _gpu_each([gpus for _, gpus in kinds], ranks)
        if isinstance(cpus, str):
            with_gpus = [cpus for cpus, there in kinds if there >= gpus * ranks]
            cpus = _share_of_cpus(with_gpus or [cpus for cpus, _ in kinds], ranks)
    return JobRequest(
        launcher=launcher,
        nodes=len(nodes),
        tasks_per_node=ranks,
        cpus_per_task=cpus,
        gpus_per_node=gpus * ranks,
    )


def _share_of_cpus(cpus: Sequence[int], ranks: int) -> int:
    """CPUs of each of a node's ranks, on any of the nodes that have so many `cpus`."""
    fitting = [count // ranks for count in cpus if count >= ranks]
    if not fitting:
        raise ConfigError(
            f"cluster.ranks_per_node={ranks}: the partition's nodes have at most {max(cpus)} CPUs; "
            "ranks share one with launcher.cpus_per_rank=1 only if the site allows it"
        )
    return min(fitting)


def _gpu_each(gpus: Sequence[int], ranks: int) -> int:
    """1 or 0 GPUs for each of a node's ranks, on nodes that have so many `gpus`."""
    if not any(gpus):
        return 0
    if not all(gpus):
        raise ConfigError(
            "launcher.gpus_per_rank=auto: some nodes of the partition have GPUs, some do not; use 1 or 0"
        )
    if max(gpus) < ranks:
        raise ConfigError(
            f"cluster.ranks_per_node={ranks}: the partition's nodes have {max(gpus)} GPUs; "
            "use launcher.gpus_per_rank=0 for ranks without one"
        )
    return 1


def scrubbed(environ: Mapping[str, str], given: Collection[str] = ()) -> dict[str, str]:
    """What `sbatch` may inherit and pass on: nothing of a job around us, the user's own defaults otherwise.

    `given`: the long options that the batch file sets ("partition"); the user's default for each is dropped,
    since sbatch lets a variable override the file.
    """
    ours = _OURS | {_NAMES.get(option, "SBATCH_" + option.upper().replace("-", "_")) for option in given}
    outer_gave_gpus = any(name in environ for name in ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"))
    return {
        name: value
        for name, value in environ.items()
        if (name in _KEPT or not _OF_A_JOB.match(name))
        and not _SET_BY_A_JOB.match(name)
        and name not in ours
        and not (outer_gave_gpus and name in _GPUS_SHOWN)
    }


def for_step(environ: Mapping[str, str]) -> dict[str, str]:
    """What `srun` inside our allocation may inherit: the allocation (SLURM_JOB_ID, the nodes, GPUs and memory
    of the job, array index, restart count), nothing of a step around us."""
    return {name: value for name, value in environ.items() if not _OF_A_STEP.match(name)}


def code_state() -> dict[str, Any]:
    """The code and the interpreter as they are now: versions, commit, and a hash over the package's files."""
    return {
        "python": platform.python_version(),
        "torch": installed("torch"),
        "commit": commit_of(PACKAGE)[0],
        "code": code_hash(PACKAGE),
    }


def check_code(directory: RunDirectory) -> None:
    """Raise ConfigError if the code or the interpreter is no longer what the run was submitted with.

    Runs of different code must not be compared in one study. A run that was never submitted is not checked.
    """
    file = directory.path / CODE_FILE
    if not file.is_file():
        return
    then, now = read_json(file), code_state()
    changed = [key for key in ("python", "torch", "code") if then.get(key) != now[key]]
    if changed:
        what = ", ".join(f"{key} {str(then.get(key))[:12]} -> {now[key][:12]}" for key in changed)
        raise ConfigError(
            f"changed since the run was submitted: {what}; `daso-bench resume {directory.path}` submits it "
            "with what is here now, launcher.snapshot=true keeps a copy from the start"
        )


def code_hash(package: Path) -> str:
    """16 hex digits over the Python and YAML files of the package (not its tests and documents)."""
    digest = hashlib.blake2b(digest_size=8)
    for folder in ("conf", "datasets", "models", "runner", "strategies"):
        for file in sorted((package / folder).rglob("*")):
            if file.suffix in (".py", ".yaml") and "__pycache__" not in file.parts:
                digest.update(str(file.relative_to(package)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def snapshot(folder: Path) -> Path:
    """A copy of the package below `folder`, made once for each state of the code; its path for PYTHONPATH."""
    target = folder / f"code-{code_hash(PACKAGE)}"
    if not target.is_dir():
        half = folder / f".{target.name}.{platform.node()}"
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(PACKAGE, half / "daso_bench", ignore=_LEFT_OUT)
        half.rename(target)
    return target
