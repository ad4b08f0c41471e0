"""HSGD: synchronous SGD in two levels, shared memory inside a node, messages between node leaders.

Every rank writes its gradients into its row of a shared array; the node's ranks sum them, each one a part of
the columns, the leaders sum over nodes, and each tensor is updated by the one rank of the node that owns it.

Update rule (N nodes, G ranks a node; g_k, b_k: mean gradient and samples of the node's rank k, Σ b: samples
of all ranks, A: the array [G, m]):

    rank k         A_k = g_k
    barrier 1
    rank k         A_0 = Σ_j (b_j / Σ b)·A_j in its columns, j ascending
    barrier 2
    leader         A_0 = Σ_nodes A_0
    barrier 3
    owner of t     θ_t = optimizer(θ_t, A_0 at t)
    barrier 4

A_0 ends as Σ b_i·g_i / Σ b_i over the world, so this *is* SGD on the global batch.
With `partition: tensor` the columns of a rank are the tensors it owns, each rank sums them over nodes by
itself, and the two middle barriers fall away. With `level1: collective` (GPUs) the sum in a node is a reduce
and a broadcast.

Bytes: a ring sends 2·(N-1)/N · 4(m+1) per node and step between nodes, over the leader's link (`tensor`: over
all its ranks' links together); one element carries a stop request. Nothing is sent inside a node
(`collective`: 8(m+1) per rank).

Paper: C. Wang, Y. Lu, Z. Chen, J. Li, An Efficient Method for Training Deep Learning Networks Distributed,
IEICE Trans. Inf. & Syst. E103-D(12), 2444-2456 (2020), doi:10.1587/transinf.2020PAP0007. Its abstract names
the two levels, shared memory, contiguous parallel input, LARS and an about twentyfold efficiency; no details.

Ours differs: by the abstract, models are exchanged there; here gradients are, which is the same for SGD and
the only exact form with LARS. Weights enter where a node sums, so that gradients are not read once more to
divide them. Partition, barriers, ownership and the sum over nodes are ours. LARS is
`optimizer=lars`, as with every strategy.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .base import Strategy, require_uniform
from .communicator import Communicator, Link
from .errors import ConfigError, one_of
from .progress import Plan, Progress, RankMemory
from .replica import Replica
from .topology import NODE, peers

# Elements of a row that are summed at once: the partial sum stays in the cache while rows stream by. Smaller
# pieces lose more to the calls than they gain (measured with rows far larger than all caches, 2 to 8 ranks:
# flat from 128 Ki to 512 Ki elements).
TILE = 128 * 1024
# Rows begin at cache lines, so that no two ranks write to one.
LINE = 64


@dataclass(frozen=True, kw_only=True)
class HSGDConfig:
    partition: str = "column"  # of the sum in a node: column (equal parts) | tensor (whole tensors)
    shared_weights: bool = True  # one copy of weights and momenta per node, or one per rank
    level1: str = "auto"  # shm (CPU) | collective | auto (shm where no rank is on a GPU)
    level2_algorithm: str = "all_reduce"  # or linear: gathered by one leader and sent back

    def __post_init__(self) -> None:
        one_of("strategy.partition", self.partition, ["column", "tensor"])
        one_of("strategy.level1", self.level1, ["auto", "shm", "collective"])
        one_of("strategy.level2_algorithm", self.level2_algorithm, ["all_reduce", "linear"])
        if self.partition == "tensor" and self.level1 == "collective":
            raise ConfigError("strategy.partition=tensor: needs strategy.level1=shm or auto, got collective")


@dataclass
class Arena:
    """The gradients of all parameters of one type, in one memory.

    `rows` [G, W] are those of the node's ranks, one after the other; the sum ends in row 0. `places` are the
    parameters in it and `offsets` where they begin in a row. Rank k sums the columns `sums[k]` in the node
    and `messages[k]` over nodes, as (start, stop). `stop_flag` is the column that counts stop requests, in
    one arena.
    """

    dtype: torch.dtype
    places: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    used: int = 0
    stop_flag: int | None = None
    sums: list[tuple[int, int]] = field(default_factory=list)
    messages: list[tuple[int, int]] = field(default_factory=list)
    rows: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    @property
    def width(self) -> int:
        """W, elements from one row to the next."""
        line = LINE // self.dtype.itemsize
        return -(-self.used // line) * line

    def views(self, row: Tensor, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """The parameters' pieces of a row [W], by place, each of its parameter's shape."""
        return {
            place: shaped_like(tensors[place], row[offset : offset + tensors[place].numel()])
            for place, offset in zip(self.places, self.offsets, strict=True)
        }


class HSGD(Strategy):
    """Two-level synchronous SGD; replicas are equal after every step."""

    Config = HSGDConfig
    config: HSGDConfig
    remembers = ("epoch_ns", "total_ns")  # θ, and the momenta of what this rank owns, are the replica's
    tuned = (("level2_algorithm", ("all_reduce", "linear")), ("partition", ("column", "tensor")))
    caveats = (
        "The abstract of the paper gives no networks, batch sizes, node types or accuracies: this is the "
        "method as the abstract describes it, with details of ours, and reproduces no table.",
        "It is synchronous SGD: any difference in accuracy to ddp is floating-point order, or a fault.",
        "The twentyfold efficiency is of compute use within a node against one process per node; it depends "
        "on how well that process threads, so say how it was tuned and print its headroom.",
        "Emulated nodes on one machine share memory and cache, and gloo is not the network of the paper.",
        "On GPUs (level1: collective) nothing goes through shared memory: that is outside the paper.",
    )

    @classmethod
    def check(cls, config: HSGDConfig, plan: Plan) -> None:
        if config.partition == "tensor":
            require_uniform(plan, "strategy.partition=tensor:", "; column does not")

    @classmethod
    def copies_held(cls, config: HSGDConfig, plan: Plan, memory: RankMemory) -> float:
        """Gradients lie in rows of their own; a node may have one set of weights and momenta."""
        in_memory = config.level1 != "collective" and not memory.on_gpu
        others = 1 - plan.topology.nodes / plan.topology.ranks  # of a node's ranks, all but one
        shared = (1 + memory.states) * others if config.shared_weights and in_memory else 0
        return super().copies_held(config, plan, memory) + memory.in_sums - shared

    def setup(self, replica: Replica, comm: Communicator, progress: Progress) -> None:
        self.replica, self.comm = replica, comm
        self.nodes, self.local = comm.topology.nodes, comm.local_rank
        self.workers = len(comm.members(NODE))
        self.in_memory = self._level1(replica.parameters.device) == "shm"
        self.shares_weights = self.config.shared_weights and self.in_memory
        sizes = [slot.numel for slot in replica.parameters.slots]
        by_tensor = self.config.partition == "tensor"
        self.owners = cut(sizes, self.workers) if by_tensor else largest_first(sizes, self.workers)
        owned = [0] * self.workers
        for size, owner in zip(sizes, self.owners, strict=True):
            owned[owner] += size
        self.imbalance = max(owned) * self.workers / sum(owned)
        self.arenas = arenas_of(
            [slot.dtype for slot in replica.parameters.slots], sizes, self.owners, self.workers, by_tensor
        )
        self.step, self.tags = 0, 0
        self.agreed = False
        self.epoch_ns: Counter[str] = Counter()
        self.total_ns: Counter[str] = Counter()
        self._allocate()
        self._since = comm.now()

    def before_step(self, progress: Progress) -> None:
        self.step, self._since = progress.step, self.comm.now()
        samples = progress.samples_of_rank
        total = sum(samples)
        weights = [samples[rank] / total for rank in self.comm.members(NODE)]
        if self.in_memory:
            self._sum_in_memory(weights)
        else:
            self._sum_by_collectives(weights[self.local])
        self.replica.apply(self.applied)

    def after_step(self, progress: Progress) -> None:
        self._lap("update")
        # A rank that goes on writes into its row, which others may still read, and reads all weights.
        self._meet("4", self._behind_sums)
        # The leader writes here again only after the next barrier 1, which needs this rank.
        self.agreed = self.comm.stop_possible and self.stop_requested.item() != 0

    def stop_agreed(self, progress: Progress, stop_requested: bool) -> bool:
        return self.agreed

    def record(self, progress: Progress) -> dict[str, Any]:
        """`seconds`: this rank's in each barrier, in the sums of both levels and in the update."""
        row = {"seconds": self._seconds(self.epoch_ns)}
        self.epoch_ns.clear()
        return row

    def summary(self) -> dict[str, Any]:
        """`node_bytes`: of weights, gradients, optimizer state on this rank's node; None if it owns none."""
        numbytes = sum(slot.numel * slot.dtype.itemsize for slot in self.replica.parameters.slots)
        owned = sum(parameter.numel() for parameter in self.replica.stepped)
        needs = None
        if owned:
            states = round(self.replica.optimizer_state().numel / owned)
            needs = node_bytes(numbytes, self.workers, self.shares_weights, states)
        return {
            "level1": "shm" if self.in_memory else "collective",
            "partition": self.config.partition,
            "shared_weights": self.shares_weights,
            "imbalance": self.imbalance,
            "node_bytes": needs,
            "seconds": self._seconds(self.total_ns),
        }

    def labels(self, target_step: int | None) -> list[str]:
        remarks = []
        if self.nodes == 1:
            remarks.append("one node: no sum over nodes")
        if max(self.comm.topology.ranks_of_nodes) == 1:
            remarks.append("one rank per node: no sum in a node")
        if self.config.shared_weights and not self.in_memory:
            remarks.append("level1: collective keeps one copy of the weights per rank")
        if self.in_memory and self.imbalance > 2:
            remarks.append(f"the largest share of the update is {self.imbalance:.1f} times the mean")
        return remarks

    # ---------------------------------------------------------------- one step

    def _sum_in_memory(self, weights: Sequence[float]) -> None:
        first = self.arenas[0]
        self.comm.write_stop_flag(self.stop_flags[self.local], self.replica.stop_requested)
        self._meet("1")  # all rows are written
        with self.comm.summing("intra"):
            for arena in self.arenas:
                sum_columns(arena.rows, weights, *arena.sums[self.local])
        if self.local == 0:
            first.rows[0, first.stop_flag] = self.stop_flags.sum()
        self._lap("level1")
        if self.config.partition == "tensor":
            self._sum_over_nodes()
            if not self.shares_weights:
                self._meet("3", "inter")  # every rank applies all sums
            return
        self._meet("2")  # the node's sum is complete
        if self.nodes > 1:
            # Without the barrier behind it, the others would update from what the leader is still receiving.
            self._sum_over_nodes()
            self._meet("3", "inter")

    def _sum_over_nodes(self) -> None:
        if self.nodes == 1:
            return
        with self.comm.summing("inter"):
            for arena in self.arenas:
                start, stop = arena.messages[self.local]
                if start == stop:
                    continue
                if self.config.level2_algorithm == "linear":
                    self._through_one(arena.rows[0, start:stop])
                else:
                    self.comm.all_reduce(arena.rows[0, start:stop], peers(self.local)).wait()
        self._lap("level2")

    def _through_one(self, message: Tensor) -> None:
        """Sum over nodes in the first leader, which gets all and sends the sum back to all."""
        first, *others = self.comm.members(peers(self.local))
        self.tags += 2
        gather, spread = self.tags, self.tags + 1
        if self.comm.rank != first:
            self.comm.exchange({first: message}, {}, gather).wait()
            self.comm.exchange({}, {first: message}, spread).wait()
            return
        received = {rank: torch.empty_like(message) for rank in others}
        self.comm.exchange({}, received, gather).wait()
        for rank in others:
            message += received[rank]
        self.comm.exchange(dict.fromkeys(others, message), {}, spread).wait()

    def _sum_by_collectives(self, weight: float) -> None:
        """Reduce in the node, sum over leaders, broadcast in the node: for ranks that share no memory."""
        first = self.arenas[0]
        with self.comm.summing("intra"):
            for arena in self.arenas:
                row = arena.rows[0, : arena.used]
                row.mul_(weight) if weight else row.zero_()
                if arena is first:
                    self.comm.write_stop_flag(row[first.stop_flag], self.replica.stop_requested)
                self.comm.reduce(row, 0, NODE).wait()
        self._lap("level1")
        if self.local == 0:
            self._sum_over_nodes()
        with self.comm.summing("inter"):  # the others wait here while their leader sums
            for arena in self.arenas:
                self.comm.broadcast(arena.rows[0, : arena.used], 0, NODE).wait()
        self._lap("spread")

    def _clip(self, max_norm: float) -> None:
        """Scale the sum to a norm of at most `max_norm`; each rank looks at the tensors that it owns."""
        mine = {place: self.summed[place] for place in self.owned}
        for place, gradient in mine.items():
            self.squares[place] = torch.linalg.vector_norm(gradient, dtype=torch.float64).square()
        self._meet("clip", self._behind_sums)
        # By tensors, and not by ranks: nodes with other numbers of ranks must come to the same bits.
        norm = math.sqrt(sum(self.squares.tolist()))
        factor = max_norm / (norm + 1e-6)  # as PyTorch's clip_grad_norm_
        if not factor >= 1:  # not a number as well
            for gradient in mine.values():
                gradient.mul_(factor)
        if not self.shares_weights:
            self._meet("clip")  # every rank applies all sums

    @property
    def _behind_sums(self) -> Link:
        """The link that barriers after the update wait for: by tensors ranks have not waited for sums yet."""
        by_tensor = self.config.partition == "tensor" and self.shares_weights
        return "inter" if by_tensor else "intra"

    def _meet(self, name: str, waits_for: Link = "intra") -> None:
        """A barrier of the node; `name` is its number in the step. `waits_for`: where the latest is busy."""
        if not self.in_memory:
            return
        try:
            with self.comm.summing(waits_for):
                self.comm.barrier(NODE, in_memory=True)
        except RuntimeError as error:
            where = f"node {self.comm.node}, worker {self.local}"
            raise RuntimeError(f"hsgd: barrier {name} of step {self.step}, {where}: {error}") from error
        self._lap(f"barrier_{name}")

    def _seconds(self, nanoseconds: Counter[str]) -> dict[str, float] | None:
        """By phase, in order of name; None where the host runs ahead of its GPU and cannot time sums."""
        if not self.comm.host_waits:
            return None
        return {name: nanoseconds[name] / 1e9 for name in sorted(nanoseconds)}

    def _lap(self, name: str) -> None:
        now = self.comm.now()
        self.epoch_ns[name] += now - self._since
        self.total_ns[name] += now - self._since
        self._since = now

    # ---------------------------------------------------------------- memory

    def _level1(self, device: torch.device) -> str:
        level1, on_gpu = self.config.level1, device.type != "cpu" and not self.comm.one_process
        if level1 == "shm" and on_gpu:
            raise ConfigError(f"strategy.level1=shm: needs the model on the CPU, it is on {device}")
        if level1 == "auto":  # all sum alike: a rank in a barrier does not answer another's reduce
            level1 = "collective" if on_gpu or self.comm.some_on_gpus else "shm"
        if level1 == "collective" and self.config.partition == "tensor":
            raise ConfigError("strategy.partition=tensor: needs all models on CPUs (cluster.device.kind=cpu)")
        return level1

    def _allocate(self) -> None:
        """Make the arrays and put the replica's gradients and, if shared, its parameters into them."""
        replica, tensors = self.replica, self.replica.parameters.tensors
        rows_here = self.workers if self.in_memory else 1
        row = self.local if self.in_memory else 0
        gradients: dict[int, Tensor] = {}
        parameters: dict[int, Tensor] = {}
        self.summed: dict[int, Tensor] = {}
        self.owned = [place for place, owner in enumerate(self.owners) if owner == self.local]
        for arena in self.arenas:
            rows = self._memory(rows_here * arena.width, arena.dtype)
            arena.rows = rows.view(rows_here, arena.width)
            arena.rows[row].zero_()  # memory belongs to the core that touches it first
            gradients |= arena.views(arena.rows[row], tensors)
            self.summed |= arena.views(arena.rows[0], tensors)
            if self.shares_weights:
                parameters |= arena.views(self._memory(arena.width, arena.dtype), tensors)
        first = self.arenas[0]
        self.stop_requested = first.rows[0, first.stop_flag]  # by how many ranks of the world
        self.stop_flags = self._memory(self.workers, torch.float64)  # of this node's ranks
        self.squares = self._memory(len(tensors), torch.float64)  # norms of the summed gradients, squared
        if self.shares_weights:
            for place in self.owned:
                parameters[place].copy_(tensors[place].detach())
        self._since = self.comm.now()
        self._meet("0")  # all weights are there
        self.epoch_ns.clear()
        self.total_ns.clear()
        everything = list(range(len(tensors)))
        stepped = self.owned if self.shares_weights else everything
        replica.average_gradients_over(None)
        replica.bind(
            [gradients[place] for place in everything],
            parameters=[parameters[place] for place in everything] if self.shares_weights else None,
            stepped=stepped,
            clip=self._clip if self.in_memory else None,
        )
        self.applied = {place: self.summed[place] for place in stepped}

    def _memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        if self.in_memory:
            return self.comm.shared(numel, dtype, NODE)
        return torch.zeros(numel, dtype=dtype, device=self.replica.parameters.device)


