"""The ranks of a job as the rules see them: a row of facts per rank, and what was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .findings import Facts


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for, and what started.

    `rows`: `rank_facts` of every rank that started. `threads`: of each rank, None: not known. `pairs`: links
    measured between hosts, each {a, b, rate_gbit, latency_us, backend}, a and b being host names.
    `share_gpus`: whether ranks may share a GPU.
    """

    rows: Sequence[Facts]
    ranks_of_nodes: tuple[int, ...]
    threads: int | None
    pairs: Sequence[Mapping[str, Any]] = ()
    floor_gbit: float = 0.0
    share_gpus: bool = False

    @property
    def asked(self) -> int:
        return sum(self.ranks_of_nodes)

    @property
    def request(self) -> str:
        """The request in the user's words."""
        return f"cluster.nodes={len(self.ranks_of_nodes)}, cluster.ranks_per_node={list(self.ranks_of_nodes)}"

    @cached_property
    def by_rank(self) -> list[Facts]:
        """The rows in rank order, as far as ranks have numbers."""
        return sorted(self.rows, key=lambda row: (row["rank"] is None, row["rank"] or 0))

    @cached_property
    def hosts(self) -> dict[str, list[Facts]]:
        """The rows of each host, in the order of their first ranks. Virtual nodes may share a host."""
        found: dict[str, list[Facts]] = {}
        for row in self.by_rank:
            found.setdefault(row["host"], []).append(row)
        return found

    @property
    def spread(self) -> bool:
        """Whether ranks on one host have to reach ranks on another."""
        return len(self.hosts) > 1

    @cached_property
    def under_slurm(self) -> bool:
        return any("SLURM_JOB_ID" in row["variables"] for row in self.rows)

    def start_with(self, ranks_of_nodes: Sequence[int]) -> str:
        """The options that start so many ranks on each node."""
        nodes, ranks, most = len(ranks_of_nodes), sum(ranks_of_nodes), max(ranks_of_nodes)
        if self.under_slurm:
            return f"sbatch --nodes={nodes} --ntasks={ranks} --ntasks-per-node={most}"
        return f"torchrun --nnodes={nodes} --nproc-per-node={most}"
