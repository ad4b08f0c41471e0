"""NCCL on one GPU, in a world of several ranks of which only one is there (`gpu_mirror`).

What is true of its operations (`gpu_probes`), our DDP against PyTorch's own, each strategy to its end.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from daso_bench.strategies.hsgd import HSGD
from daso_bench.strategies.topology import Topology
from daso_bench.runner import schema
from daso_bench.runner.loop import Loop
from daso_bench.runner.rank import meet
from daso_bench.runner.session import Session, World
from daso_bench.runner.simulated_world import Recorded
from daso_bench.runner.torch_replica import TorchReplica
import gpu_probes
from figures import Figure
from gpu_loop import bare_block, begun, in_turn, of_loop, our_block, ratio, steps_of
from gpu_mirror import Mirror
from gpu_options import Options, cluster_of
from gpu_runs import NODES, Arm, arms, judged, run_of
from gpu_time import Time


def nccl(options: Options, time_left: Time) -> Iterator[Figure]:
    """The figures of the probes, of DDP against DDP, and one of each strategy."""
    told = time_left.summary_of(of_loop(options), f"{__name__}:probes")
    yield from gpu_probes.facts(told, on_gpu=options.device == "cuda")
    took = time_left.summary_of(of_loop(options), f"{__name__}:ddp_blocks")
    what = f"{options.model}, {options.precision}, {took['device']}, over PyTorch's own DDP; groups of one"
    yield ratio("gpu_ddp_over_torch", options, took, ("ours", "bare"), None, what)
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
    session, ours, batch = begun(config, comm)
    steps = steps_of(config)
    bare = bare_block(config, session, batch, steps, comm.ddp_group())
    in_turn(config, comm, arguments[-1], {"ours": our_block(ours, steps), "bare": bare})


def mirrored(*arguments: Any) -> None:
    """A whole run of rank 0 of two nodes of two ranks."""
    link = arguments[-1]
    config, comm = _world(*arguments, nodes=NODES)
    world = World("bench", comm, lambda model, loss: TorchReplica(model, loss, comm), comm.device, True)
    result = Loop(Session(config, world, config.dataset.load(), Recorded(), Recorded(), link)).run()
    link.finish(result.status, result.summary, result.reason)


def _world(*arguments: Any, nodes: tuple[int, ...]) -> tuple[schema.RunConfig, Mirror]:
    """This rank's configuration as rank 0 of so many, and its communicator; `arguments` of an entry."""
    run_dir, rank, ranks, port, listener, threads, link = arguments
    config, alone = meet(run_dir, rank, ranks, port, listener, threads, link.meeting)
    kind = config.cluster.device.kind[0]
    return replace(config, cluster=cluster_of(kind, ranks=nodes)), Mirror(alone, Topology.of(nodes))
