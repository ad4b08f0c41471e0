"""What the ranks of the tests of ddp over gloo do; imported by the ranks themselves."""

from collections.abc import Iterator
from typing import Any

import torch
from gloo_entries import batch, on_nodes
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import GradBucket, TorchCommunicator
from daso_bench.runner.training.context import undone_step
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.strategies.communicator import Communicator, Work
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.gradients import Reduction
from daso_bench.strategies.progress import Progress
from daso_bench.strategies.reductions import Flat, PowerSGD
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD

SMALL = 0.05  # MiB: the 220 kB model in three buckets
STEPS = 6


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A convolution, and three matrices that are worth compressing."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8 * 16, 150),
        nn.Tanh(),
        nn.Linear(150, 150),
        nn.Tanh(),
        nn.Linear(150, 5),
    ).to(dtype)


def trained(comm: TorchCommunicator, steps: int = STEPS, **keys: Any) -> tuple[TorchReplica, DDP]:
    """A model after some steps of ddp with these keys, on pieces of unequal size; traffic is theirs alone."""
    replica = TorchReplica(net(), nn.CrossEntropyLoss(), comm)
    strategy = DDP(DDP.Config(**keys))
    strategy.setup(replica, comm, Progress(1, steps))
    replica.optimizer = torch.optim.SGD(replica.stepped, lr=0.1, momentum=0.9)
    undone_step(replica, piece(comm, 77), comm)
    comm.traffic.clear()
    for step in range(steps):
        replica.compute_gradients(piece(comm, step))
        replica.optimizer.step()
    return replica, strategy


def piece(comm: TorchCommunicator, step: int) -> Batch:
    """A rank's 5, 6 or 7 samples of a step."""
    ranks = comm.topology.ranks
    sizes = tuple(5 + (place + step) % 3 for place in range(ranks))
    size, whole = sizes[comm.rank], batch(comm.rank, step, ranks, 7)
    return Batch(whole.inputs[:size], whole.targets[:size], sizes)


def equal_on_all_ranks(flat: Tensor, comm: TorchCommunicator) -> bool:
    first = flat.clone()
    comm.broadcast(first, 0, WORLD).wait()
    return torch.equal(first, flat)


@on_nodes([2, 2])
def algorithms(comm: TorchCommunicator) -> None:
    """Every way to sum trains the model of the flat one, in one and in several buckets, and counts right."""
    wanted = trained(comm)[0].flat()
    variants: list[tuple[str, dict[str, Any]]] = [
        ("flat", {"bucket_mib": SMALL, "overlap": False}),
        ("hierarchical", {}),
        ("hierarchical", {"bucket_mib": SMALL}),
        ("hierarchical", {"bucket_mib": SMALL, "overlap": False}),
        ("hierarchical", {"bucket_mib": SMALL, "gradient_as_bucket_view": False}),
        ("sliced", {"bucket_mib": SMALL}),
        ("sliced", {"bucket_mib": SMALL, "overlap": False}),
    ]
    for algorithm, keys in variants:
        started = comm.now()
        replica, _ = trained(comm, algorithm=algorithm, **keys)
        took = comm.now() - started
        case = f"{algorithm} {keys}"
        traffic = comm.traffic
        # One interval of waiting a step, whatever the helper thread waited for meanwhile.
        assert len(traffic.blocked) == len(traffic.launches) == STEPS, case
        assert 0 < traffic.blocked_ns < took, case
        assert (replica.flat() - wanted).abs().max() < 1e-6, case
        assert equal_on_all_ranks(replica.flat(), comm), case
        if keys.get("bucket_mib") == SMALL:
            sums = traffic.verbs["gradients.all_reduce"] / STEPS
            leader = algorithm != "hierarchical" or comm.local_rank == 0
            assert sums >= 3 if leader else sums == 0, (case, sums)


@on_nodes([2, 2])
def stamps(comm: TorchCommunicator) -> None:
    """Stamps of steps whose sums a helper thread makes."""
    trained(comm, algorithm="hierarchical")
    traffic = comm.traffic
    assert {key: entered for key, entered, _, _ in traffic.blocked} == traffic.launches
    for beside in (True, False):
        reduction = Stamped()
        replica = TorchReplica(net(), nn.CrossEntropyLoss(), comm)
        replica.average_gradients_over(WORLD, reduction=reduction, bucket_mib=SMALL, overlap=beside)
        before = 0
        for step in range(3):
            reduction.stamps.clear()
            before = comm.now()
            replica.compute_gradients(piece(comm, step))
        # Waiting begins with the last bucket; without overlap all sums are waited for.
        first, *_, last = reduction.stamps
        _, begun, _, _ = traffic.blocked[-1]
        assert before < begun <= (last if beside else first)


class Stamped(Reduction):
    """The flat sum, and when each bucket's began."""

    def __init__(self) -> None:
        self.stamps: list[int] = []

    def levels(self, bucket: Tensor, index: int, shapes: Any, comm: Communicator) -> Iterator[Work | None]:
        self.stamps.append(comm.now())
        yield from Flat().levels(bucket, index, shapes, comm)


@on_nodes([1, 1])
def overlap(comm: TorchCommunicator) -> None:
    """Sums beside and after the backward pass are the same bit for bit where two ranks leave no order."""
    variants: list[dict[str, Any]] = [{}, {"hook": "bf16"}, {"hook": "powersgd", "powersgd_start_steps": 2}]
    for keys in variants:
        beside, after = (
            trained(comm, bucket_mib=SMALL, overlap=overlap, **keys)[0].flat() for overlap in (True, False)
        )
        if "powersgd" in keys.values():  # its messages hold the factors in another order
            assert (beside - after).abs().max() < 1e-6, keys
        else:
            assert torch.equal(beside, after), keys


