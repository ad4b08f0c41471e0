"""A GPU of shapes and devices alone: PyTorch's fake tensors, which raise on a mix of devices.

Tensors on the CPU are real; whatever is read or copied from the GPU is 1. In a `Walk` other ranks do what
this one does, and every message is there at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from daso_bench.runner.communication.traffic import CountedCommunicator, Traffic
from daso_bench.strategies.base import AsynchronousStrategy, Strategy
from daso_bench.strategies.communicator import Done, Operation, Work
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.replica import Batch, Replica
from daso_bench.strategies.topology import Group, Topology

DEVICE = torch.device("cuda", 0)
STEPS, EPOCHS, BATCH = 4, 4, 16
FUSED = (torch.ops.aten._fused_sgd_.default,)  # PyTorch cannot tell its shapes without a GPU


def ones(tensor: FakeTensor) -> Any:
    """The numbers of a tensor of ones."""
    return torch.ones(tensor.shape, dtype=tensor.dtype).tolist()


class Read(TorchFunctionMode):
    """Whoever reads a fake tensor is told 1. All memory is pinned. Gradients of a loss are zeros."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "is_pinned":
            return True
        if name == "pin_memory":
            return args[0]
        if args and isinstance(args[0], FakeTensor):
            match name:
                case "item" | "tolist":
                    return ones(args[0])
                case "__float__":
                    return 1.0
                case "__int__" | "__index__":
                    return 1
                case "__bool__":
                    return True
                case "unique":
                    return args[0][:1]
                case "backward":  # PyTorch's engine would look for a real GPU
                    return _zero_gradients(args[0])
        return func(*args, **(kwargs or {}))


def _zero_gradients(loss: Tensor) -> None:
    """Leave a gradient in every parameter that `loss` depends on."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and variable.grad is None:
            variable.grad = torch.zeros_like(variable)
        todo += [before for before, _ in node.next_functions]


class RealCPU(TorchDispatchMode):
    """Operations of the CPU alone are real; what comes from the GPU to the CPU is 1."""

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        on_gpu = device is not None and torch.device(device).type == "cuda"
        if not on_gpu and not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            with _disable_current_modes():
                return func(*args, **({**kwargs, "pin_memory": False} if "pin_memory" in kwargs else kwargs))
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], FakeTensor):
            args[1].expand(args[0].shape)  # raises where the shapes differ
            with _disable_current_modes():
                return args[0].fill_(1)
        if func in FUSED:
            assert all(isinstance(leaf, FakeTensor) for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
            return None
        with self.fake:
            return tree_map(_arrived, func(*args, **kwargs))


def _arrived(value: Any) -> Any:
    """What was copied to the CPU."""
    if not isinstance(value, FakeTensor) or value.device.type != "cpu":
        return value
    with _disable_current_modes():
        return torch.ones(value.shape, dtype=value.dtype)


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Inside, `cuda` exists, and tensors there have a shape, a type and a device and no numbers."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, RealCPU(fake), Read():
        yield


class Alone(CountedCommunicator):
    """A rank's communicator that only looks where tensors are: `control` is the host's, the rest a GPU's."""

    host_waits = False

    def __init__(self, topology: Topology, rank: int) -> None:
        self.topology, self.rank = topology, rank
        self.traffic = Traffic(topology, rank)
        self.time = 0

    def now(self) -> int:
        self.time += 1
        return self.time

    def _launch(self, op: Operation) -> Work:
        for tensor in (op.tensor, op.output):
            wanted = "cpu" if op.channel == "control" else "cuda"
            assert tensor.device.type == wanted, (op.channel, tensor.device)
        if op.verb == "all_reduce":
            op.tensor.mul_(len(op.members))
        elif op.verb == "all_gather":
            op.output.view(len(op.members), -1).copy_(op.tensor)
        return Done()

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        assert all(op.tensor.device.type == "cuda" for op in messages)
        return Done()

    def _barrier_in_memory(self, group: Group, members: tuple[int, ...]) -> None:
        raise AssertionError("ranks on GPUs share no memory")

    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        raise AssertionError("ranks on GPUs share no memory")


