"""The tables of the report: one row per run, per evaluation and per arm, each as CSV, Markdown and LaTeX."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..records.json_lines import best, crossing, encode
from .data.arms import Arm, Comparison, metrics_of
from .data.load import Run
from .data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from .data.metric import Metric, columns
from .text_tables import latex, markdown

LINKS = ("intra", "inter")
LINK_WORDS = {"intra": "inside nodes", "inter": "between nodes"}
PARTS = ("compute", "exposed", "waiting", "data", "step_other")


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The CSV file `path`, and beside it the same table in Markdown (.md) and LaTeX (.tex)."""
    write_csv(path, rows)
    path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    path.with_suffix(".tex").write_text(latex(rows), encoding="utf-8")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """One header, one line per row; a missing value is empty, NaN is `NaN`, infinity is `Infinity`."""
    cells = [{key: encode(value) for key, value in row.items()} for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    frame.where(frame.notna(), None).to_csv(path, index=False, lineterminator="\n", encoding="utf-8")


def runs_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per run directory, failed ones included."""
    comparisons = list(comparisons)
    metrics = metrics_of(comparisons)
    return [_run_row(comparison, arm, run, metrics) for comparison, arm, run in walk(comparisons)]


def evaluations_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per surviving evaluation of every run."""
    comparisons = list(comparisons)
    fields = (
        *("attempt", "index", "step", "epoch", "samples", "train_s", "wall_s", "eval_s", "make_model_s"),
        *(
            "split",
            *columns(metrics_of(comparisons)),
            "count",
            "loss",
            "train_loss",
            "learning_rate",
            "samples_per_s",
        ),
        *("payload_bytes_intra", "payload_bytes_inter"),
    )
    return [
        who(comparison, arm, run) | {name: row.get(name) for name in fields}
        for comparison, arm, run in walk(comparisons)
        for row in run.evaluations
    ]


def arms_rows(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """One row per arm of every size and assumption; a mean only where the method allows one."""
    comparisons = list(comparisons)
    metrics = metrics_of(comparisons)
    return [
        {
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
                f"final_{one.key}_mean": final_mean(arm) if one == comparison.metric else None
                for one in metrics
            },
            **{f"payload_bytes_{link}_mean": bytes_mean(arm, link) for link in LINKS},
        }
        for comparison in comparisons
        for arm in comparison.arms
    ]


def walk(comparisons: Iterable[Comparison]) -> list[tuple[Comparison, Arm, Run]]:
    """Every run with its arm and comparison, in reading order."""
    return [(c, arm, run) for c in comparisons for arm in c.arms for run in arm.runs]


def who(comparison: Comparison, arm: Arm, run: Run) -> dict[str, Any]:
    """The columns that every row about a run begins with."""
    return {
        **comparison.place,
        "assumption": comparison.assumption,
        "arm": arm.label,
        "run_id": run.run_id,
        "seed": run.seed,
    }


def _run_row(comparison: Comparison, arm: Arm, run: Run, metrics: Sequence[Metric]) -> dict[str, Any]:
    first = run.crossing
    variants: dict[str, Any] = {}
    for which in ("confirmed", "for_good"):
        found = (
            None if run.target is None else crossing(run.evaluations, run.target, which, metric=run.metric)
        )
        variants[f"{which}_stamp_s"] = found.stamp_s if found else None
    summary, top = run.summary, best(run.evaluations, run.judged_by.key)
    return who(comparison, arm, run) | {
        "status": run.state,
        "reason": run.reason,
        "counted": run.counted,
        "target": run.target,
        "reached": None if run.target is None else first is not None,
        "crossing_after_s": first.after_s if first else None,
        "crossing_stamp_s": first.stamp_s if first else None,
        "to_target_s": first.scored_s if first else None,
        "to_target_samples": first.scored_samples if first else None,
        "to_target_wall_s": first.wall_s if first else None,
        **variants,
        "evaluations": len(run.evaluations),
        "train_s": run.train_s,
        "samples": run.samples,
        "samples_per_s": run.samples_per_s,
        **{f"final_{one.key}": run.final if one == run.judged_by else None for one in metrics},
        **{f"best_{one.key}": top[one.key] if top and one == run.judged_by else None for one in metrics},
        **{f"payload_bytes_{link}": run.payload_bytes(link) for link in LINKS},
        **{f"ring_bytes_{link}": (summary.get("ring_bytes") or {}).get(link) for link in LINKS},
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
