"""What a page says of where its numbers come from: worlds, clusters, targets, machines, and what is amiss."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ..config.cluster import compared_words
from . import efficiency
from .claims import recorded
from .data.arms import Comparison, shown
from .data.load import Run
from .data.metric import target_words
from .simulation_errors import reference

WORLDS = {
    "local": "local processes, real time",
    "local/modelled": "local processes in real time; links are modelled, operations held back",
    "emulated/modelled": "emulated: real processes and time; links are modelled, operations held back",
    "emulated/kernel": "emulated: real processes, traffic and time; the kernel shapes the links",
    "simulated": "simulated: real gradients, the time of a modelled cluster",
}


def facts_of(comparison: Comparison) -> list[tuple[str, str]]:
    """What its section begins with: each fact and its name."""
    runs = comparison.runs
    found = [("World", world_of(comparison))]
    known = reference() if comparison.world == "simulated" else None
    found += [("How far virtual time is off", f"{_compared(runs)} {known.sentence()}")] if known else []
    found += [("Size", comparison.size)] if comparison.size else []
    found += [("Cluster", "; ".join(sorted({_cluster(run) for run in runs})))]
    if comparison.targets:
        found.append(
            ("Target", "; ".join(target_words(runs[0].metric, target) for target in comparison.targets))
        )
    batches = sorted({str((run.config.get("train") or {}).get("global_batch_size")) for run in runs})
    found.append(("Global batch", ", ".join(batches) + " samples"))
    counts = sorted({row["count"] for run in runs for row in run.evaluations if row.get("count")})
    if len(counts) == 1:
        found.append(("Judged on", f"{counts[0]:,} samples, each once"))
    return found


def world_of(comparison: Comparison) -> str:
    """What the numbers come from."""
    launchers = [run.config.get("launcher") or {} for run in comparison.runs]
    if all(launcher.get("timing_only") for launcher in launchers):
        return "simulated: no training, the time of a modelled cluster alone"
    return WORLDS.get(comparison.world, comparison.world)


def _compared(runs: Iterable[Run]) -> str:
    """What is known of the step times of the runs' own clusters."""
    ranks = sorted({(run.config.get("cluster") or {}).get("validated_ranks") or 0 for run in runs})
    told = "; ".join(compared_words(number) for number in ranks)
    return f"{told[0].upper()}{told[1:]}."


def _cluster(run: Run) -> str:
    cluster = run.config.get("cluster") or {}
    nodes, ranks = cluster.get("nodes"), cluster.get("ranks_per_node")
    if isinstance(ranks, list) and len(set(ranks)) == 1:
        ranks = ranks[0]
    shape = f"× {ranks} ranks" if not isinstance(ranks, list) else f"with {' + '.join(map(str, ranks))} ranks"
    rate = ((cluster.get("links") or {}).get("inter") or {}).get("rate_gbit")
    kind = (cluster.get("device") or {}).get("kind")
    described = [f"{rate:g} Gbit/s a card between nodes"] if isinstance(rate, int | float) else []
    kinds = [kind] if isinstance(kind, str) and kind else [" and ".join(kind)] if kind else []
    return ", ".join([f"{nodes} nodes {shape}", *described, *kinds])


def warnings_of(everything: Comparison) -> list[str]:
    """What makes the arms of a comparison less than comparable, those that stand apart beside."""
    found = [said for said in (recorded.busy_warning(everything), efficiency.warning(everything)) if said]
    comparison = shown(everything)
    train = [run.config.get("train") or {} for run in comparison.runs]
    cadences = {str(t.get("eval_every_samples")) for t in train}
    phases: dict[Any, set[str]] = defaultdict(set)
    for run, t in zip(comparison.runs, train, strict=True):
        phases[run.block].add(str(t.get("eval_phase")))
    if len(cadences) > 1 or any(len(found) > 1 for found in phases.values()):
        found.append("Runs evaluate at different intervals: their crossings are not known equally well.")
    if len(comparison.targets) > 1:
        found.append("Runs have different targets: their times to target are not comparable.")
    digests = [run.summary.get("digests") or {} for run in comparison.runs if run.summary]
    if len({str(known.get("files")) for known in digests}) > 1:
        found.append("Runs have different files of the data set (digests.files): they learn other things.")
    before = [run.crossing.index + 1 for run in comparison.runs if run.crossing]
    if before and min(before) < 20:
        found.append(
            f"Few evaluations up to the crossing ({min(before)} in the shortest case; 20 are wanted before a"
            " verdict on time to target): the interval of each crossing is wide."
        )
    return found


def untimed(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """Each reason why times are not to be trusted, with the number of runs that give it."""
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for reason in run.timing_reasons:
            counts[reason] += 1
    return sorted(counts.items())


def environments(runs: Iterable[Run]) -> list[tuple[list[str], list[tuple[str, str]]]]:
    """Distinct environments, each with the runs that had it."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for run in runs:
        found[tuple(_environment_facts(run.environment))].append(run.run_id)
    return [(ids, list(facts)) for facts, ids in sorted(found.items(), key=lambda item: item[1][0])]


def _environment_facts(environment: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [(key, str(value)) for key, value in environment.items() if not isinstance(value, list | dict)]
    ranks = [rank for rank in environment.get("ranks") or [] if isinstance(rank, dict)]
    if ranks:
        fields = ("rank", "node", "device", "threads")
        told = [", ".join(f"{name} {rank[name]}" for name in fields if name in rank) for rank in ranks]
        facts.append(("ranks", "; ".join(told)))
    return facts
