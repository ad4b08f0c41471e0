"""What a job or a step may inherit from the job around it."""

import pytest

from daso_bench.runner.launch.slurm.clean_environment import for_step, scrubbed

HOME = {"PATH": "/bin", "HOME": "/home/me", "HYDRA_FULL_ERROR": "1", "OMP_NUM_THREADS": "4"}
OUTER = {
    "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_PROCID": "2",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0xF", "SLURM_CPU_BIND_LIST": "0xF", "SLURM_MEM_BIND": "local",
    "SLURM_CPUS_PER_TASK": "4", "SLURM_TRES_PER_TASK": "cpu:4", "SLURM_EXPORT_ENV": "NONE",
    "SLURM_RESTART_COUNT": "1", "SLURMD_NODENAME": "n1", "SRUN_CPUS_PER_TASK": "4", "SRUN_DEBUG": "3",
    "SBATCH_MEM_BIND": "local", "SBATCH_MEM_BIND_TYPE": "local", "PMI_RANK": "2", "PMI_SIZE": "8",
    "PMIX_RANK": "2", "SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_GPUS": "0,1", "CUDA_VISIBLE_DEVICES": "0,1",
}  # fmt: skip
USER = {
    "SBATCH_ACCOUNT": "phys",
    "SBATCH_PARTITION": "long",
    "SBATCH_CONSTRAINT": "a100",
    "SALLOC_ACCOUNT": "x",
}
SITE = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_CLUSTERS": "big"}


STEP = (
    "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_MEM_BIND_LIST", "SLURM_NTASKS", "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID",
    "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK",
    "SRUN_CPUS_PER_TASK", "SLURM_EXPORT_ENV", "SLURM_OPEN_MODE", "SLURM_HINT", "SLURM_THREADS_PER_CORE",
    "SLURM_KILL_BAD_EXIT", "SLURM_STDOUTMODE", "SLURM_WAIT", "PMI_RANK", "PMIX_NAMESPACE",
)  # fmt: skip


def test_a_submission_inherits_the_user_and_the_site_but_nothing_of_the_job_around_it() -> None:
    assert scrubbed(HOME | OUTER | USER | SITE) == HOME | USER | SITE


def test_a_default_that_the_batch_file_sets_itself_does_not_override_it() -> None:
    found = scrubbed(USER | {"SBATCH_MEM_PER_NODE": "1G"}, given=["partition", "mem", "gpus-per-node"])
    assert found == {name: USER[name] for name in ("SBATCH_ACCOUNT", "SBATCH_CONSTRAINT", "SALLOC_ACCOUNT")}


@pytest.mark.parametrize(
    "name", ["OUTPUT", "ARRAY_INX", "WAIT", "NO_REQUEUE", "TIMELIMIT", "EXPORT", "JOB_NAME"]
)
def test_a_default_that_would_break_the_launcher_never_arrives(name: str) -> None:
    assert scrubbed({f"SBATCH_{name}": "x"}) == {}


def test_gpus_that_were_hidden_by_hand_stay_hidden() -> None:
    assert scrubbed({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_step_inherits_its_job_but_no_layout_or_binding() -> None:
    kept = {
        "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1", "SLURM_CONF": "/c",
        "SLURM_GPUS_PER_NODE": "2", "SLURM_MEM_PER_NODE": "100", "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_JOB_DEPENDENCY": "after:1", "SLURM_STEPMGR": "n1", "SLURM_CPUS_ON_NODE": "8",
        "CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_END_TIME": "99",
    }  # fmt: skip
    dropped = dict.fromkeys(STEP, "x")
    assert for_step(HOME | kept | dropped) == HOME | kept
