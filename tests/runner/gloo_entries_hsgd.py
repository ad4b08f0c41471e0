"""What the ranks of the tests of hsgd over gloo do; imported by the ranks themselves."""

import gc
import os
import signal
import time
from typing import Any

import pytest
import torch
from gloo_entries import meet, on_nodes
from torch import Tensor

from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.launch.rank_process import Link, RankTask
from daso_bench.runner.machine import shared_memory
from daso_bench.strategies.errors import MachineError
from daso_bench.strategies.topology import NODE, WORLD, peers


@on_nodes([2, 2])
def memory(comm: TorchCommunicator) -> None:
    """Memory of every type and size is one per node, and lives as long as a view of it."""
    dtypes = (torch.uint8, torch.bfloat16, torch.int32, torch.float64)
    open_files = len(os.listdir("/proc/self/fd"))
    views: list[Tensor] = []
    for dtype in dtypes:
        for numel in (0, 3, 1021):
            whole = comm.shared(numel, dtype, NODE)
            assert whole.shape == (numel,)
            assert not whole.any(), "zeroed"
            assert whole.data_ptr() % 64 == 0
            comm.barrier(NODE)
            whole[comm.local_rank :: 2] = 1 + comm.local_rank + 10 * comm.node
            comm.barrier(NODE, in_memory=True)
            expected = [1 + place % 2 + 10 * comm.node for place in range(numel)]
            assert whole.tolist() == expected
            views.append(whole[numel // 2 :])
            del whole
    gc.collect()
    comm.barrier(NODE)
    assert all(view.tolist() == view.clone().tolist() and view.all() for view in views)
    # A mapping keeps a descriptor of its own, and nothing else stays open.
    mappings = len(dtypes) * 2 + 1
    assert len(os.listdir("/proc/self/fd")) == open_files + mappings
    views.clear()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_files + 1
    with pytest.raises(ValueError, match="spans nodes"):
        comm.shared(3, torch.float32, peers(comm.local_rank))
    with pytest.raises(ValueError, match="spans nodes"):
        comm.barrier(WORLD, in_memory=True)
    comm.barrier(WORLD)


def refused(task: RankTask, link: Link) -> None:
    """Memory that is not the one that was offered is not written to."""
    descriptor, address = shared_memory.offer(3, torch.float32)
    inode, size, path = address.split(" ", 2)
    os.close(shared_memory.take(address))
    for wrong in (f"{int(inode) + 1} {size} {path}", f"{inode} {int(size) + 64} {path}"):
        with pytest.raises(MachineError, match="is not the memory that another rank of this node offered"):
            shared_memory.take(wrong)
    os.close(descriptor)
    with pytest.raises(MachineError, match="cannot be opened"):
        shared_memory.take(address)
    link.finish("finished", None, None)


@on_nodes([3, 1])
def barrier(comm: TorchCommunicator) -> None:
    """Nobody leaves before all have come, with futexes and by polling; traffic is right."""
    generator = torch.Generator().manual_seed(comm.rank)
    rounds = 200
    for futex in (True, False):
        if not futex:
            shared_memory._system_call = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
            comm._barriers.clear()
        written = comm.shared(len(comm.members(NODE)), torch.int64, NODE)
        for number in range(1, rounds + 1):
            time.sleep(torch.rand((), generator=generator).item() * (4e-4 if number % 3 else 0))
            written[comm.local_rank] = number
            comm.barrier(NODE, in_memory=True)
            # Another one may have come here again, but no further.
            assert all(number <= value <= number + 1 for value in written.tolist())
            comm.barrier(NODE, in_memory=True)
    alone = comm.node == 1
    assert comm.traffic.verbs["shared.barrier"] == (0 if alone else 4 * rounds)
    assert comm.traffic.payload_bytes.total() == comm.traffic.calls.total() == 0
    blocked = [key for key, *_ in comm.traffic.blocked if key in comm.traffic.launches]
    assert alone or len(blocked) >= 4 * rounds
    key = comm.traffic.launch("shared", comm.members(NODE), 0)
    keys = torch.zeros(4, dtype=torch.int64)
    comm.all_gather(keys, torch.tensor([key]), WORLD, channel="control").wait()
    assert len({*keys[:3].tolist()}) == 1, "a barrier has the same key on all its members"
    comm.barrier(WORLD)


@on_nodes([4])
def late(comm: TorchCommunicator) -> None:
    """A barrier gives up after the communicator's timeout and names those who have not come."""

    class Calls:
        def __init__(self) -> None:
            self.seen: list[str] = []

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "call" and value:
                self.seen.append(value)
            object.__setattr__(self, name, value)

    comm.barrier(NODE, in_memory=True)
    for meeting in comm._barriers.values():
        meeting._timeout_s = comm.timeout_s = 0.3
    calls = Calls()
    comm.on_call = calls  # pyright: ignore[reportAttributeAccessIssue]
    if comm.rank in (0, 2):
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"barrier on shared/node .* 0\.3 s without ranks \[1, 3\]"):
            comm.barrier(NODE, in_memory=True)
        assert 0.3 <= time.monotonic() - began < 5
        assert calls.seen == ["barrier on shared/node"]
    comm.barrier(WORLD)


def killed(task: RankTask, link: Link) -> None:
    """Rank 0 is killed right after it has made memory, before anybody else has it."""
    comm = meet([2], task)
    offer = shared_memory.offer

    def die(*given: Any) -> tuple[int, str]:
        made = offer(*given)
        torch.frombuffer(shared_memory.mmap.mmap(made[0], 0), dtype=torch.uint8).fill_(1)
        os.kill(os.getpid(), signal.SIGKILL)
        return made

    shared_memory.offer = die
    comm.shared(100_000, torch.float32, NODE)
