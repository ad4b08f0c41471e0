"""`report(directory, output)`: one offline page, tables and figures as files, from run directories alone."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ...strategies.errors import ConfigError
from .. import claims
from ..claims_table import gain_words
from ..validation import reference
from . import words
from .answer import Answer, answers
from .answer_words import cells, sentences, speedup_rows
from .arms import MANY_RUNS, Arm, Comparison, common_settings, compare, own_settings
from .bandwidth import Bandwidth, bandwidth_rows, bandwidths, crossing_rows
from .command import command_of, script_of
from .epochs import epochs_rows, has_spread, has_staleness
from .fairness import Ledger
from .headline import ArmLine, headline, headline_rows
from .judge import Judged, judge
from .load import Run, find_runs, load_run
from .look import swatch
from .pictures import Picture, answer_picture, bandwidth_picture, pictures, sensitivity_picture
from .rank_times import is_uneven, ranks_rows
from .sensitivity import Sensitivity, sensitivities, sensitivity_rows
from .tables import arms_rows, evaluations_rows, runs_rows, write_table
from .verdict_words import claim_rows, fairness_rows, remarks, workload

WORLDS = {
    "local": "local processes, real time",
    "local/modelled": "local processes in real time; links are modelled, operations held back",
    "emulated/modelled": "emulated: real processes and time; links are modelled, operations held back",
    "emulated/kernel": "emulated: real processes, traffic and time; the kernel shapes the links",
    "simulated": "simulated: real gradients, the time of a modelled cluster",
}


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """What sets an arm apart from what all have in common, and each of its runs from the others."""

    arm: Arm
    settings: dict[str, str]
    runs: list[tuple[Run, dict[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A comparison as the page shows it."""

    comparison: Comparison
    title: str
    facts: list[tuple[str, str]]
    warnings: list[str]
    lines: list[ArmLine]
    pictures: list[Picture]
    common: dict[str, str]
    own: list[OwnSettings]


def report(directory: Path, output: Path) -> Path:
    """Write index.html, tables and figures to `output`; returns the page's path.

    Reads only run directories at or below `directory`; equal input gives equal bytes, wherever either lies.
    Raises ConfigError if there is no such folder or no run in it, OSError if `output` cannot be written.
    """
    directory, output = Path(directory), Path(output)
    if not directory.is_dir():
        raise ConfigError(f"report {directory}: no such folder")
    runs = [load_run(path, _place(path, directory)) for path in find_runs(directory)]
    if not runs:
        raise ConfigError(f"report {directory}: no run directory in it (a folder with status.json)")
    comparisons = compare(runs)
    assumed = sensitivities(comparisons)
    by_rate = bandwidths(comparisons)
    found = answers(comparisons)
    judged = judge(claims.load(), found)
    output.mkdir(parents=True, exist_ok=True)
    # Tables first: a figure that fails must not cost them.
    tables = _tables(comparisons, assumed, by_rate, found, judged)
    for name, rows in tables.items():
        write_table(output / f"{name}.csv", rows)
    page = output / "index.html"
    parts = (
        _answered(found, output),
        judged,
        _sections(comparisons, output),
        _drawn(assumed, output),
        _over_rates(by_rate, output),
    )
    page.write_text(_render(*parts, comparisons, runs, list(tables)), encoding="utf-8")
    return page


def _place(path: Path, directory: Path) -> str:
    place = path.relative_to(directory).as_posix()
    return "the run" if place == "." else place


