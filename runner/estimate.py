"""How long a sweep will take, said before it starts: from its finished runs, or from a few short trial runs.

Trials go through the launcher itself, in a temporary folder: what they cost is what a run costs, start-up and
checks of the apparatus included. Each arm is taken to cost what the like one that is tried costs.
"""

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ..strategies.errors import ConfigError, MachineError
from .config_tree import to_plain
from .labels import StudyInfo
from .launcher_config import SlurmConfig
from .run_directory import RunDirectory
from .schema import RunConfig, arm_id, run_id, strategy_name
from .threads import cores_of

MANY = 10  # runs that are left: with fewer, a trial takes a good part of what it foretells
SHORT, LONG = 2, 10  # steps of the trials
TRIES = 3  # arms of a kind, if the first cannot be cut short
SLOW_S = 10.0  # a first trial that takes longer makes the others shorter
LEFT_OUT = "--no-estimate starts without trying"

Run = Callable[[RunDirectory, RunConfig], bool]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of `runs` runs, one after another: `seconds` of wall clock here, `core_s`, and where that is from."""

    runs: int
    seconds: float
    core_s: float
    basis: str

    @property
    def each_s(self) -> float:
        return self.seconds / self.runs


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Wall-clock seconds of a run: whatever its length, for each step, for each evaluation but the last."""

    fixed_s: float
    step_s: float
    evaluation_s: float

    def of(self, config: RunConfig) -> float | None:
        """Seconds of a whole run; None where the size of its data is not known before they are loaded."""
        plan = config.plan()
        if plan.steps is None:
            return None
        samples = plan.steps * config.train.global_batch_size
        every = config.train.eval_every_samples
        if every is None:
            evaluations = plan.steps / plan.steps_per_epoch if plan.steps_per_epoch else 1
        else:
            evaluations = samples / every
        return self.fixed_s + plan.steps * self.step_s + max(0.0, evaluations - 1) * self.evaluation_s


