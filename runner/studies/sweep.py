"""Runs one run or a sweep: all are checked before the first starts; a failure does not stop the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...strategies.errors import ConfigError, MachineError
from ..config.load import Request, to_plain
from ..config.run_config import RunConfig
from ..launch.launcher import launcher_of
from ..records.display import duration
from ..records.json_lines import read_json
from ..records.run_directory import FAILED, INTERRUPTED, MACHINE, OK, WRONG_REQUEST, Outcome, RunDirectory
from .plan import PlannedRun, StudyPlan

NOT_STARTED = ("skipped", "refused", "impossible", "not started")
INTERRUPTED_BEFORE = Outcome(status="not started", reason="interrupted before it")
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
        return self.outcome.status not in NOT_STARTED

    @property
    def done(self) -> bool:
        """Whether its run directory holds an outcome: it ran, now or before."""
        return self.ran or self.outcome.status == "skipped"


def always(config: RunConfig) -> None:
    """The `Ready` of runs that need nothing."""


def run_one(run: PlannedRun, start: Start, ready: Ready = always) -> tuple[RunDirectory, Outcome]:
    """Start one new run. Raises ConfigError if it is there already, MachineError if it cannot be."""
    launcher_of(run.config).refuse(run.config)
    ready(run.config)
    directory = RunDirectory.create(to_plain(run.config), run.config.results_dir)
    return directory, start(directory, run.config)


def run_or_resume(run: PlannedRun, start: Start, ready: Ready = always) -> tuple[RunDirectory, Outcome]:
    """As `run_one`, and go on with one that has begun. Raises ConfigError if it is finished or being run."""
    if run.state != "resumable":
        return run_one(run, start, ready)
    run.directory.renew(to_plain(run.config))
    return run.directory, start(run.directory, run.config)


def run_all(
    plan: StudyPlan,
    start: Start,
    tell: Callable[[str], None],
    commit: Callable[[], str | None],
    left_s: Callable[[int], float | None] = lambda runs: None,
    ready: Ready = always,
) -> list[Result]:
    """Run what is not finished, in the order of the plan.

    `commit`: the present one, asked only to compare. `left_s`: seconds that so many runs will take, shown at
    the start of each; None if that is not known.
    """
    results: list[Result] = []
    total = len(plan.runs) + len(plan.refused)
    for number, run in enumerate(plan.runs, 1):
        left = plan.runs[number - 1 :]
        if results and _was_interrupted(results[-1]):
            results += [Result(rest, INTERRUPTED_BEFORE) for rest in left]
            break
        seconds, count = left_s(len(left)), f"[{number}/{total}]"
        after = f"  ({duration(seconds)} left)" if seconds is not None else ""
        result = _run(run, count, after, start, ready, tell, commit)
        results.append(result)
        if not result.ran:
            tell(f"{count} {run.title}: {result.outcome.status}: {result.outcome.reason}")
    interrupted = any(_was_interrupted(result) for result in results)
    for number, request in enumerate(plan.refused, len(plan.runs) + 1):
        if interrupted:
            results.append(Result(request, INTERRUPTED_BEFORE))
        else:
            results.append(Result(request, _not_run(request.error)))
            tell(f"[{number}/{total}] {request.title}: refused: {request.error}")
    return results


def exit_code(results: Sequence[Result]) -> int:
    """The first that holds: interrupted, a run failed, the machine could not, a request was refused, OK."""
    if any(_was_interrupted(result) for result in results):
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
    commit: Callable[[], str | None],
) -> Result:
    directory, config = run.directory, run.config
    try:
        launcher_of(config).refuse(config)
        state = run.now().state
        if state == "finished":
            reason = f"{_finished_at(directory, commit)}: {run.path}"
            return Result(run, Outcome(status="skipped", reason=reason))
        ready(config)
        if state == "resumable":
            tell(f"{count} {run.title}: goes on after an attempt that did not finish{after}")
            directory = RunDirectory.open(run.path)
        else:
            # This refuses a run that another process runs now.
            tell(f"{count} {run.title}{after}")
            directory = RunDirectory.create(to_plain(config), config.results_dir)
        return Result(run, start(directory, config))
    except (ConfigError, MachineError) as error:
        directory.refuse(str(error))
        return Result(run, _not_run(error))


def _not_run(error: ConfigError | MachineError | None) -> Outcome:
    if isinstance(error, MachineError):
        return Outcome(status="impossible", reason=str(error), exit_code=MACHINE)
    return Outcome(status="refused", reason=str(error), exit_code=WRONG_REQUEST)


def _finished_at(directory: RunDirectory, commit: Callable[[], str | None]) -> str:
    word = f"{directory.status()['status']} already"
    try:
        before = read_json(directory.environment).get("commit")
    except (OSError, ValueError):
        return word
    now = commit() if before else None
    return f"{word}, by commit {before[:8]} and not the present {now[:8]}" if now and now != before else word


def _was_interrupted(result: Result) -> bool:
    return result.outcome.exit_code == INTERRUPTED
