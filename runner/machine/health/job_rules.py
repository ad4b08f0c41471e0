"""All rules on a job: its ranks' rows together. Who makes the job and gathers the rows is no matter here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import cluster_agreement, cluster_network, cluster_ranks
from .findings import Facts, Finding, troubles, worst_first
from .job_facts import Job

JobRule = Callable[[Job], Iterable[Finding]]

JOB_RULES: tuple[JobRule, ...] = (
    cluster_ranks.started,
    cluster_ranks.grouped,
    cluster_ranks.pinned,
    cluster_ranks.quota,
    cluster_ranks.devices,
    cluster_network.host_names,
    cluster_network.routes,
    cluster_network.loopback_interface,
    cluster_network.links,
    cluster_agreement.versions,
    cluster_agreement.results_folder,
    cluster_agreement.clocks,
    cluster_agreement.open_files,
    cluster_agreement.of_each_rank,
)


def cluster_findings(
    rows: Sequence[Facts],
    ranks_of_nodes: Sequence[int],
    threads: int | None,
    *,
    pairs: Sequence[Mapping[str, Any]] = (),
    floor_gbit: float = cluster_network.FLOOR_GBIT,
    share_gpus: bool = False,
) -> list[Finding]:
    """What is wrong with a job that started.

    `rows`: `rank_facts` of every rank that started, in any order, with `sees_token`, `clock_offset_s` and
    `node` where a launcher knows them. `ranks_of_nodes`: what was asked for. `threads`: of each rank.
    `pairs`: measured links, each {a, b, rate_gbit, latency_us, backend}; a and b are host names of rows.
    `floor_gbit`: what is below it is an error. `share_gpus`: ranks may share GPUs.
    """
    job = Job(
        rows=rows,
        ranks_of_nodes=tuple(ranks_of_nodes),
        threads=threads,
        pairs=pairs,
        floor_gbit=floor_gbit,
        share_gpus=share_gpus,
    )
    return worst_first(finding for rule in JOB_RULES for finding in rule(job))


def short_findings(
    rows: Sequence[Facts], ranks_of_nodes: Sequence[int], threads: int | None, *, share_gpus: bool = False
) -> list[Finding]:
    """Errors and warnings that need no measurement: what is looked at before every training."""
    return troubles(cluster_findings(rows, ranks_of_nodes, threads, share_gpus=share_gpus))
