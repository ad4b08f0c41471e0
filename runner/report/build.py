"""`report(directory, output)`: one offline page, tables and figures as files, from run directories alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ..machine.user_paths import writing
from . import words
from .bandwidth import Bandwidth, bandwidth_rows, bandwidths, crossing_rows
from .claims import convergence_points, paper_claims
from .claims.claim_tables import (
    cells,
    claim_rows,
    fairness_rows,
    remarks,
    sentences,
    speedup_rows,
    workload,
)
from .claims.fairness import FairnessTable
from .claims.judge import NO_ARM, JudgedClaim, judge
from .claims.paper_claims import gain_words
from .claims.speedups import Speedups, all_speedups
from .data.arms import MANY_RUNS, ONE_CORE, Arm, Comparison, common_settings, compare, own_settings, shown
from .data.load import Run, load_runs
from .efficiency import Matrix, efficiency_rows, efficiency_words, matrices
from .epochs import epochs_rows, has_spread, has_staleness
from .facts import environments, facts_of, untimed, warnings_of, world_of
from .headline import ArmLine, headline, headline_rows
from .plots.arm_style import swatch
from .plots.pictures import Picture, picture, pictures
from .rank_times import is_uneven, ranks_rows
from .reach_table import reached_rows
from .reader_matrix import Readings, reader_rows, readings, record_sizes
from .reproduce import command_of, script_of
from .sensitivity import Sensitivity, sensitivities, sensitivity_rows
from .split import PARTS
from .tables import arms_rows, evaluations_rows, runs_rows, write_table
from .tuned import regret_words, row_of, tuned_arms, tuning_rows, winner_words

_T = TypeVar("_T")


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
    apart: list[Run]


def report(directory: Path, output: Path, config_dir: Path | None = None) -> Path:
    """Write index.html, tables and figures to `output`; returns the page's path.

    Reads only run directories at or below `directory`, and claims and stored points in `config_dir`; equal
    input gives equal bytes, wherever any of them lies. Raises ConfigError if there is no such folder, no run
    in it, something wrong in `config_dir` or `output` cannot be written, MachineError if the disk is full.
    """
    output = Path(output)
    folders = [config_dir] if config_dir else []
    runs = load_runs(Path(directory), "report")
    comparisons = compare(runs)
    found = all_speedups(comparisons, convergence_points.load(folders))
    judged = judge(paper_claims.load(folders), found, comparisons)
    over = _Over.of(comparisons)
    with writing(f"report {output}"):
        output.mkdir(parents=True, exist_ok=True)
        # Tables first: a figure that fails must not cost them.
        tables = _tables(comparisons, found, judged) | over.tables
        for name, rows in tables.items():
            write_table(output / f"{name}.csv", rows)
        page = output / "index.html"
        sections, answered = _sections(comparisons, output), _each_drawn("speedups", found, output)
        drawn = over.drawn(output)
        text = _render(
            answered, judged, sections, drawn, comparisons, runs, list(tables), files_of(config_dir)
        )
        page.write_text(text, encoding="utf-8")
    return page


@dataclass(frozen=True, kw_only=True)
class _Over:
    """What is found over several comparisons, or of some alone."""

    assumed: list[Sensitivity]
    by_rate: list[Bandwidth]
    efficient: list[Matrix]
    read: list[Readings]

    @classmethod
    def of(cls, comparisons: list[Comparison]) -> "_Over":
        return cls(
            assumed=sensitivities(comparisons),
            by_rate=bandwidths(comparisons),
            efficient=matrices(comparisons),
            read=readings(comparisons),
        )

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of each table by its name, where there are any."""
        all_rows = {
            "efficiency": efficiency_rows(self.efficient),
            "readers": reader_rows(self.read),
            "sensitivity": sensitivity_rows(self.assumed),
            "bandwidth": bandwidth_rows(self.by_rate),
            "crossings": crossing_rows(self.by_rate),
        }
        return {name: rows for name, rows in all_rows.items() if rows}

    def drawn(self, output: Path) -> dict[str, Any]:
        """What the page shows of it: the parts by the names that the templates have for them."""
        return {
            "assumed": _drawn(self.assumed, output),
            "by_rate": _each_drawn("bandwidth", self.by_rate, output),
            "efficient": self.efficient,
            "readers": self.read,
            "record_sizes": _each_drawn("readers", record_sizes(self.read), output),
        }


