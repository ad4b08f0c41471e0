"""Recorded facts of a run beyond its configuration: cores and threads, run queue, what arms must share.

`QUANTITIES` is the one list that the fairness table reads, as text; None where nothing is recorded. Field
names are those of docs/records.md.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from ...machine.cores import QUEUE_LIMIT, in_each_second
from ...records.seed_ranges import trial_seeds
from ..data.arms import Arm, Comparison
from ..data.load import Run, number


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """`key`: what `Strategy.may_differ` calls it. `real`: concerns real machines, not the virtual clock.

    `complete`: only runs have it that did the whole of their schedule.
    """

    key: str
    words: str
    read: Callable[[Run], str | None]
    real: bool = False
    complete: bool = False


def complete(run: Run) -> bool:
    """Whether the run did all of its schedule; one that stopped at its target did no fixed work."""
    stop = (run.config.get("train") or {}).get("stop")
    return run.state == "finished" and stop in (None, "budget")


def local_batch(run: Run) -> str | None:
    """Samples of each rank in a full step, `16 x 4` for four ranks of 16: as split, or the equal split."""
    batches = (run.summary.get("strategy") or {}).get("batches")
    batch = (run.config.get("train") or {}).get("global_batch_size")
    nodes = (run.config.get("cluster") or {}).get("ranks_per_node")
    if isinstance(batches, list) and batches:
        split: Sequence[Any] = batches
    elif isinstance(batch, int) and isinstance(nodes, list) and nodes:
        ranks = sum(nodes)
        least, more = divmod(batch, ranks)
        split = [least + 1] * more + [least] * (ranks - more)
    else:
        return None
    return ", ".join(f"{size} x {len(list(group))}" for size, group in groupby(split))


def threads_on_cores(run: Run) -> str | None:
    """`4 on 8 cores`, of the host where most threads come on a core."""
    worst = _worst_host(run)
    return None if worst is None else f"{worst[0]} on {worst[1]} cores"


def too_many_threads(run: Run) -> str:
    """The sentence about a host with more threads than cores; "" if all fit or it is not known."""
    worst = _worst_host(run)
    return "" if worst is None or worst[0] <= worst[1] else f"{worst[0]} threads on {worst[1]} cores"


def cores(run: Run) -> int | None:
    """Cores that a run's ranks may use, of all hosts together; None if it is not known."""
    return sum(_cores_of_hosts(run).values()) or None


def idle_cores(run: Run) -> str:
    """`1 thread on 4 cores`, of a host with fewer threads than cores; "" if none is so, or not known.

    A process that makes batches has a core of its own.
    """
    workers = (run.config.get("launcher") or {}).get("loader_workers")
    threads = _threads_of_hosts(run, helpers=workers if isinstance(workers, int) else 0)
    least = _cores_of_hosts(run)
    if paced(run) or not threads or not least:
        return ""
    idle = [(threads[host], least[host]) for host in threads if threads[host] < least[host]]
    return next((f"{few} thread{'s' * (few != 1)} on {cores} cores" for few, cores in idle), "")


def paced(run: Run) -> bool:
    """Whether the compute speed of its ranks is an input: in virtual time, or on modelled devices."""
    return run.world == "simulated" or bool(run.network and modelled_speed(run))


def _worst_host(run: Run) -> tuple[int, int] | None:
    """(threads, cores) of the host with most threads a core, from the ranks' own rows."""
    threads, least = _threads_of_hosts(run), _cores_of_hosts(run)
    if not threads or not least:
        return None
    return max(((threads[host], least[host]) for host in threads), key=lambda pair: pair[0] / pair[1])


def _threads_of_hosts(run: Run, *, helpers: int = 0) -> dict[str, int]:
    """Threads by host, with `helpers` more for each rank; empty if one is not known."""
    threads: dict[str, int] = defaultdict(int)
    for row in _ranks(run):
        if not isinstance(row.get("threads"), int):
            return {}
        threads[str(row.get("host"))] += row["threads"] + helpers
    return threads


def _cores_of_hosts(run: Run) -> dict[str, int]:
    """Cores by host; empty if one is not known."""
    cores: dict[str, set[int]] = defaultdict(set)
    for row in _ranks(run):
        if not isinstance(row.get("cores"), list):
            return {}
        cores[str(row.get("host"))].update(row["cores"])
    least = {host: len(numbers) for host, numbers in cores.items()}
    if not least or not all(least.values()):
        return {}
    # A container's quota may be below its affinity; it is recorded for rank 0's host.
    quota, first = run.environment.get("cores"), next(iter(least))
    if not isinstance(quota, int):
        return least
    if (run.config.get("launcher") or {}).get("pin"):
        # Ranks that are bound to cores record only those; the nodes of a run are alike.
        return dict.fromkeys(least, quota)
    return least | {first: min(least[first], quota)}


