"""Recorded facts of a run beyond its configuration: cores and threads, what arms must share.

`QUANTITIES` is the one list that the fairness table reads, as text; None where nothing is recorded. Field
names are those of docs/records.md.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from ...records.study_plan import trial_seeds
from .. import words
from ..data.arms import text
from ..data.load import Run, value_at

Read = Callable[[Run], str | None]


def local_batch(run: Run) -> str | None:
    """Samples of each rank in a full step, `16 x 4` for four ranks of 16: as split, or the equal split."""
    batches = value_at(run.summary, "strategy", "batches")
    batch = value_at(run.config, "train", "global_batch_size")
    nodes = value_at(run.config, "cluster", "ranks_per_node")
    if isinstance(batches, list) and batches:
        return _counted(batches)
    if not isinstance(batch, int) or not isinstance(nodes, list) or not nodes:
        return None
    ranks = sum(nodes)
    least, more = divmod(batch, ranks)
    return _counted([least + 1] * more + [least] * (ranks - more))


def _counted(values: Iterable[Any]) -> str:
    """`1 x 4, 2 x 2`: each value of successive ranks, and of how many."""
    return ", ".join(f"{text(value)} x {len(list(group))}" for value, group in groupby(values))


def ranks_of(run: Run) -> list[Mapping[str, Any]]:
    """What each rank recorded of its place and device."""
    rows = run.environment.get("ranks")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def hosts(run: Run) -> list[str]:
    """The machines of a run's nodes, each once; empty if one is not known."""
    ranks = ranks_of(run)
    if any(row.get("host") is None for row in ranks):
        return []
    return list(dict.fromkeys(str(row["host"]) for row in ranks))


def cores(run: Run) -> int | None:
    """Cores that a run's ranks may use, of all hosts together; None if it is not known."""
    return sum(cores for _, cores in _loads(run)) or None


def _loads(run: Run, *, helpers: int = 0) -> list[tuple[int, int]]:
    """(threads, cores) of each host, with `helpers` more threads for each rank; empty if one is not known."""
    threads: dict[str, int] = defaultdict(int)
    numbers: dict[str, set[int]] = defaultdict(set)
    for row in ranks_of(run):
        known = isinstance(row.get("threads"), int) and isinstance(row.get("cores"), list)
        if not known or not row["cores"]:
            return []
        threads[str(row.get("host"))] += row["threads"] + helpers
        numbers[str(row.get("host"))].update(row["cores"])
    cores = {host: len(of_host) for host, of_host in numbers.items()}
    quota = run.environment.get("cores")
    if cores and isinstance(quota, int):
        # Ranks that are bound to cores record only those; the nodes of a run are alike. Else a container's
        # quota may be below its affinity; it is recorded for rank 0's host.
        first = next(iter(cores))
        bound = value_at(run.config, "launcher", "pin")
        cores = dict.fromkeys(cores, quota) if bound else cores | {first: min(cores[first], quota)}
    return [(threads[host], cores[host]) for host in cores]


def most_threads(run: Run) -> tuple[int, int] | None:
    """(threads, cores) of the host with most threads a core; None if not known."""
    return max(_loads(run), key=lambda load: load[0] / load[1], default=None)


def idle_cores(run: Run) -> str:
    """`1 thread on 4 cores`, of a host with fewer threads than cores; "" if none is so, or not known.

    A process that makes batches has a core of its own.
    """
    workers = value_at(run.config, "launcher", "loader_workers")
    loads = _loads(run, helpers=workers if isinstance(workers, int) else 0)
    idle = (f"{words.count(few, 'thread')} on {cores} cores" for few, cores in loads if few < cores)
    return "" if paced(run) else next(idle, "")


def paced(run: Run) -> bool:
    """Whether the compute speed of its ranks is an input: in virtual time, or on modelled devices."""
    return run.world == "simulated" or bool(run.network and _modelled_speed(run))


def _modelled_speed(run: Run) -> tuple[float, str] | None:
    """How fast a rank's modelled device is, and its unit; None where the machine's own computes."""
    for name, unit in (("samples_per_second", "samples/s"), ("tflops", "Tflop/s")):
        each = value_at(run.config, "cluster", "device", name)
        if isinstance(each, int | float) and not isinstance(each, bool):
            return each, unit
    return None


def _node_speed(run: Run) -> str | None:
    """`0.96 Tflop/s`, by node where they differ; `the machines' own` where no device is modelled."""
    ranks, speed = value_at(run.config, "cluster", "ranks_per_node"), _modelled_speed(run)
    if not isinstance(ranks, list) or not all(isinstance(count, int) for count in ranks):
        return None
    if speed is None:
        return "the machines' own"
    return ", ".join(dict.fromkeys(f"{speed[0] * count:.6g} {speed[1]}" for count in ranks))


def _variables(run: Run) -> str | None:
    variables = run.environment.get("variables")
    if not isinstance(variables, Mapping):
        return None
    # Ranks set their number of threads themselves: it is compared as `threads.per_rank`.
    given = (
        f"{name}={value}"
        for name, value in sorted(variables.items())
        if value is not None and not str(name).endswith("_NUM_THREADS")
    )
    return ", ".join(given) or "none set"


def _network(run: Run) -> str | None:
    """What makes the links: ranks, kernel, or the machine itself."""
    if not run.environment:
        return None
    made_by = value_at(run.environment, "network", "made_by")
    return f"made by {made_by}" if made_by else "the machine's"


