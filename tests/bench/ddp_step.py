"""Our DDP step against a bare PyTorch loop: ResNet-18, 32×32, 2 ranks of one thread, blocks in turn."""

import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.strategies.topology import WORLD
from daso_bench.runner import schema
from daso_bench.runner.loop import Loop
from daso_bench.runner.session import Session, World
from daso_bench.runner.simulated_world import Recorded
from daso_bench.runner.torch_communicator import TorchCommunicator
from daso_bench.runner.torch_replica import TorchReplica
from daso_bench.runner.train_config import TrainConfig
from figures import Figure, geometric_mean, upper_limit
from processes import configuration, joined, summary_of

PAIRS, STEPS, BATCH = 30, 20, 32
LIMIT = 1.03


def measure() -> list[Figure]:
    """Ratios of block times of rank 0, and the collectives of a step beyond the strategy's own."""
    took = summary_of(arrangement(), f"{__name__}:blocks")
    ours = [a / b for a, b in zip(took["ours"], took["bare"], strict=True)]
    again = [a / b for a, b in zip(took["again"], took["bare"], strict=True)]
    step_ms = statistics.median(took["bare"]) / STEPS * 1000
    detail = f"upper 95 % limit of {PAIRS} pairs of {STEPS} steps of {step_ms:.0f} ms; geometric mean"
    return [
        Figure("ddp_step_over_bare", upper_limit(ours), LIMIT, f"{detail} {geometric_mean(ours):.4f}"),
        Figure("bare_over_bare", upper_limit(again), None, f"{detail} {geometric_mean(again):.4f}"),
        Figure(
            "collectives_beyond_strategy", took["extra"], 0, f"per step, over {took['steps']} steps of ddp"
        ),
    ]


def arrangement() -> schema.RunConfig:
    """The run of which only steps are taken: no evaluation and no end of an epoch falls into a block."""
    return configuration(
        model=Torchvision(name="resnet18", small_images="resize"),
        dataset=Synthetic(samples=BATCH * STEPS * (PAIRS + 2)),
        train=TrainConfig(epochs=2, global_batch_size=BATCH, eval_every_samples=10**9),
    )


def blocks(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """A rank of the measurement: ours, bare, bare again, in rotating order."""
    config, comm = joined(run_dir, rank, port, listener, threads)
    device = comm.device
    world = World("bench", comm, lambda model, criterion: TorchReplica(model, criterion, comm), device, True)
    session = Session(config, world, config.dataset.load(), Recorded(), None)
    loop = Loop(session)
    session.prepare()
    loop.begin(None)
    arms = {"ours": _ours(loop), "bare": _bare(config, session, comm), "again": _bare(config, session, comm)}
    for arm in arms.values():
        arm()
    comm.traffic.clear()
    names, took = list(arms), {name: [] for name in arms}
    for pair in range(PAIRS):
        for place in range(len(names)):
            name = names[(pair + place) % len(names)]
            comm.barrier(WORLD)
            started = time.perf_counter()
            arms[name]()
            took[name].append(time.perf_counter() - started)
        link.progress(step=pair + 1)
    verbs, steps = comm.traffic.verbs, PAIRS * STEPS
    barriers = PAIRS * len(names)
    others = sum(count for name, count in verbs.items() if name != "gradients.all_reduce") - barriers
    extra = (others + verbs["gradients.all_reduce"]) / steps - _buckets(session.replica)
    link.finish("finished", {**took, "extra": extra, "steps": steps}, None)


def _ours(loop: Loop) -> Callable[[], None]:
    def block() -> None:
        for _ in range(STEPS):
            loop.step()
            loop.after_step()

    return block


def _bare(config: schema.RunConfig, session: Session, comm: TorchCommunicator) -> Callable[[], None]:
    """The loop of PyTorch's own tutorial, on the same batches."""
    torch.manual_seed(1)
    channels, height, width = session.data.shape
    model = config.model.build(InputSpec(channels, height, width, session.data.classes)).train()
    module = DistributedDataParallel(model, process_group=comm.ddp_group())
    optimizer = config.optimizer.build(list(model.parameters()))
    position = 0

    def block() -> None:
        nonlocal position
        for _ in range(STEPS):
            indices = session.sampler.piece(0, position % session.sampler.steps_per_epoch, comm.rank)
            position += 1
            inputs, targets = session.data.train.batch(indices)
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(inputs), targets)
            loss.backward()
            optimizer.step()

    return block


def _buckets(replica: Any) -> int:
    """How many buckets DDP made of this model after its first step."""
    sizes = replica.ddp_module()._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return len(sizes.split(","))
