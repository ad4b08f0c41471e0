"""Getting a data set ready, by one process, before any rank starts; ranks only read.

`daso-bench prepare` does it by itself, and may download. The front end does it before each run that it
starts or submits, and downloads only where dataset.download=true says so.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..strategies.errors import ConfigError, MachineError
from .compose import compose
from .display import make_console, say
from .exit_codes import OK
from .overrides import key_of
from .records import write_json
from .run_directory import RunDirectory
from .schema import RunConfig, dataset_of

DATA_FILE = "data.json"
_NAMED = 20  # files left out that are named one by one

Tell = Callable[[int, int], None]


def prepare(words: Sequence[str], *, config_dir: Path | None, cwd: Path) -> int:
    """Get the data set that `words` choose ready, and say what it is; returns the exit code.

    Raises ConfigError where files are missing or bad, MachineError where they cannot be fetched or written.
    """
    console, dataset = make_console(), chosen(words, config_dir=config_dir, cwd=cwd, command="prepare")
    if hasattr(dataset, "download"):
        dataset = dataclasses.replace(dataset, download=True)
    _prepare(dataset, console)
    for line in about_lines(dataset):
        say(console, line)
    say(console, f"ready: {type(dataset).__name__}{_at(dataset)}", "bold")
    return OK


def chosen(words: Sequence[str], *, config_dir: Path | None, cwd: Path, command: str) -> Any:
    """The data set of `dataset=NAME dataset.KEY=VALUE`. Raises ConfigError for any other word."""
    for word in words:
        if "=" not in word or key_of(word).split(".")[0] != "dataset":
            raise ConfigError(
                f"{word}: must be dataset=NAME or dataset.KEY=VALUE (daso-bench {command} --help)"
            )
    if not any(key_of(word) == "dataset" for word in words):
        raise ConfigError(f"{command}: takes dataset=NAME (daso-bench list datasets)")
    (composed,) = compose(words, sweep=False, config_dir=config_dir)
    if composed.config is None:
        raise composed.error or ConfigError(f"{command}: nothing was chosen")
    return dataset_of(composed.config, cwd)


class Preparation:
    """Gets the data sets of a sweep's runs ready, each once, and tells on `console` what there is to know."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._done: set[str] = set()

    def __call__(self, directory: RunDirectory, config: RunConfig) -> None:
        """Before the run in `directory` starts; leaves data.json there where files were looked at.

        Raises ConfigError where files are missing or bad or too few, MachineError where they cannot be
        fetched or written.
        """
        name = repr(config.dataset)
        if name not in self._done:
            _prepare(config.dataset, self._console)
            self._done.add(name)
            for line in about_lines(config.dataset):
                say(self._console, f"  {line}")
        config.check_plan()  # the number of samples may be known only now
        about = _about(config.dataset)
        if about is not None:
            write_json(directory.path / DATA_FILE, {"schema_version": 1, **about})


def about_lines(dataset: Any) -> list[str]:
    """What a person should know of a prepared data set, in sentences; nothing of one without files."""
    about = _about(dataset)
    if about is None:
        return []
    samples, held_out = about["samples"], about["held_out"]
    parts = [
        f"{count} {name}" + " (held out of train)" * (name in held_out) for name, count in samples.items()
    ]
    lines = [f"{len(about['class_names'])} classes; images: {', '.join(parts)}"]
    if about["conversions"]:
        lines.append(f"converted: {_counted(about['conversions'])}")
    if about["others"]:
        lines.append(f"no images by their names, not looked at: {_counted(about['others'])}")
    lines += [f"warning: {text}" for text in about["warnings"]]
    if about["bad"]:
        lines.append(f"left out, on all ranks: {len(about['bad'])} bad files")
        lines += [f"  {path}: {reason}" for path, reason in about["bad"][:_NAMED]]
        lines += [f"  ... and {len(about['bad']) - _NAMED} more"] * (len(about["bad"]) > _NAMED)
    return lines


@contextmanager
def files_bar(console: Console, what: str) -> Iterator[Tell]:
    """A bar over the files that are looked at, on a terminal; nothing elsewhere."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _prepare(dataset: Any, console: Console) -> None:
    try:
        if hasattr(dataset, "manifest_file"):
            with files_bar(console, "looking at files") as tell:
                dataset.prepare(tell)
        elif hasattr(dataset, "prepare"):  # a class of a user's own may have nothing to get ready
            dataset.prepare()
    except ConfigError:
        raise
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise MachineError(str(error)) from error


def _about(dataset: Any) -> dict[str, Any] | None:
    return dataset.about() if hasattr(dataset, "about") else None


def _at(dataset: Any) -> str:
    root = getattr(dataset, "root", None)
    return "" if root is None else f", in {root}"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
