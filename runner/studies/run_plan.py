"""Runs the runs of a plan, in its order; a failure does not stop the others. Estimates how long they take."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...strategies.errors import ConfigError, MachineError
from ..config.compose import Request
from ..config.launchers import SlurmConfig
from ..config.run_config import RunConfig
from ..launch.launcher import cores_of, launcher_of
from ..records.display import duration
from ..records.run_directory import FAILED, INTERRUPTED, MACHINE, OK, WRONG_REQUEST, Outcome, RunDirectory
from .plan import PlannedRun, StudyPlan

Start = Callable[[RunDirectory, RunConfig], Outcome]
Ready = Callable[[RunConfig], None]
"""What is done before a run has a folder; raises ConfigError, MachineError where it cannot be run."""


@dataclass(frozen=True)
class Result:
    """What became of a request."""

    request: PlannedRun | Request
    outcome: Outcome

    @property
    def ran(self) -> bool:
        """Whether it was started."""
        return self.outcome.status not in ("skipped", "refused", "impossible", "not started")

    @property
    def done(self) -> bool:
        """Whether its run directory holds an outcome: it ran, now or before."""
        return self.ran or self.outcome.status == "skipped"


def run_one(
    run: PlannedRun, start: Start, ready: Ready = lambda config: None, *, resume: bool = False
) -> tuple[RunDirectory, Outcome]:
    """Start one new run, or with `resume` go on with one that has begun.

    Raises ConfigError if it is finished, is being run or has begun, MachineError if it cannot be run.
    """
    go_on = resume and run.state == "resumable"
    if not go_on:
        launcher_of(run.config).refuse(run.config)
    ready(run.config)
    if go_on:
        directory = run.directory
        directory.renew(run.config.tree)  # the launcher may have other settings than at its start
    else:
        directory = run.create_directory()
    return directory, start(directory, run.config)


def run_all(
    plan: StudyPlan,
    start: Start,
    tell: Callable[[str], None],
    each_s: float | None = None,
    ready: Ready = lambda config: None,
) -> list[Result]:
    """Run what is not finished, in the order of the plan.

    `each_s`: seconds that a run is expected to take; the time left is shown at the start of each, once there
    is such a number or a run has ended.
    """
    results: list[Result] = []
    took_s: list[float] = []
    asked = [*plan.runs, *plan.refused]
    for number, request in enumerate(asked, 1):
        if exit_code(results) == INTERRUPTED:
            results.append(Result(request, Outcome(status="not started", reason="interrupted before it")))
            continue
        each_s, count = fmean(took_s) if took_s else each_s, f"[{number}/{len(asked)}]"
        began = time.monotonic()
        if isinstance(request, PlannedRun):
            left = len(plan.runs) - number + 1
            after = f"  ({duration(each_s * left)} left)" if each_s is not None else ""
            result = _run(request, count, after, start, ready, tell)
        else:
            result = Result(request, not_run(request.error))
        results.append(result)
        if result.ran:
            took_s.append(time.monotonic() - began)
        else:
            tell(f"{count} {request.title}: {result.outcome.status}: {result.outcome.reason}")
    return results


def exit_code(results: Sequence[Result]) -> int:
    """The first that holds: interrupted, a run failed, the machine could not, a request was refused, OK."""
    if any(result.outcome.exit_code == INTERRUPTED for result in results):
        return INTERRUPTED
    if any(result.outcome.without_result for result in results):
        return FAILED
    codes = {result.outcome.exit_code for result in results if not result.ran}
    return MACHINE if MACHINE in codes else WRONG_REQUEST if WRONG_REQUEST in codes else OK


def failures(results: Sequence[Result]) -> list[Result]:
    """Everything that did not end in a result, for the list at the end."""
    return [result for result in results if result.outcome.without_result or not result.done]


def _run(
    run: PlannedRun,
    count: str,
    after: str,
    start: Start,
    ready: Ready,
    tell: Callable[[str], None],
) -> Result:
    directory, config = run.directory, run.config
    try:
        launcher_of(config).refuse(config)
        state = directory.state()  # since the plan was made, hours may have passed
        if state == "finished":
            reason = f"{directory.status()['status']} already: {run.path}"
            return Result(run, Outcome(status="skipped", reason=reason))
        ready(config)
        if state == "resumable":
            tell(f"{count} {run.title}: goes on after an attempt that did not finish{after}")
        else:
            # This refuses a run that another process runs now.
            tell(f"{count} {run.title}{after}")
            directory = run.create_directory()
        return Result(run, start(directory, config))
    except (ConfigError, MachineError) as error:
        directory.refuse(str(error))
        return Result(run, not_run(error))


def not_run(error: ConfigError | MachineError | None) -> Outcome:
    """The outcome of what could not be started."""
    if isinstance(error, MachineError):
        return Outcome(status="impossible", reason=str(error), exit_code=MACHINE)
    return Outcome(status="refused", reason=str(error), exit_code=WRONG_REQUEST)


def estimate(runs: Sequence[PlannedRun]) -> tuple[str, float] | None:
    """How long the unfinished runs will take here, in words, and the mean seconds of one.

    From the wall clock of the finished runs of each arm; an arm without a finished run takes the mean of the
    others. None where nothing is finished, or everything.
    """
    to_do = [run for run in runs if run.state != "finished"]
    took: dict[str, list[float]] = {}  # seconds, by arm
    for run in runs:
        seconds = _took_s(run)
        if seconds is not None:
            took.setdefault(run.config.arm_id, []).append(seconds)
    if not to_do or not took:
        return None
    mean = fmean(fmean(seconds) for seconds in took.values())
    each = [fmean(took.get(run.config.arm_id, [mean])) for run in to_do]
    core_hours = math.fsum(s * cores_of(run.config) for s, run in zip(each, to_do, strict=True)) / 3600
    finished = sum(len(seconds) for seconds in took.values())
    words = (
        f"{len(to_do)} run{'s' * (len(to_do) != 1)} to do: about {duration(math.fsum(each))} here, "
        f"{core_hours:.2g} core-hours (from {finished} finished run{'s' * (finished != 1)})"
    )
    return words, fmean(each)


def virtual_work(runs: Sequence[PlannedRun]) -> str:
    """Training samples of the unfinished runs in virtual time, and their hours at `study.samples_per_s`.

    "" once a run has finished, which tells more (`estimate`), and where the number of samples is not known.
    """
    configs = [run.config for run in runs]
    computed = (config for config in configs if config.launcher.virtual and not config.launcher.timing_only)
    samples = [number for config in computed if (number := config.training_samples) is not None]
    if not runs or len(samples) < len(runs) or any(run.state == "finished" for run in runs):
        return ""
    words = f"{len(runs)} run{'s' * (len(runs) != 1)} to do, {sum(samples) / 1e6:,.1f} M training samples"
    rates = [rate for config in configs if (rate := config.study.samples_per_s) is not None]
    if len(rates) < len(runs):
        return f"{words} (study.samples_per_s=RATE says how long they take)"
    hours = duration(sum(number / rate for number, rate in zip(samples, rates, strict=True)))
    at = ",".join(f"{rate:.6g}" for rate in dict.fromkeys(rates))
    return (
        f"{words}: {hours} at study.samples_per_s={at}, beside starts and evaluations "
        "(no run has finished yet)"
    )


def slurm_limit(runs: Sequence[PlannedRun]) -> str:
    """What the unfinished runs may use up: time limits times tasks; "" for launchers other than Slurm."""
    hours = sum(
        run.config.launcher.limit_min / 60 * run.config.cluster.ranks
        for run in runs
        if run.state != "finished" and isinstance(run.config.launcher, SlurmConfig)
    )
    return f"at most {hours:.4g} hours of a rank in all (launcher.timeout_min x ranks)" if hours else ""


def _took_s(run: PlannedRun) -> float | None:
    """Wall-clock seconds of a finished run of one attempt."""
    if run.state != "finished":
        return None
    try:
        (attempt,) = run.directory.status()["attempts"]
        seconds = float(attempt["ended_unix"]) - float(attempt["started_unix"])
    except (ConfigError, ValueError, KeyError, TypeError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
