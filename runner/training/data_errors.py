"""What goes wrong with a data set's files while one process uses them, told to a person."""

import dataclasses
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from ...datasets.dataset import Dataset
from ...datasets.pixels import BadImage
from ...datasets.preparation import BadFile
from ...strategies.errors import ConfigError, MachineError
from ..config.overrides import TEXT_KEYS, quote

_PLAIN = re.compile(r"[\w.+-]+", re.ASCII)  # text that needs no quotes in Hydra's grammar


class BadData(ConfigError):
    """A file of the data set cannot be used: whoever goes on meets it again."""


@contextmanager
def images_told(dataset: Dataset) -> Iterator[None]:
    """Raises BadData for an image that is bad or gone, with the way out; all else passes."""
    try:
        yield
    except BadImage as error:
        raise BadData(f"{error}; {_way_out(dataset)}") from error


@contextmanager
def files_told(dataset: Dataset) -> Iterator[None]:
    """Raises ConfigError for files that are bad or gone, MachineError for those that cannot be read."""
    try:
        with images_told(dataset):
            yield
    except (BadFile, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise MachineError(str(error)) from error


@contextmanager
def data_told(dataset: Dataset) -> Iterator[None]:
    """As `files_told`, for a data set's own code alone, whose ValueError says that a request is wrong."""
    with files_told(dataset):
        try:
            yield
        except (BadImage, ConfigError):
            raise
        except ValueError as error:
            raise ConfigError(str(error)) from error


def can_go_on(reason: str | None) -> bool:
    """Whether a run that ended for `reason` may end otherwise when it is resumed: files stay bad."""
    return f"{BadData.__name__}: " not in (reason or "")


def _way_out(dataset: Dataset) -> str:
    return (
        "if it was whole when the run began, bring it back and resume; else mend it, or leave bad files out "
        "with dataset.bad_files=skip, and start a new run with dataset.check=decode: other files are other "
        f"data. See what else is bad: daso-bench prepare {_words(dataset)}"
    )


def _words(dataset: Dataset) -> str:
    """What chooses `dataset` on a command line, for a POSIX shell, and has all of its files decoded."""
    words = [f"dataset={dataset.name}"]
    for field in dataclasses.fields(cast(Any, dataset)):
        value = getattr(dataset, field.name)
        if field.name == "root" or (field.name != "check" and value != field.default):
            words.append(f"dataset.{field.name}={_value(f'dataset.{field.name}', value)}")
    return " ".join(map(shlex.quote, [*words, "dataset.check=decode"]))


def _value(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_value(key, item) for item in value)}]"
    plain = key in TEXT_KEYS or not isinstance(value, str) or _PLAIN.fullmatch(value)
    return str(value) if plain else quote(value)
