"""Section: all runs, evaluations and arms as tables."""

from collections.abc import Sequence
from typing import Any

from ...records.target_crossing import best
from ..data.arms import Arm, Comparison, metrics_of, walk, who
from ..data.load import LINKS, PARTS, Run
from ..data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from ..data.metric import Metric, columns
from ..section import Rows, Section


class RunSection(Section):
    """Tables `runs`, `evaluations` and `arms`; nothing on the page."""

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
