"""Section: what is below page one, folded: every run, figures, settings and commands, what went wrong."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from ...config.cluster import compared_words
from .. import simulation_errors, words
from ..claims import core_efficiency, recorded
from ..data.arms import Arm, Comparison, common_settings, own_settings, shown
from ..data.load import Run
from ..data.means import final_mean, target_mean, train_mean
from ..data.metric import target_words
from ..plots.comparison_figures import figures
from ..plots.pictures import Plot
from ..section import Section
from ..statistics.reached import median_s, wilson
from ..target import budget_s, way

FEW_EVALUATIONS = 20


def facts_of(comparison: Comparison) -> list[tuple[str, str]]:
    """Cluster, target and so on, and how far virtual time is off: name and value of each."""
    runs = comparison.runs
    facts = [("World", comparison.world_in_words)]
    known = simulation_errors.reference() if comparison.world == "simulated" else None
    facts += [("How far virtual time is off", f"{_compared(runs)} {known.sentence()}")] if known else []
    if comparison.targets:
        targets = [target_words(runs[0].metric, target) for target in comparison.targets]
        facts.append(("Target", "; ".join(targets)))
    batches = sorted({str((run.config.get("train") or {}).get("global_batch_size")) for run in runs})
    facts.append(("Global batch", ", ".join(batches) + " samples"))
    counts = sorted({row["count"] for run in runs for row in run.evaluations if row.get("count")})
    if len(counts) == 1:
        facts.append(("Evaluated on", f"{counts[0]:,} samples, each once"))
    return facts


def _compared(runs: Iterable[Run]) -> str:
    """What is known of the step times of the runs' own clusters."""
    ranks = sorted({(run.config.get("cluster") or {}).get("validated_ranks") or 0 for run in runs})
    sentence = "; ".join(compared_words(count) for count in ranks)
    return f"{sentence[0].upper()}{sentence[1:]}."


def warnings_of(everything: Comparison) -> list[str]:
    """What makes the arms of a comparison less than comparable, those that stand apart included."""
    warnings = [recorded.busy_warning(everything), core_efficiency.warning(everything)]
    comparison = shown(everything)
    train = [run.config.get("train") or {} for run in comparison.runs]
    intervals = {str(t.get("eval_every_samples")) for t in train}
    phases: dict[Any, set[str]] = defaultdict(set)
    for run, t in zip(comparison.runs, train, strict=True):
        phases[run.block].add(str(t.get("eval_phase")))
    if len(intervals) > 1 or any(len(values) > 1 for values in phases.values()):
        warnings.append("Runs evaluate at different intervals: their crossings are not known equally well.")
    if len(comparison.targets) > 1:
        warnings.append("Runs have different targets: their times to target are not comparable.")
    digests = [run.summary.get("digests") or {} for run in comparison.runs if run.summary]
    if len({str(known.get("files")) for known in digests}) > 1:
        warnings.append("Runs have different files of the data set (digests.files): they learn other things.")
    before = [run.crossing.index + 1 for run in comparison.runs if run.crossing]
    if before and min(before) < FEW_EVALUATIONS:
        warnings.append(
            f"Few evaluations up to the crossing ({min(before)} in the shortest case; {FEW_EVALUATIONS} are"
            " wanted before a verdict on time to target): the interval of each crossing is wide."
        )
    return [warning for warning in warnings if warning]


def arm_line(arm: Arm, limit_s: float | None) -> dict[str, Any]:
    """An arm of the table, its numbers as text. `limit_s`: the budget of all arms, seconds of T_train."""
    not_counted = len(arm.runs) - len(arm.counted)
    has_target = any(run.target is not None for run in arm.runs)
    one = "one run" if len(arm.counted) == 1 else ""
    train, final = train_mean(arm), final_mean(arm)
    return {
        "arm": arm,
        "runs": words.count(len(arm.counted), "run")
        + (f" (+ {not_counted} not counted)" if not_counted else ""),
        "reached": _share_reached(arm) if has_target else "no target set",
        "to_target": (one or _to_target(arm, limit_s)) if has_target and arm.counted else words.MISSING,
        "train": words.seconds(train) if train is not None else one or "no mean",
        "final": words.share(final) if final is not None else one or "no mean",
        "labels": list(dict.fromkeys(label for run in arm.runs for label in run.labels)),
    }


