"""One attempt at a run: takes the lock of the run, starts and supervises its ranks, records the outcome."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from ...strategies.errors import ConfigError, MachineError
from ..machine.signals import Interrupts, remembered
from ..records.run_directory import INTERRUPTED, Outcome, RunDirectory
from .failures import Rank
from .supervisor import Event, Supervisor

STATUS_EVERY_S = 2.0
PATIENCE_S = 30.0  # after Ctrl-C: for a step, an agreement and the checkpoint of a large model
_PROGRESS_KEYS = ("step", "steps", "epoch", "epochs", "samples")
_log = logging.getLogger("daso_bench.supervisor")


class Ranks(ABC):
    """The ranks of an attempt; each launcher has a subclass that starts them.

    Entered under the run's lock, before the attempt begins: an error in `__enter__` changes nothing on disk.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def about(self) -> dict[str, Any]:
        """Keywords of `RunDirectory.begin_attempt`, written before the ranks start."""
        return {}

    @abstractmethod
    def start(self, started: list[Rank], attempt: int) -> dict[str, Any]:
        """Start all ranks, adding each to `started` as soon as it could be killed.

        Returns the fields of the event "start". KeyboardInterrupt may be raised at any point.
        """

    def broken(self) -> str | None:
        """Why no rank can go on although none reports it; None if they can. Called often."""
        return None

    def conclude(self, outcome: Outcome, interrupts: list[str]) -> Outcome:
        """`outcome`, corrected by what the launcher knows. `interrupts`: signals to the supervisor."""
        return outcome

    def recorded(self, outcome: Outcome) -> None:
        """Called once status.json holds the outcome."""
        return


def run_attempt(
    directory: RunDirectory,
    ranks: Ranks,
    *,
    stall_s: float,
    patience_s: float = PATIENCE_S,
    on_event: Callable[[Event], None] | None = None,
) -> Outcome:
    """Start `ranks` on the run in `directory` and watch them to their end; status.json is kept up to date.

    `on_event` gets dicts with a `kind`: start (attempt, and what `ranks.start` returns), progress (rank,
    progress, call), interrupt (signal, wait_s), trouble (rank, reason), end (status, reason, exit_code).

    Raises ConfigError if another process runs this run, and whatever `ranks` raises; once the attempt has
    begun, it is then recorded as failed. Raises KeyboardInterrupt if an interrupt cannot be recorded.
    """
    with directory.lock(), ranks, _logging_to(directory.supervisor_log), Interrupts() as interrupts:
        remembered.raise_if_interrupted()
        attempt = directory.begin_attempt(**ranks.about())
        reporter = _Reporter(directory, on_event)
        started: list[Rank] = []
        supervisor = Supervisor(
            started,
            stall_s=stall_s,
            patience_s=patience_s,
            interrupts=interrupts,
            on_event=reporter,
            broken=ranks.broken,
        )
        try:
            with interrupts.impatiently():
                facts = ranks.start(started, attempt)
            reporter({"kind": "start", "attempt": attempt, **facts})
            outcome = supervisor.watch()
        except KeyboardInterrupt:
            supervisor.kill()
            reason = f"interrupted by {(interrupts.names or ['SIGINT'])[0]} at its start"
            outcome = Outcome(status="cancelled", reason=reason, exit_code=INTERRUPTED)
        except BaseException as error:
            supervisor.kill()
            directory.end_attempt("failed", f"supervisor: {type(error).__name__}: {error}")
            raise
        outcome = ranks.conclude(outcome, interrupts.names)
        try:
            reporter.end(outcome)
        except (ConfigError, MachineError) as error:  # no folder, no space: it cannot be written down
            if outcome.exit_code != INTERRUPTED:
                raise
            # A sweep takes those errors for this run's own and would go on with the next.
            raise KeyboardInterrupt(str(error)) from error
        ranks.recorded(outcome)
    return outcome


class _Reporter:
    """Passes events on, and keeps status.json and the supervisor's log up to date with them."""

    def __init__(self, directory: RunDirectory, on_event: Callable[[Event], None] | None) -> None:
        self._directory = directory
        self._on_event = on_event
        self._progress: dict[str, Any] = {}
        self._written_s = time.monotonic()

    def __call__(self, event: Event) -> None:
        if event["kind"] != "progress":
            _log.info("%s", event)
        elif event["rank"] == 0:
            self._progress = {key: event["progress"].get(key) for key in _PROGRESS_KEYS}
            if time.monotonic() - self._written_s >= STATUS_EVERY_S:
                self._write()
        if self._on_event is not None:
            self._on_event(event)

    def end(self, outcome: Outcome) -> None:
        summary = outcome.summary
        self._directory.end_attempt(
            outcome.status,
            outcome.reason,
            run_status=outcome.run_status,
            progress=self._progress,
            summary=summary or None,
            reached=summary.get("reached"),
            labels=summary.get("labels", []),
            attempt=outcome.attempt,
            timing=self._timing(summary),
        )
        self(
            {
                "kind": "end",
                "status": outcome.run_status or outcome.status,
                "reason": outcome.reason,
                "exit_code": outcome.exit_code,
            }
        )

    def _timing(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Whether the timing is valid: as known at the start, or as checked by the ranks since."""
        known = summary.get("validity") or self._directory.status()["timing"]
        untimed = summary.get("untimed", [])
        return {"valid": known["valid"] and not untimed, "reasons": [*known["reasons"], *untimed]}

    def _write(self) -> None:
        self._written_s = time.monotonic()
        try:
            self._directory.update(progress=self._progress)
        except (ConfigError, MachineError) as error:  # progress is for show; the run itself may still finish
            _log.warning("%s", error)


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise MachineError(f"{path}: cannot be written: {error.strerror}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s supervisor %(levelname)s: %(message)s"))
    propagate = _log.propagate
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False  # the command line prints what users need
    try:
        yield
    finally:
        _log.propagate = propagate
        _log.removeHandler(handler)
        handler.close()