@on_nodes([1, 1])
def half(comm: TorchCommunicator) -> None:
    """Two ranks: ours is PyTorch's own compression hook; with bf16 bit for bit."""
    group = comm.ddp_group()
    # PyTorch halves after the cast, ours before: numbers that are subnormal in fp16 are rounded once more.
    for hook, theirs, tolerance in (("bf16", bf16_compress_hook, 0), ("fp16", fp16_compress_hook, 1e-4)):
        plain = net()
        module = DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=True)
        module.register_comm_hook(group, theirs)
        compare(comm, module, plain, tolerance, hook=hook)


@on_nodes([1, 1])
def powersgd(comm: TorchCommunicator) -> None:
    """Two ranks: ours is PyTorch's own hook from the same first factors on, to rounding in float64."""
    group = comm.ddp_group()
    for columns in (1, 3):
        ours = PowerSGD(Flat(), rank=columns)
        state = PowerSGDState(
            group, matrix_approximation_rank=columns, start_powerSGD_iter=2, min_compression_rate=2
        )

        def hook(
            state: PowerSGDState, bucket: GradBucket, ours: PowerSGD = ours
        ) -> torch.futures.Future[torch.Tensor]:
            if state.iter == state.start_powerSGD_iter:
                first = [ours._random(m, ours._rank_of(m.shape)) for m in matrices(ours, bucket)]
                state.q_memory_dict[bucket.index()] = torch.cat([q.reshape(-1) for q in first])
                left = sum(
                    m.shape[0] * q.shape[1] for m, q in zip(matrices(ours, bucket), first, strict=True)
                )
                state.p_memory_dict[bucket.index()] = torch.zeros(left, dtype=torch.float64)
            return powerSGD_hook(state, bucket)

        plain = net(torch.float64)
        module = DistributedDataParallel(plain, process_group=group, gradient_as_bucket_view=True)
        module.register_comm_hook(state, hook)
        strategy = compare(
            comm, module, plain, 1e-10, hook="powersgd", powersgd_rank=columns, powersgd_start_steps=2
        )
        assert isinstance(strategy.reduction, PowerSGD)
        # One element more than theirs, in each step: the stop request.
        steps = strategy.reduction.steps - 2
        theirs = state.compression_stats()
        assert (strategy.reduction.whole, strategy.reduction.sent) == (theirs[1] + steps, theirs[2] + steps)


def matrices(ours: PowerSGD, bucket: GradBucket) -> list[Tensor]:
    return [g.view(g.shape[0], -1) for g in bucket.gradients() if ours._pays(g.shape, g.numel())]


def compare(
    comm: TorchCommunicator, module: nn.Module, plain: nn.Module, tolerance: float, **keys: Any
) -> DDP:
    """Ten steps of ours beside `module`, PyTorch's, on equal pieces."""
    dtype = next(plain.parameters()).dtype
    ours = TorchReplica(net(dtype), nn.CrossEntropyLoss(), comm)
    strategy = DDP(DDP.Config(**keys))
    strategy.setup(ours, comm, Progress(1, 10))
    ours.optimizer, optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours.model, plain)
    )
    for step in range(10):
        given = batch(comm.rank, step, 2)
        given = Batch(given.inputs.to(dtype), given.targets, given.samples_of_rank)
        ours.compute_gradients(given)
        ours.optimizer.step()
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(given.inputs), given.targets).backward()
        optimizer.step()
        for mine, theirs in zip(ours.model.parameters(), plain.parameters(), strict=True):
            assert (mine - theirs).abs().max() <= tolerance, (keys, step)
    return strategy


class Failing(Reduction):
    """Raises at the second bucket of the third step, on some ranks."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks, self.steps = ranks, 0
        self.seen: list[int] = []

    def levels(self, bucket: Tensor, index: int, shapes: Any, comm: Communicator) -> Iterator[Work | None]:
        self.steps += index == 0
        self.seen.append(index)
        if (self.steps, index) == (3, 1) and comm.rank in self.ranks:
            raise ZeroDivisionError("this bucket does not add up")
        yield from Flat().levels(bucket, index, shapes, comm)


def failing(comm: TorchCommunicator, reduction: Failing, overlap: bool) -> None:
    replica = TorchReplica(net(), nn.CrossEntropyLoss(), comm)
    replica.average_gradients_over(WORLD, reduction=reduction, bucket_mib=SMALL, overlap=overlap)
    for step in range(2):
        replica.compute_gradients(piece(comm, step))
    replica.compute_gradients(piece(comm, 2))


@on_nodes([1, 1])
def raises(comm: TorchCommunicator) -> None:
    """What a reduction raises comes out of the backward pass, and no bucket behind it is summed."""
    for beside in (True, False):
        reduction = Failing([0, 1])
        raised = ""
        try:
            failing(comm, reduction, beside)
        except ZeroDivisionError as error:
            raised = str(error)
        assert raised == "this bucket does not add up"
        assert max(reduction.seen) >= 2
        assert reduction.seen[-3:] == [max(reduction.seen), 0, 1]


@on_nodes([1, 1])
def raises_alone(comm: TorchCommunicator) -> None:
    """One rank's reduction raises; nobody waits for it for ever."""
    failing(comm, Failing([1]), True)
