"""How a run ended, and the exit codes of every command as `daso-bench --help` lists them."""

from dataclasses import dataclass, field
from typing import Any

OK = 0
FAILED = 1  # a run failed, diverged, timed out or was cancelled
WRONG_REQUEST = 2
MACHINE = 3  # this machine cannot do it
INTERRUPTED = 130  # as of a shell after SIGINT


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, or one rank of it, or why a run was not started.

    `status`: finished, diverged, timed_out, cancelled or failed; of a run that was not started: skipped,
    refused, impossible or not started. `reason`: one line; None for a finished run. `summary`: the final
    numbers of the run, empty if there are none. `details`: the failing rank's traceback and its log.
    `raised`: an exception in a rank ended the run, not the death of a process or a signal. `run_status`: the
    status of the run where it differs from that of its last attempt ("queued": the run goes on later).
    `attempt`: what status.json keeps of the attempt in addition.
    """

    status: str
    reason: str | None = None
    exit_code: int = OK
    summary: dict[str, Any] = field(default_factory=dict)
    details: str = ""
    raised: bool = False
    run_status: str | None = None
    attempt: dict[str, Any] = field(default_factory=dict)

    @property
    def without_result(self) -> bool:
        """Whether the run gives no numbers. A diverged run does: diverging is a result of its strategy."""
        return self.status in ("failed", "timed_out", "cancelled")
