"""Section: tuning. What it cost each arm, what it found, and how much slower the default settings are.

A study of `daso-bench tune` has every arm twice, with the study's own settings and equally tuned: two
comparisons, each with its baseline, noise floors and verdicts. Source: docs/method.md,
"Tuning and pilot".
"""

import math
from functools import cached_property
from typing import Any

from .. import words
from ..claims.arm_speedup import level_of
from ..data.arms import Arm, Comparison, settings, shown, text
from ..section import Rows, Section
from ..statistics.welch import FEWEST_RUNS, Times, welch
from ..target import budget_s, study_of, way

Row = dict[str, Any]


def regret_words(row: Row) -> str:
    """`20.0% [12.1%, 28.4%]`."""
    if row["regret"] is None:
        return words.MISSING
    low, high = row["regret_low"], row["regret_high"]
    lowest = f"{low:.1%}" if low > -1 else "no lower end"
    highest = f"{high:.1%}" if math.isfinite(high) else "no upper end"
    return f"{row['regret_bound']} {row['regret']:.1%} [{lowest}, {highest}]".strip()


def _row(comparison: Comparison, others: Comparison | None, arm: Arm) -> Row:
    """`others`: the comparison of the study's own settings; `device_hours`: of training, times ranks, all
    trials together."""
    first, defaults = arm.runs[0], shown(others).arms if others else []
    default = next((other for other in defaults if other.runs[0].arm_name == first.tuned), None)
    row = {
        **comparison.place,
        "arm": first.tuned,
        "trials": int(study_of(first, "tune_trials", 0)),
        "failed_trials": int(study_of(first, "tune_failed", 0)),
        "device_hours": float(study_of(first, "tune_device_hours", 0.0)),
        "winner": _winner(default, arm),
        "default_runs": len(default.counted) if default else 0,
        "tuned_runs": len(arm.counted),
        **dict.fromkeys(("regret", "regret_bound", "regret_low", "regret_high")),
        "level": level_of(arm),
        "remarks": "no run with the default settings",
        "space": str(study_of(first, "tune_space", "")),
    }
    return row | _regret(others, default, arm) if others and default else row


def _winner(default: Arm | None, arm: Arm) -> str:
    if default is None:
        return "not known: no run with the default settings"
    before = settings(default.runs[0])
    changed = {k: v for k, v in settings(arm.runs[0]).items() if k not in before or before[k] != v}
    return " ".join(f"{key}={text(value)}" for key, value in changed.items()) or "the default settings"


def _regret(others: Comparison, default: Arm, tuned: Arm) -> Row:
    """The regret by time to target, without a target by that of all work; None where `remarks` say why.

    `regret_bound`: "≥" where runs with the default settings missed the target and count at the budget, "≤"
    where tuned ones did.
    """
    limit_s = budget_s(others)
    if default.runs[0].target is not None and limit_s is None:
        return {"remarks": "no budget is known"}
    of_default, of_tuned = (
        way(arm.counted, limit_s)
        if limit_s is not None
        else Times(tuple(run.train_s for run in arm.complete if run.train_s))
        for arm in (default, tuned)
    )
    ratio, remarks = welch(of_default, of_tuned, level=level_of(tuned)), ""
    if of_default.missed or of_tuned.missed:
        counts = [f"{side.met.count(True)} of {len(side.met)}" for side in (of_default, of_tuned)]
        remarks = f"reached the target: {counts[0]} as default, {counts[1]} tuned"
    if ratio is None:
        return {"remarks": remarks or f"fewer than {FEWEST_RUNS} runs count"}
    return {
        "regret": ratio.point - 1,
        "regret_bound": ratio.side,
        "regret_low": ratio.low - 1,
        "regret_high": ratio.high - 1,
        "remarks": remarks,
    }


class TunedSection(Section):
    """Table `tuning`: the arms of studies that `daso-bench tune` has tuned equally."""

    order = 50
    template = """
{% if section.arms %}
<section id="tuning">
<h2>What tuning found</h2>
<p>Every arm had as many trials, at the same points, with the same seeds, on the validation split; none of
these seeds is scored. Searched of all arms:
{{ section.arms | map(attribute="1.space") | unique | join("; ") }}. Regret: how much longer the study's own
settings take than the tuned ones, to the target (without one, for all work), with its interval, on scored
seeds. Large in one arm only: then the defaults decided between the arms. Trials and device-hours:
<a href="tuning.csv">tuning.csv</a>.</p>
<ul>
{% for arm, row in section.arms %}
<li>{{ swatch(arm.index) }}<strong>{{ row.arm }}</strong>: regret {{ section.regret_words(row) }}
{{- " (" ~ row.remarks ~ ")" if row.remarks }}; tuned: <code>{{ row.winner }}</code></li>
{% endfor %}
</ul>
</section>
{% endif %}
"""
    regret_words = staticmethod(regret_words)

    @cached_property
    def arms(self) -> list[tuple[Arm, Row]]:
        """Every tuned arm with its row of the table, without second baselines and placebos, in order."""
        own = {tuple(c.place.values()): c for c in self.results.configured if not c.tuned}
        return [
            (arm, _row(comparison, own.get(tuple(comparison.place.values())), arm))
            for comparison in self.results.configured
            if comparison.tuned
            for arm in shown(comparison).arms
        ]

    def tables(self) -> dict[str, Rows]:
        """`tuning`: a row per tuned arm."""
        return {"tuning": [row for _, row in self.arms]}
