"""What a run asks of Slurm: derived from its nodes and ranks, shown to the user, given to sbatch and srun."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....strategies.errors import ConfigError
from ...config import slurm_time_limit
from ...config.launchers import SlurmConfig
from ...config.schema import RunConfig
from .queue import NodeKind, partition_of_nodes


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job. `ranks_of_nodes`: tasks of each node, in order; `None` for what is left to the site."""

    launcher: SlurmConfig
    ranks_of_nodes: tuple[int, ...]
    cpus_per_task: int
    gpus_per_node: int

    @property
    def tasks(self) -> int:
        return sum(self.ranks_of_nodes)

    @property
    def tasks_per_node(self) -> int:
        """Of the fullest node; Slurm gives all the same."""
        return max(self.ranks_of_nodes)

    @property
    def ragged(self) -> bool:
        return len(set(self.ranks_of_nodes)) > 1

    def describe(self) -> list[str]:
        """For people, line by line."""
        launcher, nodes = self.launcher, len(self.ranks_of_nodes)
        shape = f"{nodes} node{'s' * (nodes != 1)} x {self.tasks_per_node} tasks"
        if self.ragged:
            shape += f" (used: {' + '.join(map(str, self.ranks_of_nodes))})"
        limit = launcher.limit_min
        lines = [
            f"{shape}, {self.cpus_per_task} CPU{'s' * (self.cpus_per_task != 1)} a task, "
            f"{self.gpus_per_node or 'no'} GPU{'s' * (self.gpus_per_node != 1)} a node, "
            f"partition {launcher.partition or '(default)'}",
            f"time limit {slurm_time_limit.for_people(limit)} (--time={slurm_time_limit.spelled(limit)}), "
            f"told {launcher.notice_s} s before, then requeued up to {launcher.max_requeues} times",
        ]
        if not launcher.submit:
            lines = [lines[0], "in the allocation around the command, whose own time limit counts"]
        extra = [f"--{key}={value}" if value else f"--{key}" for key, value in launcher.sbatch.items()]
        return [*lines, f"also: {' '.join(extra)}"] if extra else lines

    def parameters(self) -> dict[str, Any]:
        """For submitit's Slurm executor. Nothing is written that does not follow from a key."""
        launcher = self.launcher
        more: dict[str, Any] = {name: value or True for name, value in launcher.sbatch.items()}
        more["requeue" if launcher.max_requeues else "no-requeue"] = True
        given = {
            "time": launcher.limit_min,
            "nodes": len(self.ranks_of_nodes),
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

        What the job has is said again: since Slurm 22.05 a step does not inherit --cpus-per-task, and a step
        that names nothing takes all.
        """
        words = [
            "srun",
            f"--nodes={len(self.ranks_of_nodes)}",
            f"--ntasks={self.tasks}",
            f"--cpus-per-task={self.cpus_per_task}",
            "--kill-on-bad-exit=0",  # the supervisor ends the others, and knows whose fault it was
            "--wait=0",
            "--unbuffered",
            "--input=none",
        ]
        if self.ragged:
            words.append("--distribution=arbitrary")  # task by task as in SLURM_HOSTFILE
        else:
            words += [f"--ntasks-per-node={self.tasks_per_node}", "--distribution=block"]
        if self.gpus_per_node:
            words.append(f"--gpus-per-node={self.gpus_per_node}")  # all of a node's for each of its tasks
        return [
            *words,
            *(f"--{key}={value}" if value else f"--{key}" for key, value in self.launcher.srun.items()),
        ]

    def host_file(self, hosts: Sequence[str]) -> str:
        """The host of every task, line by line."""
        lines = [host for host, ranks in zip(hosts, self.ranks_of_nodes, strict=True) for _ in range(ranks)]
        return "".join(f"{line}\n" for line in lines)


def request_of(
    config: RunConfig, nodes_of: Callable[[str | None], Sequence[NodeKind]] = partition_of_nodes
) -> JobRequest:
    """What `config` asks for. `nodes_of`: the nodes of a partition, asked only where a key says `auto`.

    Raises ConfigError if the partition has no such nodes, SlurmError if Slurm does not answer.
    """
    launcher = config.launcher
    assert isinstance(launcher, SlurmConfig)
    ranks = tuple(config.cluster.ranks_of_nodes)
    most = max(ranks)
    cpus, gpus = launcher.cpus_per_rank, launcher.gpus_per_rank
    if isinstance(cpus, str) or isinstance(gpus, str):
        kinds = nodes_of(launcher.partition)
        if not kinds:
            raise ConfigError(f"launcher.partition={launcher.partition}: Slurm knows no nodes of it (sinfo)")
        if isinstance(gpus, str):
            gpus = _gpu_each(kinds, most)
        if isinstance(cpus, str):
            with_gpus = [kind for kind in kinds if kind.gpus >= gpus * most]
            cpus = _share_of_cpus(with_gpus or kinds, most)
    return JobRequest(launcher=launcher, ranks_of_nodes=ranks, cpus_per_task=cpus, gpus_per_node=gpus * most)


def _share_of_cpus(kinds: Sequence[NodeKind], ranks: int) -> int:
    fitting = [kind.cpus // ranks for kind in kinds if kind.cpus >= ranks]
    if not fitting:
        raise ConfigError(
            f"cluster.ranks_per_node={ranks}: the partition's nodes have at most "
            f"{max(kind.cpus for kind in kinds)} CPUs; ranks share one with launcher.cpus_per_rank=1 only if "
            "the site allows it"
        )
    return min(fitting)


def _gpu_each(kinds: Sequence[NodeKind], ranks: int) -> int:
    with_gpus = [kind for kind in kinds if kind.gpus]
    if not with_gpus:
        return 0
    if len(with_gpus) < len(kinds):
        raise ConfigError(
            "launcher.gpus_per_rank=auto: some nodes of the partition have GPUs, some have none; say 1 or 0"
        )
    most = max(kind.gpus for kind in with_gpus)
    if most < ranks:
        raise ConfigError(
            f"cluster.ranks_per_node={ranks}: the partition's nodes have {most} GPUs; "
            "use launcher.gpus_per_rank=0 for ranks without one"
        )
    return 1
