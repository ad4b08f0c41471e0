"""Check "plan complete": whether the runs are those that the study's plan declared before any result.

The plan is `plan.jsonl` in the study's folder. Runs that are missing, added or changed make every verdict
exploratory: if runs are chosen after the results are known, the choice decides the result. Source:
docs/method.md, "Plan and records".
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...records.study_plan import Stage, stages_of
from .. import words
from ..claims.speedups import Speedups
from ..data.arms import Arm
from ..data.load import Run, value_at
from ..target import study_of
from .check import Check

NAME = "plan complete"
CLOCKS_S = 60.0  # hosts' clocks may differ by this
NO_PLAN = "no plan was written before the runs"


def check(study: Speedups) -> Check:
    """Red where runs differ from the plan, amber without a plan; both make the verdicts exploratory."""
    folders = sorted({run.folder.resolve().parent for run in study.comparison.runs})
    plans = {folder: stages_of(folder) for folder in folders}
    if not all(plans.values()):
        return Check(name=NAME, level="amber", sentence=NO_PLAN, exploratory=NO_PLAN)
    found = [pair for folder, stages in plans.items() for pair in _differences(study, folder, stages)]
    if not found:
        count = words.count(len(study.comparison.runs), "run")
        return Check(name=NAME, level="green", sentence=f"{count}, as planned before the first began")
    sentence = "; ".join(sentence for sentence, _ in found)
    details = tuple(f"{sentence}: {', '.join(names)}" for sentence, names in found if names)
    return Check(name=NAME, level="red", sentence=sentence, details=details, exploratory=sentence)


def _differences(study: Speedups, folder: Path, stages: list[Stage]) -> Iterator[tuple[str, list[str]]]:
    """(sentence, ids of the runs) for each kind of difference between the runs and their plan."""
    runs = [run for run in study.comparison.runs if run.folder.resolve().parent == folder]
    stage_of: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name in stage.runs:
            stage_of.setdefault(name, number)
    planned = {run.run_id: stages[stage_of[run.run_id]] for run in runs if run.run_id in stage_of}
    if gone := _missing(study, folder, stage_of):
        yield f"{len(gone)} of {len(stage_of)} planned runs without a result", gone
    if added := [run.run_id for run in runs if run.run_id not in planned]:
        yield f"{len(added)} of {len(runs)} runs not in the plan", added
    begun = {run.run_id: run.started_unix for run in runs if run.started_unix is not None}
    late = [name for name, stage in planned.items() if begun.get(name, math.inf) < stage.unix - CLOCKS_S]
    if late:
        yield f"{len(late)} of {len(runs)} runs planned after the start", late
    yield from _changed(runs, planned)
    for arm in study.comparison.arms:
        if added := _added_after_a_look(arm, runs, stages, stage_of):
            yield f"{arm.label}: {words.count(len(added), 'seed')} added after results were there", added


def _missing(study: Speedups, folder: Path, stage_of: Mapping[str, int]) -> list[str]:
    """Planned runs of this workload that give no number and were not repeated."""
    runs = study.comparison.runs
    here = {run.run_id for run in runs}
    workloads = {tuple(run.run_id.split("-")[1:3]) for run in runs}
    # A run that was lost with its folder names its strategy and seed alone: only a repeat can stand for it.
    repeated = {
        (run.strategy, f"s{run.seed}")
        for run in runs
        if run.counted and value_at(run.config, "run", "repeat")
    }
    gone: list[str] = []
    for name in stage_of:
        strategy, *workload, seed, _ = name.split("-") if name.count("-") == 4 else ("", "", "", "", "")
        lost = name not in here and not (folder / name).is_dir() and tuple(workload) in workloads
        if lost and (strategy, seed) not in repeated:
            gone.append(name)
    failed = [
        run.run_id
        for arm in study.comparison.arms
        for run in arm.runs
        if run.run_id in stage_of
        and not run.counted
        and run.block not in {other.block for other in arm.counted}
    ]
    return gone + failed


def _changed(runs: list[Run], planned: Mapping[str, Stage]) -> Iterator[tuple[str, list[str]]]:
    """Targets, baselines and levels that are others than in the plan."""
    changes: dict[str, list[str]] = {}
    for run in runs:
        stage = planned.get(run.run_id)
        if stage is None:
            continue
        now: dict[str, tuple[Any, tuple[Any, ...]]] = {"target": (run.target, stage.targets)}
        if stage.level is not None:
            now["level"] = study_of(run, "level", None), (stage.level,)
        # A study with tuned rows has a baseline for each of them, its plan the first one's alone.
        if not run.tuned and not stage.baseline.endswith(" tuned"):
            now["baseline"] = (study_of(run, "baseline", ""), (stage.baseline,))
        for name, (value, wanted) in now.items():
            if wanted and value not in wanted:
                told = " or ".join(str(each or "none") for each in wanted)
                changes.setdefault(f"{name} {value or 'none'}, planned {told}", []).append(run.run_id)
    yield from changes.items()


def _added_after_a_look(
    arm: Arm, runs: list[Run], stages: list[Stage], stage_of: Mapping[str, int]
) -> list[str]:
    """Runs of later stages with further seeds of an arm, planned when runs of earlier stages had ended."""
    ended = [
        (stage_of[run.run_id], run.ended_unix)
        for run in runs
        if run.run_id in stage_of and run.ended_unix is not None
    ]
    first = min((stage_of[run.run_id] for run in arm.runs if run.run_id in stage_of), default=0)
    seeds = {run.block for run in arm.runs if stage_of.get(run.run_id) == first}
    return [
        run.run_id
        for run in arm.runs
        if (number := stage_of.get(run.run_id, first)) > first
        and run.block not in seeds
        and any(stage < number and end < stages[number].unix for stage, end in ended)
    ]
