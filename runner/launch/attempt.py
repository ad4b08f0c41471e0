"""One attempt at a run: takes the run's lock, starts its ranks, has them watched, and records the outcome."""

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
    """Starts the ranks of an attempt; each launcher has its own kind.

    Entered under the run's lock, before the attempt begins: what `__enter__` refuses leaves no trace.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def about(self) -> dict[str, Any]:
        """What `RunDirectory.begin_attempt` is to write before the ranks start."""
        return {}

    @abstractmethod
    def start(self, born: list[Rank], attempt: int) -> dict[str, Any]:
        """Start all ranks, adding each to `born` as soon as it could be killed.

        Returns what the event "start" tells. A KeyboardInterrupt may strike at any point.
        """

    def broken(self) -> str | None:
        """Why no rank can go on, where the ranks do not notice it; None if they can. Asked in every turn."""
        return None

    def conclude(self, outcome: Outcome, interrupts: list[str]) -> Outcome:
        """`outcome` with what the starter knows; `interrupts`: names of the supervisor's signals."""
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
    begun, that makes it a failed one. Raises KeyboardInterrupt if it was interrupted and this cannot be kept.
    """
    with directory.lock(), ranks, _logging_to(directory.supervisor_log), Interrupts() as interrupts:
        remembered.raise_if_interrupted()
        attempt = directory.begin_attempt(**ranks.about())
        reporter = _Reporter(directory, on_event)
        born: list[Rank] = []
        supervisor = Supervisor(
            born,
            stall_s=stall_s,
            patience_s=patience_s,
            interrupts=interrupts,
            on_event=reporter,
            broken=ranks.broken,
        )
        try:
            with interrupts.impatiently():
                started = ranks.start(born, attempt)
            reporter({"kind": "start", "attempt": attempt, **started})
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
        """What was known of it at the start, or was checked by the ranks since; and what they found."""
        known = summary.get("apparatus") or self._directory.status()["timing"]
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
    _log.propagate = False  # the command line says to people what they need to know
    try:
        yield
    finally:
        _log.propagate = propagate
        _log.removeHandler(handler)
        handler.close()
