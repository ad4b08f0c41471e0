"""Checks of a study: whether its records, arms, plan, baseline and times allow its ratios to be read.

What forbids a verdict is said here, and nowhere else but for what concerns one claim alone (`judge`). Source:
docs/method.md, "Plan and records" and "Validity and guard".
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...records.study_plan import Stage, stages_of
from .. import words
from ..data.arms import Arm, Comparison
from ..data.examination import ROUNDING
from ..data.load import Run, value_at
from ..statistics.model_error import ALL, ModelError
from ..statistics.noise_floor import placebo_differs
from ..target import study_of
from .arm_speedup import TO_TARGET, WORK, ArmSpeedup, error_of_model, ratios, smallest_gain
from .convergence_points import Reference, learnt_nothing
from .fairness import by_design, forbidding, in_words, spread
from .recorded import paced
from .speedups import Check, Forbidden, Level, Speedups, speedups_of

CLOCKS_S = 60.0  # hosts' clocks may differ by this
NO_PLAN = "no plan was written before the runs"
MEASURED = 0.1  # by which compute times of equal work may differ between runs on real machines
CORES = "only efficiency comparable"  # of an arm that differs in what an efficiency may differ in


def all_speedups(comparisons: Iterable[Comparison], references: Sequence[Reference] = ()) -> list[Speedups]:
    """One for each comparison, as configured, of a baseline and another arm of at least three runs each.

    With all checks. `references`: stored samples to target (`convergence_points.load`).
    """
    made = (speedups_of(comparison, references) for comparison in comparisons if not comparison.assumption)
    return [replace(study, checks=tuple(check(study) for check in CHECKS)) for study in made if study]


def _check(
    name: str, level: Level, sentence: str, forbids: Sequence[Forbidden], details: Iterable[str] = ()
) -> Check:
    """Red where something is forbidden, with the first reason as its sentence, the others as details."""
    if forbids:
        more = f" ({len(forbids) - 1} more below)" if len(forbids) > 1 else ""
        level, sentence = "red", forbids[0].sentence + more
        details = [*(each.sentence for each in forbids[1:]), *details]
    return Check(name=name, level=level, sentence=sentence, details=tuple(details), forbids=tuple(forbids))


def records_intact(study: Speedups) -> Check:
    """Red where a run's records contradict each other, or an arm is faster than its bound.

    Runs that only lost a line are amber: damage is no contradiction.
    """
    runs, forbids, details = study.comparison.runs, list[Forbidden](), list[str]()
    for arm in study.comparison.arms:
        if distrusted := [run for run in arm.runs if run.distrusted]:
            count = f"{len(distrusted)} of {len(arm.runs)}"
            sentence = f"{arm.label}: the records of {count} runs contradict each other"
            forbids.append(Forbidden(arm.label, f"{count} distrusted", sentence))
            details += [f"{arm.label}, {run.run_id}: {'; '.join(run.distrusted)}" for run in distrusted]
    for line in study.lines:
        if sentence := _impossible(study, line):
            forbids.append(Forbidden(line.arm.label, "faster than possible", sentence))
    details += [run.found_again for run in runs if run.copies]
    level, sentence = "green", "the records of every run agree with each other"
    if damaged := sum(bool(run.damage) for run in runs):
        level, sentence = "amber", f"{damaged} of {len(runs)} runs have damaged records"
    return _check("records intact", level, sentence, forbids, details)


def _impossible(study: Speedups, line: ArmSpeedup) -> str:
    """That an arm did its work in less time than the baseline needs without communication.

    Only where nothing but communication can be saved: equal devices, and the same ranks. The whole interval
    has to lie above the bound and its error: of two baselines' times, or of compute times that are measured
    and no input.
    """
    bound, sides = study.bound, (study.baseline.runs[0], line.arm.runs[0])
    ranks = {str(value_at(run.config, "cluster", "ranks_per_node")) for run in sides}
    if line.fixed_work is None or bound.limit is None or bound.of != "communication" or len(ranks) > 1:
        return ""
    # Recorded times and their bound have the same model: its error is no excuse.
    fixed = line.fixed_work.simulated
    error = ROUNDING if all(map(paced, sides)) else max(study.fixed_floor.floor or 0.0, MEASURED)
    if fixed.low <= bound.limit * (1 + error):
        return ""
    return (
        f"{line.arm.label} is {fixed.point:.3f} times as fast, above the bound {bound.limit:.3f}: "
        "the time of its runs, or that of the baseline's, is wrong"
    )


def fair(study: Speedups) -> Check:
    """Red where an arm, claimed or not, differs from the baseline in more than what is its strategy's own.

    Amber where the baseline's own runs differ in machine or code. Second baselines are arms too.
    """
    baseline, forbids, details = study.baseline.label, list[Forbidden](), list[str]()
    for label, table in study.ledgers.items():
        beyond_cores = {row.key for row in forbidding(by_design(table, "efficiency"))}
        unequal = sorted(forbidding(table), key=lambda row: row.key not in beyond_cores)
        if unequal:
            reason = words.count(len(unequal), "unequal thing") if beyond_cores else CORES
            sentence = f"{label} differs from {baseline} in {in_words(unequal)}"
            spares = "none" if beyond_cores else "efficiency"
            forbids.append(Forbidden(label, reason, sentence, spares=spares))
            details.append(f"{label}: {'; '.join(row.sentence for row in unequal)}")
    mixed = [f"the runs of {baseline} differ: {what}" for what in spread(study.baseline.runs)]
    sentence = mixed[0] if mixed else f"no arm differs from {baseline} in more than its strategy"
    return _check("fair", "amber" if mixed else "green", sentence, forbids, [*details, *mixed])


def plan_complete(study: Speedups) -> Check:
    """Red where runs differ from the plan (`plan.jsonl`), amber without one; both make verdicts exploratory.

    If runs are chosen after the results are known, the choice decides the result.
    """
    folders = {run.folder.resolve().parent for run in study.comparison.runs}
    plans = {folder: stages_of(folder) for folder in sorted(folders)}
    if not all(plans.values()):
        return Check(name="plan complete", level="amber", sentence=NO_PLAN, exploratory=NO_PLAN)
    found = [each for plan in plans.items() for each in _differences(study.comparison, *plan)]
    if not found:
        count = words.count(len(study.comparison.runs), "run")
        return _check("plan complete", "green", f"{count}, as planned before the first began", ())
    sentence = "; ".join(sentence for sentence, _ in found)
    details = tuple(f"{sentence}: {', '.join(names)}" for sentence, names in found)
    return Check(name="plan complete", level="red", sentence=sentence, details=details, exploratory=sentence)


def _differences(
    comparison: Comparison, folder: Path, stages: Sequence[Stage]
) -> Iterator[tuple[str, list[str]]]:
    """(sentence, ids of the runs) for each kind of difference between the runs of a folder and their plan."""
    runs = [run for run in comparison.runs if run.folder.resolve().parent == folder]
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in stage.runs:
            stage_of.setdefault(name, number)
    planned = [(run, stages[stage_of[run.run_id]]) for run in runs if run.run_id in stage_of]
    if gone := _missing(comparison, folder, stage_of):
        yield f"{len(gone)} of {len(stage_of)} planned runs without a result", gone
    if added := [run.run_id for run in runs if run.run_id not in stage_of]:
        yield f"{len(added)} of {len(runs)} runs not in the plan", added
    late = [
        run.run_id
        for run, stage in planned
        if run.started_unix is not None and run.started_unix < stage.unix - CLOCKS_S
    ]
    if late:
        yield f"{len(late)} of {len(runs)} runs planned after the start", late
    changes = [(change, run.run_id) for run, stage in planned for change in _changes(run, stage)]
    for change in dict.fromkeys(change for change, _ in changes):
        yield change, [name for each, name in changes if each == change]
    ended = [(stage_of[run.run_id], run.ended_unix or math.inf) for run, _ in planned]
    for arm in comparison.arms:
        if added := _added_after_results(arm, stages, stage_of, ended):
            yield f"{arm.label}: {words.count(len(added), 'seed')} added after results were there", added


def _missing(comparison: Comparison, folder: Path, stage_of: Mapping[str, int]) -> list[str]:
    """Planned runs of this workload that give no number and were not repeated."""
    here = {run.run_id for run in comparison.runs}
    workloads = {tuple(name.split("-")[1:3]) for name in here}
    # A run that was lost with its folder names its strategy and seed alone: only a repeat can stand for it.
    repeated = {
        (run.strategy, f"s{run.seed}")
        for run in comparison.runs
        if run.counted and value_at(run.config, "run", "repeat")
    }
    gone: list[str] = []
    for name in stage_of:
        strategy, *workload, seed, _ = name.split("-") if name.count("-") == 4 else [""] * 5
        lost = name not in here and not (folder / name).is_dir() and tuple(workload) in workloads
        if lost and (strategy, seed) not in repeated:
            gone.append(name)
    for arm in comparison.arms:
        done = {run.block for run in arm.counted}
        # What counts is in `done`.
        gone += [run.run_id for run in arm.runs if run.run_id in stage_of and run.block not in done]
    return gone


def _changes(run: Run, stage: Stage) -> Iterator[str]:
    """A target, a level or a baseline that is another than in the plan."""
    compared: list[tuple[str, Any, tuple[Any, ...]]] = [("target", run.target, stage.targets)]
    if stage.level is not None:
        compared.append(("level", study_of(run, "level", None), (stage.level,)))
    # A study with tuned rows has a baseline for each of them, its plan the first one's alone.
    if not run.tuned and not stage.baseline.endswith(" tuned"):
        compared.append(("baseline", study_of(run, "baseline", ""), (stage.baseline,)))
    for name, value, wanted in compared:
        if wanted and value not in wanted:
            yield f"{name} {value or 'none'}, planned {' or '.join(str(each or 'none') for each in wanted)}"


def _added_after_results(
    arm: Arm, stages: Sequence[Stage], stage_of: Mapping[str, int], ended: Sequence[tuple[int, float]]
) -> list[str]:
    """Runs of later stages with further seeds of an arm, planned when runs of earlier stages had ended.

    ended: stage and end of each planned run, s since 1970.
    """
    planned = [(stage_of[run.run_id], run) for run in arm.runs if run.run_id in stage_of]
    first = min((number for number, _ in planned), default=0)
    seeds = {run.block for number, run in planned if number == first}
    return [
        run.run_id
        for number, run in planned
        if run.block not in seeds and any(n < number and end < stages[number].unix for n, end in ended)
    ]


def baseline_strong(study: Speedups) -> Check:
    """Red for a baseline that learnt nothing, is weak or is not the better one, and for too few samples.

    Amber where the baseline sometimes missed its target, or nothing is stored for the workload.
    """
    stored, baseline, forbids = study.convergence, study.baseline.label, list[Forbidden]()
    if sentence := learnt_nothing(study.baseline):
        untrained = "learnt nothing" if study.baseline.runs[0].target is None else "missed its target"
        # How many samples a second a machine does has nothing to do with what is learnt.
        forbids.append(Forbidden(baseline, f"baseline {untrained}", sentence, spares="efficiency"))
    if stored.weak:
        forbids.append(Forbidden(baseline, "weak baseline", stored.weak))
    for label, works in study.faster.items():
        sentence = f"wrong baseline: {label} is faster in {words.listed(works)}"
        forbids.append(Forbidden(baseline, "wrong baseline", sentence, spares="named comparators"))
    for label, sentence in stored.flagged.items():
        spares = "other comparators" if label == baseline else "none"
        forbids.append(Forbidden(label, "fewer samples than stored", sentence, spares=spares))
    if not stored.known:
        return _check("baseline strong", "amber", "nothing is stored for this workload", forbids)
    runs = [f"{len(each.samples)} stored runs of {each.name} ({each.date})" for each in stored.known]
    compared = f"samples to target were compared with {words.listed(runs)}"
    if missed := TO_TARGET.missing(study.baseline):
        return _check("baseline strong", "amber", missed[0], forbids, [compared])
    return _check("baseline strong", "green", compared, forbids)


def noise(study: Speedups) -> Check:
    """What two runs of the baseline differ by, and the smallest gain that this study can show.

    Red where the placebo differs from the baseline. Amber where a noise floor is missing, or where runs with
    the same seeds differ by more than chance.
    """
    forbids = [
        Forbidden(
            study.baseline.label,
            "placebo differs",
            f"the placebo differs from the baseline in {work}: {ratio.low:.3f} to {ratio.high:.3f}",
        )
        for work, ratio, floor in (study.with_floors(study.placebo) if study.placebo else ())
        if placebo_differs(ratio.low, ratio.high, floor)
    ]
    floors = (study.fixed_floor, study.target_floor)[: 1 if study.budget_s is None else 2]
    wrong, least, known = list[str](), list[str](), list[str]()
    for place, (work, floor) in enumerate(zip(WORK, floors, strict=False)):
        if floor.floor is None:
            missing = f"no second baseline with {' or '.join(floor.missing)}"
            wrong.append(f"no noise floor of the {work}: {floor.unknown or missing}")
            continue
        if floor.biased:
            wrong.append(f"{work}: two runs with the same seeds differ by more than chance")
        known.append(f"Noise floor of the {work}: {100 * floor.floor:.2g} %.")
        found = [ratio for line in study.lines if (ratio := ratios(line)[place])]
        gains = [smallest_gain(ratio, floor.floor) for ratio in found]
        least += [f"{min(gains):.2f}\N{MULTIPLICATION SIGN} in the {work}"] if gains else []
    shown = [f"a gain below {' or '.join(least)} would not show"] if least else known[:1]
    sentence = "; ".join([*dict.fromkeys(wrong), *shown])
    return _check("noise", "amber" if wrong else "green", sentence, forbids, known)


def valid_times(study: Speedups) -> Check:
    """Red where times of runs are not valid; amber in virtual time: how far it is off.

    Details: what of the model error each arm's interval holds.
    """
    counted = [run for run in study.comparison.runs if run.counted]
    reasons = sorted({reason for run in counted for reason in run.timing_reasons})
    forbids = [
        Forbidden(study.baseline.label, "times not valid", f"times of some runs are not valid: {reason}")
        for reason in reasons
    ]
    errors = {
        line.arm.label: error for line in study.lines if (error := error_of_model(study.against, line.arm))
    }
    if not errors:
        return _check("times", "green", "times were measured, not simulated", forbids)
    typical = words.percent(max(error.typical for error in errors.values()))
    p95 = words.percent(max(error.p95 for error in errors.values()))
    sentence = (
        "times are simulated, and every interval holds the model error: "
        f"half of all errors are below {typical}, 95 % below {p95}"
    )
    details = [f"{label}: {_used(error)}" for label, error in errors.items()]
    return _check("times", "amber", sentence, forbids, details)


def _used(error: ModelError) -> str:
    of = error.kind if error.kind == ALL else f"{error.kind} itself"
    bias = f"their mean error of {error.bias:+.1%} is taken off the ratio"
    if error.carried:
        bias = "no bias is known at its ratio, so the interval carries the whole error"
    size = f"typical error {words.percent(error.typical)}, 95 % below {words.percent(error.p95)}"
    return f"{error.count} validated pairs of {of}; {bias}; {size}."


CHECKS: tuple[Callable[[Speedups], Check], ...] = (
    records_intact,  # first: a run that counts in no number makes its arm unequal too
    fair,
    plan_complete,
    baseline_strong,
    noise,
    valid_times,
)
"""In the order of the strip on page one."""
