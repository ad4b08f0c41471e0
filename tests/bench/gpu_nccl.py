"""NCCL on one GPU, in a world of several ranks of which only this one is there.

NCCL refuses two ranks on one GPU, so on one GPU its operations would never run. Here each group of the world
is a group of NCCL with this rank alone: operations are really launched, DDP's hook is called, streams and
events are those of a real run. What the others would have added is put in before: a sum over n ranks is n
times this rank's own, and all that is gathered is this rank's. Messages between two ranks are copies; NCCL
has none from a rank to itself. Where ranks hold pieces of their own (`sliced`, the turns of `daso`), what is
learnt means nothing: it is the operations that are tried.

Measured are facts of its operations (`gpu_probes`), our DDP against PyTorch's own, each strategy to its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import gpu_probes
import torch
from figures import Figure
from gpu_options import Options, Time, cluster_of
from gpu_runs import NODES, Arm, arms, judged, run_of
from loop_overhead import gpu_run, measure_on_device, rate_ratio
from processes import context_of, joined
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from daso_bench.runner.communication.torch_communicator import TorchCommunicator, dist
from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.communicator import Channel, Done, Operation, Work
from daso_bench.strategies.hsgd import HSGD
from daso_bench.strategies.topology import LEADERS, NODE, WORLD, Group, Topology

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


def nccl(options: Options, time_left: Time) -> Iterator[Figure]:
    """The figures of the probes, of DDP against DDP, and one of each strategy."""
    told = time_left.summary_of(gpu_run(options), f"{__name__}:probes")
    yield from gpu_probes.facts(told, on_gpu=options.device == "cuda")
    took = time_left.summary_of(gpu_run(options), f"{__name__}:ddp_blocks")
    what = f"{options.model}, {options.precision}, {took['device']}, over PyTorch's own DDP; groups of one"
    yield rate_ratio("gpu_ddp_over_torch", options, took, None, what)
    for arm in arms():
        config = run_of(_through_messages(arm), cluster_of(options.device, ranks=(1,)), options.steps)
        yield judged(
            f"nccl_{arm.name}",
            f"{told['backend']}, rank 0 of {' + '.join(map(str, NODES))}, {options.steps} steps",
            lambda config=config: time_left.outcome_of(config, f"{__name__}:mirrored"),
        )


def _through_messages(arm: Arm) -> Arm:
    """`hsgd` sums through memory on CPUs, where ranks that are not there would be waited for."""
    return replace(arm, keys={"level1": "collective"}) if arm.kind is HSGD else arm


# ------------------------------------------------------------------ what the rank does


def probes(*arguments: Any) -> None:
    """What is true of operations in this world."""
    _, comm = _world(*arguments, nodes=(1, 1))
    arguments[-1].finish("finished", gpu_probes.measure(comm), None)


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
