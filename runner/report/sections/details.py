"""Section: what is below page one, folded: every run, figures, settings and commands, what went wrong."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from .. import words
from ..data.arms import Arm, Comparison, common_settings, shown
from ..data.load import Run
from ..data.means import final_mean, target_mean, train_mean
from ..data.metric import target_words
from ..plots.comparison_figures import figures
from ..plots.pictures import Plot
from ..section import Section
from ..statistics.run_times import median_s, wilson
from ..target import budget_s, way


def arm_line(arm: Arm, limit_s: float | None) -> dict[str, Any]:
    """An arm of the table, its numbers as text. `limit_s`: the budget of all arms, seconds of T_train."""
    not_counted = len(arm.runs) - len(arm.counted)
    has_target = any(run.target is not None for run in arm.runs)
    return {
        "arm": arm,
        "runs": words.count(len(arm.counted), "run")
        + (f" (+ {not_counted} not counted)" if not_counted else ""),
        "reached": _share_reached(arm) if has_target else "no target set",
        "to_target": _to_target(arm, limit_s),
        "train": words.seconds(train_mean(arm)),
        "final": words.share(final_mean(arm)),
        "labels": list(dict.fromkeys(label for run in arm.runs for label in run.labels)),
    }


def _share_reached(arm: Arm) -> str:
    """How many runs reached the target, and between which shares of all such runs that puts them."""
    reached, runs = len(arm.reached), len(arm.counted)
    ends = wilson(reached, runs) if runs > 1 else None
    return f"{reached} of {runs}" + (f" [{ends.low:.2f}, {ends.high:.2f}]" if ends else "")


def _to_target(arm: Arm, limit_s: float | None) -> str:
    """The mean time to target; where not all runs reached it, the median of which the others are a part."""
    mean = target_mean(arm)
    if mean is None and limit_s is not None and len(arm.counted) > 1:
        median = median_s(way(arm.counted, limit_s))
        return words.MISSING if median is None else f"median {words.seconds(median)}"
    return words.seconds(mean)


def crossing_words(run: Run) -> str:
    if run.crossing is None:
        return "not reached" if run.counted and run.target is not None else words.MISSING
    return words.seconds(run.to_target_s)


def notes_of(run: Run, *, mixed: bool) -> list[str]:
    """What sets a run apart. `mixed`: whether the times of only some runs of its comparison are valid."""
    notes = {
        run.role.replace("_", " "): run.role,
        run.state: run.state != "finished",
        "invalid": run.invalid,
        "resumed: useful time": run.resumed,
        "timing not valid": mixed and run.timing_reasons and not run.invalid,
        "damaged records": run.damage,
    }
    return [note for note, holds in notes.items() if holds]


class DetailsSection(Section):
    """The folded part of the page; `runs.py` writes the tables behind it."""

    order = 90
    template = """
{% for block in section.blocks %}
{% set place = "commands-" ~ loop.index %}
<section>
<h2>{{ "Behind the answer" if loop.length == 1 else block.title }}
{{- page.of_study(block.comparison.study) }}</h2>
<details><summary>Every run ({{ block.comparison.runs | length }})</summary>
<div class="wide" role="region" aria-label="Arms and runs" tabindex="0">
<table>
<caption>Bold: geometric means of times, arithmetic means of {{ block.comparison.metric.name }}; no mean of
one run. Times are T_train: evaluation, checkpoints and start-up left out.
{{ "Target: " ~ block.targets | join("; ") ~ "." if block.targets }}</caption>
<thead><tr><th scope="col">Arm and runs</th><th scope="col">Reached</th>
<th scope="col">Time to target</th><th scope="col">Training time</th>
<th scope="col">Final {{ block.comparison.metric.name }}</th></tr></thead>
{% for line in block.lines %}
<tbody>
<tr class="arm"><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}<small>{{ line.runs }}</small>
{{- page.chips(line.labels) }}</th>
<td>{{ line.reached }}</td><td>{{ line.to_target }}</td><td>{{ line.train }}</td>
<td>{{ line.final }}</td></tr>
{% for run in line.arm.runs %}
<tr class="run{{ '' if run.counted else ' out' }}">
<th scope="row" title="{{ run.run_id }}">seed {{ run.seed }}
{{- page.chips(section.notes_of(run, mixed=block.mixed)) }}
{{- page.chips(run.labels) if run.labels != line.labels }}</th>
<td></td><td>{{ section.crossing_words(run) }}</td>
<td>{{ words.seconds(run.train_s) }}</td><td>{{ words.share(run.final) }}</td></tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
</div></details>
{% if block.figures %}
<details><summary>{{ block.figures | map(attribute="title") | join(", ") }}</summary>
<div class="figures">
{% for _ in block.figures %}
{{ page.figure(pictures.pop(0), [(place, "")]) }}
{% endfor %}
</div></details>
{% endif %}
<details><summary>Settings</summary>
{% call page.table("Settings of arms", block.settings, text=("Settings",)) %}
What sets the arms apart; the commands have all settings.
{% endcall %}</details>
{{ page.commands(place, block.comparison.arms | map(attribute="runs") | list) }}
</section>
{% endfor %}
{% for anchor, title, lines, open in section.lists if lines %}
<details id="{{ anchor }}"{{ " open" if open }}><summary>{{ title }}</summary>
<ul>
{% for line in lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
</details>
{% endfor %}
"""
    crossing_words = staticmethod(crossing_words)
    notes_of = staticmethod(notes_of)

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """One for each comparison as configured."""
        titled = list(zip(self.results.configured, self.results.titles, strict=True))
        return [
            block_of(comparison, title, f"{number}_" if len(titled) > 1 else "")
            for number, (comparison, title) in enumerate(titled, 1)
        ]

    @property
    def lists(self) -> list[tuple[str, str, list[str], bool]]:
        """Anchor, title and sentences of what the runs are and what went wrong; whether it is unfolded."""
        results = self.results
        machines: dict[str, list[str]] = defaultdict(list)
        for run in results.runs:
            machines[_machine(run.environment)].append(run.run_id)
        environment = [
            f"{words.count(len(ids), 'run')} ({', '.join(ids)}): {facts}" if len(machines) > 1 else facts
            for facts, ids in machines.items()
        ]
        troubles = [trouble(run) for run in results.trouble]
        copies = "Run directories found more than once; the furthest one counts"
        continued = [resumed(run) for run in results.runs if run.resumed]
        return [
            ("trouble", "Runs that did not finish or cannot be trusted", troubles, True),
            ("copied", copies, [run.found_again for run in results.copied], True),
            ("damage", "Damage found while reading", results.damage, True),
            ("resumed", "Resumed runs; all numbers use the work that survived", continued, False),
            ("environment", "Environment", environment, False),
        ]

    def plots(self) -> list[Plot]:
        return [figure for block in self.blocks for figure in block["figures"]]


def block_of(comparison: Comparison, title: str, prefix: str) -> dict[str, Any]:
    """A comparison as the page shows it. `prefix`: of the names of its figures."""
    together, common = shown(comparison), common_settings(comparison.runs)
    limit_s = budget_s(together)
    return {
        "comparison": comparison,
        "title": title,
        "figures": figures(together, prefix),
        "targets": [target_words(comparison.runs[0].metric, target) for target in comparison.targets],
        "lines": [arm_line(arm, limit_s) for arm in comparison.arms],
        "settings": [
            {
                "Arm": arm.label,
                "Settings": " ".join(
                    f"{key}={value}" for key, value in common_settings(arm.runs).items() if key not in common
                ),
            }
            for arm in comparison.arms
        ],
        # What holds for all runs stands once above the table, not in every line.
        "mixed": len({bool(run.timing_reasons) for run in together.runs}) > 1,
    }


def trouble(run: Run) -> str:
    """Why a run did not finish or cannot be trusted, and whether it counts all the same."""
    counts = "it counts as one that missed the target" if run.counted else "it counts for nothing"
    state = "invalid" if run.invalid else run.state
    return f"{run.run_id}: {state}, {counts}: {run.reason or 'no reason recorded'}"


def resumed(run: Run) -> str:
    """The attempts of a resumed run, and what was trained twice."""
    attempts = words.count(len(run.status.get("attempts") or []), "attempt")
    return (
        f"{run.run_id}: {attempts}, {words.seconds(run.train_s)} of training survived of "
        f"{words.seconds(run.spent_s)}, {words.seconds(run.calendar_s)} from first start to last end"
    )


def _machine(environment: Mapping[str, Any]) -> str:
    facts = [f"{key} {value}" for key, value in environment.items() if not isinstance(value, list | dict)]
    ranks = [rank for rank in environment.get("ranks") or [] if isinstance(rank, dict)]
    fields = ("rank", "node", "device", "threads")
    facts += [", ".join(f"{name} {rank[name]}" for name in fields if name in rank) for rank in ranks]
    return "; ".join(facts) or "no environment recorded"
