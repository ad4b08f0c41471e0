"""The communicator of real processes: gloo, NCCL. The only file that calls `torch.distributed`."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    GradBucket as GradBucket,  # for the hook, which must name the type itself
)
from torch._C._distributed_c10d import Store, TCPStore

from ...strategies.communicator import Channel, Done, Work
from ...strategies.topology import WORLD, Group, Topology, peers
from ..machine import shared_memory
from . import gpus, modelled_network
from .cuda_timing import Mark
from .link_costs import Network
from .modelled_network import Deferrer, Held, LinkClocks
from .nccl_work import DeviceWork, InFlight, Spans, Streams
from .traffic import CountedCommunicator, Traffic


class Announcer(Protocol):
    """Whoever wants to know which collective this rank is in (the heartbeat, for the report on a hang)."""

    call: str


class TorchWork(Work):
    """A started collective of `torch.distributed`. Waiting is stamped; completion too, without polling.

    `held`: where a modelled network holds it back. `back`: tensors to fill from their copies on the host.
    """

    def __init__(
        self,
        comm: "TorchCommunicator",
        work: dist.Work,
        key: int,
        name: str,
        stamp: bool,
        held: Held | None,
        back: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        self._comm, self._work, self._key, self._name, self._held = comm, work, key, name, held
        self._back = back
        self._launched = comm.now()
        self._completed: int | None = None
        self._waited = False
        if stamp:
            work.get_future().add_done_callback(self._stamp)

    def wait(self) -> None:
        if self._waited:
            return
        comm = self._comm
        entered = comm.now()
        with comm.announced(self._name):
            self._work.wait()
            if self._held is not None:
                comm.synchronise()
                self._held.wait()
            _put_back(self._back)
        self._waited = True
        if threading.get_ident() == comm.thread:  # a helper thread's waiting holds up nobody
            comm.traffic.block(self._key, entered, comm.now())
        if self._completed is None:
            self._completed = comm.now()

    def is_completed(self) -> bool:
        return self._work.is_completed() and (self._held is None or self._held.over())

    def transfer_ns(self) -> int | None:
        if self._completed is None or not (self._held is None or self._held.over()):
            return None
        held_until = None if self._held is None else self._held.end_ns()
        return max(self._completed, held_until or 0) - self._launched

    def _stamp(self, _: Any) -> None:
        self._completed = self._comm.now()


class ExchangeWork(Work):
    """Messages waited for on a helper thread: gloo's say `is_completed` only after `wait`."""

    def __init__(self, comm: "TorchCommunicator", future: "Future[int]") -> None:
        self._comm, self._future, self._launched = comm, future, comm.now()
        self._waited = False

    def wait(self) -> None:
        comm = self._comm
        entered = comm.now()
        with comm.announced("exchange"):
            self._future.result()
        if not self._waited and threading.get_ident() == comm.thread:
            comm.traffic.block(-1, entered, comm.now())  # messages have no common start: all of it is exposed
        self._waited = True

    def is_completed(self) -> bool:
        return self._future.done()

    def transfer_ns(self) -> int | None:
        return self._future.result() - self._launched if self._future.done() else None


