"""Rules on a job: did all ranks start, where, on which cores, with which GPUs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from ..environment import timing_validity
from .findings import Facts, Finding, on
from .job_facts import Job
from .rules_cores import CPU_BIND, is_binding
from .rules_devices import siblings_hidden


def started(job: Job) -> Iterator[Finding]:
    """Ranks asked for against ranks that started; each number once."""
    if len(job.rows) != job.asked:
        counts = [len(rows) for rows in job.hosts.values()]
        yield Finding(
            "error",
            "ranks",
            f"{job.asked} ranks asked for ({job.request}), {len(job.rows)} started "
            f"({', '.join(f'{host}: {len(rows)}' for host, rows in job.hosts.items()) or 'none'})",
            "ranks that nobody starts are waited for"
            if len(job.rows) < job.asked
            else "a strategy would run on more ranks than its results say",
            f"{job.start_with(job.ranks_of_nodes)} (or {_as_request(counts)})",
        )
        return
    numbers = Counter(row["rank"] for row in job.rows)
    if set(numbers) != set(range(job.asked)):
        seen = ", ".join("none" if rank is None else str(rank) for rank in sorted(numbers, key=str)[:8])
        yield Finding(
            "error",
            "ranks",
            f"{len(job.rows)} processes with the ranks {seen}, where 0 to {job.asked - 1} are wanted",
            "the processes were not started by srun or torchrun, or by several of them",
            "srun python -m daso_bench.runner.launch.worker RUN_DIR (one srun for all ranks)"
            if job.under_slurm
            else f"{job.start_with(job.ranks_of_nodes)} --no-python daso-bench ...",
        )


def grouped(job: Job) -> Iterator[Finding]:
    """Which ranks share a node: in order, and as many as asked for."""
    if {row["rank"] for row in job.rows} != set(range(job.asked)):
        return  # `started` tells
    nodes = [row.get("node", row["host"]) for row in job.by_rank]
    blocks = [(node, len(list(group))) for node, group in groupby(nodes)]
    counts = [count for _, count in blocks]
    if counts == list(job.ranks_of_nodes) and len(dict(blocks)) == len(blocks):
        return
    if len(dict(blocks)) < len(blocks):
        where = ", ".join(f"{rank}: {node}" for rank, node in list(enumerate(nodes))[:6])
        yield Finding(
            "error",
            "nodes",
            f"ranks are dealt out in turn ({where}, ...), asked for: {job.request}",
            "ranks of one node must have consecutive numbers, else the groups of a strategy cross nodes",
            "srun --distribution=block:block (and no SLURM_DISTRIBUTION=cyclic)",
        )
        return
    yield Finding(
        "error",
        "nodes",
        f"asked for {list(job.ranks_of_nodes)} ranks on {len(job.ranks_of_nodes)} nodes, "
        f"started {counts} on {', '.join(str(node) for node, _ in blocks[:6])}",
        "hierarchical strategies and bytes between nodes would be of another cluster than asked for",
        f"{job.start_with(job.ranks_of_nodes)} (or {_as_request(counts)})",
    )


def pinned(job: Job) -> Iterator[Finding]:
    """Ranks of a host that may use the same cores, and fewer than they have threads."""
    threads = job.threads or 1
    found: dict[tuple[int, int, int], list[str]] = {}
    for host, rows in job.hosts.items():
        tightest = _tightest([frozenset(row["cores"]) for row in rows], threads)
        if tightest is not None:
            ranks, cores = tightest
            found.setdefault((ranks, cores, rows[0]["cores_of_machine"]), []).append(host)
    for (ranks, cores, all_cores), hosts in found.items():
        yield _pinned(job, ranks, cores, all_cores, hosts)


def quota(job: Job) -> Iterator[Finding]:
    """A container's or control group's share of the CPU below a rank's own threads."""
    threads = job.threads or 1
    short = {
        row["host"]: row["usable_cores"]
        for row in job.rows
        if row["usable_cores"] < threads <= len(row["cores"])
    }
    if short:
        least = min(short.values())
        yield Finding(
            "warning",
            "affinity",
            f"{on(short, len(job.hosts))}: {threads} threads per rank, {least} cores' worth of time",
            "a control group allows less time than there are cores",
            f"launcher.threads_per_rank={least} (or ask for more CPUs)",
        )


