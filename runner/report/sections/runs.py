"""Section: all runs, evaluations and arms as tables; what is wrong with runs; machines."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ...records.target_crossing import best
from ..data.arms import Arm, Comparison, metrics_of, walk, who
from ..data.load import PARTS, Run
from ..data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from ..data.metric import Metric, columns
from ..data.run_files import LINKS
from ..section import Rows, Section


class RunSection(Section):
    """Tables `runs`, `evaluations` and `arms`; on the page what went wrong, and environments."""

    order = 90
    template = """
{% if results.trouble %}
<section>
<h2 id="trouble">Runs that did not finish or cannot be trusted</h2>
<div class="wide" role="region" aria-label="Runs that did not finish or cannot be trusted" tabindex="0">
<table class="sortable"><thead><tr><th scope="col">Run</th><th scope="col" class="text">Status</th>
<th scope="col" class="text">Reason</th><th scope="col">Counts as a run</th></tr></thead><tbody>
{% for run in results.trouble %}
{% set state = "invalid" if run.invalid else run.state %}
<tr><td><code>{{ run.run_id }}</code></td><td class="text bad">{{ state }}</td>
<td class="text settings-of">{{ run.reason or "no reason recorded" }}</td>
<td>{{ "yes" if run.counted else "no" }}</td></tr>
{% endfor %}
</tbody></table></div>
<p class="soft">A run that diverged or ran out of time counts as one that missed the target. One that failed,
was cancelled or is not over counts for nothing until it is repeated or resumed; so does one whose own checks
say that it measured this machine and not the links and devices it was asked for (invalid).</p>
</section>
{% endif %}
{% if results.resumed %}
<section>
<h2 id="resumed">Resumed runs</h2>
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
<p class="soft">Useful: the work that survived. Spent: all training that was recorded, redone work included.
Calendar: first start to last end, waiting between attempts included. Tables and figures above use useful
time.</p>
</section>
{% endif %}
{% if results.copied %}
<section>
<h2 id="copied">Run directories found more than once</h2>
<ul>
{% for run in results.copied %}
<li>{{ run.found_again }}</li>
{% endfor %}
</ul>
<p class="soft">The first place of each is the one that was read: the copy that got furthest.</p>
</section>
{% endif %}
{% if results.damage %}
<section>
<h2 id="damage">Damage found while reading</h2>
<ul>
{% for sentence in results.damage %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
<section>
<h2>Environment</h2>
{% for ids, facts in section.environments() %}
<details{{ " open" if loop.length == 1 and facts }}>
<summary>{{ words.count(ids | length, "run") }}{{ ": " ~ (ids | join(", ")) if loop.length > 1 }}</summary>
{% if facts %}
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% else %}
<p>no environment recorded</p>
{% endif %}
</details>
{% endfor %}
</section>
"""

    def environments(self) -> list[tuple[list[str], list[tuple[str, str]]]]:
        """Ids of the runs that had an environment, and its facts, for each that occurs."""
        ids: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
        for run in self.results.runs:
            ids[tuple(_environment_facts(run.environment))].append(run.run_id)
        return [(ids[facts], list(facts)) for facts in sorted(ids, key=lambda facts: ids[facts][0])]

    def tables(self) -> dict[str, Rows]:
        """`runs`: a row per run directory, failed ones included; `evaluations`: a row per surviving
        evaluation of every run; `arms`: a row per arm of every size and assumption."""
        comparisons = self.results.comparisons
        metrics = metrics_of(comparisons)
        fields = (
            *("attempt", "index", "step", "epoch", "samples", "train_s", "wall_s", "eval_s", "make_model_s"),
            *("split", *columns(metrics), "count", "loss", "train_loss", "learning_rate", "samples_per_s"),
        )
        return {
            "runs": [_run_row(comparison, arm, run, metrics) for comparison, arm, run in walk(comparisons)],
            "evaluations": [
                who(comparison, arm, run) | {name: row.get(name) for name in fields}
                for comparison, arm, run in walk(comparisons)
                for row in run.evaluations
            ],
            "arms": [
                _arm_row(comparison, arm, metrics) for comparison in comparisons for arm in comparison.arms
            ],
        }


def _environment_facts(environment: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [(key, str(value)) for key, value in environment.items() if not isinstance(value, list | dict)]
    ranks = [rank for rank in environment.get("ranks") or [] if isinstance(rank, dict)]
    if ranks:
        fields = ("rank", "node", "device", "threads")
        known = [", ".join(f"{name} {rank[name]}" for name in fields if name in rank) for rank in ranks]
        facts.append(("ranks", "; ".join(known)))
    return facts


def _arm_row(comparison: Comparison, arm: Arm, metrics: Sequence[Metric]) -> dict[str, Any]:
    """A mean stands only where the method allows one."""
    return {
        **comparison.place,
        "assumption": comparison.assumption,
        "arm": arm.label,
        "runs": len(arm.counted),
        "runs_not_counted": len(arm.runs) - len(arm.counted),
        "runs_complete": len(arm.complete),
        "reached": len(arm.reached),
        "to_target_s_geometric_mean": target_mean(arm),
        "train_s_geometric_mean": train_mean(arm),
        "samples_per_s_geometric_mean": rate_mean(arm),
        **{
            f"final_{metric.key}_mean": final_mean(arm) if metric == comparison.metric else None
            for metric in metrics
        },
        **{f"payload_bytes_{link}_mean": bytes_mean(arm, link) for link in LINKS},
    }


def _run_row(comparison: Comparison, arm: Arm, run: Run, metrics: Sequence[Metric]) -> dict[str, Any]:
    first, summary, top = run.crossing, run.summary, best(run.evaluations, run.judged_by.key)
    ring_bytes = summary.get("ring_bytes") or {}
    return who(comparison, arm, run) | {
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
        **{f"final_{metric.key}": run.final if metric == run.judged_by else None for metric in metrics},
        **{
            f"best_{metric.key}": top[metric.key] if top and metric == run.judged_by else None
            for metric in metrics
        },
        **{f"payload_bytes_{link}": run.payload_bytes(link) for link in LINKS},
        **{f"ring_bytes_{link}": ring_bytes.get(link) for link in LINKS},
        **{f"{part}_s": run.parts_s.get(part) for part in PARTS},
        "process_s": summary.get("process_s"),
        "timing_valid": (run.status.get("timing") or {}).get("valid"),
        "timing_reasons": "; ".join(run.timing_reasons),
        "labels": "; ".join(run.labels),
        "resumed": run.resumed,
        "replaced_rows": run.replaced_rows,
        "spent_train_s": run.spent_s if run.resumed else None,
        "calendar_s": run.calendar_s,
        "damage": len(run.damage),
        "run_directory": run.place,
    }
