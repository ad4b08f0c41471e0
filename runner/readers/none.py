"""`reader=none`: samples are taken from the data set by their numbers, in an order drawn for each epoch."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class NoReader:
    """No packed file."""

    name: ClassVar[str] = "none"
