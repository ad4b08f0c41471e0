"""The rules of the doctor on the ranks of a job that started: cores, GPUs, network, what must be equal.

A rule is a function of `JobFacts`. They judge the ranks before every training of `launcher=slurm` and
`launcher=torchrun`, and in `daso-bench check launcher=slurm`, which measures links, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from .cores import timing_reasons
from .facts import ProcessFacts
from .rules import PROCESS_RULES, Finding, Severity, apply, merged, on, outward, usable_interfaces

SLOW_SHARE = 0.4  # of the median of its like: far outside what neighbours differ by on a quiet network
SLOW_TIMES, SLOW_LATENCY_US = 5.0, 500.0
FLOOR_GBIT = 0.2  # no network for training is slower
FEWEST_PAIRS = 3  # below, there is no median to be far from
CPU_BIND = ("SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE")
Pair = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """The facts of all ranks, and what was asked for.

    `threads`: of each rank. `pairs`: links measured between hosts, each {a, b, rate_gbit,
    latency_us, backend}, a and b being host names. `share_gpus`: whether ranks may share a GPU.
    """

    ranks: Sequence[ProcessFacts]
    threads: int
    pairs: Sequence[Pair] = ()
    share_gpus: bool = False

    @cached_property
    def hosts(self) -> dict[str, list[ProcessFacts]]:
        """The ranks of each host, in the order of their first ranks. Virtual nodes may share a host."""
        hosts: dict[str, list[ProcessFacts]] = {}
        for facts in sorted(self.ranks, key=lambda facts: facts.rank or 0):
            hosts.setdefault(facts.host, []).append(facts)
        return hosts

    @cached_property
    def under_slurm(self) -> bool:
        return any("SLURM_JOB_ID" in facts.variables for facts in self.ranks)

    def on(self, hosts: Iterable[str]) -> str:
        return on(hosts, len(self.hosts))


# ------------------------------------------------------------------ cores and GPUs


def pinned(job: JobFacts) -> Iterator[Finding]:
    """Ranks of a host that may use the same cores, and fewer than they have threads."""
    short: dict[tuple[int, int, int], list[str]] = {}
    for host, ranks in job.hosts.items():
        tightest = _tightest([frozenset(facts.cores) for facts in ranks], job.threads)
        if tightest is not None:
            short.setdefault((*tightest, ranks[0].cores_of_machine), []).append(host)
    for (ranks, cores, all_cores), hosts in short.items():
        yield _pinned(job, ranks, cores, all_cores, hosts)


def _pinned(job: JobFacts, ranks: int, cores: int, all_cores: int, hosts: Sequence[str]) -> Finding:
    what = f"{job.on(hosts)}: {timing_reasons(ranks, job.threads, cores)[0]} (of {all_cores})"
    cause = "they wait for each other's cores, and timings are not valid"
    bindings = (facts.variables.get("SLURM_CPU_BIND", "") for host in hosts for facts in job.hosts[host])
    binding = next((text for text in bindings if "mask_cpu:" in text or "map_cpu:" in text), None)
    if binding is not None and cores < ranks:
        cause = f"SLURM_CPU_BIND={binding} pins them (often the submitting shell's own); they run in turn"
        fix = f"unset {' '.join(CPU_BIND)} (before sbatch)"
    elif job.under_slurm and cores < all_cores:
        fix = f"sbatch --cpus-per-task={job.threads} (and srun --cpus-per-task={job.threads})"
    elif cores >= ranks:
        fix = f"launcher.threads_per_rank={cores // ranks}"
    else:
        fix = f"cluster.ranks_per_node={cores}"
    return Finding("error" if cores < min(ranks, all_cores) else "warning", "affinity", what, cause, fix)


def _tightest(sets: Sequence[frozenset[int]], threads: int) -> tuple[int, int] | None:
    """(ranks, cores) of the ranks that are worst off, None if every rank can have cores for its threads.

    Ranks whose cores all lie in a set must get by with that set, for any set: the sets themselves and their
    union are tried, which finds masks that nest, are equal, or are disjoint: those that Slurm gives.
    """
    short: list[tuple[int, int]] = []
    for allowed in {*sets, frozenset().union(*sets)}:
        inside = sum(cores <= allowed for cores in sets)
        if allowed and inside * threads > len(allowed):
            short.append((inside, len(allowed)))
    return max(short, key=lambda pair: (pair[0] / pair[1], pair[0]), default=None)


def devices(job: JobFacts) -> Iterator[Finding]:
    """GPUs that ranks of a host share, or that some ranks lack."""
    gpus = {host: [gpus_of(facts) for facts in ranks] for host, ranks in job.hosts.items()}
    if not any(names for of_ranks in gpus.values() for names in of_ranks):
        return
    without = [host for host, of_ranks in gpus.items() for names in of_ranks if not names]
    if without:
        yield Finding(
            "error",
            "devices",
            f"{job.on(without)}: {len(without)} of {len(job.ranks)} ranks see no GPU",
            "ranks with and without a GPU cannot train together",
            f"sbatch --gpus-per-node={max(map(len, job.hosts.values()))}",
        )
    short: dict[tuple[int, int], list[str]] = {}
    for host, of_ranks in gpus.items():
        count = len({name for names in of_ranks for name in names})
        if 0 < count < len(of_ranks):
            short.setdefault((len(of_ranks), count), []).append(host)
    for (ranks, count), hosts in short.items():
        yield Finding(
            "warning" if job.share_gpus else "error",
            "devices",
            f"{job.on(hosts)}: {ranks} ranks see {count} GPU{'s' * (count != 1)}",
            "ranks share a GPU and slow each other down; NCCL refuses two ranks on one",
            f"sbatch --gpus-per-node={ranks} (or cluster.ranks_per_node={count})",
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


# ------------------------------------------------------------------ network


def loopback_interface(job: JobFacts) -> Iterator[Finding]:
    """gloo is to use the loopback interface, and the ranks are on several hosts."""
    wrong: dict[str, ProcessFacts] = {}
    for facts in job.ranks:
        name = facts.variables.get("GLOO_SOCKET_IFNAME", "")
        if facts.interfaces.get(name, {}).get("loopback"):
            wrong.setdefault(facts.host, facts)
    if len(job.hosts) > 1 and wrong:
        facts = next(iter(wrong.values()))
        yield Finding(
            "error",
            "network",
            f"{job.on(wrong)}: GLOO_SOCKET_IFNAME={facts.variables['GLOO_SOCKET_IFNAME']}",
            f"that is the loopback; the ranks are on {len(job.hosts)} hosts",
            f"export GLOO_SOCKET_IFNAME={outward(facts) or 'NAME'}",
        )


def links(job: JobFacts) -> Iterator[Finding]:
    """Measured links that are far slower than the others, or slower than any network for training."""
    enough = len(job.pairs) >= FEWEST_PAIRS
    usual_gbit = median(pair["rate_gbit"] for pair in job.pairs) if enough else 0.0
    usual_us = median(pair["latency_us"] for pair in job.pairs) if enough else float("inf")
    below = [pair for pair in job.pairs if pair["rate_gbit"] < FLOOR_GBIT]
    slow = [pair for pair in job.pairs if FLOOR_GBIT <= pair["rate_gbit"] < SLOW_SHARE * usual_gbit]
    late = [pair for pair in job.pairs if pair["latency_us"] > max(SLOW_LATENCY_US, SLOW_TIMES * usual_us)]
    if below:
        yield _slow_links(job, "error", below, f"below {FLOOR_GBIT:g} Gbit/s")
    if slow:
        usual = f"median of {len(job.pairs)} pairs {usual_gbit:.3g} Gbit/s"
        yield _slow_links(job, "warning", slow, usual)
    if late:
        worst = max(late, key=lambda pair: pair["latency_us"])
        what = f"{worst['a']} - {worst['b']}: {worst['latency_us']:.0f} µs, median {usual_us:.0f} µs"
        yield _link_finding(job, "warning", what, late)


def _slow_links(job: JobFacts, severity: Severity, pairs: Sequence[Pair], limit: str) -> Finding:
    worst = min(pairs, key=lambda pair: pair["rate_gbit"])
    what = f"{worst['a']} - {worst['b']}: {worst['rate_gbit']:.3g} Gbit/s ({worst['backend']}), {limit}"
    return _link_finding(job, severity, what, pairs)


def _link_finding(job: JobFacts, severity: Severity, what: str, pairs: Sequence[Pair]) -> Finding:
    """`pairs`: the slow ones. The fix is another interface of the host in question, else to leave it out."""
    shared = set.intersection(*({pair["a"], pair["b"]} for pair in pairs))
    host = pairs[0]["b"]
    cause = "a wrong interface, another rack, a busy network; all wait for the slowest"
    if len(pairs) > 1:
        what += f"; {len(pairs) - 1} more like it"
        if len(shared) == 1:
            (host,) = shared
            cause = f"{host} is in all of them: its card or cable, or the interface it uses"
    fix = f"sbatch --exclude={host}" if job.under_slurm else "cluster.nodes=N (without the slow host)"
    for facts in job.hosts.get(host, [])[:1]:
        used = facts.variables.get("GLOO_SOCKET_IFNAME") or facts.route_interface
        speeds = {
            name: facts.interfaces[name]["speed_mbit"] for name in usable_interfaces(facts) if name != used
        }
        if speeds:
            fastest = max(speeds, key=lambda name: speeds[name])
            fix = f"export GLOO_SOCKET_IFNAME={fastest} ({host} uses {used})"
    return Finding(severity, "links", what, cause, fix)


# ------------------------------------------------------------------ what must be the same on all hosts


def versions(job: JobFacts) -> Iterator[Finding]:
    """Versions and source code; a patch version of Python may differ."""
    minors = [(facts.versions["python"] or "").rpartition(".")[0] for facts in job.ranks]
    yield from _differ(job, "Python", _hosts_of(job, minors))
    for key, name in (("torch", "torch"), ("daso_bench", "daso-bench")):
        yield from _differ(job, name, _hosts_of(job, [facts.versions[key] for facts in job.ranks]))
    states = ((facts.versions["commit"], facts.versions["dirty"]) for facts in job.ranks)
    sources = [
        commit and commit[:10] + (f" with changes {dirty[:8]}" if dirty else "") for commit, dirty in states
    ]
    hosts = _hosts_of(job, sources)
    hosts.pop(None, None)
    yield from _differ(job, "the source", hosts)


def _hosts_of(job: JobFacts, values: Sequence[str | None]) -> dict[str | None, list[str]]:
    """The hosts of each value; `values`: one per rank."""
    hosts: dict[str | None, list[str]] = {}
    for facts, value in sorted(zip(job.ranks, values, strict=True), key=lambda pair: pair[0].rank or 0):
        hosts.setdefault(value, []).append(facts.host)
    return hosts


def _differ(job: JobFacts, name: str, hosts: Mapping[str | None, list[str]]) -> Iterator[Finding]:
    if len(hosts) < 2:
        return
    executables = sorted({facts.executable for facts in job.ranks})
    seen = [f"{value or 'none'} {job.on(names)}" for value, names in hosts.items()]
    yield Finding(
        "error",
        "versions",
        f"{name} differs: {'; '.join(seen)}",
        "ranks compute with different code"
        + ("" if len(executables) == 1 else f" ({' and '.join(executables[:3])})"),
        "source PATH/bin/activate (one environment, on a file system of all nodes, in the batch script)",
    )


def each_rank(job: JobFacts) -> Iterator[Finding]:
    """The rules on one process, for every rank; equal findings of several hosts become one."""
    yield from merged(
        [
            (host, finding)
            for host, ranks in job.hosts.items()
            for finding in dict.fromkeys(
                finding for facts in ranks for rule in PROCESS_RULES for finding in rule(facts)
            )
        ],
        len(job.hosts),
    )


JOB_RULES: tuple[Callable[[JobFacts], Iterable[Finding]], ...] = (
    pinned,
    devices,
    loopback_interface,
    links,
    versions,
    each_rank,
)


def cluster_findings(
    rows: Sequence[Mapping[str, Any]],
    threads: int,
    *,
    pairs: Sequence[Pair] = (),
    share_gpus: bool = False,
) -> list[Finding]:
    """What is wrong with a job. `rows`: `ProcessFacts.as_row` of every rank; the rest is as of `JobFacts`."""
    job = JobFacts(
        ranks=[ProcessFacts.of(row) for row in rows],
        threads=threads,
        pairs=pairs,
        share_gpus=share_gpus,
    )
    return apply(JOB_RULES, job)
