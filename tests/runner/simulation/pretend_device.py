"""A device that is not there: its tensors have the CPU's numbers, and must not be mixed with the CPU's own.

It is called `meta`; which tensors lie on it is known by their memory. As with a GPU, operations refuse
tensors of both kinds, but for copies and for 0-dimensional inputs of the CPU.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from daso_bench.datasets import transforms
from daso_bench.runner.training import checkpoint

DEVICE = torch.device("meta")
aten: Any = torch.ops.aten
_parse_to: Any = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue] (PyTorch has no stub)
_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue] (no stub)
_memories: dict[int, StorageWeakRef] = {}  # of its tensors; held weakly, no address is given out again


def lies_there(tensor: Any) -> bool:
    while isinstance(tensor, Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata in _memories


def put_there(value: Any) -> Any:
    """`value`, with its tensors on the device from now on."""
    for storage in (x.untyped_storage() for x in tree_leaves(value) if isinstance(x, Tensor)):
        _memories.setdefault(storage._cdata, StorageWeakRef(storage))
    return value


class Apart(TorchDispatchMode):
    """Operations refuse tensors of the device beside the CPU's; results lie where their inputs do."""

    there = False  # whether an operation of Python has inputs on the device

    @contextmanager
    def operation(self, there: bool) -> Iterator[None]:
        before, self.there = self.there, there
        try:
            yield
        finally:
            self.there = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if func is aten.copy_.default or not any(map(lies_there, leaves)):
            made = func(*args, **kwargs)
            # What PyTorch makes for an operation of its own, as vmap does for batch normalisation.
            return put_there(made) if self.there and not any(isinstance(x, Tensor) for x in leaves) else made
        for place, argument in enumerate(func._schema.arguments):
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            strict = written or func in (aten.cat.default, aten.stack.default)
            for x in tree_leaves(given):
                if isinstance(x, Tensor) and not lies_there(x) and (x.dim() or strict):
                    raise RuntimeError(f"{func}: {argument.name} is on the CPU, others on the device")
        return put_there(func(*args, **kwargs))


class Names(TorchFunctionMode):
    """Tensors say where they lie, move, and are made there."""

    def __init__(self, apart: Apart) -> None:
        super().__init__()
        self.apart = apart

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        there = bool(args) and lies_there(args[0])
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return DEVICE if there else func(*args)
        assert not (there and name in ("numpy", "__array__")), "numpy reads no tensor of the device"
        if name in ("to", "cpu"):
            copies, where = kwargs.pop("copy", False), args[1:] if name == "to" else ("cpu",)
            device, dtype, _, memory = _parse_to(*where, **kwargs)
            goes_there = there if device is None else device == DEVICE
            more: dict[str, Any] = {"memory_format": memory or torch.preserve_format}
            if goes_there == there:
                return args[0].to(dtype or args[0].dtype, copy=copies, **more)
            with _disable_current_modes():
                moved = torch.empty_like(args[0], dtype=dtype, **more)
            return (put_there(moved) if goes_there else moved).copy_(args[0].detach())
        made_there = there and name in ("__deepcopy__", "new_tensor")
        if kwargs.get("device") is not None:
            made_there = torch.device(kwargs.pop("device")) == DEVICE
        with self.apart.operation(any(map(lies_there, tree_leaves((args, kwargs))))):
            made = func(*args, **kwargs)
        return put_there(made) if made_there else made


@contextmanager
def pretend_device() -> Iterator[None]:
    """Inside, `DEVICE` is like a GPU; PyTorch's own has no fused kernels, and is saved without numbers."""
    write, optimizers = checkpoint.write_file, sys.modules["torch.optim.optimizer"]
    with pytest.MonkeyPatch.context() as patch, Apart() as apart, Names(apart):
        patch.setattr(checkpoint, "write_file", lambda path, content: write(path, on_cpu(content)))
        patch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
        yield
    transforms.for_pixels.cache_clear()
    _memories.clear()