def _tables(
    comparisons: Sequence[Comparison],
    assumed: Sequence[Sensitivity],
    by_rate: Sequence[Bandwidth],
    found: Sequence[Answer],
    judged: Sequence[Judged],
) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table by its name; of those beyond the first three only what has any."""
    configured = _configured(comparisons)
    told = [one for one in judged if one.comparison is not None]
    others = {
        "headline": headline_rows(configured),
        "speedups": speedup_rows(found),
        "claims": claim_rows(told),
        "fairness": fairness_rows(told),
        "epochs": epochs_rows(c for c in configured if has_spread(c) or has_staleness(c)),
        "ranks": ranks_rows(c for c in configured if is_uneven(c)),
        "sensitivity": sensitivity_rows(assumed),
        "bandwidth": bandwidth_rows(by_rate),
        "crossings": crossing_rows(by_rate),
    }
    return {
        "runs": runs_rows(comparisons),
        "evaluations": evaluations_rows(comparisons),
        "arms": arms_rows(comparisons),
        **{name: rows for name, rows in others.items() if rows},
    }


def _configured(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Those with a section of their own: without an assumption."""
    return [comparison for comparison in comparisons if not comparison.assumption]


def _sections(comparisons: Sequence[Comparison], output: Path) -> list[Section]:
    """One for each comparison as configured; those under assumptions have a section of their own."""
    configured = _configured(comparisons)
    worlds, sizes = {c.world for c in configured}, {c.size for c in configured}
    found = []
    for number, comparison in enumerate(configured, 1):
        title = [f"{comparison.model} on {comparison.dataset}"]
        title += [words.world(comparison.world)] if len(worlds) > 1 else []
        title += [comparison.size] if len(sizes) > 1 and comparison.size else []
        prefix = f"{number}_" if len(configured) > 1 else ""
        found.append(_section(comparison, ", ".join(title), output, prefix))
    return found


def _section(comparison: Comparison, title: str, output: Path, prefix: str) -> Section:
    runs = comparison.runs
    common = common_settings(runs)
    return Section(
        comparison=comparison,
        title=title,
        facts=_facts(comparison),
        warnings=_comparison_warnings(comparison),
        lines=headline(comparison),
        pictures=pictures(comparison, output, prefix),
        common=common,
        own=[_own(arm, common) for arm in comparison.arms],
    )


def _own(arm: Arm, common: dict[str, str]) -> OwnSettings:
    shared = common_settings(arm.runs)
    return OwnSettings(
        arm=arm,
        settings={key: value for key, value in shared.items() if key not in common},
        runs=[(run, own_settings(run, shared)) for run in arm.runs],
    )


def _drawn(assumed: Sequence[Sensitivity], output: Path) -> list[tuple[Sensitivity, list[Picture]]]:
    """Each with the figure of each of its tables."""
    several = sum(len(one.tables) for one in assumed) > 1
    names = (f"sensitivity_{number}.svg" if several else "sensitivity.svg" for number in count(1))
    return [
        (one, [sensitivity_picture(table, one.world, output / next(names)) for table in one.tables])
        for one in assumed
    ]


def _answered(found: Sequence[Answer], output: Path) -> list[tuple[Answer, Picture]]:
    """Each with its figure."""
    names = (f"speedups_{number}.svg" if len(found) > 1 else "speedups.svg" for number in count(1))
    return [(one, answer_picture(one, output / next(names))) for one in found]


def _ledgers(judged: Sequence[Judged]) -> list[tuple[str, Ledger]]:
    """Each once, with what it compares."""
    found: dict[str, Ledger] = {}
    for one in judged:
        if one.ledger is not None:
            found.setdefault(f"{one.arm} against {one.comparator} ({workload(one)})", one.ledger)
    return list(found.items())


def _over_rates(by_rate: Sequence[Bandwidth], output: Path) -> list[tuple[Bandwidth, Picture]]:
    """Each with its figure."""
    names = (f"bandwidth_{number}.svg" if len(by_rate) > 1 else "bandwidth.svg" for number in count(1))
    return [(one, bandwidth_picture(one, output / next(names))) for one in by_rate]


