"""Which of Slurm's variables a new job, and a step of our own, may inherit.

A command started inside a job inherits what that job was given, and Slurm's commands read many of these
variables as options (`man sbatch` and `man srun`, "INPUT ENVIRONMENT VARIABLES"): an inherited SLURM_CPU_BIND
pinned eight ranks to four cores (goodfire-ai/spd#955), inherited array indices mixed up results
(facebookincubator/submitit#1782), and scrubbing all of them took SLURM_CONF away (submitit#1814).
"""

import re
from collections.abc import Collection, Mapping

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
