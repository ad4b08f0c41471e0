"""Section: tuning. What it cost each arm, what it found, and how much slower the default settings are.

A study of `daso-bench tune` has every arm twice, with the study's own settings and equally tuned: two
comparisons, each with its baseline, noise floors and verdicts. Source: docs/method.md,
"Tuning and pilot".
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .. import words
from ..data.arms import Arm, Comparison, settings, text
from ..section import Rows, Section
from ..statistics.run_times import typical
from ..statistics.welch import Interval, Times, regret, welch
from ..target import budget_s, study_of, way

Row = dict[str, Any]
NO_DEFAULT = "no run with the default settings"


def tuned_arms(comparisons: Sequence[Comparison]) -> list[tuple[Arm, Row]]:
    """Every tuned arm with its row of the table, without second baselines and placebos, in order."""
    own = {(*c.place.values(), c.assumption): c for c in comparisons if not c.tuned}
    return [
        (arm, _row(comparison, own.get((*comparison.place.values(), comparison.assumption)), arm))
        for comparison in comparisons
        if comparison.tuned
        for arm in comparison.arms
        if not arm.runs[0].role
    ]


def regret_words(row: Row) -> str:
    """`20.0% [12.1%, 28.4%]`; without an interval below 3 runs."""
    if row["regret"] is None:
        return words.MISSING
    low, high = row["regret_low"], row["regret_high"]
    point = f"{row['regret_bound']} {row['regret']:.1%}".strip()
    if low is None:
        return point
    lowest = f"{low:.1%}" if low > -1 else "no lower end"
    highest = f"{high:.1%}" if math.isfinite(high) else "no upper end"
    return f"{point} [{lowest}, {highest}]"


def _row(comparison: Comparison, others: Comparison | None, arm: Arm) -> Row:
    """`others`: the comparison of the study's own settings.

    `device_hours`: of training, times ranks, all trials together. `regret`: T_default / T_tuned - 1, None
    where `remarks` say why; `regret_bound`: "≥" where runs with the default settings missed the target and
    count at the budget, "≤" where tuned ones did.
    """
    first, level = arm.runs[0], float(study_of(arm.runs[0], "level", 0.95))
    candidates = [other for other in others.arms if not other.runs[0].role] if others else []
    default = next((other for other in candidates if other.runs[0].arm_name == first.tuned), None)
    share, ends, bound, why = None, None, "", NO_DEFAULT
    winner = f"not known: {NO_DEFAULT}"
    if others and default:
        share, ends, bound, why = _regret(others, default, arm, level)
        before = settings(default.runs[0])
        changed = {k: v for k, v in settings(first).items() if k not in before or before[k] != v}
        winner = " ".join(f"{key}={text(value)}" for key, value in changed.items()) or "the default settings"
    return {
        **comparison.place,
        "arm": first.tuned,
        "trials": int(study_of(first, "tune_trials", 0)),
        "failed_trials": int(study_of(first, "tune_failed", 0)),
        "device_hours": float(study_of(first, "tune_device_hours", 0.0)),
        "winner": winner,
        "default_runs": len(default.counted) if default else 0,
        "tuned_runs": len(arm.counted),
        "regret": share,
        "regret_bound": bound,
        "regret_low": ends.low if ends else None,
        "regret_high": ends.high if ends else None,
        "level": level,
        "remarks": why,
        "space": str(study_of(first, "tune_space", "")),
    }


def _regret(
    others: Comparison, default: Arm, tuned: Arm, level: float
) -> tuple[float | None, Interval | None, str, str]:
    """The regret by time to target, without a target by that of all work; the side it bounds; and remarks."""
    if not default.counted or not tuned.counted:
        return None, None, "", "no run counts"
    arms, limit = (default, tuned), budget_s(others)
    if default.runs[0].target is None:
        times = [Times(tuple(run.train_s for run in arm.complete if run.train_s)) for arm in arms]
        if not all(side.seconds for side in times):
            return None, None, "", "no run did all its work"
    elif limit is None:
        return None, None, "", "no budget is known"
    else:
        times = [way(arm.counted, limit) for arm in arms]
        if any(side.missed for side in times):
            of_default, of_tuned = (f"{side.met.count(True)} of {len(side.met)}" for side in times)
            counts = f"reached the target: {of_default} as default, {of_tuned} tuned"
            ratio = welch(*(typical(side)[0] for side in times), level=level)
            if ratio is None:
                return None, None, "", counts
            return ratio.point - 1, Interval(ratio.low - 1, ratio.high - 1), ratio.side, counts
    return *regret(*times, level=level), "", ""


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
        return tuned_arms(self.results.configured)

    def tables(self) -> dict[str, Rows]:
        """`tuning`: a row per tuned arm."""
        return {"tuning": [row for _, row in self.arms]}
