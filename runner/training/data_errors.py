"""Errors of data files as ConfigError or MachineError, with a message that says what to do."""

import dataclasses
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from ...datasets.atomic_files import BadFile
from ...datasets.dataset import Dataset
from ...datasets.pixels import BadImage
from ...strategies.errors import ConfigError, MachineError
from ..config.overrides import TEXT_KEYS, in_grammar


class BadData(ConfigError):
    """A file of the data set cannot be used; a resumed run would fail in the same way."""


@contextmanager
def image_errors(dataset: Dataset) -> Iterator[None]:
    """Turn an error about a damaged or missing image into BadData, with the way out."""
    try:
        yield
    except BadImage as error:
        raise BadData(f"{error}; {_way_out(dataset)}") from error


@contextmanager
def file_errors(dataset: Dataset) -> Iterator[None]:
    """Turn file errors into ConfigError (damaged or missing) or MachineError (cannot be read)."""
    with image_errors(dataset):
        try:
            yield
        except (BadFile, FileNotFoundError) as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise MachineError(str(error)) from error


@contextmanager
def data_errors(dataset: Dataset) -> Iterator[None]:
    """As `file_errors`, and ValueError becomes ConfigError; only around code of the data set itself."""
    with file_errors(dataset):
        try:
            yield
        except (BadImage, ConfigError):
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error


def can_go_on(reason: str | None) -> bool:
    """Whether it makes sense to resume a run that ended for `reason`: not after BadData."""
    return f"{BadData.__name__}: " not in (reason or "")


def _way_out(dataset: Dataset) -> str:
    return (
        "if it was whole when the run began, bring it back and resume; else mend it, or leave bad files out "
        "with dataset.bad_files=skip, and start a new run with dataset.check=decode: other files are other "
        f"data. See what else is bad: daso-bench prepare {_words(dataset)}"
    )


def _words(dataset: Dataset) -> str:
    """Command-line words that choose `dataset` and decode all of its files, quoted for a POSIX shell."""
    words = [f"dataset={dataset.name}"]
    for field in dataclasses.fields(cast(Any, dataset)):
        value, key = getattr(dataset, field.name), f"dataset.{field.name}"
        if field.name == "root" or (field.name != "check" and value != field.default):
            words.append(f"{key}={value if key in TEXT_KEYS else in_grammar(value)}")
    return " ".join(map(shlex.quote, [*words, "dataset.check=decode"]))
