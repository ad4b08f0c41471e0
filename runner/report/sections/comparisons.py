"""Section: each comparison as configured: facts, warnings, every arm with its runs, figures and commands."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from ...config.cluster import compared_words
from .. import simulation_errors, words
from ..claims import core_efficiency
from ..data.arms import Arm, Comparison, common_settings, own_settings, shown
from ..data.load import Run
from ..data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from ..data.metric import target_words
from ..plots.comparison_figures import figures
from ..plots.pictures import Plot
from ..section import Section
from ..statistics.reached import median_s, wilson
from ..target import budget_s, way

FEW_EVALUATIONS = 20


def facts_of(comparison: Comparison) -> list[tuple[str, str]]:
    """World, cluster, target and so on: name and value of each."""
    runs = comparison.runs
    facts = [("World", comparison.world_in_words)]
    if comparison.world == "simulated":
        known = simulation_errors.reference().sentence()
        facts.append(("How far virtual time is off", f"{_compared(runs)} {known}"))
    facts += [("Size", comparison.size)] if comparison.size else []
    facts += [("Cluster", "; ".join(sorted({_cluster(run) for run in runs})))]
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
    """What makes the arms of a comparison less than comparable, those that stand apart included."""
    warnings = [core_efficiency.warning(everything)]
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
    final, finals = final_mean(arm), [run.final for run in arm.counted if run.final is not None]
    return {
        "arm": arm,
        "runs": words.count(len(arm.counted), "run")
        + (f" (+ {not_counted} not counted)" if not_counted else ""),
        "reached": _share_reached(arm) if has_target else "no target set",
        "to_target": _to_target(arm, limit_s) if has_target and arm.counted else words.MISSING,
        "train": _typical(arm, train_mean(arm), words.seconds),
        "rate": _typical(arm, rate_mean(arm), words.rate),
        "final": _typical(arm, final, words.share),
        "final_spread": f"range {min(finals):.4f}–{max(finals):.4f}" if final is not None else "",
        "bytes": {link: _typical(arm, bytes_mean(arm, link), words.size) for link in words.LINKS},
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
    if mean is None and limit_s is not None and len(arm.counted) > 1:
        median = median_s(way(arm.counted, limit_s))
        return "no time, fewer than half reached it" if median is None else f"median {words.seconds(median)}"
    return _typical(arm, mean, words.seconds, "no mean, not all reached it")


def _typical(
    arm: Arm, mean: float | None, say: Callable[[float | None], str], missing: str = "no mean"
) -> str:
    """The mean in words, or why there is none."""
    if mean is not None:
        return say(mean)
    return "one run" if len(arm.counted) == 1 else missing


def crossing_words(run: Run) -> str:
    if run.target is None:
        return words.MISSING
    if run.crossing is None:
        return "not reached" if run.counted else words.MISSING
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
        run.state: run.state != "finished",
        "invalid": run.invalid,
        "resumed: useful time": run.resumed,
        "timing not valid": mixed and run.timing_reasons and not run.invalid,
        "damaged records": run.damage,
    }
    return [note for note, holds in notes.items() if holds]


class ComparisonSection(Section):
    """The block of each comparison; `runs.py` writes the tables behind it."""

    order = 70
    template = """
{% macro arms_table(block, with_runs) %}
<div class="wide" role="region" aria-label="Arms{{ " and runs" if with_runs }}" tabindex="0">
<table class="sortable">
<caption>{{ caller() }}</caption>
<thead><tr><th scope="col">Arm{{ " and runs" if with_runs }}</th><th scope="col">Reached</th>
<th scope="col">Time to target</th><th scope="col">Training time</th><th scope="col">Samples/s</th>
<th scope="col">Final {{ block.comparison.metric.name }}</th>
<th scope="col">Bytes inside nodes</th><th scope="col">Bytes between nodes</th></tr></thead>
{% for line in block.lines %}
<tbody>
<tr class="arm"><th scope="row">{{ swatch(line.arm.index) }}{{ line.arm.label }}<small>{{ line.runs }}</small>
{{- page.chips(line.labels) }}</th>
<td>{{ line.reached }}</td><td>{{ line.to_target }}</td><td>{{ line.train }}</td><td>{{ line.rate }}</td>
<td>{{ line.final }}{% if line.final_spread %}<small>{{ line.final_spread }}</small>{% endif %}</td>
<td>{{ line.bytes.intra }}</td><td>{{ line.bytes.inter }}</td></tr>
{% for run in line.arm.runs if with_runs %}
<tr class="run{{ '' if run.counted else ' out' }}">
<th scope="row" title="{{ run.run_id }}">seed {{ run.seed }}
{{- page.chips(section.notes_of(run, mixed=block.mixed)) }}
{{- page.chips(run.labels) if run.labels != line.labels }}</th>
<td></td><td>{{ section.crossing_words(run) }}
{%- if run.crossing %}<small>{{ section.interval_words(run) }}</small>{% endif %}</td>
<td>{{ words.seconds(run.train_s) }}</td><td>{{ words.rate(run.samples_per_s) }}</td>
<td>{{ words.share(run.final) }}</td>
<td>{{ words.size(run.payload_bytes("intra")) }}</td>
<td>{{ words.size(run.payload_bytes("inter")) }}</td></tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
</div>
{% endmacro %}
{% set figure = namespace(place=0) %}
{% for block in section.blocks %}
{% set place = "commands-" ~ loop.index %}
<section>
<h2>{{ block.title }}{{ page.of_study(block.comparison.study) }}</h2>
<dl class="facts">
{% for name, value in block.facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% for warning in block.warnings %}
<p class="soft">Note: {{ warning }}</p>
{% endfor %}
{% set above %}
Bold lines: geometric means for times and samples/s,
arithmetic means for {{ block.comparison.metric.name }} and bytes; no mean and no spread from one run.
Times are T_train: evaluation, checkpoints and start-up left out.
{% endset %}
{% if block.comparison.many %}
{% call arms_table(block, false) %}{{ above }}{% endcall %}
<details><summary>Every run ({{ block.comparison.runs | length }})</summary>
{% call arms_table(block, true) %}Every run is shown, below its arm.{% endcall %}
</details>
{% else %}
{% call arms_table(block, true) %}Every run is shown. {{ above }}{% endcall %}
{% endif %}
{% if block.comparison not in section.with_ratios %}
<p class="soft">No speed-up stands here: ratios with intervals take three runs or more of ddp, or of
study.baseline, and of another arm.</p>
{% endif %}
<div class="figures">
{% for _ in block.figures %}
{{ page.figure(pictures[figure.place], [(place, "")]) }}
{% set figure.place = figure.place + 1 %}
{% endfor %}
</div>
<h3 class="apart">Configuration</h3>
<details><summary>What all runs have in common ({{ block.common | length }} settings)</summary>
<ul class="settings">
{% for key, value in block.common.items() %}
<li><code>{{ key }}={{ value }}</code></li>
{% endfor %}
</ul></details>
<details><summary>What sets each arm and each run apart</summary>
<div class="wide" role="region" aria-label="Settings of arms and runs" tabindex="0">
<table class="sortable"><thead><tr><th scope="col">Arm and runs</th>
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
"""
    crossing_words = staticmethod(crossing_words)
    interval_words = staticmethod(interval_words)
    notes_of = staticmethod(notes_of)

    @property
    def with_ratios(self) -> list[Comparison]:
        return [speedups.comparison for speedups in self.results.speedups]

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """One for each comparison as configured."""
        titled = list(zip(self.results.configured, self.results.titles, strict=True))
        return [
            block_of(comparison, title, f"{number}_" if len(titled) > 1 else "")
            for number, (comparison, title) in enumerate(titled, 1)
        ]

    def plots(self) -> list[Plot]:
        return [figure for block in self.blocks for figure in block["figures"]]


def block_of(comparison: Comparison, title: str, prefix: str) -> dict[str, Any]:
    """A comparison as the page shows it. `prefix`: of the names of its figures."""
    beside, common = shown(comparison), common_settings(comparison.runs)
    limit_s = budget_s(beside)
    return {
        "comparison": comparison,
        "title": title,
        "figures": figures(beside, prefix),
        "facts": facts_of(beside),
        "warnings": warnings_of(comparison),
        "lines": [arm_line(arm, limit_s) for arm in beside.arms],
        "common": common,
        "settings": [settings_beyond(arm, common) for arm in comparison.arms],
        # What holds for all runs stands once above the table, not in every line.
        "mixed": len({bool(run.timing_reasons) for run in beside.runs}) > 1,
    }


def settings_beyond(
    arm: Arm, common: Mapping[str, str]
) -> tuple[Arm, dict[str, str], list[tuple[Run, dict[str, str]]]]:
    """An arm, its settings beyond the `common` ones, and each of its runs with those beyond these."""
    shared = common_settings(arm.runs)
    of_arm = {key: value for key, value in shared.items() if key not in common}
    return arm, of_arm, [(run, own_settings(run, shared)) for run in arm.runs]
