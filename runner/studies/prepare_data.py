"""Prepares a data set in one process before any rank starts; ranks only read.

`daso-bench prepare` may download. The front end prepares the data of each run that it starts or submits, and
downloads only with dataset.download=true.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...datasets.data import Data
from ...datasets.dataset import Dataset, Tell
from ...datasets.verification import SHOWN, BadFiles
from ...strategies.errors import ConfigError, MachineError
from ..config.load import data_of
from ..config.overrides import key_of
from ..config.reader_config import PackedReader
from ..config.run_config import RunConfig
from ..records.display import make_console, say
from ..records.run_directory import OK, RunDirectory, write_data_file
from ..training.data_errors import data_errors
from ..training.packed_set import look_at, open_set, write_set

GROUPS = ("dataset", "reader")


def prepare(words: Sequence[str], *, config_dir: Path | None, cwd: Path) -> int:
    """Prepare the data set that `words` choose, and describe it; returns the exit code.

    Raises ConfigError where files are missing or bad, MachineError where they cannot be fetched or written.
    """
    console = make_console()
    _check_words(words)
    dataset, reader = data_of(words, cwd=cwd, config_dir=config_dir)
    dataset = dataset.downloading()
    try:
        about = _prepare(dataset, console)
    except ConfigError as error:
        cause = error.__cause__  # the error names the first bad files; here are all of them
        if isinstance(cause, BadFiles) and len(cause.bad) > SHOWN:
            say(console, f"bad files: {len(cause.bad)}")
            for path, reason in cause.bad:
                say(console, f"  {path}: {reason}")
        raise
    for line in about_lines(about):
        say(console, line)
    if isinstance(reader, PackedReader):
        say(console, _pack(dataset, reader, console))
    folder = dataset.folder()
    place = "" if folder is None else f", in {folder}"
    say(console, f"ready: {type(dataset).__name__}{place}", "bold")
    return OK


def _check_words(words: Sequence[str]) -> None:
    """Raises ConfigError unless `words` choose a data set, and nothing but GROUPS."""
    for word in words:
        if "=" not in word or key_of(word).split(".")[0] not in GROUPS:
            allowed = " or ".join(f"{group}=NAME or {group}.KEY=VALUE" for group in GROUPS)
            raise ConfigError(f"{word}: must be {allowed} (daso-bench prepare --help)")
    if not any(key_of(word) == "dataset" for word in words):
        raise ConfigError("prepare: takes dataset=NAME (daso-bench list datasets)")


class Preparation:
    """Prepares the data sets of a sweep's runs, each once, and describes them on `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._results: dict[str, Any] = {}  # by what was looked at: the result, or the error

    def check(self, config: RunConfig) -> None:
        """Before a run has a folder: prepare its data, and check the run with them.

        Raises ConfigError where files are missing or bad or too few, or are not what the run is for,
        MachineError where they cannot be fetched or written.
        """

        def get_ready() -> None:
            for line in about_lines(_prepare(config.dataset, self._console), named=SHOWN):
                say(self._console, f"  {line}")

        self._once(repr(config.dataset), get_ready)
        config.check()  # again: the data set knows its sizes now
        self._packed(config)

    def record(self, directory: RunDirectory, config: RunConfig) -> None:
        """Write data.json of a checked run where files were looked at.

        Raises ConfigError if the run began with other files.
        """
        about, packed = config.dataset.about(), self._packed(config)
        if about is not None or packed is not None:
            row = {**(about or {}), **({} if packed is None else {"packed": packed})}
            write_data_file(directory.path, row, begun=bool(directory.status().get("attempts")))

    def _packed(self, config: RunConfig) -> dict[str, Any] | None:
        """What the reader's file is, looked at once for all runs alike; None for a run without one."""
        dataset, reader, nodes = config.dataset, config.reader, config.cluster.nodes
        if not isinstance(reader, PackedReader):
            return None
        name = f"{reader.path} {reader.shuffle_seed} {dataset!r}"
        about = self._once(name, lambda: _about_packed(dataset, reader))
        self._once(f"{name} {reader!r} {nodes}", lambda: look_at(dataset, reader, nodes))
        return about

    def _once(self, name: str, look: Callable[[], Any]) -> Any:
        """What `look` returns or raises; data that are missing for one run are missing for them all."""
        if name not in self._results:
            try:
                self._results[name] = look()
            except (ConfigError, MachineError) as error:
                self._results[name] = error
        result = self._results[name]
        if isinstance(result, Exception):
            raise result
        return result


def about_lines(about: Mapping[str, Any] | None, named: int | None = None) -> list[str]:
    """Sentences that describe a prepared data set, which is `about`; none for one without files.

    named: of the files left out, how many are named one by one; None: all.
    """
    if about is None:
        return []
    samples, held_out = about["samples"], about["held_out"]
    parts = [
        f"{count} {name}" + " (held out of train)" * (name in held_out) for name, count in samples.items()
    ]
    lines = [f"{len(about['class_names'])} classes; images: {', '.join(parts)}"]
    if about["others"]:
        counts = ", ".join(f"{name} {count}" for name, count in about["others"].items())
        lines.append(f"no images by their names, not looked at: {counts}")
    lines += [f"warning: {text}" for text in about["warnings"]]
    if about["bad"]:
        count = len(about["bad"])
        lines.append(f"left out, on all ranks: {count} bad file{'s' * (count > 1)}")
        lines += [f"  {path}: {reason}" for path, reason in about["bad"][:named]]
        if named is not None and count > named:
            lines.append(f"  ... and {count - named} more")
    return lines


@contextmanager
def files_bar(console: Console, what: str) -> Iterator[Tell]:
    """A bar over the files from the first that is looked at, on a terminal; nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=None)

    def tell(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield tell
    finally:
        bar.stop()


def _prepare(dataset: Dataset, console: Console) -> Mapping[str, Any] | None:
    """Prepare the data set; returns its description, None for one without files."""
    with data_errors(dataset), files_bar(console, "looking at files") as tell:
        dataset.prepare(tell)
    return dataset.about()


def _about_packed(dataset: Dataset, reader: PackedReader, data: Data | None = None) -> dict[str, Any]:
    """What the reader's file is. data: of the data set, if it is loaded."""
    with data_errors(dataset):
        opened = open_set(dataset, reader, data or dataset.load())
    opened.packed.close()
    return opened.about()


def _pack(dataset: Dataset, reader: PackedReader, console: Console) -> str:
    """Write the reader's file unless it is there; what it is, in words."""
    with data_errors(dataset):
        data = dataset.load()
        with files_bar(console, "packing samples") as tell:
            written = write_set(dataset, reader, data, tell)
    about = _about_packed(dataset, reader, data)
    kind = f"{about['encoding']}, {about['bytes'] / 1e6:.1f} MB, shuffle_seed {reader.shuffle_seed}"
    done = "packed" if written else "packed before"
    return f"{done}: {about['records']} training samples ({kind}) in {about['path']}"