def _facts(comparison: Comparison) -> list[tuple[str, str]]:
    runs = comparison.runs
    found = [("World", _world(comparison))]
    known = reference() if comparison.world == "simulated" else None
    found += [("How far virtual time is off", known.sentence())] if known else []
    found += [("Size", comparison.size)] if comparison.size else []
    found += [("Cluster", "; ".join(sorted({_cluster(run) for run in runs})))]
    if comparison.targets:
        found.append(("Target", "; ".join(f"{runs[0].metric} {target:g}" for target in comparison.targets)))
    batches = sorted({str((run.config.get("train") or {}).get("global_batch_size")) for run in runs})
    found.append(("Global batch", ", ".join(batches) + " samples"))
    counts = sorted({row["count"] for run in runs for row in run.evaluations if row.get("count")})
    if len(counts) == 1:
        found.append(("Judged on", f"{counts[0]:,} samples, each once"))
    return found


def _world(comparison: Comparison) -> str:
    """What the numbers come from."""
    launchers = [run.config.get("launcher") or {} for run in comparison.runs]
    if all(launcher.get("timing_only") for launcher in launchers):
        return "simulated: no training, the time of a modelled cluster alone"
    return WORLDS.get(comparison.world, comparison.world)


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


def _comparison_warnings(comparison: Comparison) -> list[str]:
    """What makes the arms of a comparison less than comparable."""
    found = []
    train = [run.config.get("train") or {} for run in comparison.runs]
    cadences = {str(t.get("eval_every_samples")) for t in train}
    phases: dict[Any, set[str]] = defaultdict(set)
    for run, t in zip(comparison.runs, train, strict=True):
        phases[run.block].add(str(t.get("eval_phase")))
    if len(cadences) > 1 or any(len(found) > 1 for found in phases.values()):
        found.append("Runs evaluate at different intervals: their crossings are not known equally well.")
    if len(comparison.targets) > 1:
        found.append("Runs have different targets: their times to target are not comparable.")
    before = [run.crossing.index + 1 for run in comparison.runs if run.crossing]
    if before and min(before) < 20:
        found.append(
            f"Few evaluations up to the crossing ({min(before)} in the shortest case; 20 are wanted before a"
            " verdict on time to target): the interval of each crossing is wide."
        )
    return found


def _render(
    answered: Sequence[tuple[Answer, Picture]],
    judged: Sequence[Judged],
    sections: Sequence[Section],
    assumed: Sequence[tuple[Sensitivity, list[Picture]]],
    by_rate: Sequence[tuple[Bandwidth, Picture]],
    comparisons: Sequence[Comparison],
    runs: Sequence[Run],
    tables: Sequence[str],
) -> str:
    folder = resources.files(__name__.rpartition(".")[0])
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    template = environment.get_template("page.html.j2")
    studies = sorted({run.study for run in runs})
    return template.render(
        css=Markup((folder / "style.css").read_text(encoding="utf-8")),
        studies=studies,
        worlds=sorted({_world(comparison) for comparison in comparisons}),
        answers=answered,
        answered=[one.comparison for one, _ in answered],
        judged=[one for one in judged if one.comparison is not None],
        untold=[one.claim.id for one in judged if one.comparison is None],
        ledgers=_ledgers(judged),
        gain_words=gain_words,
        remarks=remarks,
        workload=workload,
        cells=cells,
        sentences=sentences,
        sections=sections,
        assumed=assumed,
        by_rate=by_rate,
        runs=runs,
        untimed=_untimed(runs),
        trouble=[run for run in runs if run.state != "finished" or run.invalid],
        resumed=[run for run in runs if run.resumed],
        damage=[sentence for run in runs for sentence in run.damage],
        environments=_environments(runs),
        command_of=command_of,
        script_of=script_of,
        tables=tables,
        many=MANY_RUNS,
        script=Markup((folder / "sort.html.j2").read_text(encoding="utf-8")),
        words=words,
        swatch=swatch,
    )


def _untimed(runs: Iterable[Run]) -> list[tuple[str, int]]:
    """Each reason why times are not to be trusted, with the number of runs that give it."""
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        for reason in run.timing_reasons:
            counts[reason] += 1
    return sorted(counts.items())


def _environments(runs: Iterable[Run]) -> list[tuple[list[str], list[tuple[str, str]]]]:
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
