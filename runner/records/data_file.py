"""`data.json` of a run: which files its samples are. A run keeps to them, wherever it is started again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...strategies.errors import ConfigError
from .json_lines import read_json, write_json

NAME = "data.json"


def write(run_dir: Path, told: Mapping[str, Any], *, begun: bool) -> None:
    """What is known of the data of a run that is about to start, `begun` before or not.

    told: with `files`, a digest of names, labels and sizes. Raises ConfigError if a run that has begun would
    go on with other ones.
    """
    if begun:
        check_same(run_dir, told.get("files", ""))
    write_json(run_dir / NAME, {"schema_version": 1, **told})


def check_same(run_dir: Path, files: str) -> None:
    """`files`: the digest of those that are there now, "" where none can change.

    Raises ConfigError where the run in `run_dir` was started with others; one without data.json may have any.
    """
    try:
        before = read_json(run_dir / NAME).get("files", "")
    except FileNotFoundError:
        return
    if before and files != before:
        raise ConfigError(
            f"{run_dir / NAME}: the files of the data set are others than those that the run was started "
            f"with (names, labels, sizes; digest {before}, now {files or 'none'}); bring those back, or "
            "start anew with run.repeat=1"
        )
