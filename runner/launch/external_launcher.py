"""Whoever takes runs instead of this process: Slurm's queue, the user's torchrun."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rich.console import Console

from ..config.schema import RunConfig
from ..records.run_directory import RunDirectory

Runs = Sequence[tuple[RunDirectory, RunConfig]]


class Handler(ABC):
    """Takes runs whose directories are made, and sees to it that somebody runs them."""

    @abstractmethod
    def give(self, runs: Runs, console: Console) -> int:
        """Hand them over, say so, and return the exit code."""

    def waits(self, configs: Sequence[RunConfig]) -> bool:
        """Whether `give` returned only after the runs' ends."""
        return False
