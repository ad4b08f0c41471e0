"""Starts one run or many: checked before the first starts, and none stops the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ...strategies.errors import ConfigError, MachineError
from ..config.load import Request, to_plain
from ..config.schema import RunConfig
from ..launch.threads import threads_of
from ..machine.core_pinning import apart_here
from ..machine.environment import usable_cores
from ..records.display import duration
from ..records.exit_codes import FAILED, INTERRUPTED, MACHINE, OK, WRONG_REQUEST
from ..records.json_lines import read_json
from ..records.run_directory import RunDirectory
from .plan import Plan, PlannedRun

Word = Literal["ran", "skipped", "refused", "impossible", "not started"]


class Ending(Protocol):
    """How a run ended: what `local.launch` returns."""

    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def exit_code(self) -> int: ...


Start = Callable[[RunDirectory, RunConfig], Ending]
Ready = Callable[[RunConfig], None]
"""What is done before a run has a folder; raises ConfigError, MachineError where it cannot be run."""


@dataclass(frozen=True)
class Result:
    """What became of a request."""

    request: PlannedRun | Request
    word: Word
    reason: str | None = None
    ending: Ending | None = None

    @property
    def failed(self) -> bool:
        """A run that ended in no result. A diverged run is a result of its strategy, not a failure."""
        return self.ending is not None and self.ending.status not in ("finished", "diverged")


def always(config: RunConfig) -> None:
    """The `Ready` of runs that need nothing."""


def run_one(run: PlannedRun, start: Start, ready: Ready = always) -> tuple[RunDirectory, Ending]:
    """Start one new run. Raises ConfigError if it is there already, MachineError if it cannot be."""
    check_machine(run.config)
    ready(run.config)
    directory = RunDirectory.create(to_plain(run.config), run.config.results_dir)
    return directory, start(directory, run.config)


def run_or_resume(run: PlannedRun, start: Start, ready: Ready = always) -> tuple[RunDirectory, Ending]:
    """As `run_one`, and go on with one that has begun. Raises ConfigError if it is finished or being run."""
    if run.state != "resumable":
        return run_one(run, start, ready)
    run.directory.renew(to_plain(run.config))
    return run.directory, start(run.directory, run.config)


def run_all(
    plan: Plan,
    start: Start,
    tell: Callable[[str], None],
    commit: Callable[[], str | None],
    left_s: Callable[[int], float | None] = lambda runs: None,
    ready: Ready = always,
) -> list[Result]:
    """Run what is not finished, in the order of the plan.

    `commit`: the present one, asked only to compare. `left_s`: seconds that so many runs will take, told at
    the start of each; None if that is not known.
    """
    results: list[Result] = []
    total = len(plan.runs) + len(plan.refused)
    for number, run in enumerate(plan.runs, 1):
        left = plan.runs[number - 1 :]
        if results and _was_interrupted(results[-1]):
            results += [Result(rest, "not started", "interrupted before it") for rest in left]
            break
        seconds, count = left_s(len(left)), f"[{number}/{total}]"
        after = f"  ({duration(seconds)} left)" if seconds is not None else ""
        result = _run(run, count, after, start, ready, tell, commit)
        results.append(result)
        if result.word != "ran":
            tell(f"{count} {run.title}: {result.word}: {result.reason}")
    interrupted = any(_was_interrupted(result) for result in results)
    for number, request in enumerate(plan.refused, len(plan.runs) + 1):
        if interrupted:
            results.append(Result(request, "not started", "interrupted before it"))
        else:
            results.append(Result(request, "refused", str(request.error)))
            tell(f"[{number}/{total}] {request.title}: refused: {request.error}")
    return results


def exit_code(results: Sequence[Result]) -> int:
    """The first that holds: interrupted, a run failed, the machine could not, a request was refused, OK."""
    if any(_was_interrupted(result) for result in results):
        return INTERRUPTED
    if any(result.failed for result in results):
        return FAILED
    words = {result.word for result in results}
    return MACHINE if "impossible" in words else WRONG_REQUEST if "refused" in words else OK


def failures(results: Sequence[Result]) -> list[Result]:
    """Everything that did not end in a result, for the list at the end."""
    return [result for result in results if result.failed or result.word not in ("ran", "skipped")]


def check_machine(config: RunConfig) -> None:
    """Raises MachineError when this machine's ranks are more than its cores and that is not allowed, or each
    is to have cores of its own."""
    if config.launcher.far or config.launcher.name == "simulated":
        return
    ranks, cores = config.cluster.ranks, usable_cores()
    if not config.launcher.allow_oversubscription and ranks > cores:
        raise MachineError(
            f"launcher.allow_oversubscription=false: {ranks} ranks, only {cores} usable cores here"
        )
    if config.launcher.pin:
        apart_here(ranks, threads_of(config) + config.launcher.loader_workers)


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
        check_machine(config)
        state = run.now().state
        if state == "finished":
            return Result(run, "skipped", f"{_finished_at(directory, commit)}: {run.path}")
        ready(config)
        if state == "resumable":
            tell(f"{count} {run.title}: goes on after an attempt that did not finish{after}")
            directory = RunDirectory.open(run.path)
        else:
            # A run that somebody else has right now is refused by name in here.
            tell(f"{count} {run.title}{after}")
            directory = RunDirectory.create(to_plain(config), config.results_dir)
        ending = start(directory, config)
    except (ConfigError, MachineError) as error:
        directory.refuse(str(error))
        return Result(run, "refused" if isinstance(error, ConfigError) else "impossible", str(error))
    return Result(run, "ran", ending.reason, ending)


def _finished_at(directory: RunDirectory, commit: Callable[[], str | None]) -> str:
    word = f"{directory.status()['status']} already"
    try:
        before = read_json(directory.environment).get("commit")
    except (OSError, ValueError):
        return word
    now = commit() if before else None
    return f"{word}, by commit {before[:8]} and not the present {now[:8]}" if now and now != before else word


def _was_interrupted(result: Result) -> bool:
    return result.ending is not None and result.ending.exit_code == INTERRUPTED