class TorchCommunicator(CountedCommunicator):
    """One rank's process groups: one per channel and group of ranks, made on all ranks in the same order.

    Args:
        topology: the placement of ranks on nodes.
        rank: this rank.
        store: the rendezvous of exactly the ranks of this run.
        device: where tensors of the gradients and parameters channels live; `control` is always gloo on the
            CPU.
        timeout_s: seconds after which a collective that does not end raises.
        mixed: ranks have devices of different kinds, or share a GPU, which only gloo joins.
        staged: tensors go through copies on the host; None: where gloo would have to take a GPU's.
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
        staged: bool | None = None,
    ) -> None:
        self.topology, self.rank, self.device = topology, rank, device
        self.traffic = Traffic(topology, rank)
        self.thread = threading.get_ident()
        self.on_call: Announcer | None = None
        self.timeout_s = timeout_s
        self.backend = "nccl" if device.type == "cuda" and not mixed else "gloo"
        self._staged = device.type == "cuda" and mixed if staged is None else staged
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
        most = max(topology.ranks_of_nodes)
        everyone = topology.members(WORLD, 0)
        nodes = [topology.on_node(node) for node in range(topology.nodes)]
        peer_groups = [topology.members(peers(q), 0) for q in range(most)]
        wanted: dict[Channel, list[tuple[int, ...]]] = {
            "gradients": [everyone, *nodes, *peer_groups],
            "parameters": [everyone, *nodes, *peer_groups],
            "control": [everyone, *nodes],
        }
        for channel, members_of in wanted.items():
            for members in dict.fromkeys(members_of):
                if len(members) > 1:
                    backend = "gloo" if channel == "control" else self.backend
                    made = dist.new_group(list(members), timeout=timeout, backend=backend)
                    if isinstance(made, dist.ProcessGroup):  # else: this rank is no member
                        self._groups[channel, members] = made
        self._wanted = wanted
        self._clocks: LinkClocks | None = None
        self._deferrer = Deferrer()
        self._helper: ThreadPoolExecutor | None = None
        self._barriers: dict[tuple[int, ...], shared_memory.MemoryBarrier] = {}
        self.warm_up()

    def warm_up(self) -> None:
        """One dummy collective on every group, so that connections exist before the first one that counts."""
        for (channel, members), group in self._groups.items():
            if self.rank in members:
                device = self.device if channel != "control" and self.backend == "nccl" else "cpu"
                dist.all_reduce(torch.zeros(1, device=device), group=group)

    @contextmanager
    def unshaped(self, interface: str | None) -> Iterator[Callable[[Tensor], None]]:
        """Inside, a sum over all ranks that nothing holds back: over `interface`, or past a modelled network.

        All ranks enter and leave it together. What it sends is in no book.
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

    def model(self, network: Network) -> None:
        """From now on operations end when they would on `network`; all ranks call it, on one machine."""
        lines = [(channel, members) for channel, groups in self._wanted.items() for members in groups]
        message = torch.zeros(256, dtype=torch.uint8)
        descriptor, address = -1, ""
        if self.rank == 0:
            descriptor, address = modelled_network.make(self.topology, lines)
        try:
            message[: len(address)] = torch.tensor(list(address.encode()), dtype=torch.uint8)
            self.broadcast(message, 0, WORLD, channel="control").wait()
            taken = bytes(message.tolist()).rstrip(b"\0").decode()
            clocks = LinkClocks(taken, self.topology, network, lines)
            self.barrier(WORLD)
        finally:
            if self.rank == 0:
                shared_memory.drop_name(address)
                os.close(descriptor)
        self._clocks = clocks

    def all_reduce(
        self, tensor: Tensor, group: Group, *, channel: Channel = "parameters", async_op: bool = False
    ) -> Work:
        here = self._here(tensor)

        def start(pg: dist.ProcessGroup) -> dist.Work | None:
            return dist.all_reduce(here, group=pg, async_op=True)

        return self._collective("all_reduce", tensor, group, channel, async_op, start, here=(tensor, here))

    def reduce(
        self,
        tensor: Tensor,
        destination: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        here = self._here(tensor)

        def start(pg: dist.ProcessGroup) -> dist.Work | None:
            return dist.reduce(here, group_dst=destination, group=pg, async_op=True)

        return self._collective(
            "reduce", tensor, group, channel, async_op, start, destination, here=(tensor, here)
        )

    def reduce_scatter(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        if len(self.members(group)) == 1:
            output.copy_(tensor)

        here, whole = self._here(output), self._here(tensor)

        def start(pg: dist.ProcessGroup) -> dist.Work | None:
            return dist.reduce_scatter(here, list(whole.chunk(pg.size())), group=pg, async_op=True)

        return self._collective(
            "reduce_scatter", tensor, group, channel, async_op, start, here=(output, here)
        )

    def broadcast(
        self,
        tensor: Tensor,
        source: int,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        here = self._here(tensor)

        def start(pg: dist.ProcessGroup) -> dist.Work | None:
            return dist.broadcast(here, group_src=source, group=pg, async_op=True)

        return self._collective(
            "broadcast", tensor, group, channel, async_op, start, source, here=(tensor, here)
        )

    def all_gather(
        self,
        output: Tensor,
        tensor: Tensor,
        group: Group,
        *,
        channel: Channel = "parameters",
        async_op: bool = False,
    ) -> Work:
        if len(self.members(group)) == 1:
            output.copy_(tensor)

        here, own = self._here(output), self._here(tensor)

        def start(pg: dist.ProcessGroup) -> dist.Work | None:
            return dist.all_gather(list(here.chunk(pg.size())), own, group=pg, async_op=True)

        return self._collective("all_gather", tensor, group, channel, async_op, start, here=(output, here))

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int) -> Work:
        pg = self._groups["parameters", self.members(WORLD)]
        if not self.host_waits and self._clocks is None:
            return self._exchange_on_device(sends, receives, tag, pg)
        started: list[tuple[dist.Work | None, Held | None]] = []
        for peer, tensor in sorted(sends.items()):
            pair, size = (self.rank, peer), tensor.numel() * tensor.element_size()
            self.traffic.count("send", "parameters", pair, size)
            held = self._hold("send", "messages", pair, size)
            started.append((dist.isend(self._here(tensor), group=pg, group_dst=peer, tag=tag), held))
        back: list[tuple[Tensor, Tensor]] = []
        for peer, tensor in sorted(receives.items()):
            back.append((tensor, self._here(tensor)))
            held = self._hold("send", "messages", (peer, self.rank), tensor.numel() * tensor.element_size())
            started.append((dist.irecv(back[-1][1], group=pg, group_src=peer, tag=tag), held))

        def wait() -> int:
            for work, held in started:
                if work is not None:
                    work.wait()
                if held is not None:
                    self.synchronise()
                    held.wait()
            _put_back(back)
            return self.now()

        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        return ExchangeWork(self, self._helper.submit(wait))

    def _exchange_on_device(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int, pg: dist.ProcessGroup
    ) -> Work:
        """NCCL's messages, all of one step in one call: one after the other, two ranks that both send first
        would wait for each other's receive."""
        began, calls = self._streams.mark(), []
        for peer, tensor in sorted(sends.items()):
            size = tensor.numel() * tensor.element_size()
            self.traffic.count("send", "parameters", (self.rank, peer), size)
            calls.append(dist.P2POp(dist.isend, tensor, group=pg, tag=tag, group_peer=peer))
        for peer, tensor in sorted(receives.items()):
            calls.append(dist.P2POp(dist.irecv, tensor, group=pg, tag=tag, group_peer=peer))
        launched = self._in_flight.add("exchange")
        work = DeviceWork(
            dist.batch_isend_irecv(calls) if calls else [],
            streams=self._streams,
            began=began,
            of="messages",
            tensors=[*sends.values(), *receives.values()],
            note=self._note_wait,
        )
        launched.over = work.is_completed
        return work

    def in_flight(self) -> str:
        """The operation that this rank's GPU is at, "" if none; never waits. For a thread of its own."""
        if self.host_waits:
            return ""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread begins on the first GPU and would fill memory there
        return self._in_flight.oldest()

    def take_exposed_ns(self) -> int:
        """Nanoseconds that this rank's GPU waited in `Work.wait` since the last call, of what is over."""
        return self._spans.take_ns()

    def _note_wait(self, start: Mark, end: Mark) -> None:
        if threading.get_ident() == self.thread:  # what a helper's stream waits for holds up no computing
            self._spans.add(start, end)

    def barrier(self, group: Group, *, channel: Channel = "control", in_memory: bool = False) -> None:
        if in_memory:
            self._meet_in_memory(group)
            return
        self._collective(
            "barrier", torch.empty(0), group, channel, False, lambda pg: dist.barrier(group=pg, async_op=True)
        )

    def shared(self, numel: int, dtype: torch.dtype, group: Group) -> Tensor:
        members = self.members(group)
        if self.topology.spans_nodes(members):
            raise ValueError(f"{group} spans nodes: memory is shared inside a node only")
        if len(members) == 1:
            return torch.zeros(numel, dtype=dtype)
        message = torch.zeros(256, dtype=torch.uint8)
        maker, descriptor, address = members[0] == self.rank, -1, ""
        if maker:
            descriptor, address = shared_memory.offer(numel, dtype)
        try:
            message[: len(address)] = torch.tensor(list(address.encode()), dtype=torch.uint8)
            self.broadcast(message, 0, group, channel="control").wait()
            if not maker:
                descriptor = shared_memory.take(bytes(message.tolist()).rstrip(b"\0").decode())
            memory = shared_memory.as_tensor(descriptor, numel, dtype)
            self.barrier(group)  # others open the maker's descriptor: it stays until all have it
        finally:
            if maker:
                shared_memory.drop_name(address)
        os.close(descriptor)
        return memory

    def now(self) -> int:
        return time.monotonic_ns()

    @contextmanager
    def announced(self, name: str) -> Iterator[None]:
        """Tell `on_call` that this rank may now stand still in `name`."""
        if self.on_call is None or threading.get_ident() != self.thread:
            yield
            return
        self.on_call.call = name
        yield
        self.on_call.call = ""

    def start_sum(self, tensor: Tensor, group: Group) -> "torch.futures.Future[Tensor]":
        """Start an all-reduce of a gradient bucket for a DDP communication hook.

        The future holds the summed tensor.
        """
        members = self.members(group)
        if len(members) == 1:
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(tensor)
            return done
        self.traffic.count("all_reduce", "gradients", members, tensor.numel() * tensor.element_size())
        held = self._hold("all_reduce", "gradients", members, tensor.numel() * tensor.element_size())
        here = self._here(tensor)
        work = dist.all_reduce(here, group=self._groups["gradients", members], async_op=True)
        assert work is not None
        if not self.host_waits:
            self._in_flight.add(f"all_reduce on gradients/{group}").over = work.is_completed
        summed = work.get_future().then(_first) if held is None else self._deferred(work, held)
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
        if self._clocks is not None:
            self._clocks.close()
        dist.destroy_process_group()

    def _meet_in_memory(self, group: Group) -> None:
        """A barrier that sends nothing: a verb of its own, `shared.barrier`, neither a call nor payload."""
        members = self.members(group)
        if self.rank not in members:
            raise RuntimeError(f"rank {self.rank} calls barrier on {group}, of which it is no member")
        if len(members) == 1:
            return
        barrier = self._barriers.get(members)
        if barrier is None:
            slots = self.shared(shared_memory.MemoryBarrier.size(len(members)), torch.int32, group)
            barrier = shared_memory.MemoryBarrier(slots, members.index(self.rank), self.timeout_s)
            self._barriers[members] = barrier
        self.traffic.mark("shared.barrier")
        entered = self.now()
        key = self.traffic.launch("shared", members, entered)
        with self.announced(f"barrier on shared/{group}"):
            missing = [members[place] for place in barrier.meet()]
        self.traffic.block(key, entered, self.now())
        if missing:
            raise RuntimeError(
                f"rank {self.rank}: barrier on shared/{group} ended after {self.timeout_s:g} s without "
                f"ranks {missing}"
            )

    def _collective(
        self,
        verb: str,
        tensor: Tensor,
        group: Group,
        channel: Channel,
        async_op: bool,
        start: Any,
        source: int = 0,
        here: tuple[Tensor, Tensor] | None = None,
    ) -> Work:
        """`start` begins the verb on this rank; `here`: the tensor of the result and its stand-in."""
        members = self.members(group)
        if self.rank not in members:
            raise RuntimeError(f"rank {self.rank} calls {verb} on {group}, of which it is no member")
        if len(members) == 1:
            return Done()
        self.traffic.count(verb, channel, members, tensor.numel() * tensor.element_size(), source)
        held = self._hold(verb, channel, members, tensor.numel() * tensor.element_size(), source)
        # Nobody stands still for what a helper thread does: its launches would be compared with nothing.
        mine = threading.get_ident() == self.thread
        key = self.traffic.launch(channel, members, self.now()) if mine else 0
        # A blocking call knows its end by itself; gloo's reduce_scatter has no future to be told by.
        stamp = async_op and verb != "reduce_scatter"
        back = [] if here is None or here[0] is here[1] else [here]
        pg, name = self._groups[channel, members], f"{verb} on {channel}/{group}"
        if not self.host_waits and channel != "control" and held is None and verb != "barrier":
            began, launched = self._streams.mark(), self._in_flight.add(name)
            work: Work = DeviceWork(
                [start(pg)],
                streams=self._streams,
                began=began,
                of=(channel, members),
                tensors=[tensor] if here is None else [tensor, here[0]],
                note=self._note_wait,
            )
            launched.over = work.is_completed
        else:
            work = TorchWork(self, start(pg), key, name, stamp, held, back)
        if not async_op:
            work.wait()
        return work

    def _here(self, tensor: Tensor) -> Tensor:
        """What stands in for `tensor` in a call: a copy on the host where gloo joins several devices."""
        return tensor.to("cpu", copy=True) if self._staged else tensor

    def _hold(
        self, verb: str, channel: str, members: tuple[int, ...], payload: int, source: int = 0
    ) -> Held | None:
        """This rank comes to an operation: how long a modelled network holds it back."""
        if self._clocks is None:
            return None
        return self._clocks.enter(verb, channel, members, payload, self.rank, source)

    def _deferred(self, work: dist.Work, held: Held) -> "torch.futures.Future[Tensor]":
        """What `work` sums, once the modelled network lets it go."""
        on_gpu = self.device.type == "cuda"
        summed: torch.futures.Future[Tensor] = torch.futures.Future(devices=[self.device] if on_gpu else None)

        def completed(future: "torch.futures.Future[list[Tensor]]") -> None:
            try:
                value = future.value()[0]
            except RuntimeError as error:  # another rank is gone
                summed.set_exception(error)  # pyright: ignore[reportArgumentType] (PyTorch's stub names its result)
                return
            if not on_gpu:
                self._deferrer.at(held.end_ns() or held.alone_ns, lambda: summed.set_result(value))
                return
            # PyTorch calls us when the sum is launched, on a stream that waits for it.
            done = torch.cuda.Event()
            done.record()
            self._deferrer.at(held.end_ns() or held.alone_ns, lambda: summed.set_result(value), done.query)

        work.get_future().add_done_callback(completed)
        return summed


def _put_back(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, copy in copies:
        tensor.copy_(copy)


def _first(future: "torch.futures.Future[list[Tensor]]") -> Tensor:
    return future.value()[0]


def connect(
    topology: Topology,
    rank: int,
    *,
    host: str,
    port: int,
    listener_fd: int | None,
    device: torch.device,
    timeout_s: float,
    interface: str | None = None,
    mixed: bool = False,
    share_gpus: bool = False,
    staged: bool | None = None,
) -> TorchCommunicator:
    """Meet the other ranks at `host:port`; rank 0 serves on the listening socket `listener_fd`, which the
    store then owns and closes, or opens the port itself. `interface`: by which gloo is to reach the others.
    `mixed`: ranks were told to take devices of several kinds. `share_gpus`: several may be on one GPU.

    Raises:
        MachineError: some ranks have a GPU and others do not, or two share one, and neither was asked for.
    """
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    # One machine: gloo must not resolve the host name, which may point at an address that nobody listens on.
    elif host == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = TCPStore(
        host,
        port,
        topology.ranks,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener_fd if rank == 0 else None,
    )
    names = gpus.names_of_all(store, topology.ranks, rank, gpus.name_of(device))
    gpus.check(names, mixed=mixed, share=share_gpus)
    sharing = gpus.most_on_one(names)
    comm = TorchCommunicator(
        topology, rank, store, device, timeout_s, mixed=mixed or sharing > 1, staged=staged
    )
    comm.ranks_on_a_gpu, comm.some_on_gpus = sharing, sharing > 0
    return comm
