"""Where the user of a test stands, and programs and pictures that a test makes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import cats_and_dogs  # pyright: ignore[reportMissingImports] (another folder of tests)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def images(here: Path) -> Path:
    """Two classes of 12 images in imgs/ of the working directory."""
    return cats_and_dogs(here / "imgs")


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Makes a shell script that is found under its name before all others."""

    def make(name: str, script: str) -> Path:
        path = tmp_path / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
        return path

    return make
