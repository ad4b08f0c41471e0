"""The answer of a study in sentences: what is recommended, what was shown, and what could have been seen.

Source: docs/report.md, "Page one"; docs/method.md, "Verdict on a claim".
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from . import words
from .claims.arm_speedup import ArmSpeedup, ratios
from .claims.bounds import BALANCE
from .claims.judge import JudgedClaim
from .claims.paper_claims import gain_words
from .claims.speedups import Speedups
from .data.arms import Comparison
from .data.load import Run, value_at
from .data.metric import METRICS
from .statistics.several_arms import EACH_SIDE
from .statistics.verdict import GAINS, LOSSES

MARGIN_POINTS = 0.5  # so much less accuracy counts as equal, as in a claim that gives no margin
OF_QUALITY = {  # remarks of verdicts on quality, and what they mean
    "quality lost": "the final metric is worse",
    "quality open": "a worse final metric is not excluded",
}


def setting(comparison: Comparison) -> str:
    """Workload and cluster in a few words: `small_cnn/digits over 4×4 GPUs at 1 Gbit/s`."""
    clusters = words.listed(sorted({_cluster(run) for run in comparison.runs}))
    place = f"{comparison.model}/{comparison.dataset} over {clusters}"
    return ", ".join(filter(None, (place, comparison.size)))


def _cluster(run: Run) -> str:
    nodes, ranks = (value_at(run.config, "cluster", key) for key in ("nodes", "ranks_per_node"))
    counts = ranks if isinstance(ranks, list) else [ranks]
    shape = f"{nodes}×{counts[0]}" if len(set(counts)) == 1 else "+".join(map(str, counts))
    kind = value_at(run.config, "cluster", "device", "kind") or []
    devices = " and ".join(filter(None, [kind] if isinstance(kind, str) else sorted(set(kind)))) or "ranks"
    rate = value_at(run.config, "cluster", "links", "inter", "rate_gbit")
    return f"{shape} {devices}" + (f" at {rate:g} Gbit/s" if isinstance(rate, int | float) else "")


def runs(speedups: Speedups) -> str:
    """How many runs that count the arms have: `10 runs an arm`, `3 to 5 runs an arm`."""
    arms = [speedups.baseline, *(line.arm for line in speedups.lines)]
    fewest, most = min(len(arm.counted) for arm in arms), max(len(arm.counted) for arm in arms)
    return f"{f'{fewest} to ' * (fewest < most)}{words.count(most, 'run')} an arm"


def in_order(speedups: Speedups) -> list[ArmSpeedup]:
    """The arms by time saved, the largest first; then those without a ratio, then those not comparable."""

    def place(line: ArmSpeedup) -> tuple[bool, float]:
        ratio = line.fixed_work or line.to_target
        return bool(speedups.not_comparable(line.arm)), -ratio.point if ratio else math.inf

    return sorted(speedups.lines, key=place)


def to_target_words(speedups: Speedups) -> str:
    """`to 95 % accuracy`, of a loss `to loss 0.3`; "" where the study has no single target."""
    targets, key = speedups.comparison.targets, speedups.comparison.runs[0].metric
    if len(targets) != 1:
        return ""
    if key not in METRICS:
        return f"to {key} {targets[0]:g}"
    return f"to {100 * targets[0]:.3g} % {METRICS[key].name}"


def recommendation(speedups: Speedups) -> str:
    """The answer in one sentence: what is recommended, what was shown, and for which arms nothing.

    Arms that may not be compared are never recommended, and a gain with less accuracy is named with its loss.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)  # kind of finding -> label -> clause
    for line in in_order(speedups):
        kind, clause = _finding(speedups, line)
        found[kind][line.arm.label] = clause
    lead, gains = "no arm is recommended", [*found["equal"].items(), *found["reserve"].items()]
    if found["equal"]:
        label, clause = gains.pop(0)
        lead = f"{label} is recommended: it {clause}"
    loss = f"a loss of more than {MARGIN_POINTS} points of {speedups.comparison.metric.name}"
    late = [line.arm.label for line in speedups.lines if _later_at_target(speedups, line)]
    unknown = speedups.fixed_floor.floor is None
    why_nothing = ", because the noise of the baseline was not measured" if unknown else ""
    lists = {  # clause -> the arms that it names
        f"time is saved by {{}}, but {loss} is not excluded": [
            f"{label} ({saving})" for label, saving in found["open"].items()
        ],
        "slower than the baseline: {}": [*found["slower"]],
        f"slower {to_target_words(speedups)}: {{}}": [arm for arm in late if arm not in found["slower"]],
        f"for {{}} nothing is shown{why_nothing}": [*found["nothing"]],
    }
    for label, why in found["not comparable"].items():
        lists.setdefault(f"{{}} may not be compared ({why})", []).append(label)
    clauses = [lead, *(f"{label} {clause}" for label, clause in gains)]
    clauses += [text.replace("{}", words.listed(arms), 1) for text, arms in lists.items() if arms]
    start = "Exploratory: on" if speedups.exploratory else "On"
    return f"{start} {setting(speedups.comparison)}, {'; '.join(clauses)}."


