"""The minutes that `make bench-gpu` may take, held by every run that it starts."""

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from daso_bench.runner import config_tree, local, schema
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.verdict import Outcome

STALL_S = 40.0
"""Without progress of any rank, a run is given up: long for a step, short for the whole bench."""

COMPILE_S = 150.0
"""The same where a model is compiled meanwhile."""


class TimeUp(Exception):
    """The bench's minutes are over."""


class Time:
    """What is left of so many minutes. Raises TimeUp where a run is begun, or goes on, after them."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._now = minutes, now
        self._end = now() + 60 * minutes

    def left_s(self) -> float:
        """Seconds left. Raises TimeUp if there are none."""
        left = self._end - self._now()
        if left <= 0:
            raise TimeUp(f"the {self._minutes:g} minutes are over (minutes=N for more)")
        return left

    def outcome_of(
        self, config: schema.RunConfig, entry: str = local.ENTRY, stall_s: float = STALL_S
    ) -> Outcome:
        """How a run ends whose ranks do `entry`; its directory is gone afterwards."""
        with TemporaryDirectory() as folder:
            directory = RunDirectory.create(config_tree.to_plain(config), Path(folder))
            return self.launch(directory, config, entry, stall_s)

    def summary_of(self, config: schema.RunConfig, entry: str) -> dict[str, Any]:
        """What rank 0 of `entry` (module:function) reports. Raises RuntimeError if the run fails."""
        return told(self.outcome_of(config, entry))

    def launch(
        self,
        directory: RunDirectory,
        config: schema.RunConfig,
        entry: str = local.ENTRY,
        stall_s: float = STALL_S,
    ) -> Outcome:
        """How an attempt at the run in `directory` ends. It goes on no longer than there is time."""
        return local.launch(
            directory,
            ranks=config.cluster.ranks,
            threads=1,
            stall_s=min(stall_s, self.left_s()),
            entry=entry,
            on_event=lambda event: None if event["kind"] == "end" else self._go_on(),
        )

    def _go_on(self) -> None:
        self.left_s()


def told(outcome: Outcome) -> dict[str, Any]:
    """What rank 0 reported. Raises RuntimeError if the run did not finish."""
    if outcome.status != "finished" or outcome.summary is None:
        raise RuntimeError(f"{outcome.status}: {outcome.reason}\n{outcome.details}")
    return outcome.summary


def in_words(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
