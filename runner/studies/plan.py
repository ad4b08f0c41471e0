"""The plan of a command: its runs in the order to start them; and `plan.jsonl`, the declared runs.

A *block* is one repetition (seed, run.repeat). Inside a block every arm runs once, and the order of the arms
moves on by one from block to block (ABC, BCA, CAB), so that a machine that warms up or gets busy does not
favour an arm.

`<results_dir>/<study>/plan.jsonl` has one line for each stage, written before the first run starts. A later
sweep adds a stage with the runs that no earlier one had: more runs are a new stage, never a quiet change of
the plan. Fields: docs/records.md.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...strategies.errors import ConfigError
from ..config.compose import Request
from ..config.run_config import RunConfig
from ..machine.folders import writing
from ..records.json_lines import RecordWriter, Row
from ..records.run_directory import RunDirectory, State
from ..records.study_plan import FILE, PLAN_SCHEMA_VERSION, REPEATS, block_of, stages_of


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run that is to be started: its configuration, and the state of its directory when planned."""

    config: RunConfig
    state: State

    @classmethod
    def of(cls, config: RunConfig) -> "PlannedRun":
        """Raises ConfigError where the status of its directory is damaged."""
        return cls(config=config, state=RunDirectory(config.path).state())

    @property
    def path(self) -> Path:
        return self.config.path

    @property
    def title(self) -> str:
        return self.config.title

    @property
    def arm(self) -> str:
        """The same for the repetitions of an arm in one study."""
        return f"{self.path.parent}/{self.config.arm_id}"

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.path)

    def create_directory(self) -> RunDirectory:
        """See `RunDirectory.create`."""
        return RunDirectory.create(self.config.tree, self.config.results_dir)


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The runs of a command in the order to start them, and the requests that were refused.

    `copies`: the arms that are left out, since their runs would repeat those of the baseline.
    """

    runs: Sequence[PlannedRun]
    refused: Sequence[Request] = ()
    copies: Sequence[str] = ()

    @property
    def left_out(self) -> str:
        """One sentence on what is not run, "" if everything is."""
        if not self.copies:
            return ""
        return f"not run: {', '.join(self.copies)}; {COPIED}"

    @property
    def only(self) -> PlannedRun:
        """The one run that was asked for. Raises ConfigError if it is refused."""
        if self.refused:
            raise self.refused[0].error or ConfigError("nothing to run")
        (run,) = self.runs
        return run


COPIED = "in virtual time without cluster.device.jitter these runs repeat the baseline's, to the nanosecond"


def repeats_baseline(config: RunConfig) -> bool:
    """Whether the run has the seeds, the work and so the virtual time of a run of the baseline."""
    device = config.cluster.device
    jitters = device.jitter != "none" and device.jitter_cv > 0
    return config.launcher.virtual and config.study.role in REPEATS and not jitters


def plan_of(requests: Sequence[Request]) -> StudyPlan:
    """The plan for what was asked (see the module's first lines for the order).

    Copies of the baseline's runs are left out; where nothing else was asked for, they are refused.
    """
    kept = [r for r in requests if r.config is None or not repeats_baseline(r.config)]
    copies = [r.config for r in requests if r.config is not None and repeats_baseline(r.config)]
    if copies and not kept:
        error = ConfigError(f"study.role: {COPIED}; nothing else was asked for")
        refused = [dataclasses.replace(r, config=None, error=error) for r in requests]
        return StudyPlan(runs=[], refused=refused)
    # A list for each arm, of one run nearly always: no two requests may be one, whatever an arm is.
    blocks: dict[tuple[int, int], dict[str, list[PlannedRun]]] = {}
    arms: dict[str, None] = {}
    for request in kept:
        if request.config is not None:
            run = PlannedRun.of(request.config)
            arms.setdefault(run.arm)
            block = block_of(run.config.seed, run.config.study.role), run.config.run.repeat
            blocks.setdefault(block, {}).setdefault(run.arm, []).append(run)
    runs: list[PlannedRun] = []
    names = list(arms)
    for number, block in enumerate(blocks.values()):
        turn = number % len(names)
        runs += [run for name in names[turn:] + names[:turn] for run in block.get(name, [])]
    return StudyPlan(
        runs=runs,
        refused=[request for request in kept if request.config is None],
        copies=list(dict.fromkeys(config.study.arm or config.study.role for config in copies)),
    )


def declare(
    runs: Sequence[PlannedRun], words: Sequence[str], *, unix: float, commit: Callable[[], str | None]
) -> None:
    """Add a stage to the plan of each study of `runs` for the runs that are new to it.

    `words`: what was asked for. `unix`: now. `commit`: the present one, asked only if there is a new run.
    Raises ConfigError if a plan cannot be written, MachineError if the disk is full.
    """
    of_folder: dict[Path, list[RunConfig]] = defaultdict(list)
    for run in runs:
        of_folder[run.path.parent].append(run.config)
    for folder, members in of_folder.items():
        known = {run for stage in stages_of(folder) for run in stage.runs}
        new = [config for config in members if config.run_id not in known]
        if not new:
            continue
        with writing(str(folder / FILE)):
            folder.mkdir(parents=True, exist_ok=True)
            with RecordWriter(folder / FILE) as file:
                file.write(_stage(new, words, unix, commit()))


def _stage(configs: Sequence[RunConfig], words: Sequence[str], unix: float, commit: str | None) -> Row:
    study = configs[0].study
    return {
        "kind": "stage",
        "schema_version": PLAN_SCHEMA_VERSION,
        "unix": unix,
        "commit": commit,
        "words": list(words),
        "baseline": study.baseline,
        "level": study.level,
        "arms": list(dict.fromkeys(config.study.arm for config in configs if config.study.arm)),
        "sizes": list(dict.fromkeys(config.study.size for config in configs if config.study.size)),
        "seeds": list(dict.fromkeys(config.seed for config in configs)),
        "targets": list(dict.fromkeys(config.train.target for config in configs)),
        "runs": [config.run_id for config in configs],
    }