def left(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Those that are not finished."""
    return [config for config in configs if _directory(config).state() != "finished"]


def from_finished(configs: Sequence[RunConfig]) -> Estimate | None:
    """From the wall clock of what is finished of the same sweep; arms of which nothing is take the mean."""
    to_do = left(configs)
    took: dict[str, list[float]] = {}
    for config in configs:
        seconds = _took(_directory(config))
        if seconds is not None:
            took.setdefault(arm_id(config), []).append(seconds)
    if not to_do or not took:
        return None
    mean = fmean(fmean(found) for found in took.values())
    each = [fmean(took.get(arm_id(config), [mean])) for config in to_do]
    count = sum(len(found) for found in took.values())
    return _estimate(to_do, each, f"from {count} finished run{'s' * (count != 1)}")


def from_trial(configs: Sequence[RunConfig], run: Run) -> Estimate | None:
    """From trial runs of two arms, one with ddp and one without; None if none can be cut short.

    Virtual ranks whose models are equal, as those of ddp always are, share one computation: such arms cost
    less. `run`: runs one in its directory and says whether it finished.
    """
    to_do = left(configs)
    arms = {arm_id(config): config for config in reversed(to_do)}.values()
    found: dict[bool, tuple[RunConfig, Costs]] = {}
    for plain in (True, False):
        own = [config for config in arms if _plain(config) is plain]
        for config in sorted(own, key=lambda one: bool(one.study.role))[:TRIES]:
            costs = _try(config, run)
            if costs is not None:
                found[plain] = config, costs
                break
    if not found:
        return None
    usual = next(iter(found.values()))
    each = [found.get(_plain(config), usual)[1].of(config) for config in to_do]
    known = [seconds for seconds in each if seconds is not None]
    if not known:
        return None
    tried = " or ".join(_label(config) for config, _ in found.values())
    filled = [fmean(known) if seconds is None else seconds for seconds in each]
    return _estimate(to_do, filled, f"taking each run to cost what {tried} costs; {LEFT_OUT}")


def _plain(config: RunConfig) -> bool:
    return strategy_name(config) == "ddp"


def at_most(configs: Sequence[RunConfig]) -> str:
    """What jobs of Slurm may use up: their time limits times their tasks; "" for other launchers."""
    hours = sum(
        config.launcher.limit_min / 60 * config.cluster.ranks
        for config in configs
        if isinstance(config.launcher, SlurmConfig)
    )
    return f"at most {hours:.4g} hours of a rank in all (launcher.timeout_min x ranks)" if hours else ""


class Pace:
    """How long what is left of a sweep takes: from the estimate, then from the runs themselves."""

    def __init__(self, each_s: float | None) -> None:
        self._each_s, self._took = each_s, list[float]()

    def took(self, seconds: float) -> None:
        self._took.append(seconds)

    def left_s(self, runs: int) -> float | None:
        """Seconds of `runs` more; None if nothing is known."""
        each = fmean(self._took) if self._took else self._each_s
        return None if each is None else runs * each


def _try(config: RunConfig, run: Run) -> Costs | None:
    """None if the run cannot be cut short, or did not finish."""
    with tempfile.TemporaryDirectory(prefix="daso-bench-") as folder:
        root = Path(folder)
        cut = _cut(config, SHORT, root, evaluate=False)
        first = _timed(cut, run)
        if cut is None or first is None:
            return None
        # The first process waits until everything is loaded; those of the sweep will not.
        again = dataclasses.replace(cut, run=dataclasses.replace(cut.run, repeat=1))
        short = min(first, _timed(again, run) or first)
        steps = SHORT + (LONG - SHORT if short < SLOW_S else 1)
        long = _timed(_cut(config, steps, root, evaluate=False), run)
        if long is None:
            return None
        step_s = max(0.0, long - short) / (steps - SHORT)
        evaluation_s = 0.0
        if not config.launcher.timing_only:
            often = _timed(_cut(config, steps, root, evaluate=True), run)
            evaluation_s = 0.0 if often is None else max(0.0, often - long) / (steps - 1)
    return Costs(fixed_s=max(0.0, short - SHORT * step_s), step_s=step_s, evaluation_s=evaluation_s)


def _cut(config: RunConfig, steps: int, root: Path, *, evaluate: bool) -> RunConfig | None:
    batch = config.train.global_batch_size
    try:
        train = dataclasses.replace(
            config.train,
            max_steps=steps,
            target=None,
            stop="budget",
            eval_phase=0.0,
            eval_every_samples=batch if evaluate else batch * steps * 10,
            checkpoint_every_samples=None,
        )
        return dataclasses.replace(config, train=train, study=StudyInfo(name="trial"), results_dir=root)
    except ConfigError:  # a strategy may refuse so short a schedule
        return None


def _timed(config: RunConfig | None, run: Run) -> float | None:
    if config is None:
        return None
    try:
        directory = RunDirectory.create(to_plain(config), config.results_dir)
        start = time.monotonic()
        finished = run(directory, config)
        return time.monotonic() - start if finished else None
    except (ConfigError, MachineError):  # the run itself will say so
        return None


def _took(directory: RunDirectory) -> float | None:
    """Wall-clock seconds of a finished run of one attempt."""
    try:
        if directory.state() != "finished":
            return None
        (attempt,) = directory.status()["attempts"]
        seconds = float(attempt["ended_unix"]) - float(attempt["started_unix"])
    except (ConfigError, ValueError, KeyError, TypeError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _estimate(configs: Sequence[RunConfig], each: Sequence[float], basis: str) -> Estimate:
    pairs = list(zip(configs, each, strict=True))
    return Estimate(
        runs=len(configs),
        seconds=math.fsum(each),
        core_s=math.fsum(seconds * cores_of(config) for config, seconds in pairs),
        basis=basis,
    )


def _label(config: RunConfig) -> str:
    return config.study.arm or strategy_name(config)


def _directory(config: RunConfig) -> RunDirectory:
    return RunDirectory(config.results_dir / config.study.name / run_id(config))