def _finding(speedups: Speedups, line: ArmSpeedup) -> tuple[str, str]:
    """What is known of an arm ("equal", "reserve", "open", "slower", …), and its clause."""
    if why := speedups.not_comparable(line.arm):
        return "not comparable", why
    place = 0 if line.fixed_work else 1
    ratio, no_gain, no_loss = ratios(line)[place], line.holm[place], line.holm_loss[place]
    floor = (speedups.fixed_floor, speedups.target_floor)[place].floor
    if ratio is None or floor is None:
        return "nothing", ""
    if ratio.high < 1 / (1 + floor) and _shown(no_loss):
        return "slower", ""
    if ratio.low <= 1 + floor or not _shown(no_gain):
        return "nothing", ""
    metric, goal = speedups.comparison.metric.name, f" {to_target_words(speedups)}"
    gain = f"saves {words.saving(ratio)} of the baseline's time{goal * place}"
    if line.diverged:
        return "reserve", f"{gain}, but one of its runs diverged"
    if line.quality is None:
        return "reserve", f"{gain}, but its {metric} was not compared"
    ends = line.quality.interval
    if ends.high < 0 and _shown(line.holm_points_lost):
        return "reserve", f"{gain} but loses {words.two(-line.quality.difference)} points of {metric}"
    if ends.low < -MARGIN_POINTS:
        return "open", words.saving(ratio) + goal * place
    if _later_at_target(speedups, line):
        return "reserve", f"{gain} at equal {metric}"
    also = f" ({words.saving(line.to_target)}{goal})" if line.to_target and not place else ""
    return "equal", f"{gain} at equal {metric}{also}"


def _shown(p: float | None) -> bool:
    """Whether a one-sided p, adjusted for all arms, shows the opposite."""
    return p is not None and p <= EACH_SIDE


def _later_at_target(speedups: Speedups, line: ArmSpeedup) -> bool:
    """Whether the arm is shown to reach the target later, after correction for all arms."""
    shown = line.to_target is not None and line.to_target.high < 1 and _shown(line.holm_loss[1])
    return shown and not speedups.not_comparable(line.arm)


def limits(speedups: Speedups) -> str:
    """What at most could be saved; "" where that was not measured."""
    bound = speedups.bound
    if bound.value is not None:
        return (
            f"At most {words.percent(words.saved(bound.value))} of the baseline's time "
            f"({words.factor(bound.value)}) could be saved here, "
            "by an arm that neither communicates nor waits."
        )
    if bound.of == BALANCE:
        return (
            "What could be saved here is not known: devices differ, and not all ranks recorded their times."
        )
    return ""


def undecided(speedups: Speedups, judged: Iterable[JudgedClaim]) -> str:
    """That no claim of a paper is decided, and what would decide one; "" if one is, or none was judged."""
    verdicts = [one.verdict for one in judged if one.comparison is speedups.comparison]
    if not verdicts or any(verdict.word in GAINS + LOSSES for verdict in verdicts):
        return ""
    counts = Counter(verdict.word for verdict in verdicts)
    found = "; ".join(f"{word}: {count}" for word, count in counts.items())
    runs = [verdict.smallest_n for verdict in verdicts if verdict.smallest_n is not None]
    enough = f"{min(runs)} runs an arm would decide one" if runs else "No number of runs up to 100 would"
    other = "A workload in which more time can be saved, or with more test samples, decides more."
    return f"No claim of a paper is decided here ({found}). {enough}. {other}"


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
            f"time saved {to_target_words(speedups) or 'to target'} [CI]": words.saving(line.to_target),
            f"{speedups.comparison.metric.name}, points [CI]": points_words(line),
            "n": str(len(line.arm.counted)),
            "comparable": f"no: {why}" if (why := speedups.not_comparable(line.arm)) else "yes",
        }
        for line in in_order(speedups)
    ]


def figure_in_words(speedups: Speedups) -> str:
    """The figure of page one in words, for readers who cannot see it."""
    rows = [", ".join(f"{name} {cell}" for name, cell in row.items()) for row in paper_table(speedups)]
    return f"Share of the time of {speedups.baseline.label} that each arm saves. {'; '.join(rows)}."


def paper_rows(speedups: Speedups, judged: Iterable[JudgedClaim]) -> list[dict[str, str]]:
    """One row a paper: its name, what it claims, what was measured here, and the verdict in a sentence."""
    by_paper: dict[str, list[JudgedClaim]] = defaultdict(list)
    for one in judged:
        if one.comparison is speedups.comparison:
            by_paper[one.claim.paper.title].append(one)
    return [_paper_row(speedups, group) for group in by_paper.values()]


def _paper_row(speedups: Speedups, group: Sequence[JudgedClaim]) -> dict[str, str]:
    """Measured: time saved and points of accuracy of the paper's arms, or the measure of its first claim."""
    first, arms = group[0].claim, {one.arm for one in group}
    measured = [
        f"{line.arm.label}: {words.saving(line.fixed_work)} of the time saved, {points_words(line)} points"
        for line in speedups.lines
        if line.arm.label in arms and line.fixed_work
    ]
    claims: dict[str, dict[str, None]] = defaultdict(dict)  # by verdict with its first reason
    for one in group:
        why = next(iter((*one.verdict.remarks, *one.verdict.reasons)), "")
        why = OF_QUALITY.get(why, why)
        headline = one.claim.headline.replace("fixed_work", "same epochs").replace("_", " ")
        claims[one.verdict.word + (f" ({why})" if why else "")][headline] = None
    return {
        "paper": f"{first.paper.authors.split(',')[0].split()[-1]} {first.paper.year} ({first.file.stem})",
        "title": first.paper.reference,
        "claims": "; ".join(dict.fromkeys(gain_words(one.claim) for one in group)),
        "measured": "; ".join(measured)
        or next((one.measured for one in group if one.measured), words.MISSING),
        "verdict": "; ".join(f"{words.listed([*names])}: {verdict}" for verdict, names in claims.items()),
    }
