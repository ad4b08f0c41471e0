"""The answer of a study in sentences: what is recommended, what was shown, and what could have been seen.

Source: docs/report.md, "Page one"; docs/method.md, "Verdict on a claim".
"""

import math
from collections.abc import Iterable, Sequence

from . import words
from .claims.judge import JudgedClaim
from .claims.paper_claims import Claim, gain_words
from .claims.speedups import ArmSpeedup, Speedups, ratios, smallest_gain
from .data.arms import Comparison
from .data.load import Run
from .data.metric import METRICS
from .statistics.several_arms import EACH_SIDE

MARGIN_POINTS = 0.5  # so much less accuracy counts as equal, as in a claim that gives no margin


def setting(comparison: Comparison) -> str:
    """Workload and cluster in a few words: `small_cnn/digits over 4×4 GPUs at 1 Gbit/s`."""
    clusters = words.listed(sorted({_cluster(run) for run in comparison.runs}))
    return ", ".join(
        part for part in (f"{comparison.model}/{comparison.dataset} over {clusters}", comparison.size) if part
    )


def _cluster(run: Run) -> str:
    cluster = run.config.get("cluster") or {}
    nodes, ranks = cluster.get("nodes"), cluster.get("ranks_per_node")
    counts = ranks if isinstance(ranks, list) else [ranks]
    shape = f"{nodes}×{counts[0]}" if len(set(counts)) == 1 else "+".join(map(str, counts))
    kind = (cluster.get("device") or {}).get("kind")
    kinds = [kind] if isinstance(kind, str) else sorted(set(kind or ()))
    devices = " and ".join(filter(None, kinds)) or "ranks"
    rate = ((cluster.get("links") or {}).get("inter") or {}).get("rate_gbit")
    return f"{shape} {devices}" + (f" at {rate:g} Gbit/s" if isinstance(rate, int | float) else "")


def in_order(speedups: Speedups) -> list[ArmSpeedup]:
    """The arms by time saved, the largest first; then those without a ratio, then those not comparable."""

    def place(line: ArmSpeedup) -> tuple[bool, float]:
        ratio = line.fixed_work or line.to_target
        return bool(speedups.not_comparable(line.arm)), -ratio.point if ratio else math.inf

    return sorted(speedups.lines, key=place)


def until(speedups: Speedups) -> str:
    """`until 95 %`, of a loss `until loss 0.3`; "" where the study has no single target."""
    targets, key = speedups.comparison.targets, speedups.comparison.runs[0].metric
    if len(targets) != 1:
        return ""
    return f"until {100 * targets[0]:.3g} %" if key in METRICS else f"until {key} {targets[0]:g}"


def recommendation(speedups: Speedups) -> str:
    """The answer in one sentence: what is recommended, what was shown, and for which arms nothing.

    Arms that may not be compared are never recommended, and a gain with less accuracy is named with its loss.
    """
    found = [(line, *_finding(speedups, line)) for line in in_order(speedups)]
    shown = [(line.arm.label, clause) for line, group, clause in found if group == "equal"]
    lead = "no arm is recommended"
    if shown:
        lead = f"{shown[0][0]} is recommended: it {shown[0][1]}"
    elif speedups.forbidden:
        lead += f" ({'; '.join(speedups.forbidden)})"
    clauses = [lead, *(f"{label} {clause}" for label, clause in shown[1:])]
    clauses += [f"{line.arm.label} {clause}" for line, group, clause in found if group == "reserve"]
    if unsure := [f"{line.arm.label} ({clause})" for line, group, clause in found if group == "open"]:
        loss = f"a loss of more than {MARGIN_POINTS} points of {speedups.comparison.metric.name}"
        verb = "saves" if len(unsure) == 1 else "save"
        clauses.append(f"{words.listed(unsure)} {verb} time, but {loss} is not excluded")
    if slower := [line.arm.label for line, group, _ in found if group == "slower"]:
        verb = "takes" if len(slower) == 1 else "take"
        clauses.append(f"{words.listed(slower)} {verb} longer than the baseline")
    if nothing := [line.arm.label for line, group, _ in found if group == "nothing"]:
        clauses.append(f"for {words.listed(nothing)} nothing is shown{_why_nothing(speedups)}")
    reasons: dict[str, list[str]] = {}
    for line, group, why in found:
        if group == "not comparable":
            reasons.setdefault(why, []).append(line.arm.label)
    clauses += [f"{words.listed(labels)} may not be compared ({why})" for why, labels in reasons.items()]
    start = "Exploratory: on" if speedups.exploratory else "On"
    return f"{start} {setting(speedups.comparison)}, {'; '.join(clauses)}."


def _finding(speedups: Speedups, line: ArmSpeedup) -> tuple[str, str]:
    """What is known of an arm ("equal", "reserve", "open", "slower", …), and its clause."""
    if why := speedups.not_comparable(line.arm):
        return "not comparable", why
    place = 0 if line.fixed_work else 1
    ratio, no_gain, no_loss = ratios(line)[place], line.holm[place], line.holm_loss[place]
    floor = (speedups.fixed_floor, speedups.target_floor)[place].floor
    if ratio is None or floor is None or speedups.forbidden:
        return "nothing", ""
    if ratio.high < 1 / (1 + floor) and no_loss is not None and no_loss <= EACH_SIDE:
        return "slower", ""
    if ratio.low <= 1 + floor or no_gain is None or no_gain > EACH_SIDE:
        return "nothing", ""
    metric = speedups.comparison.metric.name
    gain = f"saves {words.saving(ratio)} of the baseline's time" + (f" {until(speedups)}" if place else "")
    if line.diverged:
        return "reserve", f"{gain}, but one of its runs diverged"
    if line.quality is None:
        return "reserve", f"{gain}, but its {metric} was not compared"
    ends = line.quality.interval
    if ends.high < 0 and line.holm_points_lost is not None and line.holm_points_lost <= EACH_SIDE:
        return "reserve", f"{gain} but loses {words.two(-line.quality.difference)} points of {metric}"
    if ends.low < -MARGIN_POINTS:
        return "open", words.saving(ratio) + (f" {until(speedups)}" if place else "")
    also = f" ({words.saving(line.to_target)} {until(speedups)})" if line.to_target and not place else ""
    return "equal", f"{gain} at equal {metric}{also}"