class GPUReplica(Replica):
    """Its gradients are zeros on the GPU, summed as the strategy asked; its times are a second a step."""

    comm: Alone

    def _averaging_changed(self) -> None:
        return

    def compute_gradients(self, batch: Batch) -> Tensor:
        tensors = self.parameters.tensors
        for parameter, bound in zip(tensors, self._bound_gradients or [None] * len(tensors), strict=True):
            parameter.grad = torch.zeros_like(parameter) if bound is None else bound
        reduction = self.averaging.reduction
        if reduction is not None:
            gradients = [parameter.grad for parameter in tensors if parameter.grad is not None]
            bucket = torch.cat([gradient.reshape(-1) for gradient in gradients])
            reduction.sum(bucket, 0, [tuple(g.shape) for g in gradients], self.comm)
        self.stop_requested = False
        return torch.zeros((), device=DEVICE)

    def time_steps(self, samples: int, steps: int) -> list[float]:
        return [1.0] * steps

    def rng_state(self) -> dict[str, Tensor]:
        return {}

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        return


class Walk:
    """One rank's strategy on the fake GPU, through the calls of the loop. Live in `fake_cuda`."""

    def __init__(self, kind: type[Strategy], config: Any, ranks_of_nodes: list[int], rank: int) -> None:
        with DEVICE:
            model = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        self.topology = Topology.of(ranks_of_nodes)
        self.replica = GPUReplica(model, nn.CrossEntropyLoss())
        self.replica.comm = comm = Alone(self.topology, rank)
        self.replica.delayed_flag = True
        self.progress = Progress(EPOCHS, STEPS, budget=EPOCHS * STEPS * BATCH, global_batch_size=BATCH)
        self.strategy = kind(config)
        self.strategy.setup(self.replica, comm, self.progress)
        stepped = self.replica.stepped or [torch.zeros(0)]
        self.replica.optimizer = torch.optim.SGD(stepped, lr=0.1, momentum=0.9)
        if isinstance(self.strategy, AsynchronousStrategy):
            self.strategy.reserve(2)
        self.strategy.shares(self.progress)

    def step(self) -> None:
        """As `Loop.step` and `Loop.after_step`."""
        strategy, progress = self.strategy, self.progress
        strategy.before_batch(progress)
        progress.samples_of_rank = (BATCH // self.topology.ranks,) * self.topology.ranks
        images = torch.zeros(progress.samples_of_rank[0], 30, device=DEVICE)
        targets = torch.zeros(len(images), dtype=torch.long, device=DEVICE)
        self.replica.compute_gradients(Batch(images, targets, progress.samples_of_rank))
        strategy.before_step(progress)
        self.replica.step()
        strategy.after_step(progress)
        strategy.stop_agreed(progress, False)
        strategy.is_sync_point(progress)
        progress.samples += BATCH
        progress.step += 1
        last = progress.last_batch
        if last:
            progress.epoch_loss = 1.0
            strategy.after_epoch(progress)
            strategy.record(progress)
        progress.epoch, progress.batch = progress.epoch + last, 0 if last else progress.batch + 1

    def saved(self) -> tuple[dict[str, Any], Progress]:
        """What a checkpoint gives back: its tensors are on the CPU."""
        self.strategy.wait_pending()
        with self.strategy.averaged_model():
            pass
        return on_cpu(self.strategy.state_dict()), self.progress

    def resume(self, saved: tuple[dict[str, Any], Progress]) -> None:
        """Go on from `saved`, of another walk."""
        state, progress = saved
        for name in ("step", "epoch", "batch", "samples"):
            setattr(self.progress, name, getattr(progress, name))
        self.strategy.load_state_dict(state)

    def end(self) -> None:
        """The rest of the run."""
        while self.progress.epoch < EPOCHS:
            self.step()
        self.strategy.finalize()
        self.strategy.summary()


def on_cpu(value: Any) -> Any:
    """The tensors in it on the CPU, as `checkpoint.read` loads them."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return type(value)({key: on_cpu(entry) for key, entry in value.items()})
    return type(value)(map(on_cpu, value)) if isinstance(value, list | tuple) else value