def _share_reached(arm: Arm) -> str:
    """How many runs reached the target, and between which shares of all such runs that puts them."""
    reached, runs = len(arm.reached), len(arm.counted)
    if runs < 2:
        return f"{reached} of {runs}"
    interval = wilson(reached, runs)
    return f"{reached} of {runs} [{interval.low:.2f}, {interval.high:.2f}]"


def _to_target(arm: Arm, limit_s: float | None) -> str:
    """The mean time to target; where not all runs reached it, the median of which the others are a part."""
    mean = target_mean(arm)
    if mean is not None:
        return words.seconds(mean)
    if limit_s is None:
        return "no mean, not all reached it"
    median = median_s(way(arm.counted, limit_s))
    return "no time, fewer than half reached it" if median is None else f"median {words.seconds(median)}"


def crossing_words(run: Run) -> str:
    if run.crossing is None:
        return "not reached" if run.counted and run.target is not None else words.MISSING
    return words.seconds(run.to_target_s)


def interval_words(run: Run) -> str:
    """Between which two evaluations the run crossed its target; "" if it did not."""
    crossing = run.crossing
    if crossing is None:
        return ""
    if crossing.at_first:
        return f"at the first evaluation, in (0, {words.significant(crossing.stamp_s)}] s"
    return f"in ({words.significant(crossing.after_s)}, {words.significant(crossing.stamp_s)}] s"


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
{% set figure = namespace(place=0) %}
{% for block in section.blocks %}
{% set place = "commands-" ~ loop.index %}
<section>
<h2>{{ "Behind the answer" if loop.length == 1 else block.title }}
{{- page.of_study(block.comparison.study) }}</h2>
<details><summary>What was compared
{{- ", with " ~ words.count(block.warnings | length, "warning") if block.warnings }}</summary>
<dl class="facts">
{% for name, value in block.facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% for warning in block.warnings %}
<p class="soft">Note: {{ warning }}</p>
{% endfor %}
</details>
<details><summary>Every run ({{ block.comparison.runs | length }})</summary>
<div class="wide" role="region" aria-label="Arms and runs" tabindex="0">
<table class="sortable">
<caption>Bold: geometric means of times, arithmetic means of {{ block.comparison.metric.name }}; no mean of
one run. Times are T_train: evaluation, checkpoints and start-up left out.</caption>
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
<td></td><td>{{ section.crossing_words(run) }}
{%- if run.crossing %}<small>{{ section.interval_words(run) }}</small>{% endif %}</td>
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
{{ page.figure(pictures[figure.place], [(place, "")]) }}
{% set figure.place = figure.place + 1 %}
{% endfor %}
</div></details>
{% endif %}
<details><summary>Settings</summary>
<p>What all runs have in common ({{ block.common | length }} settings):</p>
<ul class="settings">
{% for key, value in block.common.items() %}
<li><code>{{ key }}={{ value }}</code></li>
{% endfor %}
</ul>
<div class="wide" role="region" aria-label="Settings of arms and runs" tabindex="0">
<table><thead><tr><th scope="col">Arm and runs</th>
<th scope="col" class="text">Settings beyond the common ones</th></tr></thead>
{% for arm, settings, runs in block.settings %}
<tbody>
<tr class="arm"><th scope="row">{{ arm.label }}</th><td class="text">
{% for key, value in settings.items() %}<code>{{ key }}={{ value }}</code> {% else %}none{% endfor %}
</td></tr>
{% for run, of_run in runs %}
<tr><th scope="row" class="run"><code>{{ run.run_id }}</code></th><td class="text settings-of">
{% for key, value in of_run.items() %}<code>{{ key }}={{ value }}</code> {% endfor %}</td></tr>
{% endfor %}
</tbody>
{% endfor %}
</table></div></details>
{{ page.commands(place, block.comparison.arms | map(attribute="runs") | list) }}
</section>
{% endfor %}
{% if results.trouble %}
<details id="trouble" open><summary>Runs that did not finish or cannot be trusted</summary>
<div class="wide" role="region" aria-label="Runs that did not finish or cannot be trusted" tabindex="0">
<table class="sortable"><thead><tr><th scope="col">Run</th><th scope="col" class="text">Status</th>
<th scope="col" class="text">Reason</th><th scope="col">Counts as a run</th></tr></thead><tbody>
{% for run in results.trouble %}
<tr><td><code>{{ run.run_id }}</code></td>
<td class="text bad">{{ "invalid" if run.invalid else run.state }}</td>
<td class="text settings-of">{{ run.reason or "no reason recorded" }}</td>
<td>{{ "yes" if run.counted else "no" }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">A run that diverged or ran out of time counts as one that missed the target. One that failed,
was cancelled or is not over counts for nothing until it is repeated or resumed; so does one whose own checks
say that it measured this machine and not the links and devices it was asked for (invalid).</p>
</details>
{% endif %}
{% if results.resumed %}
<details id="resumed"><summary>Resumed runs</summary>
<div class="wide" role="region" aria-label="Resumed runs" tabindex="0"><table class="sortable">
<thead><tr><th scope="col">Run</th><th scope="col">Attempts</th><th scope="col">Useful T_train</th>
<th scope="col">Spent training, recorded</th><th scope="col">Calendar</th>
<th scope="col">Rows replaced by a later attempt</th></tr></thead><tbody>
{% for run in results.resumed %}
<tr><td><code>{{ run.run_id }}</code></td><td>{{ (run.status.get("attempts") or []) | length or "–" }}</td>
<td>{{ words.seconds(run.train_s) }}</td><td>{{ words.seconds(run.spent_s) }}</td>
<td>{{ words.seconds(run.calendar_s) }}</td><td>{{ run.replaced_rows }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Useful: the work that survived; all numbers use it. Spent: all training that was recorded,
redone work included. Calendar: first start to last end, waiting between attempts included.</p>
</details>
{% endif %}
{% for anchor, title, lines in section.lists if lines %}
<details id="{{ anchor }}" open><summary>{{ title }}</summary>
<ul>
{% for line in lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
</details>
{% endfor %}
<details><summary>Environment</summary>
{% for ids, facts in section.environments() %}
{% if loop.length > 1 %}<p>{{ words.count(ids | length, "run") }}: {{ ids | join(", ") }}</p>{% endif %}
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% else %}
<div><dd>no environment recorded</dd></div>
{% endfor %}
</dl>
{% endfor %}
</details>
"""
    crossing_words = staticmethod(crossing_words)
    interval_words = staticmethod(interval_words)
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
    def lists(self) -> list[tuple[str, str, list[str]]]:
        """Anchor, title and sentences of what was found while reading."""
        copies = [run.found_again for run in self.results.copied]
        return [
            ("copied", "Run directories found more than once: the copy that got furthest was read", copies),
            ("damage", "Damage found while reading", self.results.damage),
        ]

    def environments(self) -> list[tuple[list[str], list[tuple[str, str]]]]:
        """Ids of the runs that had an environment, and its facts, for each that occurs."""
        ids: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
        for run in self.results.runs:
            ids[tuple(_environment_facts(run.environment))].append(run.run_id)
        return [(ids[facts], list(facts)) for facts in sorted(ids, key=lambda facts: ids[facts][0])]

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
        "facts": facts_of(together),
        "warnings": warnings_of(comparison),
        "lines": [arm_line(arm, limit_s) for arm in comparison.arms],
        "common": common,
        "settings": [settings_beyond(arm, common) for arm in comparison.arms],
        # What holds for all runs stands once above the table, not in every line.
        "mixed": len({bool(run.timing_reasons) for run in together.runs}) > 1,
    }


def settings_beyond(
    arm: Arm, common: Mapping[str, str]
) -> tuple[Arm, dict[str, str], list[tuple[Run, dict[str, str]]]]:
    """An arm, its settings beyond the `common` ones, and each of its runs with those beyond these."""
    shared = common_settings(arm.runs)
    of_arm = {key: value for key, value in shared.items() if key not in common}
    return arm, of_arm, [(run, own_settings(run, shared)) for run in arm.runs]


def _environment_facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [(key, str(value)) for key, value in environment.items() if not isinstance(value, list | dict)]
    ranks = [rank for rank in environment.get("ranks") or [] if isinstance(rank, dict)]
    if ranks:
        fields = ("rank", "node", "device", "threads")
        known = [", ".join(f"{name} {rank[name]}" for name in fields if name in rank) for rank in ranks]
        facts.append(("ranks", "; ".join(known)))
    return facts
