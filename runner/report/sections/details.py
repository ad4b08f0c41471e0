"""Section: below page one, folded: every run, figures, settings, commands, what went wrong; their tables."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ...records.target_crossing import best
from .. import words
from ..data.arms import Arm, Comparison, shown
from ..data.load import LINKS, PARTS, Run
from ..data.means import geometric_mean, mean
from ..data.metric import target_words
from ..plots.curves import figures
from ..plots.pictures import Plot
from ..section import Rows, Section
from ..statistics.run_times import median_s, wilson
from ..target import budget_s, way

SECOND = {"same_seeds": "second baseline, same seeds", "fresh_seeds": "second baseline, fresh seeds"}
# Fields of an evaluation's row in metrics.jsonl, before and after those of the metric.
PLACE = (
    *("attempt", "index", "step", "epoch", "samples", "train_s", "wall_s", "eval_s"),
    *("make_model_s", "split"),
)
NUMBERS = ("count", "loss", "train_loss", "learning_rate", "samples_per_s")


class DetailsSection(Section):
    """Tables `runs`, `evaluations` and `arms`; the folded part of the page."""

    order = 90
    template = """
{% for block in section.blocks %}
{% set place = "commands-" ~ loop.index %}
<section>
<h2>{{ "Behind the answer" if loop.length == 1 else results.title(block.comparison) }}
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
{{- page.chips(section.notes_of(run)) }}
{{- page.chips(run.labels) if run.labels != line.labels }}</th>
<td></td><td>
{{- "not reached" if not run.crossing and run.counted and run.target is not none
  else words.seconds(run.to_target_s) }}</td>
