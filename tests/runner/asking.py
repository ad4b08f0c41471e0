"""What tests ask of a study: its jobs, checked, its command as a user types it, its runs in this process."""

from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner.cli.main import main
from daso_bench.runner.config import load
from daso_bench.runner.config.compose import Request
from daso_bench.runner.launch import rank as rank_module
from daso_bench.runner.launch.rank_process import RankTask
from daso_bench.runner.records.run_directory import RunDirectory


def requests(cwd: Path, *words: str) -> list[Request]:
    """The runs that `words` ask of +study=mission."""
    return load.requests(["+study=mission", *words], sweep=True, cwd=cwd)


def code_of(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code


class Link:
    """The supervisor's end of a run in this process."""

    call, steps = "", 0
    finished: tuple[str, Any, str | None] = ("failed", None, None)

    def finish(self, status: str, summary: Any = None, reason: str | None = None) -> None:
        self.finished = status, summary, reason

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def run_here(directory: RunDirectory) -> str:
    """The run in this process, as the supervisor would leave its folder. Returns the status."""
    link = Link()
    directory.begin_attempt()
    task = RankTask(run_dir=directory.path, rank=0, ranks=1, port=0, threads=1, entry="")
    rank_module.run_all(task, link)  # pyright: ignore[reportArgumentType]
    status, summary, reason = link.finished
    directory.end_attempt(status, reason, summary=summary)
    return status
