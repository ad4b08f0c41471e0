"""The nouns of the conformance kit: what is checked, what a check is, what came out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ...strategies.base import Strategy

RanksOfNodes = tuple[int, ...]
"""Number of ranks on each node: (2, 1) is a node of two ranks and a node of one."""

Status = Literal["ok", "refuses", "FAILED"]


class Failed(AssertionError):
    """A strategy does not do what it must; the message says where it first parts from that."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with its keys. `builtin`: its name in strategies/ if it is ours, None for a plug-in."""

    name: str
    strategy_class: type[Strategy]
    config: Any
    builtin: str | None = None

    def __hash__(self) -> int:
        # Keys of any kind are welcome, also those that cannot be hashed.
        return hash((self.name, self.strategy_class))


@dataclass(frozen=True)
class Check:
    """One property, and how it is tried.

    Args:
        name: two or three words for the table.
        says: the property, in one sentence.
        run: tries it on the given ranks of nodes; returns None or a remark ("no key bucket_mib"). Raises
            Failed, and ConfigError where the strategy refuses these ranks or the run: that is shown
            and is no failure.
    """

    name: str
    says: str
    run: Callable[[Candidate, RanksOfNodes], str | None]


Layer = Callable[[Candidate], list[Check]]
"""The checks of a layer that apply to a candidate; none: the layer has nothing on it."""


@dataclass(frozen=True)
class CheckResult:
    """What one check said about one strategy on one set of ranks; `text` is the remark or the sentence."""

    strategy: str
    layer: str
    check: str
    ranks: RanksOfNodes
    status: Status
    text: str
    seconds: float