def sum_columns(rows: Tensor, weights: Sequence[float], start: int, stop: int) -> None:
    """rows[0, c] <- Σ_j weights[j]·rows[j, c] for the columns c of [start, stop), j ascending, in place.

    A row of weight 0 does not count, whatever is in it. Equal weights cost one multiplication per column.
    rows: [G, W], unit stride along a row; weights: [G].
    """
    equal = len(set(weights)) == 1
    for tile in rows[:, start:stop].split(TILE, dim=1):
        total, *others = tile.unbind(0)
        if equal:
            for row in others:
                total.add_(row)
        if weights[0]:
            total.mul_(weights[0])
        else:
            total.zero_()
        if not equal:
            for row, weight in zip(others, weights[1:], strict=True):
                if weight:
                    total.add_(row, alpha=weight)


def column_blocks(width: int, workers: int) -> list[tuple[int, int]]:
    """[start, stop) of each worker's columns: ⌈width / workers⌉ each, the last ones fewer or none."""
    block = -(-width // workers)
    return [(min(k * block, width), min((k + 1) * block, width)) for k in range(workers)]


def cut(sizes: Sequence[int], workers: int) -> list[int]:
    """The owner of each tensor: runs of tensors that end at the boundary nearest to k·P/G."""
    boundaries = [0, *accumulate(sizes)]
    total = boundaries[-1]
    cuts = [min(boundaries, key=lambda b: abs(b * workers - k * total)) for k in range(1, workers)]
    return [bisect_right(cuts, start) for start in boundaries[:-1]]


def largest_first(sizes: Sequence[int], workers: int) -> list[int]:
    """The owner of each tensor: the largest tensor that is left goes to the worker with the least."""
    load, owners = [0] * workers, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        owners[place] = load.index(min(load))
        load[owners[place]] += sizes[place]
    return owners


def arenas_of(
    dtypes: Sequence[torch.dtype], sizes: Sequence[int], owners: Sequence[int], workers: int, by_tensor: bool
) -> list[Arena]:
    """The arenas of parameters of these types and sizes, without memory yet.

    The stop request is a column of the first arena, within the leader's message: behind all tensors, or by
    tensors behind the leader's.
    """
    arenas = [Arena(dtype) for dtype in dict.fromkeys(dtypes)]
    for arena in arenas:
        arena.places = [place for place, dtype in enumerate(dtypes) if dtype == arena.dtype]
        runs = [0] * (workers + 1)  # where each owner's run ends, from run 1 on
        for place in arena.places:
            if by_tensor and arena is arenas[0] and arena.stop_flag is None and owners[place] > 0:
                arena.stop_flag, arena.used = arena.used, arena.used + 1
            arena.offsets.append(arena.used)
            arena.used += sizes[place]
            runs[owners[place] + 1] = arena.used
        elements = arena.used
        if arena is arenas[0] and arena.stop_flag is None:
            arena.stop_flag, arena.used = arena.used, arena.used + 1
        if not by_tensor:
            arena.sums = column_blocks(elements, workers)
            arena.messages = [(0, arena.used)] + [(0, 0)] * (workers - 1)
            continue
        for worker in range(workers):
            starts = [o for p, o in zip(arena.places, arena.offsets, strict=True) if owners[p] == worker]
            arena.sums.append((starts[0], runs[worker + 1]) if starts else (0, 0))
        arena.messages = list(arena.sums)
        if arena.stop_flag is not None:
            arena.messages[0] = (0, arena.stop_flag + 1)
    return arenas


def shaped_like(tensor: Tensor, memory: Tensor) -> Tensor:
    """A view of `memory` [numel] in the tensor's shape and, if it is dense, in its order of elements."""
    return memory.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride())


def node_bytes(parameter_bytes: int, ranks: int, shared_weights: bool, states: int = 1) -> int:
    """Bytes of weights, gradients and `states` tensors of optimizer state per parameter, on a node."""
    copies = 1 if shared_weights else ranks
    return parameter_bytes * (copies * (1 + states) + ranks)
