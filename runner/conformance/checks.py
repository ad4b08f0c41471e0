"""The terms of the conformance kit (candidate, check, result), and the comparisons by which a check fails."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ...strategies.base import Strategy
from .scenario import Call, History

RanksOfNodes = tuple[int, ...]
"""Number of ranks on each node: (2, 1) is a node of two ranks and a node of one."""

Names = Sequence[tuple[str, int]]
"""(name, number of elements) of each parameter, in the order of the flat vector."""

Status = Literal["ok", "refuses", "FAILED"]


class Failed(AssertionError):
    """A strategy breaks a property; the message names the first place where it does."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with its keys. `builtin`: its name in strategies/ if it is ours, None for a plug-in."""

    name: str
    strategy_class: type[Strategy]
    config: Any
    builtin: str | None = None

    def __hash__(self) -> int:
        # Keys may have types that cannot be hashed.
        return hash((self.name, self.strategy_class))


Check = Callable[[Candidate, RanksOfNodes], str | None]
"""Checks one property on the given ranks of nodes; returns None or a remark ("no key bucket_mib").

Raises Failed, or ConfigError where the strategy refuses these ranks or the run, which is shown and is no
failure.
"""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check of one strategy on one set of ranks; `text`: the remark or the failure."""

    strategy: str
    layer: str
    check: str
    ranks: RanksOfNodes
    status: Status
    text: str
    seconds: float


# ------------------------------------------------------------------ comparisons


def element(names: Names, place: int) -> str:
    """The name of element `place` of a flat vector: `head.weight[3]`; past the end: a buffer."""
    for name, numel in names:
        if place < numel:
            return f"{name}[{place}]" if numel > 1 else name
        place -= numel
    return f"buffers[{place}]"


def require_equal(got: Tensor, wanted: Tensor, where: str, names: Names = (), tolerance: float = 0.0) -> None:
    """Raise Failed at the first element further than `tolerance` from `wanted` (0: any other bit).

    `tolerance` is absolute for values below 1 and relative above.
    """
    if got.shape != wanted.shape:
        raise Failed(f"{where}: {list(got.shape)} elements, must be {list(wanted.shape)}")
    left, right = got.double(), wanted.double()
    far = (left - right).abs() > tolerance * right.abs().clamp(min=1.0)
    far |= left.isnan() != right.isnan()
    if not far.any():
        return
    place = int(far.flatten().nonzero()[0])
    value, must = left.flatten()[place].item(), right.flatten()[place].item()
    raise Failed(
        f"{where}: {element(names, place)} is {value:.9g}, must be {must:.9g} "
        f"({int(far.sum())} of {far.numel()} elements differ)"
    )


def require_same_walk(
    got: History, wanted: Mapping[int, Tensor] | History, what: str, tolerance: float = 0.0
) -> None:
    """Raise Failed at the first step of `got` whose parameters differ from `wanted` (by steps done)."""
    parameters = wanted.parameters if isinstance(wanted, History) else wanted
    for step, value in got.parameters.items():
        if step not in parameters:
            raise Failed(f"{what}: rank {got.rank} takes step {step}, which the other one does not")
        where = f"{what}: rank {got.rank}, after step {step}"
        require_equal(value, parameters[step], where, got.names, tolerance)
    if isinstance(wanted, History):
        require_equal(got.final, wanted.final, f"{what}: rank {got.rank}, at the end", got.names, tolerance)


def require_same_calls(got: Sequence[Call], wanted: Sequence[Call], where: str) -> None:
    """Raise Failed unless both have the same calls, each equally often, in any order."""
    ours, theirs = Counter(got), Counter(wanted)
    for call in [*(ours - theirs), *(theirs - ours)]:
        raise Failed(
            f"{where}, step {call.step + 1}: {call} is called {ours[call]} times, must be {theirs[call]}"
        )


def require_agreement(models: Sequence[Tensor], where: str, names: Names = ()) -> None:
    """Raise Failed unless all ranks' models are equal bit for bit."""
    for rank, model in enumerate(models):
        require_equal(model, models[0], f"{where}: rank {rank} differs from rank 0", names)
