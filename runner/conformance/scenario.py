"""Scenario (one run of the conformance kit) and history (what each rank did in it).

Keys of a history are numbers of steps done: `parameters[0]` is the start, `parameters[k]` the state after
step k. With independent sampling a rank counts its own steps, and `consensus_after`, `copies_after` and
`save_after` count sync points, from 1.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...strategies.base import Strategy
from ...strategies.progress import Plan
from ...strategies.topology import Topology

Data = Callable[[int, int], tuple[Tensor, Tensor]]
"""(rank, step from 0) -> inputs [b, …], targets [b]; b may differ between ranks. With `shares` the pieces of
all ranks are concatenated and split again."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Model, data and optimizer, the same for every strategy.

    `optimizer` gets `replica.stepped`, the parameters that this rank steps. It must group them by their
    properties, not by their position, since a rank may step only some of them or none.
    """

    name: str
    model: Callable[[], nn.Module]
    data: Data
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss
    optimizer: Callable[[list[Tensor]], torch.optim.Optimizer] = lambda stepped: torch.optim.SGD(
        stepped, lr=0.1
    )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run. `*_after`: see the module's docstring.

    Args:
        rate: step from 0 -> learning rate of all groups; None: the optimizer's. With independent
            sampling the step is `global_samples` in nominal global batches.
        stop_request: (rank, step from 0) -> whether the rank requests a stop in this step. The run goes on;
            see `History.agreed`.
        losses: epoch -> its loss, instead of the true one.
        start: rank -> parameters [m] to start from, instead of equal ones.
        stop_after: end the run there, as `train.max_steps` or a reached target would.
        begin_ns: (rank) -> nanoseconds by which the rank starts late.
    """

    strategy_class: type[Strategy]
    config: Any
    ranks_of_nodes: Sequence[int]
    problem: Problem
    steps_per_epoch: int
    epochs: int = 1
    seed: int = 0
    rate: Callable[[int], float] | None = None
    clip_norm: float | None = None
    stop_request: Callable[[int, int], bool] = lambda rank, step: False
    losses: Callable[[int], float] | None = None
    start: Callable[[int], Tensor] | None = None
    begin_ns: Callable[[int], int] = lambda rank: 0
    consensus_after: Collection[int] = ()
    copies_after: Collection[int] = ()
    save_after: Collection[int] = ()
    stop_after: int | None = None

    @property
    def topology(self) -> Topology:
        return Topology.of(self.ranks_of_nodes)

    @property
    def global_batch_size(self) -> int:
        """Samples of the first step of all ranks."""
        return sum(self.sizes(0))

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples of each rank in `step` (from 0), before shares."""
        return tuple(len(self.problem.data(rank, step)[1]) for rank in range(self.topology.ranks))

    @property
    def plan(self) -> Plan:
        steps = self.epochs * self.steps_per_epoch
        return Plan(self.topology, self.epochs, self.global_batch_size, self.steps_per_epoch, steps)


Saved = tuple[int, bytes]
"""The place (see the module's docstring) where a rank's file of a checkpoint was written, and its content."""


@dataclass(frozen=True)
class Call:
    """One communicator call of one rank.

    `step` from 0 is the step under way; `during`: setup, shares, step, epoch (in `after_epoch`), finalize,
    averaged_model, snapshot, copy (`assemble`), checkpoint, or loop (what the train loop itself asks for).
    `numbytes`: of the tensor handed in, for every channel. `members` are the group's ranks; a message has the
    sender and the receiver.
    """

    step: int
    during: str
    channel: str
    verb: str
    members: tuple[int, ...]
    numbytes: int

    def __str__(self) -> str:
        return f"{self.verb} on {self.channel} over ranks {list(self.members)}, {self.numbytes} bytes"


@dataclass
class History:
    """What one rank did. Tensors are copies; keys are numbers of steps done (see the module's docstring).

    `budget`: the run's global samples; `samples`: those as of the last sync point; `known`: what
    `global_samples` returned before step k + 1.
    `averaged_model` and `copies` hold parameters and floating-point buffers [m + F]. `final`: the parameters
    after `finalize`; `given`: the model inside `averaged_model` after it. `disturbed[k]` names what
    `averaged_model` or a checkpoint after step k has changed, and must be empty. `unwaited` counts operations
    that were launched and never waited for. Clocks are nanoseconds since the first step began: `sharing_ns`
    in `shares`, `snapshot_ns` in `snapshot`.
    """

    rank: int
    budget: int = 0
    names: list[tuple[str, int]] = field(default_factory=list)
    parameters: dict[int, Tensor] = field(default_factory=dict)
    buffers: dict[int, Tensor] = field(default_factory=dict)
    agreed: dict[int, bool] = field(default_factory=dict)
    met: dict[int, bool] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    clock_ns: dict[int, int] = field(default_factory=dict)
    averaged_model: dict[int, Tensor] = field(default_factory=dict)
    disturbed: dict[int, list[str]] = field(default_factory=dict)
    copies: dict[int, Tensor] = field(default_factory=dict)
    saved: dict[int, Saved] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    final: Tensor = field(default_factory=lambda: torch.empty(0))
    given: Tensor = field(default_factory=lambda: torch.empty(0))
    summary: dict[str, Any] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)
    end_ns: int = 0
    sharing_ns: int = 0
    snapshot_ns: int = 0
    unwaited: int = 0
    strategy: Any = None
    replica: Any = None
    traffic: Any = None

    @property
    def steps(self) -> int:
        return max(self.parameters)

    def verbs(self, *during: str) -> Counter[str]:
        """Calls by `channel.verb`, those made `during` the named times (default: step, epoch, finalize)."""
        times = during or ("step", "epoch", "finalize")
        return Counter(f"{call.channel}.{call.verb}" for call in self.calls if call.during in times)