def _why_nothing(speedups: Speedups) -> str:
    if speedups.forbidden or speedups.fixed_floor.floor is not None:
        return ""
    best = next((line for line in in_order(speedups) if line.fixed_work), None)
    measured = f"; measured: {best.arm.label} {words.saving(best.fixed_work)}" if best else ""
    return f", because the noise of the baseline was not measured{measured}"


def limits(speedups: Speedups) -> str:
    """What at most could be saved, and which gain would not show, in one or two sentences."""
    bound, sentences = speedups.bound.value, []
    if bound is not None:
        sentences.append(
            f"At most {words.percent(words.saved(bound))} of the baseline's time ({words.factor(bound)}) "
            "could be saved here, by an arm that neither communicates nor waits."
        )
    known = [ratio for line in speedups.lines if (ratio := line.fixed_work or line.to_target)]
    gains = [smallest_gain(ratio, speedups.fixed_floor.floor or 0.0) for ratio in known if not ratio.side]
    least = min(gains, default=1.0)
    runs = min((len(line.arm.counted) for line in speedups.lines), default=0)
    if least <= 1:
        sentences.append("Which gain would show is not known: the times of equal work do not scatter.")
    else:
        sentences.append(
            f"With {words.count(runs, 'run')} an arm, a gain below {words.factor(least)} "
            f"({words.percent(words.saved(least))}) would not show."
        )
    return " ".join(sentences)


def points_words(line: ArmSpeedup) -> str:
    """The difference of the final metric with its interval, in percentage points; or that there is none."""
    if line.quality is None:
        return "no interval"
    ends = line.quality.interval
    point, low, high = map(words.signed, (line.quality.difference, ends.low, ends.high))
    return f"{point} [{low}, {high}]"


def paper_table(speedups: Speedups) -> list[dict[str, str]]:
    """The six columns of a paper's table, all of text, a row per arm in the order of the figure."""
    return [
        {
            "arm": line.arm.label,
            "time saved [CI]": words.saving(line.fixed_work),
            f"time saved {until(speedups) or 'to target'} [CI]": words.saving(line.to_target),
            f"{speedups.comparison.metric.name}, points [CI]": points_words(line),
            "n": str(len(line.arm.counted)),
            "comparable": f"no: {why}" if (why := speedups.not_comparable(line.arm)) else "yes",
        }
        for line in in_order(speedups)
    ]


def figure_in_words(speedups: Speedups) -> str:
    """The figure of page one in words, for readers who cannot see it."""
    arms = "; ".join(
        f"{line.arm.label}: "
        + (
            f"not comparable, {why}"
            if (why := speedups.not_comparable(line.arm))
            else f"{words.saving(line.fixed_work)} with the same epochs, "
            f"{words.saving(line.to_target)} {until(speedups) or 'to a target'}, {points_words(line)} points"
        )
        for line in in_order(speedups)
    )
    return f"Share of the time of {speedups.baseline.label} that each arm saves. {arms}."


def paper_rows(speedups: Speedups, judged: Iterable[JudgedClaim]) -> list[dict[str, str]]:
    """One row a paper: its name, what it claims, what was measured here, and the verdict in a sentence."""
    by_paper: dict[str, list[JudgedClaim]] = {}
    for one in judged:
        if one.comparison is speedups.comparison:
            by_paper.setdefault(one.claim.paper.title, []).append(one)
    return [
        {
            "paper": _paper_name(group[0].claim),
            "title": group[0].claim.paper.reference,
            "claims": "; ".join(dict.fromkeys(gain_words(one.claim) for one in group)),
            "measured": _measured(speedups, group),
            "verdict": _verdict(speedups, group),
        }
        for group in by_paper.values()
    ]


def _paper_name(claim: Claim) -> str:
    first = claim.paper.authors.split(",")[0].split()[-1]
    return f"{first} {claim.paper.year} ({claim.file.stem})"


def _measured(speedups: Speedups, group: Sequence[JudgedClaim]) -> str:
    """Time saved and points of accuracy of the paper's arm, or the measure of its first claim."""
    arms = {one.arm for one in group}
    lines = [line for line in speedups.lines if line.arm.label in arms]
    found = [
        f"{line.arm.label}: {words.saving(line.fixed_work)} of the time saved, {points_words(line)} points"
        for line in lines
        if line.fixed_work
    ]
    return "; ".join(found) or next((one.measured for one in group if one.measured), words.MISSING)


def _verdict(speedups: Speedups, group: Sequence[JudgedClaim]) -> str:
    """Every word with the claims that got it, and the first reason."""
    forbidden = {line.arm.label: speedups.not_comparable(line.arm) for line in speedups.lines}
    found: dict[tuple[str, str], list[str]] = {}
    for one in group:
        word, why = one.verdict.word, next(iter((*one.verdict.remarks, *one.verdict.reasons)), "")
        if reason := forbidden.get(one.arm):
            word, why = "no verdict", reason
        about = one.claim.headline.replace("fixed_work", "same epochs").replace("_", " ")
        found.setdefault((word, why), []).append(about)
    return "; ".join(
        f"{words.listed(list(dict.fromkeys(names)))}: {word}" + (f" ({why})" if why else "")
        for (word, why), names in found.items()
    )
