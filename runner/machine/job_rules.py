"""The rules of the doctor on the ranks of a job that started: cores, GPUs, network, what must be equal.

A rule on a host is a function of `JobFacts` and the facts of the host's ranks. They judge the ranks before
every training of `launcher=slurm` and `launcher=torchrun`, and in `daso-bench check launcher=slurm`, which
measures links, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from .cores import timing_reasons
from .facts import ProcessFacts
from .rules import Finding, Severity, merged, on, outward, process_findings, usable_interfaces, worst_first

SLOW_SHARE = 0.4  # of the median of its like: far outside what neighbours differ by on a quiet network
SLOW_TIMES, SLOW_LATENCY_US = 5.0, 500.0
FLOOR_GBIT = 0.2  # no network for training is slower
FEWEST_PAIRS = 3  # below, there is no median to be far from
CPU_BIND = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE")
Ranks = Sequence[ProcessFacts]
Pair = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts of all ranks in order, and what was asked for.

    `threads`: of each rank. `pairs`: links measured between hosts, each {a, b, rate_gbit,
    latency_us, backend}, a and b being host names. `share_gpus`: whether ranks may share a GPU.
    """

    ranks: Ranks
    threads: int
    pairs: Sequence[Pair] = ()
    share_gpus: bool = False

    @cached_property
    def hosts(self) -> dict[str, list[ProcessFacts]]:
        """The ranks of each host, in the order of their first ranks. Virtual nodes may share a host."""
        hosts: dict[str, list[ProcessFacts]] = {}
        for facts in self.ranks:
            hosts.setdefault(facts.host, []).append(facts)
        return hosts

    @cached_property
    def under_slurm(self) -> bool:
        return any("SLURM_JOB_ID" in facts.variables for facts in self.ranks)

    @cached_property
    def sees_gpus(self) -> bool:
        return any(gpus_of(facts) for facts in self.ranks)


# ------------------------------------------------------------------ on one host


def pinned(job: JobFacts, ranks: Ranks) -> Iterator[Finding]:
    """Ranks that may use the same cores, and fewer than they have threads.

    Ranks whose cores all lie in a set must get by with that set, for any set: the sets themselves and their
    union are tried, which finds masks that nest, are equal, or are disjoint: those that Slurm gives.
    """
    sets = [frozenset(facts.cores) for facts in ranks]
    inside = {
        allowed: sum(cores <= allowed for cores in sets) for allowed in {*sets, frozenset().union(*sets)}
    }
    short = [
        (count / len(allowed), count, len(allowed))
        for allowed, count in inside.items()
        if count * job.threads > len(allowed)
    ]
    if not short:
        return
    _, count, cores = max(short)
    all_cores = ranks[0].cores_of_machine
    what = f"{timing_reasons(count, job.threads, cores)[0]} (of {all_cores})"
    cause = "they wait for each other's cores, and timings are not valid"
    bindings = (facts.variables.get("SLURM_CPU_BIND", "") for facts in ranks)
    binding = next((text for text in bindings if "mask_cpu:" in text or "map_cpu:" in text), None)
    if binding is not None and cores < count:
        cause = f"SLURM_CPU_BIND={binding} pins them (often the submitting shell's own); they run in turn"
        fix = f"unset {' '.join(CPU_BIND)} (before sbatch)"
    elif job.under_slurm and cores < all_cores:
        fix = f"sbatch --cpus-per-task={job.threads} (and srun --cpus-per-task={job.threads})"
    elif cores >= count:
        fix = f"launcher.threads_per_rank={cores // count}"
    else:
        fix = f"cluster.ranks_per_node={cores}"
    yield Finding("error" if cores < min(count, all_cores) else "warning", "affinity", what, cause, fix)


