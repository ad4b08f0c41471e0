"""One run or many, in an order that is fair to the arms: checked before the first starts, none stops another.

A *block* is one repetition (seed, run.repeat); inside a block every arm runs once, and the order of the arms
moves on by one from block to block (ABC, BCA, CAB), so that a machine that warms up or gets busy does not
favour an arm.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...strategies.errors import ConfigError, MachineError
from ..config.load import from_composed, to_plain
from ..config.schema import RunConfig, arm_id, run_id
from ..launch.launcher import launcher_of
from ..records.display import duration
from ..records.json_lines import read_json
from ..records.outcome import FAILED, INTERRUPTED, MACHINE, OK, WRONG_REQUEST, Outcome
from ..records.run_directory import RunDirectory
from ..records.seed_ranges import block_of


class Composed(Protocol):
    """A run as it was composed, or why it was not."""

    @property
    def words(self) -> Sequence[str]: ...
    @property
    def config(self) -> Any: ...
    @property
    def error(self) -> ConfigError | None: ...


NOT_STARTED = ("skipped", "refused", "impossible", "not started")
Start = Callable[[RunDirectory, RunConfig], Outcome]
Ready = Callable[[RunConfig], None]
"""What is done before a run has a folder; raises ConfigError, MachineError where it cannot be run."""


@dataclass(frozen=True)
class Request:
    """One run that was asked for: a checked configuration, or the error that refuses it."""

    words: tuple[str, ...]
    config: RunConfig | None
    error: ConfigError | None = None

    @property
    def path(self) -> Path | None:
        """Its run directory, absolute; None for a refused one."""
        if self.config is None:
            return None
        return self.config.results_dir / self.config.study.name / run_id(self.config)

    @property
    def title(self) -> str:
        """Its run id and name, or what was typed for it."""
        if self.config is None:
            return " ".join(self.words)
        name = self.config.run.name
        return run_id(self.config) + (f" ({name})" if name else "")


@dataclass(frozen=True)
class Result:
    """What became of a request."""

    request: Request
    outcome: Outcome

    @property
    def ran(self) -> bool:
        """Whether it was started."""
        return self.outcome.status not in NOT_STARTED

    @property
    def done(self) -> bool:
        """Whether its run directory holds an outcome: it ran, now or before."""
        return self.ran or self.outcome.status == "skipped"


def requests(composed: Iterable[Composed], cwd: Path) -> list[Request]:
    """Check every composed run; the same run asked for twice is refused the second time."""
    found: list[Request] = []
    seen: dict[Path, Request] = {}
    for job in composed:
        request = _request(job, cwd)
        twin = seen.get(request.path) if request.path else None
        if twin is not None:
            text = f"{request.title}: asked for twice; {_why_twice(twin, request)}"
            request = Request(request.words, None, ConfigError(text))
        elif request.path is not None:
            seen[request.path] = request
        found.append(request)
    return found


def only(wanted: Sequence[Request]) -> RunConfig:
    """The one run that was asked for. Raises ConfigError if it is refused."""
    (request,) = wanted
    if request.config is None:
        raise request.error or ConfigError("nothing to run")
    return request.config


def arrange(wanted: Sequence[Request]) -> list[Request]:
    """The runs in the order to start them (see the module's first lines); refused ones last."""
    # A list for each arm, of one run nearly always: no two requests may be one, whatever an arm is.
    blocks: dict[tuple[int, int], dict[str, list[Request]]] = {}
    arms: dict[str, None] = {}
    for request in wanted:
        if request.config is not None:
            arm = _arm(request.config)
            arms.setdefault(arm)
            block = block_of(request.config.seed, request.config.study.role), request.config.run.repeat
            blocks.setdefault(block, {}).setdefault(arm, []).append(request)
    order: list[Request] = []
    names = list(arms)
    for number, block in enumerate(blocks.values()):
        turn = number % len(names)
        order += [request for name in names[turn:] + names[:turn] for request in block.get(name, [])]
    return order + [request for request in wanted if request.config is None]


def always(config: RunConfig) -> None:
    """The `Ready` of runs that need nothing."""


def run_one(config: RunConfig, start: Start, ready: Ready = always) -> tuple[RunDirectory, Outcome]:
    """Start one new run. Raises ConfigError if it is there already, MachineError if it cannot be."""
    launcher_of(config).refuse(config)
    ready(config)
    directory = RunDirectory.create(to_plain(config), config.results_dir)
    return directory, start(directory, config)


def run_or_resume(config: RunConfig, start: Start, ready: Ready = always) -> tuple[RunDirectory, Outcome]:
    """As `run_one`, and go on with one that has begun. Raises ConfigError if it is finished or being run."""
    directory = RunDirectory(config.results_dir / config.study.name / run_id(config))
    if directory.state() != "resumable":
        return run_one(config, start, ready)
    directory.renew(to_plain(config))
    return directory, start(directory, config)


def run_all(
    wanted: Sequence[Request],
    start: Start,
    tell: Callable[[str], None],
    commit: Callable[[], str | None],
    left_s: Callable[[int], float | None] = lambda runs: None,
    ready: Ready = always,
) -> list[Result]:
    """Run what is not finished, in the given order.

    `commit`: the present one, asked only to compare. `left_s`: seconds that so many runs will take, told at
    the start of each; None if that is not known.
    """
    results: list[Result] = []
    for number, request in enumerate(wanted, 1):
        if results and _was_interrupted(results[-1]):
            never = Outcome(status="not started", reason="interrupted before it")
            results += [Result(request, never) for request in wanted[number - 1 :]]
            break
        seconds = left_s(sum(other.config is not None for other in wanted[number - 1 :]))
        count = f"[{number}/{len(wanted)}]"
        after = f"  ({duration(seconds)} left)" if seconds is not None else ""
        result = _run(request, count, after, start, ready, tell, commit)
        results.append(result)
        if not result.ran:
            tell(f"{count} {request.title}: {result.outcome.status}: {result.outcome.reason}")
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


def _request(job: Composed, cwd: Path) -> Request:
    if job.config is None:
        return Request(tuple(job.words), None, job.error)
    try:
        return Request(tuple(job.words), from_composed(job.config, cwd))
    except ConfigError as error:
        return Request(tuple(job.words), None, error)


def _why_twice(one: Request, other: Request) -> str:
    assert one.config is not None
    assert other.config is not None
    first, second = one.config.study.assumption, other.config.study.assumption
    if first == second:
        return "run.arm or run.repeat tells two equal runs apart"
    return f"assumption {second!r} changes nothing against {first or 'none'!r} here: leave it out"


def _arm(config: RunConfig) -> str:
    return f"{config.results_dir}/{config.study.name}/{arm_id(config)}"


def _run(
    request: Request,
    count: str,
    after: str,
    start: Start,
    ready: Ready,
    tell: Callable[[str], None],
    commit: Callable[[], str | None],
) -> Result:
    if request.config is None or request.path is None:
        return Result(request, _not_run(request.error))
    try:
        launcher_of(request.config).refuse(request.config)
        state = RunDirectory(request.path).state()
        if state == "finished":
            reason = f"{_finished_at(request.path, commit)}: {request.path}"
            return Result(request, Outcome(status="skipped", reason=reason))
        ready(request.config)
        if state == "resumable":
            tell(f"{count} {request.title}: goes on after an attempt that did not finish{after}")
            directory = RunDirectory.open(request.path)
        else:
            # A run that somebody else has right now is refused by name in here.
            tell(f"{count} {request.title}{after}")
            directory = RunDirectory.create(to_plain(request.config), request.config.results_dir)
        return Result(request, start(directory, request.config))
    except (ConfigError, MachineError) as error:
        RunDirectory(request.path).refuse(str(error))
        return Result(request, _not_run(error))


def _not_run(error: ConfigError | MachineError | None) -> Outcome:
    if isinstance(error, MachineError):
        return Outcome(status="impossible", reason=str(error), exit_code=MACHINE)
    return Outcome(status="refused", reason=str(error), exit_code=WRONG_REQUEST)


def _finished_at(path: Path, commit: Callable[[], str | None]) -> str:
    directory = RunDirectory(path)
    word = f"{directory.status()['status']} already"
    try:
        before = read_json(directory.environment).get("commit")
    except (OSError, ValueError):
        return word
    now = commit() if before else None
    return f"{word}, by commit {before[:8]} and not the present {now[:8]}" if now and now != before else word


def _was_interrupted(result: Result) -> bool:
    return result.outcome.exit_code == INTERRUPTED
