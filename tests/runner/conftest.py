"""Where the user of a test stands."""

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
