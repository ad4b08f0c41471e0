"""The headline table as people read it: every arm with its runs below it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import words
from .data.arms import Arm, Comparison, metrics_of
from .data.load import Run
from .data.means import bytes_mean, final_mean, rate_mean, target_mean, train_mean
from .reach_table import RATE_ONLY, arm_way, expected_words, median_words, reached_words
from .tables import LINK_WORDS, LINKS


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run of the headline table, as text."""

    seed: str
    run_id: str
    state: str
    counted: bool
    to_target: str
    interval: str
    train: str
    rate: str
    final: str
    bytes: dict[str, str]
    labels: list[str]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ArmLine:
    """One arm of the headline table, as text, with its runs below it. A spread is named or left out.

    `median`, `expected`: of the time to target (Kaplan-Meier; time of all runs for each that reached it).
    """

    label: str
    index: int
    runs: str
    reached: str
    to_target: str
    has_mean: bool
    median: str
    expected: str
    train: str
    rate: str
    final: str
    final_spread: str
    bytes: dict[str, str]
    labels: list[str]
    lines: list[RunLine]


def headline(comparison: Comparison) -> list[ArmLine]:
    """The table that answers: who got there, when, how fast and how well."""
    # What holds for all runs is said once above the table, not in every line.
    mixed = len({bool(run.timing_reasons) for run in comparison.runs}) > 1
    return [_arm_line(comparison, arm, mixed) for arm in comparison.arms]


def headline_rows(comparisons: Iterable[Comparison]) -> list[dict[str, str]]:
    """The arms of the headline tables as text, one row each: what a paper prints."""
    comparisons = list(comparisons)
    metrics = metrics_of(comparisons)
    return [
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
            "expected running time": line.expected,
            "training time": line.train,
            "samples/s": line.rate,
            **{f"final {one.name}": line.final if one == comparison.metric else "" for one in metrics},
            **{f"bytes {LINK_WORDS[link]}": line.bytes[link] for link in LINKS},
        }
        for comparison in comparisons
        for line in headline(comparison)
    ]


def _arm_line(comparison: Comparison, arm: Arm, mixed: bool) -> ArmLine:
    others = len(arm.runs) - len(arm.counted)
    final, found = final_mean(arm), arm_way(comparison, arm)
    spread = [run.final for run in arm.counted if run.final is not None]
    return ArmLine(
        label=arm.label,
        index=arm.index,
        runs=words.count(len(arm.counted), "run") + (f" (+ {others} not counted)" if others else ""),
        reached=reached_words(found) if found else _no_way(arm),
        to_target=_target_words(arm),
        has_mean=target_mean(arm) is not None,
        median=median_words(found) if found else words.MISSING,
        expected=expected_words(found) if found else words.MISSING,
        train=_typical(arm, train_mean(arm), words.seconds),
        rate=_typical(arm, rate_mean(arm), words.rate),
        final=_typical(arm, final, words.share),
        final_spread=f"range {min(spread):.4f}–{max(spread):.4f}" if final is not None else "",
        bytes={link: _typical(arm, bytes_mean(arm, link), words.size) for link in LINKS},
        labels=list(dict.fromkeys(label for run in arm.runs for label in run.labels)),
        lines=[_run_line(run, mixed) for run in arm.runs],
    )


def _typical(arm: Arm, value: float | None, say: Callable[[float | None], str]) -> str:
    """The mean in words, or why there is none."""
    if value is not None:
        return say(value)
    return "one run" if len(arm.counted) == 1 else "no mean"


def _no_way(arm: Arm) -> str:
    return "no target set" if all(run.target is None for run in arm.runs) else "0 of 0"


def _target_words(arm: Arm) -> str:
    if all(run.target is None for run in arm.runs) or not arm.counted:
        return words.MISSING
    if len(arm.counted) == 1:
        return "one run"
    mean = target_mean(arm)
    if mean is not None:
        return words.seconds(mean)
    return RATE_ONLY if 2 * len(arm.reached) < len(arm.counted) else "no mean, not all reached it"


def _run_line(run: Run, mixed: bool) -> RunLine:
    return RunLine(
        seed=str(run.seed),
        run_id=run.run_id,
        state=run.state,
        counted=run.counted,
        to_target=_crossing_words(run),
        interval=_interval_words(run),
        train=words.seconds(run.train_s),
        rate=words.rate(run.samples_per_s),
        final=words.share(run.final),
        bytes={link: words.size(run.payload_bytes(link)) for link in LINKS},
        labels=run.labels,
        notes=_notes(run, mixed),
    )


def _crossing_words(run: Run) -> str:
    if run.target is None:
        return words.MISSING
    if run.crossing is None:
        return "not reached" if run.counted else words.MISSING
    return words.seconds(run.crossing.scored_s)


def _interval_words(run: Run) -> str:
    found = run.crossing
    if found is None:
        return ""
    if found.at_first:
        return f"at the first evaluation, in (0, {words.significant(found.stamp_s)}] s"
    return f"in ({words.significant(found.after_s)}, {words.significant(found.stamp_s)}] s"


def _notes(run: Run, mixed: bool) -> list[str]:
    notes = [] if run.state == "finished" else [run.state]
    if run.invalid:
        notes.append("invalid")
    if run.resumed:
        notes.append("resumed: useful time")
    if mixed and run.timing_reasons and not run.invalid:
        notes.append("timing not valid")
    if run.damage:
        notes.append("damaged records")
    return notes
