"""The communicator of real processes: gloo, NCCL. The only file that calls `torch.distributed`."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket as GradBucket
from torch._C._distributed_c10d import Store as Store
from torch._C._distributed_c10d import TCPStore as TCPStore

from ...strategies.communicator import Channel, Operation, Work
from ...strategies.topology import WORLD, Group, Topology, peers
from ..machine import shared_memory
from .cuda_timing import DeviceWork, InFlight, Mark, Spans, Streams
from .traffic import CountedCommunicator, Traffic

Summed = torch.futures.Future[Tensor]


def done_sum(tensor: Tensor) -> Summed:
    """A future that holds `tensor` already."""
    done: Summed = torch.futures.Future()
    done.set_result(tensor)
    return done


class TorchWork(Work):
    """A started collective of `torch.distributed`, which counts waiting and notes its end without polling.

    `copy`: what stands in for the operation's output on the host, or the output itself.
    """

    def __init__(
        self, comm: "TorchCommunicator", work: dist.Work, op: Operation, key: int, copy: Tensor
    ) -> None:
        self._comm, self._work, self._output, self._copy = comm, work, op.output, copy
        self.key, self.name, self.launched = key, str(op), comm.now()
        self._completed: int | None = None
        self._waited = False
        # A blocking call knows its end by itself; gloo's reduce_scatter has no future to tell it.
        if op.async_op and op.verb != "reduce_scatter":
            work.get_future().add_done_callback(self._stamp)

    def wait(self) -> None:
        if self._waited:
            return
        with self._comm.waiting_in(self.name, self.key):
            self._work.wait()
            if self._copy is not self._output:
                self._output.copy_(self._copy)
        self._waited = True
        if self._completed is None:
            self._completed = self._comm.now()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def transfer_ns(self) -> int | None:
        return None if self._completed is None else self._completed - self.launched

    def _stamp(self, _: Any) -> None:
        self._completed = self._comm.now()


class ExchangeWork(Work):
    """Messages waited for on a helper thread: gloo's say `is_completed` only after `wait`."""

    def __init__(self, comm: "TorchCommunicator", future: "Future[int]") -> None:
        self._comm, self._future, self._launched = comm, future, comm.now()
        self._waited = False

    def wait(self) -> None:
        # Messages have no common start: all of the time is exposed.
        with self._comm.waiting_in("exchange", None if self._waited else -1):
            self._future.result()
        self._waited = True

    def is_completed(self) -> bool:
        return self._future.done()

    def transfer_ns(self) -> int | None:
        return self._future.result() - self._launched if self._future.done() else None


