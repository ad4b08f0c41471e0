"""NCCL on one GPU, in a world of several ranks of which only this one is there.

NCCL refuses two ranks on one GPU, so on one GPU its operations would never run. Here each group of the world
is a group of NCCL with this rank alone: operations are really launched, DDP's hook is called, streams and
events are those of a real run. What the others would have added is put in before: a sum over n ranks is n
times this rank's own, and all that is gathered is this rank's. Messages between two ranks are copies; NCCL
has none from a rank to itself. Where ranks hold pieces of their own (`sliced`, the turns of `daso`), what is
learnt means nothing: it is the operations that are tried.

Measured are facts of its operations, our DDP against PyTorch's own, each strategy to its end.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from figures import Figure
from gpu_options import Options, cluster_of
from gpu_runs import NODES, arms, judged, run_of
from loop_overhead import gpu_run, measure_on_device, rate_ratio
from processes import context_of, joined, outcome_of, summary_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec
from daso_bench.runner.communication.torch_communicator import TorchCommunicator, dist
from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.communicator import Channel, Done, Operation, Work
from daso_bench.strategies.hsgd import HSGD
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Group, Topology

SIDE = {"cuda": 8192, "cpu": 64}  # of matrices
STEPS = 3  # after the first DDP orders its buckets anew; a stop request of the second is heard in the third
DDP_PAIRS = 30  # of shorter blocks than the loop's: with 8 pairs two visits differed by 3 %
CHANNELS: tuple[Channel, ...] = ("gradients", "parameters", "control")


class Mirror(TorchCommunicator):
    """Rank 0 of `topology`, from the communicator of a rank that is `alone`."""

    def __init__(self, alone: TorchCommunicator, topology: Topology) -> None:
        vars(self).update(vars(alone))
        self.topology, self.traffic = topology, Traffic(topology, 0)
        for channel in CHANNELS:
            backend = "gloo" if channel == "control" else self.backend
            for group in (WORLD, NODE, LEADERS):
                if len(self.members(group)) > 1:
                    made = dist.new_group([0], backend=backend)
                    assert isinstance(made, dist.ProcessGroup), "this rank is a member"
                    self._groups.setdefault((channel, self.members(group)), made)
        self.warm_up()

    def _launch(self, op: Operation) -> Work:
        op, size = op._replace(root=0), len(op.members)
        if op.verb in ("all_reduce", "reduce"):
            op.tensor.mul_(size)
        elif op.verb == "reduce_scatter":
            op = op._replace(tensor=op.tensor.chunk(size)[op.members.index(self.rank)] * size)
        elif op.verb == "all_gather":
            own, *others = op.output.chunk(size)
            for other in others:
                other.copy_(op.tensor)
            op = op._replace(output=own)
        return super()._launch(op)

    def start_sum(self, tensor: Tensor, group: Group) -> "torch.futures.Future[Tensor]":
        return super().start_sum(tensor.mul_(len(self.members(group))), group)

    def _exchange(self, messages: Sequence[Operation]) -> Work:
        sends = [op.tensor for op in messages if op.members[0] == self.rank]
        receives = [op.tensor for op in messages if op.members[0] != self.rank]
        for tensor, sent in zip(receives, sends, strict=True):
            tensor.copy_(sent)
        return Done()


def nccl(options: Options) -> Iterator[Figure]:
    """The figures of the facts, of DDP against DDP, and one of each strategy."""
    measured = summary_of(gpu_run(options), f"{__name__}:facts")
    yield from facts_figures(measured, on_gpu=options.device == "cuda")
    pairs = replace(options, blocks=max(DDP_PAIRS, options.blocks), steps=max(4, options.steps // 4))
    took = summary_of(gpu_run(pairs), f"{__name__}:ddp_blocks")
    what = f"{options.model}, {options.precision}, {took['device']}, over PyTorch's own DDP; groups of one"
    yield rate_ratio("gpu_ddp_over_torch", pairs, took, None, what)
    for arm in arms():
        if arm.kind is HSGD:  # in the memory of CPUs it would wait for ranks that are not there
            arm = replace(arm, keys={"level1": "collective"})
        config = run_of(arm, cluster_of(options.device, ranks=(1,)), options.steps)
        yield judged(
            f"nccl_{arm.name}",
            f"{measured['backend']}, rank 0 of {' + '.join(map(str, NODES))}, {options.steps} steps",
            lambda config=config: outcome_of(config, f"{__name__}:mirrored"),
        )


def facts_figures(measured: Mapping[str, Any], *, on_gpu: bool) -> Iterator[Figure]:
    """The figures of what `facts` measured; limits are for NCCL alone."""
    for name, limit, at_least, detail in (
        ("host_ahead", 0.5, False, "launching and waiting by the host, over the device's time for it"),
        ("hook", 1e-4, False, "gradients through DDP's hook, apart from those without, over their largest"),
        ("buckets", 2, True, "of gradients in a step, each summed by the hook on its own"),
        ("late", 1, True, "a stop request is heard in the next step"),
    ):
        detail = f"{measured['backend']}: {detail}"
        yield Figure(f"gpu_nccl_{name}", measured[name], limit if on_gpu else None, detail, at_least)


# ------------------------------------------------------------------ what the rank does


def facts(*arguments: Any) -> None:
    """What is true of operations in this world."""
    _, comm = _world(*arguments, nodes=(1, 1))
    measured = {"backend": comm.backend, "host_ahead": host_ahead(comm, _products(comm)), **hook(comm)}
    arguments[-1].finish("finished", measured, None)


def host_ahead(comm: TorchCommunicator, computing: Callable[[], None]) -> float:
    """The host's time for computing, a sum behind it and waiting for it, over the time until all is done."""
    launched = took = 0.0
    for _ in range(2):  # the first makes connections and loads kernels, for which the host waits
        summed = torch.ones(1024, device=comm.device)
        comm.synchronise()
        started = time.perf_counter()
        computing()
        comm.all_reduce(summed, WORLD, async_op=True).wait()
        summed.add_(1)
        launched = time.perf_counter() - started
        comm.synchronise()
        took = time.perf_counter() - started
        if float(summed[0]) != len(comm.members(WORLD)) + 1:
            raise RuntimeError("what was computed after wait() did not follow the sum")
    return launched / took


