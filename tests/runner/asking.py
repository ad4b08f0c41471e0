"""What tests ask of a study: its jobs, checked, and its command as a user types it."""

from pathlib import Path

import pytest

from daso_bench.runner.cli.main import main
from daso_bench.runner.config import load
from daso_bench.runner.config.compose import Request


def requests(cwd: Path, *words: str) -> list[Request]:
    """The runs that `words` ask of +study=mission."""
    return load.requests(["+study=mission", *words], sweep=True, cwd=cwd)


def code_of(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code