<td>{{ words.seconds(run.train_s) }}</td><td>{{ words.number(run.final, 4) }}</td></tr>
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
{{ page.commands(place, block.comparison.arms) }}
</section>
{% endfor %}
{% for anchor, title, lines in section.lists if lines %}
<details id="{{ anchor }}"{{ " open" if anchor != "environment" }}><summary>{{ title }}</summary>
<ul>
{% for line in lines %}
<li>{{ line }}</li>
{% endfor %}
</ul>
</details>
{% endfor %}
"""

    @cached_property
    def blocks(self) -> list[dict[str, Any]]:
        """One for each comparison as configured."""
        configured = self.results.configured
        return [
            block_of(comparison, f"{number}_" if len(configured) > 1 else "")
            for number, comparison in enumerate(configured, 1)
        ]

    @property
    def lists(self) -> list[tuple[str, str, list[str]]]:
        """Anchor, title and sentences of what went wrong and what the runs are."""
        results, machines = self.results, defaultdict[str, list[str]](list)
        for run in results.runs:
            machines[machine(run.environment)].append(run.run_id)
        environment = [
            f"{words.count(len(ids), 'run')} ({', '.join(ids)}): {facts}" if len(machines) > 1 else facts
            for facts, ids in machines.items()
        ]
        copies = "Run directories found more than once; the furthest one counts"
        return [
            ("trouble", "Runs that did not finish or cannot be trusted", [*map(trouble, results.trouble)]),
            ("copied", copies, [run.found_again for run in results.copied]),
            ("damage", "Damage found while reading", results.damage),
            ("environment", "Environment", environment),
        ]

    @staticmethod
    def notes_of(run: Run) -> list[str]:
        """What sets a run apart."""
        notes = {
            SECOND.get(run.role, run.role.replace("_", " ")): run.role,
            run.state: run.state != "finished",
            "invalid": run.invalid,
            "resumed: useful time": run.resumed,
            "timing not valid": run.timing_reasons and not run.invalid,
            "damaged records": run.damage,
        }
        return [note for note, holds in notes.items() if holds]

    def plots(self) -> list[Plot]:
        return [figure for block in self.blocks for figure in block["figures"]]

    def tables(self) -> dict[str, Rows]:
        """`runs`: a row per run directory, failed ones included; `evaluations`: a row per surviving
        evaluation of every run; `arms`: a row per arm of every size and assumption."""
        arms = [(comparison, arm) for comparison in self.results.comparisons for arm in comparison.arms]
        runs = [(place_of(comparison, arm, run), run) for comparison, arm in arms for run in arm.runs]
        return {
            "runs": [place | run_row(run) for place, run in runs],
            "evaluations": [
                place | {name: row.get(name) for name in (*PLACE, metric.key, *metric.beside, *NUMBERS)}
                for place, run in runs
                for metric in [run.judged_by]
                for row in run.evaluations
            ],
            "arms": [arm_row(comparison, arm) for comparison, arm in arms],
        }


def block_of(comparison: Comparison, prefix: str) -> dict[str, Any]:
    """A comparison as the page shows it. `prefix`: of the names of its figures."""
    together = shown(comparison)
    limit_s = budget_s(together)
    return {
        "comparison": comparison,
        "figures": figures(together, prefix),
        "targets": [target_words(comparison.runs[0].metric, target) for target in comparison.targets],
        "lines": [arm_line(comparison, arm, limit_s) for arm in comparison.arms],
    }


def arm_line(comparison: Comparison, arm: Arm, limit_s: float | None) -> dict[str, Any]:
    """An arm's row of table `arms` as text. `limit_s`: the budget of all arms, seconds of T_train.

    Where not all runs reached the target, the time is the median of which the others are a part.
    """
    row = arm_row(comparison, arm)
    reached, counted, out = row["reached"], row["runs"], row["runs_not_counted"]
    ends = wilson(reached, counted) if counted > 1 else None
    share = f"{reached} of {counted}" + (f" [{ends.low:.2f}, {ends.high:.2f}]" if ends else "")
    to_target_s = row["to_target_s_geometric_mean"]
    median = median_s(way(arm.counted, limit_s)) if limit_s is not None and counted > 1 else None
    to_median = f"median {words.seconds(median)}" if to_target_s is None and median else ""
    return {
        "arm": arm,
        "runs": words.count(counted, "run") + (f" (+ {out} not counted)" if out else ""),
        "reached": share if any(run.target is not None for run in arm.runs) else "no target set",
        "to_target": to_median or words.seconds(to_target_s),
        "train": words.seconds(row["train_s_geometric_mean"]),
        "final": words.number(row[f"final_{comparison.metric.key}_mean"], 4),
        "labels": list(dict.fromkeys(label for run in arm.runs for label in run.labels)),
    }


def trouble(run: Run) -> str:
    """Why a run did not finish or cannot be trusted, and whether it counts all the same."""
    counts = "it counts as one that missed the target" if run.counted else "it counts for nothing"
    state = "invalid" if run.invalid else run.state
    return f"{run.run_id}: {state}, {counts}: {run.reason or 'no reason recorded'}"


def machine(environment: Mapping[str, Any]) -> str:
    """The recorded facts of a machine and of each rank in one line."""
    facts = [f"{key} {value}" for key, value in environment.items() if not isinstance(value, list | dict)]
    ranks = [rank for rank in environment.get("ranks") or [] if isinstance(rank, dict)]
    fields = ("rank", "node", "device", "threads")
    facts += [", ".join(f"{name} {rank[name]}" for name in fields if name in rank) for rank in ranks]
    return "; ".join(facts) or "no environment recorded"


def arm_row(comparison: Comparison, arm: Arm) -> dict[str, Any]:
    """A mean stands only where the method allows one."""
    return {
        **comparison.place,
        "assumption": comparison.assumption,
        "arm": arm.label,
        "runs": len(arm.counted),
        "runs_not_counted": len(arm.runs) - len(arm.counted),
        "runs_complete": len(arm.complete),
        "reached": len(arm.reached),
        "to_target_s_geometric_mean": geometric_mean([run.to_target_s for run in arm.counted]),
        "train_s_geometric_mean": geometric_mean([run.train_s for run in arm.complete]),
        "samples_per_s_geometric_mean": geometric_mean([run.samples_per_s for run in arm.complete]),
        f"final_{comparison.metric.key}_mean": mean([run.final for run in arm.counted]),
        **{
            f"payload_bytes_{link}_mean": mean([run.payload_bytes(link) for run in arm.complete])
            for link in LINKS
        },
    }


def place_of(comparison: Comparison, arm: Arm, run: Run) -> dict[str, Any]:
    """The columns that every row about a run begins with."""
    row = {"assumption": comparison.assumption, "arm": arm.label, "run_id": run.run_id, "seed": run.seed}
    return {**comparison.place, **row}


def run_row(run: Run) -> dict[str, Any]:
    """What the records of a run say."""
    first, key, ring_bytes = run.crossing, run.judged_by.key, run.summary.get("ring_bytes") or {}
    return {
        "status": run.state,
        "reason": run.reason,
        "counted": run.counted,
        "target": run.target,
        "reached": None if run.target is None else first is not None,
        "crossing_after_s": first.after_s if first else None,
        "crossing_stamp_s": first.stamp_s if first else None,
        "to_target_s": run.to_target_s,
        "to_target_samples": first.scored_samples if first else None,
        "to_target_wall_s": first.wall_s if first else None,
        "evaluations": len(run.evaluations),
        "train_s": run.train_s,
        "samples": run.samples,
        "samples_per_s": run.samples_per_s,
        f"final_{key}": run.final,
        f"best_{key}": (best(run.evaluations, key) or {}).get(key),
        **{f"payload_bytes_{link}": run.payload_bytes(link) for link in LINKS},
        **{f"ring_bytes_{link}": ring_bytes.get(link) for link in LINKS},
        **{f"{part}_s": run.parts_s.get(part) for part in PARTS},
        "process_s": run.summary.get("process_s"),
        "timing_valid": (run.status.get("timing") or {}).get("valid"),
        "timing_reasons": "; ".join(run.timing_reasons),
        "labels": "; ".join(run.labels),
        "resumed": run.resumed,
        "damage": len(run.damage),
        "run_directory": run.place,
    }