def hook(comm: TorchCommunicator) -> dict[str, float]:
    """How far gradients through the hook are from those without, its buckets, and whether stop requests come
    late.

    All ranks are taken to have the same batch, so that the mean gradient is that of one of them.
    """
    torch.manual_seed(0)
    model = SmallCNN(channels=[64, 128, 256]).build(InputSpec(3, 16, 16, 10)).to(comm.device)
    replica = TorchReplica(model, nn.CrossEntropyLoss(), comm)
    replica.average_gradients_over(WORLD, bucket_mib=0.25)
    inputs = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(comm.device)
    batch = Batch(inputs, torch.arange(8, device=comm.device), (8,) * comm.topology.ranks)
    heard: list[bool] = []
    sums: list[int] = []
    for step in range(STEPS):
        replica.requests_stop = step == 1
        replica.compute_gradients(batch)
        heard.append(replica.stop_requested)
        sums.append(comm.traffic.verbs["gradients.all_reduce"])
    replica.wait_pending()
    averaged = _gradients(replica)
    replica.model.zero_grad()
    nn.functional.cross_entropy(replica.model(batch.inputs), batch.targets).backward()
    pairs = zip(averaged, _gradients(replica), strict=True)
    return {
        "hook": max(float((mean - own).abs().max() / own.abs().max()) for mean, own in pairs),
        "buckets": float(sums[-1] - sums[-2]),
        "late": float(heard == [False, False, True]),
    }


def _gradients(replica: TorchReplica) -> list[Tensor]:
    return [gradient.clone() for p in replica.parameters.tensors if (gradient := p.grad) is not None]


def _products(comm: TorchCommunicator) -> Callable[[], None]:
    """20 products of matrices: half a second of a large GPU in float32."""
    side = SIDE[comm.device.type]
    matrix = torch.rand(side, side, device=comm.device)
    result = torch.empty_like(matrix)

    def multiply() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix, out=result)

    multiply()  # libraries are loaded, kernels chosen
    return multiply


def ddp_blocks(*arguments: Any) -> None:
    """Our step of DDP and PyTorch's own, each over a group of this rank alone, in turn."""
    config, comm = _world(*arguments, nodes=(1, 1))

    def wrap(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, process_group=comm.ddp_group(), gradient_as_bucket_view=True)

    measure_on_device(config, comm, arguments[-1], lambda ours, bare: {"ours": ours, "bare": bare(wrap)})


def mirrored(*arguments: Any) -> None:
    """A whole run of rank 0 of two nodes of two ranks."""
    link = arguments[-1]
    config, comm = _world(*arguments, nodes=NODES)
    result = Trainer(context_of(config, comm, listener=link)).run()
    link.finish(result.status, result.summary, result.reason)


def _world(*arguments: Any, nodes: tuple[int, ...]) -> tuple[RunConfig, Mirror]:
    """This rank's configuration as rank 0 of so many, and its communicator; `arguments` of an entry."""
    config, alone = joined(*arguments)
    kind = config.cluster.device.kind[0]
    return replace(config, cluster=cluster_of(kind, ranks=nodes)), Mirror(alone, Topology.of(nodes))
