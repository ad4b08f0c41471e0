"""What tests ask of a study: its jobs, checked, and its command as a user types it."""

from pathlib import Path

import pytest

from daso_bench.runner import sweep
from daso_bench.runner.cli import main
from daso_bench.runner.compose import compose


def requests(cwd: Path, *words: str) -> list[sweep.Request]:
    """The runs that `words` ask of +study=mission."""
    return sweep.requests(compose(["+study=mission", *words], sweep=True), cwd)


def code_of(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert isinstance(caught.value.code, int)
    return caught.value.code