def hosts(run: Run) -> list[str]:
    """The machines of a run's nodes, each once; empty if one is not known."""
    nodes: dict[str, str] = {}
    for row in _ranks(run):
        if row.get("host") is None:
            return []
        nodes.setdefault(str(row.get("node")), str(row["host"]))
    # Nodes of one machine are one host.
    return list(dict.fromkeys(nodes.values()))


def _hosts(run: Run) -> str | None:
    return ", ".join(hosts(run)) or None


def _distinct(field: str) -> Callable[[Run], str | None]:
    """The distinct values that the ranks recorded in `field`."""

    def read(run: Run) -> str | None:
        values = [row.get(field) for row in _ranks(run)]
        if not values or None in values:
            return None
        return ", ".join(dict.fromkeys(_text(value) for value in values))

    return read


def _by_rank(field: str) -> Callable[[Run], str | None]:
    """The value of each rank in `field`, in rank order; equal neighbours together."""

    def read(run: Run) -> str | None:
        values = [row.get(field) for row in _ranks(run)]
        if not values or None in values:
            return None
        groups = [(value, len(list(group))) for value, group in groupby(values)]
        return ", ".join(f"{_text(value)} x {count}" for value, count in groups)

    return read


def _environment(*names: str) -> Callable[[Run], str | None]:
    return _of(lambda run: run.environment, *names)


def _summary(*names: str) -> Callable[[Run], str | None]:
    return _of(lambda run: run.summary, *names)


def _data_files(run: Run) -> str | None:
    digests = run.summary.get("digests")
    return str(digests.get("files", "as configured")) if isinstance(digests, Mapping) else None


def _of(part: Callable[[Run], Mapping[str, Any]], *names: str) -> Callable[[Run], str | None]:
    def read(run: Run) -> str | None:
        value: Any = part(run)
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return None if value is None else _text(value)

    return read


def _system(run: Run) -> str | None:
    parts = [run.environment.get(name) for name in ("platform", "machine")]
    return None if None in parts else ", ".join(str(part) for part in parts)


def _variables(run: Run) -> str | None:
    variables = run.environment.get("variables")
    if not isinstance(variables, Mapping):
        return None
    # Ranks set their number of threads themselves: it is compared as `threads.per_rank`.
    compared = {name: value for name, value in variables.items() if not str(name).endswith("_NUM_THREADS")}
    given = [f"{name}={value}" for name, value in sorted(compared.items()) if value is not None]
    return ", ".join(given) or "none set"


def _network(run: Run) -> str | None:
    """What makes the links: ranks, kernel, or the machine itself, and what it stands in for."""
    if not run.environment:
        return None
    made = run.environment.get("network")
    if not isinstance(made, Mapping):
        return "the machine's"
    instead = made.get("instead_of_kernel")
    return f"made by {made.get('made_by')}" + (f", no kernel network: {instead}" if instead else "")


def _changes(run: Run) -> str | None:
    """The hash of local changes, `none` for a clean checkout; None without a commit."""
    if run.environment.get("commit") is None:
        return None
    return str(run.environment.get("dirty") or "none")


def _evaluations(*names: str) -> Callable[[Run], str | None]:
    """The distinct values of these fields over the run's evaluations."""

    def read(run: Run) -> str | None:
        rows = [[row.get(name) for name in names] for row in run.evaluations]
        if not rows or any(None in row for row in rows):
            return None
        return ", ".join(dict.fromkeys(" ".join(str(value) for value in row) for row in rows))

    return read


def _count_of_evaluations(run: Run) -> str | None:
    return str(len(run.evaluations)) if run.evaluations else None


def _tuning(run: Run) -> str | None:
    """The same for arms that were searched alike; costs and results are in the table `tuning`."""
    study = run.config.get("study")
    if not isinstance(study, Mapping) or "tuned" not in study:
        return None
    if not run.tuned:
        return "none: the study's own settings"
    seeds = trial_seeds(int(study["tune_trials"]))
    return f"{len(seeds)} trials, seeds {seeds[0]} to {seeds[-1]}: {study['tune_space']}"


def node_speed(run: Run) -> str | None:
    """`0.96 Tflop/s`, by node where they differ; `the machines' own` where no device is modelled."""
    ranks = (run.config.get("cluster") or {}).get("ranks_per_node")
    if not isinstance(ranks, list) or not all(isinstance(count, int) for count in ranks):
        return None
    speed = modelled_speed(run)
    if speed is None:
        return "the machines' own"
    each, unit = speed
    return ", ".join(dict.fromkeys(f"{each * count:.6g} {unit}" for count in ranks))


def modelled_speed(run: Run) -> tuple[float, str] | None:
    """How fast a rank's modelled device is, and its unit; None where the machine's own computes."""
    device = (run.config.get("cluster") or {}).get("device") or {}
    for name, unit in (("samples_per_second", "samples/s"), ("tflops", "Tflop/s")):
        each = device.get(name)
        if isinstance(each, int | float) and not isinstance(each, bool):
            return each, unit
    return None


def _samples(run: Run) -> str | None:
    return None if run.samples is None else _text(run.samples)


