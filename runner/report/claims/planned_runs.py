"""Check "plan complete": whether the runs are those that the study's plan declared before any result.

The plan is `plan.jsonl` in the study's folder. Runs that are missing, added or changed make every verdict
exploratory: if runs are chosen after the results are known, the choice decides the result. Source:
docs/method.md, "Plan and records".
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...records.plan_file import Stage, stages_of
from .. import words
from ..data.arms import Arm, Comparison
from ..data.load import Run, value_at
from ..target import study_of
from .speedups import Check, Speedups

NAME = "plan complete"
CLOCKS_S = 60.0  # hosts' clocks may differ by this
NO_PLAN = "no plan was written before the runs"


def plan_complete(study: Speedups) -> Check:
    """Red where runs differ from the plan, amber without a plan; both make the verdicts exploratory."""
    folders = {run.folder.resolve().parent for run in study.comparison.runs}
    plans = {folder: stages_of(folder) for folder in sorted(folders)}
    if not all(plans.values()):
        return Check(name=NAME, level="amber", sentence=NO_PLAN, exploratory=NO_PLAN)
    found = [
        difference
        for folder, stages in plans.items()
        for difference in _differences(study.comparison, folder, stages)
    ]
    if not found:
        count = words.count(len(study.comparison.runs), "run")
        return Check(name=NAME, level="green", sentence=f"{count}, as planned before the first began")
    sentence = "; ".join(sentence for sentence, _ in found)
    details = tuple(f"{sentence}: {', '.join(names)}" for sentence, names in found)
    return Check(name=NAME, level="red", sentence=sentence, details=details, exploratory=sentence)


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