def devices(job: JobFacts, ranks: Ranks) -> Iterator[Finding]:
    """GPUs that ranks share, or that some ranks of the job lack."""
    gpus = [gpus_of(facts) for facts in ranks]
    without, count = gpus.count([]), len(set().union(*gpus))
    if without and job.sees_gpus:
        yield Finding(
            "error",
            "devices",
            f"{without} of {len(ranks)} ranks see no GPU",
            "ranks with and without a GPU cannot train together",
            f"sbatch --gpus-per-node={max(map(len, job.hosts.values()))}",
        )
    if 0 < count < len(ranks):
        yield Finding(
            "warning" if job.share_gpus else "error",
            "devices",
            f"{len(ranks)} ranks see {count} GPU{'s' * (count != 1)}",
            "ranks share a GPU and slow each other down; NCCL refuses two ranks on one",
            f"sbatch --gpus-per-node={len(ranks)} (or cluster.ranks_per_node={count})",
        )


def gpus_of(facts: ProcessFacts) -> list[str]:
    """Names by which the GPUs that a rank sees can be distinguished on its host.

    Where Slurm confines each task to GPUs of its own, each calls its first one 0: there the number means
    nothing, unless torch knows the real identity.
    """
    torch = facts.torch or {}
    if torch.get("devices"):
        uuids = [uuid for uuid in torch.get("uuids", ()) if uuid]
        if len(uuids) == torch["devices"]:
            return uuids
    variables, visible = facts.variables, facts.visible_devices
    of_step = [name for name in variables.get("SLURM_STEP_GPUS", "").split(",") if name]
    if visible and len(of_step) == len(visible):
        return of_step  # the host's numbers, whatever the task calls them
    confined = "SLURM_GPUS_PER_TASK" in variables or len(of_step) > len(visible or of_step)
    prefix = f"task {facts.local_rank}: " if confined else ""
    names = map(str, range(torch.get("devices") or 0)) if visible is None else visible
    return [f"{prefix}{name}" for name in names]


def loopback_interface(job: JobFacts, ranks: Ranks) -> Iterator[Finding]:
    """gloo is to use the loopback interface, and the ranks are on several hosts."""
    for facts in ranks if len(job.hosts) > 1 else ():
        name = facts.variables.get("GLOO_SOCKET_IFNAME", "")
        if facts.interfaces.get(name, {}).get("loopback"):
            yield Finding(
                "error",
                "network",
                f"GLOO_SOCKET_IFNAME={name}",
                f"that is the loopback; the ranks are on {len(job.hosts)} hosts",
                f"export GLOO_SOCKET_IFNAME={outward(facts) or 'NAME'}",
            )


def each_rank(_: JobFacts, ranks: Ranks) -> Iterator[Finding]:
    """The rules on one process, for every rank."""
    for facts in ranks:
        yield from process_findings(facts)


# ------------------------------------------------------------------ between hosts


def links(job: JobFacts) -> Iterator[Finding]:
    """Measured links that are far slower than the others, or slower than any network for training."""
    enough = len(job.pairs) >= FEWEST_PAIRS
    usual_gbit = median(pair["rate_gbit"] for pair in job.pairs) if enough else 0.0
    usual_us = median(pair["latency_us"] for pair in job.pairs) if enough else float("inf")
    by_rate = sorted(job.pairs, key=lambda pair: pair["rate_gbit"])
    below = [pair for pair in by_rate if pair["rate_gbit"] < FLOOR_GBIT]
    slow = [pair for pair in by_rate if FLOOR_GBIT <= pair["rate_gbit"] < SLOW_SHARE * usual_gbit]
    late = [pair for pair in job.pairs if pair["latency_us"] > max(SLOW_LATENCY_US, SLOW_TIMES * usual_us)]
    late.sort(key=lambda pair: -pair["latency_us"])
    usual = f"median of {len(job.pairs)} pairs {usual_gbit:.3g} Gbit/s, {usual_us:.0f} µs"
    if below:
        yield _link_finding(job, "error", below, f"below {FLOOR_GBIT:g} Gbit/s")
    for pairs in (slow, late):
        if pairs:
            yield _link_finding(job, "warning", pairs, usual)


