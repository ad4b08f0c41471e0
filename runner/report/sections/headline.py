"""Section: the headline table, every arm with its runs below it; who reached the target, how surely and when.

Source: docs/method.md, "Runs that miss the target".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import words
from ..data.arms import Arm, Comparison, metrics_of, shown
from ..data.load import Run
from ..data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from ..section import Rows, Section, with_rows
from ..statistics import reached
from ..statistics.reached import Reached
from ..target import budget_s, horizon_s, way

RATE_ONLY = "rate only"


@dataclass(frozen=True, kw_only=True)
class ArmLine:
    """One arm of the headline table, as text, and its runs. A spread is named or left out.

    `median`: of the time to target (Kaplan-Meier).
    """

    label: str
    index: int
    runs: str
    reached: str
    to_target: str
    has_mean: bool
    median: str
    train: str
    rate: str
    final: str
    final_spread: str
    bytes: dict[str, str]
    labels: list[str]
    members: list[Run]


def headline(comparison: Comparison) -> list[ArmLine]:
    """The table that answers: who got there, when, how fast and how well."""
    return [_arm_line(comparison, arm) for arm in comparison.arms]


class HeadlineSection(Section):
    """Tables `headline` and `reached`; the page shows the lines in the block of each comparison."""

    def tables(self) -> dict[str, Rows]:
        """`headline`: the arms as text, as a paper prints them; `reached`: arms with a target, in numbers."""
        comparisons = [shown(comparison) for comparison in self.results.configured]
        metrics = metrics_of(comparisons)
        return with_rows(
            headline=[
                {
                    "study": comparison.study,
                    "workload": f"{comparison.model} on {comparison.dataset}",
                    "world": words.world(comparison.world),
                    "size": comparison.size,
                    "arm": line.label,
                    "runs": line.runs,
                    "reached": line.reached,
                    "time to target": line.to_target,
                    "median time to target": line.median,
                    "training time": line.train,
                    "samples/s": line.rate,
                    **{
                        f"final {metric.name}": line.final if metric == comparison.metric else ""
                        for metric in metrics
                    },
                    **{f"bytes {place}": line.bytes[link] for link, place in words.LINKS.items()},
                }
                for comparison in comparisons
                for line in headline(comparison)
            ],
            reached=[
                _reached_row(comparison, arm)
                for comparison in comparisons
                if comparison.targets
                for arm in comparison.arms
                if arm.counted
            ],
        )


def _reached_row(comparison: Comparison, arm: Arm) -> dict[str, Any]:
    to_target = way(arm.counted, horizon_s(comparison))
    ends = reached.wilson(to_target.reached, to_target.runs)
    return {
        **comparison.place,
        "arm": arm.label,
        "target": comparison.targets[0] if len(comparison.targets) == 1 else None,
        "budget_s": budget_s(comparison),
        "runs": to_target.runs,
        "reached": to_target.reached,
        "reached_low": ends.low,
        "reached_high": ends.high,
        "rate_only": to_target.rate_only,
        "median_s": reached.median_s(to_target),
    }


def _arm_line(comparison: Comparison, arm: Arm) -> ArmLine:
    not_counted = len(arm.runs) - len(arm.counted)
    has_target = any(run.target is not None for run in arm.runs)
    to_target = way(arm.counted, horizon_s(comparison)) if arm.counted and has_target else None
    final, finals = final_mean(arm), [run.final for run in arm.counted if run.final is not None]
    return ArmLine(
        label=arm.label,
        index=arm.index,
        runs=words.count(len(arm.counted), "run")
        + (f" (+ {not_counted} not counted)" if not_counted else ""),
        reached=_reached_words(to_target) if to_target else "0 of 0" if has_target else "no target set",
        to_target=_target_words(arm),
        has_mean=target_mean(arm) is not None,
        median=_median_words(to_target),
        train=_typical(arm, train_mean(arm), words.seconds),
        rate=_typical(arm, rate_mean(arm), words.rate),
        final=_typical(arm, final, words.share),
        final_spread=f"range {min(finals):.4f}–{max(finals):.4f}" if final is not None else "",
        bytes={link: _typical(arm, bytes_mean(arm, link), words.size) for link in words.LINKS},
        labels=list(dict.fromkeys(label for run in arm.runs for label in run.labels)),
        members=arm.runs,
    )


def _typical(arm: Arm, value: float | None, say: Callable[[float | None], str]) -> str:
    """The mean in words, or why there is none."""
    if value is not None:
        return say(value)
    return "one run" if len(arm.counted) == 1 else "no mean"


def _reached_words(to_target: Reached) -> str:
    """`4 of 5 [0.38, 0.96]`: with Wilson's interval of the share."""
    ends = reached.wilson(to_target.reached, to_target.runs)
    return f"{to_target.reached} of {to_target.runs} [{ends.low:.2f}, {ends.high:.2f}]"


def _median_words(to_target: Reached | None) -> str:
    """The median time in words, or that fewer than half of the runs reached the target."""
    if to_target is None:
        return words.MISSING
    return RATE_ONLY if to_target.rate_only else words.seconds(reached.median_s(to_target))


def _target_words(arm: Arm) -> str:
    if all(run.target is None for run in arm.runs) or not arm.counted:
        return words.MISSING
    if len(arm.counted) == 1:
        return "one run"
    mean = target_mean(arm)
    if mean is not None:
        return words.seconds(mean)
    return RATE_ONLY if 2 * len(arm.reached) < len(arm.counted) else "no mean, not all reached it"


def crossing_words(run: Run) -> str:
    if run.target is None:
        return words.MISSING
    if run.crossing is None:
        return "not reached" if run.counted else words.MISSING
    return words.seconds(run.crossing.scored_s)


def interval_words(run: Run) -> str:
    crossing = run.crossing
    if crossing is None:
        return ""
    if crossing.at_first:
        return f"at the first evaluation, in (0, {words.significant(crossing.stamp_s)}] s"
    return f"in ({words.significant(crossing.after_s)}, {words.significant(crossing.stamp_s)}] s"


def notes_of(run: Run, *, mixed: bool) -> list[str]:
    """What sets a run apart. `mixed`: whether the times of some runs of its comparison alone are valid."""
    notes = {
        run.state: run.state != "finished",
        "invalid": run.invalid,
        "resumed: useful time": run.resumed,
        "timing not valid": mixed and run.timing_reasons and not run.invalid,
        "damaged records": run.damage,
    }
    return [note for note, holds in notes.items() if holds]