def _world(run: Run) -> str | None:
    return None if run.world == "unknown" else run.world


def _schema(run: Run) -> str | None:
    versions = [part.get("schema_version") for part in (run.status, run.environment)]
    return None if None in versions else " and ".join(str(version) for version in versions)


def _ranks(run: Run) -> list[Mapping[str, Any]]:
    rows = run.environment.get("ranks")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def queued(run: Run) -> float | None:
    """Run-queue seconds of the worst rank's threads together, per second of training; None: not recorded."""
    return number(run.summary.get("run_queue_share"))


def queue_share(arm: Arm) -> float | None:
    """The median over the runs that count; None where none of them has recorded it."""
    return median(shares) if (shares := _known(arm.counted)) else None


def busy_reason(arm: Arm) -> str:
    """Why the times of an arm are not valid: its ranks waited for a core; "" if not, or not recorded."""
    waited = queue_share(arm)
    if waited is None or waited <= QUEUE_LIMIT:
        return ""
    return (
        f"the machine was busy: the threads of a rank of {arm.label} stood ready without a core for "
        f"{in_each_second(waited)}, all together; at most {QUEUE_LIMIT:g} s"
    )


def busy_warning(comparison: Comparison) -> str:
    """The sentence about a comparison in which runs waited for cores; "" where every run had its cores."""
    shares = _known(run for run in comparison.runs if run.counted)
    busy = [waited for waited in shares if waited > QUEUE_LIMIT]
    if not busy:
        return ""
    return (
        f"The machine was busy in {len(busy)} of {len(shares)} runs: the threads of a rank stood ready "
        f"without a core for up to {in_each_second(max(busy))}, all together (at most {QUEUE_LIMIT:g} s for "
        "a verdict, median over an arm's runs)."
    )


def _known(runs: Iterable[Run]) -> list[float]:
    return [waited for waited in map(queued, runs) if waited is not None]


QUANTITIES = (
    Quantity(
        key="model.initial", words="initial weights, digest", read=_summary("digests", "initial_weights")
    ),
    Quantity(key="model.parameters", words="trainable numbers of the model", read=_summary("parameters")),
    Quantity(key="data.order", words="first 100 batches, digest", read=_summary("digests", "first_batches")),
    Quantity(key="data.files", words="files of the data set, digest", read=_data_files),
    Quantity(key="data.local_batch", words="samples of each rank in a step", read=local_batch),
    Quantity(key="data.left_out", words="samples left out of an epoch", read=_summary("left_out_samples")),
    Quantity(key="data.samples", words="samples trained in all", read=_samples, complete=True),
    Quantity(
        key="evaluation.set", words="evaluation set: split, samples", read=_evaluations("split", "count")
    ),
    Quantity(key="evaluation.mode", words="how models were evaluated", read=_evaluations("mode")),
    Quantity(key="evaluation.count", words="evaluations", read=_count_of_evaluations, complete=True),
    Quantity(key="tuning", words="tuning: trials of the arm, seeds, what was searched of all", read=_tuning),
    Quantity(
        key="arithmetic.flags", words="flags of arithmetic (TF32, ...)", read=_environment("arithmetic")
    ),
    Quantity(key="hardware.node_speed", words="modelled speed of all ranks of a node", read=node_speed),
    Quantity(key="hardware.hosts", words="nodes", read=_hosts, real=True),
    Quantity(key="hardware.system", words="system", read=_system, real=True),
    Quantity(key="hardware.devices", words="devices", read=_distinct("device"), real=True),
    Quantity(key="hardware.models", words="models of the devices", read=_distinct("device_model"), real=True),
    Quantity(key="hardware.cores", words="usable cores of rank 0", read=_environment("cores"), real=True),
    Quantity(key="threads.per_rank", words="threads of each rank", read=_by_rank("threads"), real=True),
    Quantity(key="threads.affinity", words="cores of each rank", read=_by_rank("cores"), real=True),
    Quantity(key="transport.backend", words="backend", read=_environment("backend")),
    Quantity(key="transport.variables", words="variables of libraries", read=_variables, real=True),
    Quantity(key="transport.network", words="who made the links", read=_network, real=True),
    Quantity(key="versions.python", words="Python", read=_environment("python")),
    Quantity(key="versions.packages", words="packages", read=_environment("packages")),
    Quantity(key="versions.daso_bench", words="daso-bench", read=_environment("daso_bench")),
    Quantity(key="code.commit", words="commit", read=_environment("commit")),
    Quantity(key="code.changes", words="local changes, hash", read=_changes),
    Quantity(key="rules.version", words="rules of measuring", read=_environment("rules_version")),
    Quantity(key="rules.schema", words="schemas of the records", read=_schema),
    Quantity(key="rules.clock", words="clock", read=_world),
)

THREADS_ON_CORES = Quantity(
    key="threads.fit", words="threads over the cores of a machine", read=threads_on_cores, real=True
)