def _link_finding(job: JobFacts, severity: Severity, pairs: Sequence[Pair], limit: str) -> Finding:
    """`pairs`: the slow ones, worst first. The fix is another interface of one host, else to leave it out."""
    worst = pairs[0]
    what = f"{worst['a']} - {worst['b']}: {worst['rate_gbit']:.3g} Gbit/s, {worst['latency_us']:.0f} µs"
    what += f" ({worst['backend']}); {limit}"
    cause = "a wrong interface, another rack, a busy network; all wait for the slowest"
    host = worst["b"]
    if len(pairs) > 1:
        what += f"; {len(pairs) - 1} more like it"
        shared = set.intersection(*({pair["a"], pair["b"]} for pair in pairs))
        if len(shared) == 1:
            (host,) = shared
            cause = f"{host} is in all of them: its card or cable, or the interface it uses"
    fix = f"sbatch --exclude={host}" if job.under_slurm else "cluster.nodes=N (without the slow host)"
    for facts in job.hosts.get(host, [])[:1]:
        used = facts.variables.get("GLOO_SOCKET_IFNAME") or facts.route_interface
        others = [name for name in usable_interfaces(facts) if name != used]
        if others:
            fastest = max(others, key=lambda name: facts.interfaces[name]["speed_mbit"])
            fix = f"export GLOO_SOCKET_IFNAME={fastest} ({host} uses {used})"
    return Finding(severity, "links", what, cause, fix)


def versions(job: JobFacts) -> Iterator[Finding]:
    """Versions and source code must be the same on all hosts; a patch version of Python may differ."""
    executables = sorted({facts.executable for facts in job.ranks})
    for name, version in VERSIONS.items():
        hosts: dict[str, list[str]] = {}
        for facts in job.ranks:
            hosts.setdefault(version(facts.versions) or "none", []).append(facts.host)
        if name == "the source":
            hosts.pop("none", None)
        if len(hosts) > 1:
            seen = [f"{value} {on(names, len(job.hosts))}" for value, names in hosts.items()]
            yield Finding(
                "error",
                "versions",
                f"{name} differs: {'; '.join(seen)}",
                f"ranks compute with different code ({' and '.join(executables[:3])})",
                "source PATH/bin/activate (one environment for all nodes, in the batch script)",
            )


def _source(versions: Mapping[str, str | None]) -> str | None:
    commit, changes = versions["commit"], versions["dirty"]
    return commit and commit[:10] + (f" with changes {changes[:8]}" if changes else "")


VERSIONS: dict[str, Callable[[Mapping[str, str | None]], str | None]] = {
    "Python": lambda versions: (versions["python"] or "").rpartition(".")[0],
    "torch": lambda versions: versions["torch"],
    "daso-bench": lambda versions: versions["daso_bench"],
    "the source": _source,
}
HOST_RULES: tuple[Callable[[JobFacts, Ranks], Iterable[Finding]], ...] = (
    pinned,
    devices,
    loopback_interface,
    each_rank,
)
JOB_RULES: tuple[Callable[[JobFacts], Iterable[Finding]], ...] = (links, versions)


def cluster_findings(
    rows: Sequence[Mapping[str, Any]],
    threads: int,
    *,
    pairs: Sequence[Pair] = (),
    share_gpus: bool = False,
) -> list[Finding]:
    """What is wrong with a job. `rows`: `ProcessFacts.as_row` of every rank; the rest is as of `JobFacts`."""
    ranks = sorted(map(ProcessFacts.of, rows), key=lambda facts: facts.rank or 0)
    job = JobFacts(ranks=ranks, threads=threads, pairs=pairs, share_gpus=share_gpus)
    on_hosts = [
        (host, finding)
        for host, of_host in job.hosts.items()
        for rule in HOST_RULES
        for finding in rule(job, of_host)
    ]
    of_job = [finding for rule in JOB_RULES for finding in rule(job)]
    return worst_first([*merged(on_hosts, len(job.hosts)), *of_job])
