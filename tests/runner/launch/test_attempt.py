"""The frame of an attempt: an interrupt stays one, whatever else goes wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.launch.attempt import Ranks, run_attempt
from daso_bench.runner.launch.failures import Rank
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError


class Vanishing(Ranks):
    """Ranks whose folder is removed while they start; then comes `error`."""

    def __init__(self, directory: RunDirectory, error: BaseException) -> None:
        self._directory, self._error = directory, error

    def start(self, born: list[Rank], attempt: int) -> dict[str, Any]:
        self._directory.status_file.unlink()
        raise self._error


def directory(root: Path) -> RunDirectory:
    return RunDirectory.create({"study": {"name": "runs"}, "run": {"id": "ddp-s0-12345678"}}, root)


def test_an_interrupt_that_cannot_be_written_down_is_no_failure_of_this_run_alone(tmp_path: Path) -> None:
    """A sweep takes a ConfigError for one refused run and goes on."""
    run = directory(tmp_path)
    with pytest.raises(KeyboardInterrupt, match=r"status\.json"):
        run_attempt(run, Vanishing(run, KeyboardInterrupt()), stall_s=5)


def test_any_other_trouble_stays_what_it_is(tmp_path: Path) -> None:
    run = directory(tmp_path)
    with pytest.raises(ConfigError, match=r"status\.json"):
        run_attempt(run, Vanishing(run, OSError("no")), stall_s=5)