class TorchCommunicator(CountedCommunicator):
    """One rank's process groups: one per channel and group of ranks, made on all ranks in the same order.

    device: of tensors of the channels gradients and parameters; `control` is always gloo on the CPU.
    timeout_s: after which a collective that does not end raises. mixed: ranks have devices of different
    kinds, or share a GPU, which only gloo joins.
    """

    ranks_on_a_gpu = 0  # the most that share one; 0 without GPUs

    def __init__(
        self,
        topology: Topology,
        rank: int,
        store: Store,
        device: torch.device,
        timeout_s: float,
        *,
        mixed: bool = False,
    ) -> None:
        self.topology, self.rank, self.device = topology, rank, device
        self.traffic = Traffic(topology, rank)
        self.thread = threading.get_ident()
        # The heartbeat, whose attribute `call` names the collective that this rank is in (report on a hang).
        self.on_call: Any = None
        self.timeout_s = timeout_s
        self.backend = "nccl" if device.type == "cuda" and not mixed else "gloo"
        self._staged = device.type == "cuda" and mixed  # tensors go through copies on the host
        self.host_waits = self.backend != "nccl"
        self._streams, self._spans, self._in_flight = Streams(device), Spans(), InFlight()
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            self.backend,
            store=store,
            rank=rank,
            world_size=topology.ranks,
            timeout=timeout,
            device_id=device if self.backend == "nccl" else None,
        )
        self._groups: dict[tuple[Channel, tuple[int, ...]], dist.ProcessGroup] = {}
        for channel, members in self.lines():
            backend = "gloo" if channel == "control" else self.backend
            made = dist.new_group(list(members), timeout=timeout, backend=backend)
            if isinstance(made, dist.ProcessGroup):  # else: this rank is no member
                self._groups[channel, members] = made
        self._helper: ThreadPoolExecutor | None = None
        self._barriers: dict[tuple[int, ...], shared_memory.MemoryBarrier] = {}
        self.warm_up()

    def lines(self) -> list[tuple[Channel, tuple[int, ...]]]:
        """Every channel with each of its groups of two or more ranks; alike on all ranks."""
        topology = self.topology
        groups = [topology.members(WORLD, 0), *map(topology.on_node, range(topology.nodes))]
        peer_groups = [topology.members(peers(q), 0) for q in range(max(topology.ranks_of_nodes))]
        channels: tuple[Channel, ...] = ("gradients", "parameters", "control")
        return [
            (channel, members)
            for channel in channels
            for members in dict.fromkeys(groups if channel == "control" else groups + peer_groups)
            if len(members) > 1
        ]

    def warm_up(self) -> None:
        """One dummy collective on every group, so that connections exist before the first one that counts."""
        for (channel, _), group in self._groups.items():
            device = self.device if channel != "control" and self.backend == "nccl" else "cpu"
            dist.all_reduce(torch.zeros(1, device=device), group=group)

    @contextmanager
    def unshaped(self, interface: str | None) -> Iterator[Callable[[Tensor], None]]:
        """Inside, a sum over all ranks that nothing holds back: over `interface`, or past a modelled network.

        All ranks enter and leave it together. Its bytes are not counted.
        """
        before = os.environ.get("GLOO_SOCKET_IFNAME")
        group = self._groups["gradients", self.members(WORLD)]
        if interface is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            group = dist.new_group(timeout=timedelta(seconds=self.timeout_s), backend=self.backend)
            os.environ["GLOO_SOCKET_IFNAME"] = before or ""
        assert isinstance(group, dist.ProcessGroup)

        def sum_over_all(tensor: Tensor) -> None:
            dist.all_reduce(self._here(tensor), group=group)
            self.synchronise()

        try:
            yield sum_over_all
        finally:
            if interface is not None:
                dist.destroy_process_group(group)

    def in_flight(self) -> str:
        """The operation that this rank's GPU is at, "" if none; never waits. For another thread to call."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread begins on the first GPU and would fill memory there
        return self._in_flight.oldest()

    def take_exposed_ns(self) -> int:
        """Nanoseconds that this rank's GPU waited in `Work.wait` since the last call, of what is over."""
        return self._spans.take_ns()

    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        members = self._members_on_one_node(group)
        if len(members) == 1:
            return torch.zeros(numel, dtype=dtype)
        maker, descriptor, address = members[0] == self.rank, -1, ""
        if maker:
            descriptor, address = shared_memory.offer(numel, dtype)
        address = self.broadcast_text(address, group)
        if not maker:
            descriptor = shared_memory.take(address)
        memory = shared_memory.as_tensor(descriptor, numel, dtype)
        self.barrier(group)  # others open the maker's descriptor: it stays until all have it
        os.close(descriptor)
        return memory

    def now(self) -> int:
        return time.monotonic_ns()

    @contextmanager
    def waiting_in(self, name: str, key: int | None = None) -> Iterator[None]:
        """Inside, this rank may wait in `name`: write that to `on_call`, count the time for `key`.

        Does nothing in a helper thread, whose waiting does not hold up training.
        """
        if threading.get_ident() != self.thread:
            yield
            return
        entered = self.now()
        if self.on_call is not None:
            self.on_call.call = name
        yield
        if self.on_call is not None:
            self.on_call.call = ""
        if key is not None:
            self.traffic.block(key, entered, self.now())

    def start_sum(self, tensor: Tensor, group: Group) -> Summed:
        """Start an all-reduce of a gradient bucket for a DDP communication hook.

        The future holds the summed tensor.
        """
        members = self.members(group)
        if len(members) == 1:
            return done_sum(tensor)
        here = self._here(tensor)
        op = Operation("all_reduce", tensor, here, group, members, "gradients", async_op=True)
        self.traffic.count(op.verb, op.channel, members, op.payload_bytes)
        future_of = self._future_of(op)
        work = dist.all_reduce(here, group=self._groups["gradients", members], async_op=True)
        assert work is not None
        if not self.host_waits:
            self._in_flight.add(str(op))(work.is_completed)
        summed = future_of(work)
        return summed if here is tensor else summed.then(lambda future: tensor.copy_(future.value()))

    def synchronise(self) -> None:
        """Let the host wait for what was launched on this rank's device."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def ddp_group(self) -> dist.ProcessGroup | None:
        """The process group over which `DistributedDataParallel` agrees on its buckets."""
        return self._groups.get(("gradients", self.members(WORLD)))

    def close(self) -> None:
        """Leave the process groups (after the last collective, when all ranks are here)."""
        if self._helper is not None:
            self._helper.shutdown()
        dist.destroy_process_group()

    def _launch(self, op: Operation) -> Work:
        self.traffic.count(op.verb, op.channel, op.members, op.payload_bytes, op.root)
        # Training does not wait for what a helper thread starts: its stamps would be compared with nothing.
        is_training = threading.get_ident() == self.thread
        key = self.traffic.launch(op.channel, op.members, self.now()) if is_training else 0
        if self._waits_on_device and op.channel != "control" and op.verb != "barrier":
            tensors = [op.tensor, op.output]
            return self._on_device(
                str(op), (op.channel, op.members), tensors, lambda: [self._start(op, *tensors)]
            )
        output = self._here(op.output)
        tensor = output if op.tensor is op.output else self._here(op.tensor)
        return TorchWork(self, self._start(op, tensor, output), op, key, output)

    def _start(self, op: Operation, tensor: Tensor, output: Tensor) -> Any:
        """Call `torch.distributed` with `tensor` and `output`, which may be copies of those of `op`."""
        group = self._groups[op.channel, op.members]
        match op.verb:
            case "all_reduce":
                return dist.all_reduce(output, group=group, async_op=True)
            case "reduce":
                return dist.reduce(output, group_dst=op.root, group=group, async_op=True)
            case "broadcast":
                return dist.broadcast(output, group_src=op.root, group=group, async_op=True)
            case "reduce_scatter":
                pieces = list(tensor.chunk(group.size()))
                return dist.reduce_scatter(output, pieces, group=group, async_op=True)
            case "all_gather":
                pieces = list(output.chunk(group.size()))
                return dist.all_gather(pieces, tensor, group=group, async_op=True)
            case _:
                return dist.barrier(group=group, async_op=True)

    @property
    def _waits_on_device(self) -> bool:
        """Whether a GPU's stream waits for operations in the host's place."""
        return not self.host_waits

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        for op in messages:
            if op.members[0] == self.rank:
                self.traffic.count("send", op.channel, op.members, op.payload_bytes)
        if self._waits_on_device:
            return self._exchange_on_device(messages)
        waits = [self._start_message(op) for op in messages]

        def wait_for_all() -> int:
            for wait in waits:
                wait()
            return self.now()

        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        return ExchangeWork(self, self._helper.submit(wait_for_all))

    def _start_message(self, op: Operation) -> Callable[[], None]:
        """Start a message; returns what waits for it."""
        group, here = self._groups["parameters", self.members(WORLD)], self._here(op.tensor)
        sender, receiver = op.members
        if sender == self.rank:
            work = dist.isend(here, group=group, group_dst=receiver, tag=op.tag)
        else:
            work = dist.irecv(here, group=group, group_src=sender, tag=op.tag)

        def wait() -> None:
            if work is not None:
                work.wait()
            if sender != self.rank and here is not op.tensor:
                op.tensor.copy_(here)

        return wait

    def _exchange_on_device(self, messages: Sequence[Operation]) -> Work:
        """Start NCCL's messages in one call: started singly, two ranks that both send first deadlock."""
        group, calls = self._groups["parameters", self.members(WORLD)], []
        for op in messages:
            sender, receiver = op.members
            verb, peer = (dist.isend, receiver) if sender == self.rank else (dist.irecv, sender)
            calls.append(dist.P2POp(verb, op.tensor, group=group, tag=op.tag, group_peer=peer))
        tensors = [op.tensor for op in messages]
        return self._on_device(
            "exchange", "messages", tensors, lambda: dist.batch_isend_irecv(calls) if calls else []
        )

    def _on_device(
        self, name: str, of: Any, tensors: Sequence[Tensor], start: Callable[[], Sequence[Any]]
    ) -> Work:
        """`start` NCCL operations; the side stream of the group `of` waits for them."""
        began, set_over = self._streams.mark(), self._in_flight.add(name)
        work = DeviceWork(
            start(), streams=self._streams, began=began, of=of, tensors=tensors, note=self._note_wait
        )
        set_over(work.is_completed)
        return work

    def _barrier_in_memory(self, group: Group, members: tuple[int, ...]) -> None:
        """A barrier that sends nothing: a verb of its own, `shared.barrier`, neither a call nor payload."""
        barrier = self._barriers.get(members)
        if barrier is None:
            slots = self.shared(shared_memory.MemoryBarrier.size(len(members)), torch.int32, group)
            barrier = shared_memory.MemoryBarrier(slots, members.index(self.rank), self.timeout_s)
            self._barriers[members] = barrier
        self.traffic.mark("shared.barrier")
        key = self.traffic.launch("shared", members, self.now())
        with self.waiting_in(f"barrier on shared/{group}", key):
            missing = [members[place] for place in barrier.meet()]
        if missing:
            raise RuntimeError(
                f"rank {self.rank}: barrier on shared/{group} ended after {self.timeout_s:g} s without "
                f"ranks {missing}"
            )

    def _note_wait(self, start: Mark, end: Mark) -> None:
        if threading.get_ident() == self.thread:  # the stream of a helper thread does not hold up computing
            self._spans.add(start, end)

    def _here(self, tensor: Tensor) -> Tensor:
        """`tensor`, or its copy on the host where gloo joins several devices."""
        return tensor.to("cpu", copy=True) if self._staged else tensor

    def _future_of(self, op: Operation) -> Callable[[dist.Work], Summed]:
        """Called before the sum `op` starts; returns the function from its work to its future."""
        return lambda work: work.get_future().then(lambda future: future.value()[0])
