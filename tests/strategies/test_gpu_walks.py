"""On a GPU of fake tensors: how often a step holds up the host (docs/gpu.md), and runs that go on."""

from collections import Counter
from typing import Any

import pytest
import torch
from fake_cuda import EPOCHS, IDS, STEPS, WALKS, Walk, fake_cuda, ones
from runs import strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READERS = {"item", "__float__", "__int__", "__index__", "__bool__"}


class Reads(TorchFunctionMode):
    """Notes who asks for a GPU's number."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in READERS and isinstance(args[0], Tensor) and args[0].is_cuda:
            self.seen["reads"] += 1
        return func(*args, **(kwargs or {}))


class Copies(TorchDispatchMode):
    """Notes copies between host and GPU that the host waits for."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.copy_.default and args[0].device.type != args[1].device.type:
            self.seen["copies"] += not (args[2:] and args[2]) and not kwargs.get("non_blocking")
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") is not None:
            moved = torch.device(kwargs["device"]).type != args[0].device.type
            self.seen["copies"] += moved and not kwargs.get("non_blocking")
        return func(*args, **kwargs)


OF_A_ROUND = {"daso", "diloco", "ednncomm", "lasgd", "local_sgd", "post_local_sgd", "slowmo"}
"""They read the stop request, and norms for the record, where they merge or average."""


def most(name: str, keys: dict[str, Any], last: bool) -> int:
    """Reads of a step, at most; `last` of an epoch."""
    if name in OF_A_ROUND:
        of_their_own = {"daso": last, "slowmo": 1, "diloco": keys.get("outer_device") == "device"}
        return 1 + of_their_own.get(name, 0)
    return int(name in {"hsgd", "sgp"})


@pytest.mark.parametrize(("name", "keys"), WALKS, ids=IDS)
def test_no_step_holds_up_the_host_more_often_than_the_docs_say(
    name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    steps: list[Counter[str]] = [Counter()]  # the first is what `setup` does

    def tolist(tensor: FakeTensor) -> Any:  # one copy, however many numbers there are
        steps[-1]["reads"] += tensor.is_cuda
        return ones(tensor)

    monkeypatch.setattr(FakeTensor, "tolist", tolist)
    kind = strategy_class(name)
    with fake_cuda():
        walk = Walk(kind, kind.Config(**keys), [2, 2], 0)
        monkeypatch.setattr(walk.strategy, "record", lambda progress: {})  # while a log is written
        while walk.progress.epoch < EPOCHS:
            steps.append(Counter())
            with Reads(steps[-1]), Copies(steps[-1]):
                walk.step()
    for place, seen in enumerate(steps[1:], start=1):
        assert seen["reads"] <= most(name, keys, last=place % STEPS == 0), place
    through_host = name == "diloco" and keys.get("outer_device") != "device"
    first_sketch = keys.get("hook") == "powersgd"
    copies = sum(seen["copies"] for seen in steps[1:])
    assert copies == (EPOCHS * STEPS if through_host else 2 * first_sketch), "two a round, or two once"


@pytest.mark.parametrize(("name", "keys"), WALKS, ids=IDS)
def test_a_run_goes_on_where_its_replica_is(name: str, keys: dict[str, Any]):
    """Rank 1, from a checkpoint, whose tensors are on the CPU. Rank 0: runner/training/test_fake_gpu.py."""
    kind = strategy_class(name)
    with fake_cuda():
        first, second = (Walk(kind, kind.Config(**keys), [2, 2], rank=1) for _ in range(2))
        for _ in range(6):
            first.step()
        second.resume(first.saved())
        second.end()