def _tables(
    comparisons: Sequence[Comparison], found: Sequence[Speedups], judged: Sequence[JudgedClaim]
) -> dict[str, list[dict[str, Any]]]:
    """The rows of each table by its name; of those beyond the first three only what has any."""
    configured = _configured(comparisons)
    beside = [shown(one) for one in configured]
    told = [one for one in judged if one.comparison is not None]
    others = {
        "headline": headline_rows(beside),
        "reached": reached_rows(beside),
        "speedups": speedup_rows(found),
        "claims": claim_rows(told),
        "tuning": tuning_rows(tuned_arms(configured)),
        "fairness": fairness_rows(told),
        "epochs": epochs_rows(c for c in configured if has_spread(c) or has_staleness(c)),
        "ranks": ranks_rows(c for c in configured if is_uneven(c)),
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
        title += [row for row in [row_of(comparison, configured)] if row]
        prefix = f"{number}_" if len(configured) > 1 else ""
        found.append(_section(comparison, ", ".join(title), output, prefix))
    return found


def _section(comparison: Comparison, title: str, output: Path, prefix: str) -> Section:
    runs, seen = comparison.runs, shown(comparison)
    common = common_settings(runs)
    return Section(
        comparison=comparison,
        title=title,
        facts=facts_of(seen),
        warnings=warnings_of(comparison),
        lines=headline(seen),
        pictures=pictures(seen, output, prefix),
        common=common,
        own=[_own(arm, common) for arm in comparison.arms],
        apart=[run for run in runs if run.role == ONE_CORE],
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
        (one, [picture("sensitivity", output / next(names), table, one.world) for table in one.tables])
        for one in assumed
    ]


def _each_drawn(name: str, found: Sequence[_T], output: Path) -> list[tuple[_T, Picture]]:
    """Each with its figure."""
    names = (f"{name}_{number}.svg" if len(found) > 1 else f"{name}.svg" for number in count(1))
    return [(one, picture(name, output / next(names), one)) for one in found]


def files_of(config_dir: Path | None) -> list[str]:
    """The files of the user's own that the page rests on, by their place in `config_dir`."""
    if config_dir is None:
        return []
    folders = [config_dir / name for name in (paper_claims.FOLDER, convergence_points.FOLDER)]
    return [f"{folder.name}/{file.name}" for folder in folders for file in sorted(folder.glob("*.yaml"))]


def _ledgers(judged: Sequence[JudgedClaim]) -> list[tuple[str, FairnessTable]]:
    """Each once, with what it compares."""
    found: dict[str, FairnessTable] = {}
    for one in judged:
        if one.fairness is not None:
            found.setdefault(f"{one.arm} against {one.comparator} ({workload(one)})", one.fairness)
    return list(found.items())


def _anchors(sections: Sequence[Section], members: Sequence[Comparison]) -> list[tuple[str, str]]:
    """Where the page has the commands of these comparisons, each with the title of its section."""
    return [
        (f"commands-{number}", section.title)
        for number, section in enumerate(sections, 1)
        if any(section.comparison is one for one in members)
    ]


def _render(
    answered: Sequence[tuple[Speedups, Picture]],
    judged: Sequence[JudgedClaim],
    sections: Sequence[Section],
    drawn: Mapping[str, Any],
    comparisons: Sequence[Comparison],
    runs: Sequence[Run],
    tables: Sequence[str],
    own_files: Sequence[str],
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
        worlds=sorted({world_of(comparison) for comparison in comparisons}),
        answers=answered,
        answered=[one.comparison for one, _ in answered],
        judged=[one for one in judged if one.comparison is not None],
        untold=[one.claim.id for one in judged if NO_ARM in one.verdict.reasons],
        not_compared=[one for one in judged if one.comparison is None and NO_ARM not in one.verdict.reasons],
        ledgers=_ledgers(judged),
        tuned=tuned_arms(comparisons),
        row_of=lambda comparison: row_of(comparison, comparisons),
        regret_words=regret_words,
        winner_words=winner_words,
        gain_words=gain_words,
        remarks=remarks,
        workload=workload,
        cells=cells,
        sentences=sentences,
        sections=sections,
        **drawn,
        parts_of_time=PARTS,
        efficiency_words=efficiency_words,
        anchors=lambda members: _anchors(sections, members),
        runs=runs,
        untimed=untimed(runs),
        trouble=[run for run in runs if run.state != "finished" or run.invalid],
        resumed=[run for run in runs if run.resumed],
        copied=[run for run in runs if run.copies],
        damage=[sentence for run in runs for sentence in run.damage],
        environments=environments(runs),
        command_of=command_of,
        script_of=script_of,
        tables=tables,
        own_files=own_files,
        many=MANY_RUNS,
        script=Markup((folder / "sort.html.j2").read_text(encoding="utf-8")),
        words=words,
        swatch=swatch,
    )
