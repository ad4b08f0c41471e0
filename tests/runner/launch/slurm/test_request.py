"""What a run asks of Slurm: derived from nodes and ranks, told to people, and written into the batch file."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_slurm.fake import Cluster
from slurm_cases import config

from daso_bench.runner.launch.slurm.request import JobRequest, for_step, request_of, scrubbed
from daso_bench.strategies.errors import ConfigError

RECORDED = Path(__file__).parent / "recorded"
Kinds = Sequence[tuple[int, int]]  # (CPUs, GPUs) of nodes


def asked(nodes: Kinds | Callable[[str | None], Kinds] = (), **keys: Any) -> JobRequest:
    """What such a run asks for in a partition of `nodes`."""
    nodes_of = nodes if callable(nodes) else lambda _: nodes
    return request_of(config(results=Path("/nowhere"), **keys), nodes_of)


def auto(nodes: Kinds, ranks: tuple[int, ...]) -> JobRequest:
    return asked(nodes, ranks=ranks, cpus_per_rank="auto", gpus_per_rank="auto")


def batch_file(request: JobRequest, runs: int = 1) -> str:
    """As submitit writes it for an array of `runs`, or for one."""
    from submitit.slurm.slurm import _make_sbatch_string

    return _make_sbatch_string(
        command="/bin/python -u -m submitit.core._submit /study/.slurm/daso-bench-1",
        folder="/study/.slurm/daso-bench-1",
        job_name="daso-bench-1",
        map_count=runs if runs > 1 else None,
        **request.parameters(),
    )


def directives(request: JobRequest, runs: int = 1) -> dict[str, str]:
    lines = [line for line in batch_file(request, runs).splitlines() if line.startswith("#SBATCH --")]
    pairs = [shlex.split(line.removeprefix("#SBATCH --"))[0].partition("=") for line in lines]
    assert len({name for name, _, _ in pairs}) == len(pairs), "of two values one would be lost"
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    ("nodes", "ranks", "cpus", "gpus_per_node"),
    [
        ([(8, 0)], (3, 3), 2, 0),  # whole CPUs: two of eight stay free
        ([(64, 4)], (4, 4), 16, 4),
        ([(64, 4)], (2, 2), 32, 2),  # a GPU a rank, not all of the node's
        ([(8, 0), (16, 0)], (4, 4), 2, 0),  # any of them must do
        ([(2, 0), (16, 0)], (4, 4), 4, 0),  # but the small ones cannot be given anyway
        ([(8, 2), (32, 4)], (4, 4), 8, 4),  # the nodes of two GPUs cannot be given
    ],
)
def test_auto_takes_what_the_nodes_of_the_partition_have(
    nodes: Kinds, ranks: tuple[int, ...], cpus: int, gpus_per_node: int
) -> None:
    request = auto(nodes, ranks)
    assert (request.cpus_per_task, request.gpus_per_node) == (cpus, gpus_per_node)
    assert (request.nodes, request.tasks_per_node) == (2, ranks[0])


@pytest.mark.parametrize(
    ("nodes", "ranks", "message"),
    [
        ([], (2, 2), r"launcher.partition=None: Slurm knows no nodes of it"),
        ([(2, 0)], (4, 4), r"cluster.ranks_per_node=4: the partition's nodes have at most 2 CPUs"),
        ([(8, 2)], (4, 4), r"cluster.ranks_per_node=4: .* have 2 GPUs; use launcher.gpus_per_rank=0"),
        ([(8, 2), (8, 0)], (2, 2), r"launcher.gpus_per_rank=auto: some nodes .* use 1 or 0"),
        ([(8, 0)], (3, 1), r"cluster.ranks_per_node=\[3, 1\]: slurm starts as many on every node"),
    ],
)
def test_auto_refuses_what_the_nodes_cannot_give(nodes: Kinds, ranks: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        auto(nodes, ranks)


def test_slurm_is_asked_for_the_partition_only_where_a_key_says_auto(cluster: Cluster) -> None:
    def nodes_of(partition: str | None) -> Kinds:
        partitions.append(partition)
        return [(8, 2)]

    partitions: list[str | None] = []
    assert asked(nodes_of, cpus_per_rank=3, gpus_per_rank=1).cpus_per_task == 3
    assert partitions == []
    half = asked(nodes_of, cpus_per_rank=3, gpus_per_rank="auto", partition="gpu")
    assert (half.cpus_per_task, half.gpus_per_node, partitions) == (3, 2, ["gpu"])
    cluster(cpus=8, gpus=2)
    real = request_of(config(results=Path("/nowhere"), cpus_per_rank="auto", gpus_per_rank="auto"))
    assert (real.cpus_per_task, real.gpus_per_node) == (4, 2)


RECORDINGS: dict[str, dict[str, Any]] = {
    "cpu_only": {},
    "all_keys": {
        "ranks": (4, 4), "cpus_per_rank": 8, "gpus_per_rank": 1, "timeout_min": "1-12", "partition": "gpu",
        "account": "chem 1", "qos": "long", "mem": "64G", "exclusive": True, "array_parallelism": 3,
        "max_requeues": 0, "grace_s": 30, "setup": ("module load CUDA", "ulimit -n 4096"),
        "sbatch": {"distribution": "block:block", "contiguous": ""},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_batch_file_is_the_recorded_one(name: str) -> None:
    """No GPU line, account or key that was not asked for."""
    made = batch_file(asked(**RECORDINGS[name]), runs=6 if name == "all_keys" else 1)
    assert made == (RECORDED / f"batch_{name}.sh").read_text()


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"max_requeues": 3}, "requeue"),
        ({"timeout_min": "2-12"}, "time=3600"),
        ({"timeout_min": 1}, "signal=USR2@15"),
        ({"grace_s": 40}, "signal=USR2@40"),
        ({"gpus_per_rank": 2}, "gpus-per-node=4"),
        ({"sbatch": {"wckey": "mine"}}, "wckey=mine"),
        ({"sbatch": {"constraint": "a100&ib"}}, "constraint='a100&ib'"),
    ],
)
def test_a_key_becomes_one_line(keys: dict[str, Any], line: str) -> None:
    lines = batch_file(asked(**keys)).splitlines()
    assert f"#SBATCH --{line}" in lines
    assert len(set(directives(asked(**keys))) & {"requeue", "no-requeue"}) == 1


def test_the_step_says_again_what_the_job_has() -> None:
    """Since 22.05 a step inherits no --cpus-per-task. Each task sees all GPUs of its node."""
    words = [
        "srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=8", "--distribution=block",
        "--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--input=none",
    ]  # fmt: skip
    assert asked(ranks=(4, 4), cpus_per_rank=8).srun() == words
    gpus = asked(ranks=(4, 4), cpus_per_rank=8, gpus_per_rank=1, srun={"mpi": "none", "exact": ""})
    assert gpus.srun() == [*words, "--gpus-per-node=4", "--mpi=none", "--exact"]


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
    "SBATCH_ACCOUNT": "me",
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
    assert scrubbed({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}, "hidden by hand"


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
