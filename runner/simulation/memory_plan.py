"""Memory plan of `launcher=simulated`: bytes of all ranks, from the configuration, and those of the device.

All ranks live in one process. What the plan leaves out is the same for any number of ranks: the data set, the
activations of the ranks that are computed together, and libraries.
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
import torch
from torch import nn

from ...models.spec import InputSpec
from ...strategies.errors import MachineError
from ...strategies.layout import Layout
from ...strategies.progress import RankMemory
from ..communication.gpus import device_of_all
from ..config.launchers import SimulatedConfig
from ..config.model_building import built, input_spec
from ..config.optimizers import SGD, Optimizer
from ..config.run_config import RunConfig
from ..training.precision import AUTOCAST, DTYPES
from .rank_compute import has_dropout
from .stacked_ranks import FEWEST, most_stacked

GIB, MIB = 2**30, 2**20
_last_built: dict[tuple[str, InputSpec, str], nn.Module] = {}
_SIDE = 8  # of the matrix on which an optimizer is asked for its state


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """`parts`: bytes of a rank, by use; `shared`: of all ranks together; `room`: of the device."""

    config: RunConfig
    parts: Mapping[str, int]
    shared: int
    device: str
    room: int

    @property
    def of_rank(self) -> int:
        return sum(self.parts.values())

    @property
    def total(self) -> int:
        return self.config.cluster.ranks * self.of_rank + self.shared

    @property
    def ranks_that_fit(self) -> int:
        return max(0, self.room - self.shared) // self.of_rank

    def words(self) -> str:
        """The plan in one line, for people."""
        parts = ", ".join(f"{name} {number / MIB:.1f}" for name, number in self.parts.items())
        return (
            f"memory: {self.config.cluster.ranks} ranks x {self.of_rank / MIB:.1f} MiB ({parts}) + "
            f"{self.shared / MIB:.1f} MiB = {self.total / GIB:.2f} GiB, beside data and activations; "
            f"{self.device} has {self.room / GIB:.2f} GiB"
        )

    def check(self) -> None:
        """Raises MachineError where the ranks do not fit, with what would."""
        if self.total <= self.room:
            return
        config, ranks, ways = self.config, self.config.cluster.ranks, list[str]()
        if fit := self.ranks_that_fit:
            nodes = fit // max(config.cluster.ranks_of_nodes)
            keys = f"cluster.nodes={nodes}" if nodes else f"cluster.nodes=1 cluster.ranks_per_node={fit}"
            ways.append(f"at most {fit} ranks ({keys})")
        if isinstance(config.optimizer, SGD) and config.optimizer.momentum:
            plain = dataclasses.replace(config.optimizer, momentum=0.0, nesterov=False)
            if fit := memory_of(dataclasses.replace(config, optimizer=plain)).ranks_that_fit:
                ways.append(
                    f"optimizer.momentum=0 optimizer.nesterov=false (at most {min(fit, ranks)} ranks)"
                )
        raise MachineError(
            f"launcher=simulated: {ranks} ranks x {self.of_rank / MIB:.1f} MiB need "
            f"{self.total / GIB:.1f} GiB, and {self.device} has {self.room / GIB:.1f} GiB; take "
            f"{' or '.join(ways) or 'a smaller model'}"
        )


def planned(config: RunConfig) -> MemoryPlan | None:
    """The plan of a run; None where nothing is computed, or the shape of the samples is not known yet."""
    known = not config.launcher.timing_only and input_spec(config.dataset) is not None
    return memory_of(config) if known else None


def memory_of(config: RunConfig) -> MemoryPlan:
    """The plan of a run whose samples have a known shape. Raises ConfigError: the model cannot be built."""
    spec, ranks, device = input_spec(config.dataset), config.cluster.ranks, _device(config)
    assert spec is not None, "the caller has asked"
    model = _built(config, spec)
    trained = Layout([(n, p) for n, p in model.named_parameters() if p.requires_grad], torch.device("meta"))
    floating = [b for b in model.buffers() if b.is_floating_point()]
    width = trained.dtype.itemsize
    copy = (trained.numel + sum(buffer.numel() for buffer in floating)) * width
    samples = config.dataset.expected_info().samples
    every = config.train.eval_every_samples or (samples["train"] if samples else sys.maxsize)
    states, way = states_of(config.optimizer), _way(config, model)
    parameters, gradients = (
        sum(x.nbytes for x in tensors) for tensors in (model.parameters(), trained.tensors)
    )
    memory = RankMemory(
        states=states,
        on_gpu=device.type == "cuda",
        in_sums=way != "one_by_one",
        waiting=_waiting(config, every, copy),
        eval_mode=config.train.eval_mode,
        eval_every=every,
    )
    copies = config.strategy_class.copies_held(config.strategy, config.plan(), memory)
    parts = {
        "parameters": parameters,
        "gradients": 0 if memory.in_sums else gradients,
        "sums": trained.numel * width,
        "optimizer": round(states * gradients),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
        "strategy": round(copies * copy),
    }
    # A stack has parameters and gradients of its ranks, and gradients once more on their way out: the first
    # step has these in the place of the ranks' momenta, the others of what undoes the first.
    most = min(max(ranks, 2 * FEWEST), most_stacked(model.parameters()))
    of_stack = (2 * most + max(0, most - ranks)) * trained.numel * width
    of_way = {"stacked": of_stack, "graph": parameters + gradients, "one_by_one": 0}
    shared = copy + of_way[way]  # and a sum over all ranks
    name, room = _room(device)
    return MemoryPlan(config=config, parts=parts, shared=shared, device=name, room=room)


def _built(config: RunConfig, spec: InputSpec) -> nn.Module:
    """The module of a run; the last one is kept, for runs of a sweep mostly have the same."""
    key = f"{type(config.model)} {config.model!r}", spec, config.train.precision
    if key not in _last_built:
        _last_built.clear()
        _last_built[key] = built(config.model, spec).to(dtype=DTYPES[config.train.precision])
    return _last_built[key]


def _device(config: RunConfig) -> torch.device:
    """Where the ranks live. Raises MachineError: on a GPU that is not there."""
    launcher = config.launcher
    return device_of_all(launcher.device if isinstance(launcher, SimulatedConfig) else "cpu")


def _room(device: torch.device) -> tuple[str, int]:
    """The name of the device and its bytes: all of a GPU; memory and swap of this machine that are free."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)  # the GPU's free bytes would take a context
        return properties.name, properties.total_memory
    return "this machine", psutil.virtual_memory().available + psutil.swap_memory().free


