"""A device that is not there: its tensors have the CPU's numbers, and must not be mixed with the CPU's own.

It is called `meta`. Which tensors lie on it is known by their memory. As with a GPU, operations refuse
tensors of both kinds, but for copies and for 0-dimensional inputs of the CPU; `.item()`, `.to(...)` and
factories with `device=` work.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("meta")
aten: Any = torch.ops.aten
_parse_to: Any = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue] (PyTorch has no stub)
JOINING = (aten.cat.default, aten.stack.default)  # they take no number of the CPU beside a GPU's
_memories: dict[int, StorageWeakRef] = {}  # of its tensors; held weakly, no address is given out again


def lies_there(tensor: Tensor) -> bool:
    try:
        return tensor.untyped_storage()._cdata in _memories
    except NotImplementedError:  # of a vmapped tensor, which lies nowhere
        return False


def put_there(value: Any) -> Any:
    """The same tensors, from now on on the device."""

    def mark(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        _memories.setdefault(storage._cdata, StorageWeakRef(storage))
        return tensor

    return tree_map_only(Tensor, mark, value)


class Names(TorchFunctionMode):
    """Tensors say where they lie, move, and are made there."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        there = bool(args) and isinstance(args[0], Tensor) and lies_there(args[0])
        if getattr(func, "__self__", None) is torch.Tensor.device:
            return DEVICE if there else func(*args)
        if name in ("numpy", "__array__") and there:
            raise TypeError("numpy reads no tensor of the device")
        if name in ("to", "cpu"):
            copies, where = kwargs.pop("copy", False), args[1:] if name == "to" else ("cpu",)
            device, dtype, _, memory = _parse_to(*where, **kwargs)
            tensor, goes_there = args[0], there if device is None else device == DEVICE
            more = {"memory_format": memory or torch.preserve_format}
            if goes_there == there:
                return tensor.to(dtype or tensor.dtype, copy=copies, **more)
            with _disable_current_modes():
                moved = torch.empty_like(tensor, dtype=dtype, **more)
            return (put_there(moved) if goes_there else moved).copy_(tensor.detach())
        made_there = there and name in ("__deepcopy__", "new_tensor")
        if kwargs.get("device") is not None:
            made_there = torch.device(kwargs.pop("device")) == DEVICE
        made = func(*args, **kwargs)
        return put_there(made) if made_there else made


class Apart(TorchDispatchMode):
    """Operations refuse tensors of the device beside the CPU's; results lie where their inputs do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        there = {id(x): lies_there(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        if not any(there.values()):
            return func(*args, **kwargs)
        for place, argument in enumerate(func._schema.arguments):
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(given):
                is_number = isinstance(x, Tensor) and x.dim() == 0 and not written and func not in JOINING
                if isinstance(x, Tensor) and not (there[id(x)] or is_number or func is aten.copy_.default):
                    raise RuntimeError(f"{func}: {argument.name} is on the CPU, others on the device")
        result = func(*args, **kwargs)
        return result if func is aten.copy_.default else put_there(result)


@contextmanager
def pretend_device() -> Iterator[None]:
    """Inside, `DEVICE` is one like a GPU."""
    try:
        with Names(), Apart():
            yield
    finally:
        _memories.clear()