def _changes(run: Run) -> str | None:
    """The hash of local changes, `none` for a clean checkout; None without a commit."""
    if run.environment.get("commit") is None:
        return None
    return str(run.environment.get("dirty") or "none")


def _tuning(run: Run) -> str | None:
    """The same for arms that were searched alike; costs and results are in the table `tuning`."""
    study = run.config.get("study")
    if not isinstance(study, Mapping) or "tuned" not in study:
        return None
    if not run.tuned:
        return "none: the study's own settings"
    seeds = trial_seeds(int(study["tune_trials"]))
    return f"{len(seeds)} trials, seeds {seeds[0]} to {seeds[-1]}: {study['tune_space']}"


def _threads_fit(run: Run) -> str | None:
    """`4 threads on 2 cores`, of the host with most threads a core."""
    most = most_threads(run)
    return most and f"{most[0]} threads on {most[1]} cores"


def _data_files(run: Run) -> str | None:
    digests = run.summary.get("digests")
    return str(digests.get("files", "as configured")) if isinstance(digests, Mapping) else None


def _text(value: Any) -> str | None:
    return None if value is None else text(value)


def _of(part: str, *names: str) -> Read:
    """What stands at `names` in the run's `part`, "environment" or "summary"."""
    return lambda run: _text(value_at(getattr(run, part), *names))


def _of_rows(
    rows_of: Callable[[Run], Sequence[Mapping[str, Any]]], *names: str, counted: bool = False
) -> Read:
    """The distinct values of these fields in a run's rows; `counted`: in the order of the rows, `1 x 4`."""

    def read(run: Run) -> str | None:
        rows = [[row.get(name) for name in names] for row in rows_of(run)]
        if any(None in values for values in rows):
            return None
        shown = [" ".join(map(text, values)) for values in rows]
        return (_counted(shown) if counted else ", ".join(dict.fromkeys(shown))) or None

    return read


_evaluations = attrgetter("evaluations")
QUANTITIES: Mapping[str, tuple[str, Read]] = {
    "model.initial": ("initial weights, digest", _of("summary", "digests", "initial_weights")),
    "model.parameters": ("trainable numbers of the model", _of("summary", "parameters")),
    "data.order": ("first 100 batches, digest", _of("summary", "digests", "first_batches")),
    "data.files": ("files of the data set, digest", _data_files),
    "data.local_batch": ("samples of each rank in a step", local_batch),
    "data.left_out": ("samples left out of an epoch", _of("summary", "left_out_samples")),
    "data.samples": ("samples trained in all", lambda run: _text(run.samples)),
    "evaluation.set": ("evaluation set: split, samples", _of_rows(_evaluations, "split", "count")),
    "evaluation.mode": ("how models were evaluated", _of_rows(_evaluations, "mode")),
    "evaluation.count": ("evaluations", lambda run: _text(len(run.evaluations) or None)),
    "tuning": ("tuning: trials of the arm, seeds, what was searched of all", _tuning),
    "arithmetic.device": ("device that computed (changes numbers, not times)", attrgetter("computed_on")),
    "arithmetic.flags": ("flags of arithmetic (TF32, ...)", _of("environment", "arithmetic")),
    "cluster.node_speed": ("modelled speed of all ranks of a node", _node_speed),
    "hardware.hosts": ("nodes", lambda run: ", ".join(hosts(run)) or None),
    "hardware.system": ("system", _of("environment", "platform")),
    "hardware.machine": ("processor", _of("environment", "machine")),
    "hardware.devices": ("devices", _of_rows(ranks_of, "device")),
    "hardware.models": ("models of the devices", _of_rows(ranks_of, "device_model")),
    "hardware.cores": ("usable cores of rank 0", _of("environment", "cores")),
    "threads.per_rank": ("threads of each rank", _of_rows(ranks_of, "threads", counted=True)),
    "threads.affinity": ("cores of each rank", _of_rows(ranks_of, "cores", counted=True)),
    "threads.fit": ("threads over the cores of a machine", _threads_fit),
    "transport.backend": ("backend", _of("environment", "backend")),
    "transport.variables": ("variables of libraries", _variables),
    "transport.network": ("who made the links", _network),
    "versions.python": ("Python", _of("environment", "python")),
    "versions.packages": ("packages", _of("environment", "packages")),
    "versions.daso_bench": ("daso-bench", _of("environment", "daso_bench")),
    "code.commit": ("commit", _of("environment", "commit")),
    "code.changes": ("local changes, hash", _changes),
    "rules.version": ("rules of measuring", _of("environment", "rules_version")),
    "rules.schema": ("schemas of the records", _of("environment", "schema_version")),
    "rules.clock": ("clock", lambda run: None if run.world == "unknown" else run.world),
}
"""What `Strategy.may_differ` calls a quantity: its name in the table, and how it is read."""
REAL = ("hardware", "threads", "transport.variables", "transport.network")
"""Of real machines: nothing of these matters to the virtual clock."""
VIRTUAL = ("arithmetic.device",)
"""Of virtual time: there ranks have no machine of their own, and one device computes the numbers of all."""
OF_ALL_WORK = ("data.samples", "evaluation.count")
"""Only runs have them that did the whole of their schedule."""
