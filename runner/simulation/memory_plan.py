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
from .stacked_ranks import FEWEST, MOST_NUMBERS

GIB, MIB = 2**30, 2**20
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
    model = built(config.model, spec).to(dtype=DTYPES[config.train.precision])
    trained = Layout([(n, p) for n, p in model.named_parameters() if p.requires_grad], torch.device("meta"))
    floating = [b for b in model.buffers() if b.is_floating_point()]
    width = trained.dtype.itemsize
    copy = (trained.numel + sum(buffer.numel() for buffer in floating)) * width
    samples = config.dataset.expected_info().samples
    every = config.train.eval_every_samples or (samples["train"] if samples else sys.maxsize)
    states, stacked = states_of(config.optimizer), _stacked(config, model)
    gradients = sum(tensor.nbytes for tensor in trained.tensors)
    memory = RankMemory(
        states=states,
        on_gpu=device.type == "cuda",
        stacked=stacked,
        waiting=_waiting(config, every, copy),
        eval_mode=config.train.eval_mode,
        eval_every=every,
    )
    copies = config.strategy_class.copies_held(config.strategy, config.plan(), memory)
    parts = {
        "parameters": sum(parameter.nbytes for parameter in model.parameters()),
        "gradients": 0 if stacked else gradients,
        "sums": trained.numel * width,
        "optimizer": round(states * gradients),
        "buffers": sum(buffer.nbytes for buffer in model.buffers()),
        "strategy": round(copies * copy),
    }
    # A sum over all ranks. And a stack has parameters and gradients of its ranks, and gradients once more on
    # their way out: the first step has these in the place of momenta, the others of what undoes the first.
    shared = copy + (2 * min(max(ranks, 2 * FEWEST) * trained.numel, MOST_NUMBERS) * width if stacked else 0)
    name, room = _room(device)
    return MemoryPlan(config=config, parts=parts, shared=shared, device=name, room=room)


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


def _stacked(config: RunConfig, model: nn.Module) -> bool:
    """Whether gradients of several ranks are computed in one call: then they lie in the vector of sums."""
    numbers = sum(parameter.numel() for parameter in model.parameters())
    alone = config.train.accumulate > 1 or config.train.precision in AUTOCAST
    fit = config.cluster.ranks >= FEWEST and 2 * FEWEST * numbers <= MOST_NUMBERS
    return fit and not alone and not has_dropout(model)


def _waiting(config: RunConfig, every: int, copy: int) -> int:
    """Copies of a rank that may wait to be judged; see `TrainContext._choose_evaluation`."""
    return max(
        0,
        min(
            ((config.training_samples or 0) - 1) // every,
            int(config.train.eval_copies_mib * MIB) // max(1, copy),
        ),
    )