def _pinned(job: Job, ranks: int, cores: int, all_cores: int, hosts: Sequence[str]) -> Finding:
    threads = job.threads or 1
    rows = [row for row in job.rows if row["host"] in hosts]
    bind = next(
        (value for row in rows if is_binding(value := row["variables"].get("SLURM_CPU_BIND", ""))), None
    )
    _, reasons = timing_validity(ranks, threads, cores)
    what = f"{on(hosts, len(job.hosts))}: {reasons[0]} (of {all_cores})"
    narrowed = cores < all_cores
    if cores >= ranks:  # only the threads are too many
        few = max(1, cores // ranks)
        fix = f"sbatch --cpus-per-task={threads} (or launcher.threads_per_rank={few})"
        if not job.under_slurm:
            fix = f"launcher.threads_per_rank={few}"
        return Finding(
            "warning", "affinity", what, "threads wait for each other's cores; timings are not valid", fix
        )
    if bind is not None:
        cause = f"SLURM_CPU_BIND={bind} pins them (often the submitting shell's own); they run in turn"
        fix = f"unset {' '.join(CPU_BIND)} (before sbatch)"
    elif job.under_slurm and narrowed:
        cause = "Slurm gave the tasks fewer cores than there are ranks; they run in turn"
        fix = f"sbatch --cpus-per-task={threads} (and srun --cpus-per-task={threads})"
    else:
        cause = "there are fewer cores than ranks; they run in turn, and timings are not valid"
        fix = f"cluster.ranks_per_node={cores}"
    return Finding("error" if narrowed else "warning", "affinity", what, cause, fix)


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


def devices(job: Job) -> Iterator[Finding]:
    """GPUs that ranks of a host share, that some ranks lack, or that hide each other."""
    seen = {id(row): devices_of(row) for row in job.rows}
    if not any(seen.values()):
        return
    without = [row["host"] for row in job.rows if not seen[id(row)]]
    if without:
        yield Finding(
            "error",
            "devices",
            f"{on(without, len(job.hosts))}: {len(without)} of {len(job.rows)} ranks see no GPU",
            "ranks with and without a GPU cannot train together",
            f"sbatch --gpus-per-node={max(job.ranks_of_nodes)}",
        )
    short: dict[tuple[int, int], list[str]] = {}
    for host, rows in job.hosts.items():
        count = len({device for row in rows for device in seen[id(row)]})
        if 0 < count < len(rows):
            short.setdefault((len(rows), count), []).append(host)
    for (ranks, count), hosts in short.items():
        yield Finding(
            "warning" if job.share_gpus else "error",
            "devices",
            f"{on(hosts, len(job.hosts))}: {ranks} ranks see {count} GPU{'s' * (count != 1)}",
            "ranks share a GPU and slow each other down; NCCL refuses two ranks on one",
            f"sbatch --gpus-per-node={ranks} (or cluster.ranks_per_node={count})",
        )
    alone = [
        rows for rows in job.hosts.values() if len(rows) > 1 and all(len(seen[id(row)]) == 1 for row in rows)
    ]
    if alone and not short and not without:
        yield siblings_hidden(
            f"{on([rows[0]['host'] for rows in alone], len(job.hosts))}: each rank sees one GPU, its own"
        )


def devices_of(row: Facts) -> list[str]:
    """Names by which the GPUs that a rank sees can be told apart on its host.

    Where Slurm confines each task to GPUs of its own, each calls its first one 0: there the number means
    nothing, unless torch was asked for the real identity.
    """
    torch = row.get("torch") or {}
    if torch.get("devices"):
        uuids = [uuid for uuid in torch.get("uuids", ()) if uuid]
        if len(uuids) == torch["devices"]:
            return uuids
    variables, visible = row["variables"], row["visible_devices"]
    of_step = [name for name in variables.get("SLURM_STEP_GPUS", "").split(",") if name]
    if visible and len(of_step) == len(visible):
        return of_step  # numbers of the host's, whatever the task calls them
    own = "SLURM_GPUS_PER_TASK" in variables or len(of_step) > len(visible or of_step)
    prefix = f"task {row['local_rank']}: " if own else ""
    if visible is not None:
        return [f"{prefix}{name}" for name in visible]
    return [f"{prefix}{number}" for number in range(torch.get("devices") or 0)]


def _as_request(counts: Sequence[int]) -> str:
    if not counts:
        return "look into the job's log"
    ranks = str(counts[0]) if len(set(counts)) == 1 else f"[{','.join(str(count) for count in counts)}]"
    return f"cluster.nodes={len(counts)} cluster.ranks_per_node={ranks}"
