"""What goes wrong with a data set's files while one process uses them, told to a person."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..datasets.pixels import BadImage
from ..strategies.errors import ConfigError, MachineError


@contextmanager
def files_told(dataset: Any) -> Iterator[None]:
    """Raises ConfigError for files that are bad or gone, MachineError for those that cannot be read."""
    try:
        yield
    except BadImage as error:
        raise ConfigError(
            f"{error}; bring it back as it was, and see what else is bad: daso-bench prepare "
            f"dataset={dataset.name} dataset.root={dataset.root} dataset.check=decode"
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise MachineError(str(error)) from error