def states_of(optimizer: Optimizer) -> float:
    """Numbers of an optimizer's state for each parameter: 0 of plain SGD, 1 with momentum, 2 of Adam."""
    parameter = nn.Parameter(torch.ones(_SIDE, _SIDE))
    parameter.grad = torch.ones_like(parameter)
    stepped = optimizer.build([parameter])
    stepped.step()
    kept = (value for value in stepped.state[parameter].values() if isinstance(value, torch.Tensor))
    return sum(value.numel() for value in kept if value.numel() > 1) / parameter.numel()


def _way(config: RunConfig, model: nn.Module) -> str:
    """How ranks are computed; of `auto`, which is timed later, the way that may need the most memory."""
    launcher, train = config.launcher, config.train
    if isinstance(launcher, SimulatedConfig) and launcher.rank_compute != "auto":
        return launcher.rank_compute
    alone = train.accumulate > 1 or train.precision in AUTOCAST or has_dropout(model)
    stacked = config.cluster.ranks >= FEWEST and most_stacked(model.parameters()) >= 2 * FEWEST
    return "stacked" if stacked and not alone else "one_by_one"


def _waiting(config: RunConfig, every: int, copy: int) -> int:
    """Copies of a rank that may wait to be judged; see `TrainContext._choose_evaluation`."""
    return max(
        0,
        min(
            ((config.training_samples or 0) - 1) // every,
            int(config.train.eval_copies_mib * MIB) // max(1, copy),
        ),
    )
