"""Our loop against a bare PyTorch loop on one device: the same model, batch and precision, blocks in turn."""

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.spec import InputSpec
from daso_bench.strategies.replica import Batch
from daso_bench.runner import schema
from daso_bench.runner.labels import RunInfo
from daso_bench.runner.launcher_config import LocalConfig
from daso_bench.runner.loop import Loop
from daso_bench.runner.optimizers import SGD
from daso_bench.runner.precision import AUTOCAST, DTYPES
from daso_bench.runner.rank import meet
from daso_bench.runner.session import Session, World
from daso_bench.runner.simulated_world import Recorded
from daso_bench.runner.torch_communicator import TorchCommunicator
from daso_bench.runner.torch_replica import TorchReplica
from daso_bench.runner.train_config import TrainConfig
from figures import Figure, geometric_mean
from gpu_options import Options, cluster_of
from gpu_time import Time
from processes import configuration

LIMIT = 0.95  # of the bare loop's images/s

Arms = dict[str, Callable[[], None]]


def loop(options: Options, time_left: Time) -> Iterator[Figure]:
    """Ratio of images/s, the bare loop's own, and how fast it is with `torch.backends.cudnn.benchmark`."""
    took = time_left.summary_of(of_loop(options), f"{__name__}:blocks")
    limit = LIMIT if options.device == "cuda" else None
    what = f"{options.model}, batch {options.batch}, {options.precision}, channels last, {took['device']}"
    yield ratio("gpu_loop_over_bare", options, took, ("ours", "bare"), limit, what)
    rates = {name: options.steps * options.batch / median(took[name]) for name in ("bare", "searching")}
    yield Figure("gpu_bare_images_per_s", rates["bare"], None, what)
    searching = "the bare loop with cudnn.benchmark, which no key of a run turns on"
    yield Figure("gpu_searching_images_per_s", rates["searching"], None, f"{what}; {searching}")


def ratio(
    name: str,
    options: Options,
    took: dict[str, Any],
    arms: tuple[str, str],
    limit: float | None,
    what: str,
) -> Figure:
    """Images/s of the first arm over those of the second: the geometric mean over pairs of blocks."""
    ours, theirs = (took[arm] for arm in arms)
    ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
    images = options.steps * options.batch
    detail = (
        f"{what}: {images / median(ours):.0f} of {images / median(theirs):.0f} images/s; geometric mean of "
        f"{len(ratios)} pairs of {options.steps} steps in turn, {min(ratios):.3f} to {max(ratios):.3f}"
    )
    return Figure(name, geometric_mean(ratios), limit, detail, at_least=True)


def of_loop(options: Options) -> schema.RunConfig:
    """One rank of ddp of which only steps are taken: no evaluation, no end of an epoch."""
    samples = options.batch * options.steps * (options.blocks + 2)
    side = options.image
    return configuration(
        ranks=1,
        model=options.of_model(),
        dataset=Synthetic(samples=samples, height=side, width=side, classes=1000),
        optimizer=SGD(),
        cluster=cluster_of(options.device, ranks=(1,)),
        launcher=LocalConfig(),
        train=TrainConfig(
            epochs=2,
            global_batch_size=options.batch,
            eval_every_samples=10**9,
            checkpoint_every_samples=None,
            precision=options.precision,
            channels_last=True,
        ),
        run=RunInfo(tag=f"{options.blocks} {options.steps}"),
    )


def blocks(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """The rank of the measurement: ours, bare, and bare with kernels searched for, in turn."""
    config, comm = meet(run_dir, rank, ranks, port, listener, threads, link.meeting)
    session, ours, batch = begun(config, comm)
    steps = steps_of(config)
    bare = bare_block(config, session, batch, steps)
    in_turn(config, comm, link, {"ours": our_block(ours, steps), "bare": bare, "searching": _searching(bare)})


def begun(config: schema.RunConfig, comm: TorchCommunicator) -> tuple[Session, Loop, Batch]:
    """Our loop, ready for its first step, which gets the same batch on the device again and again."""
    world = World("bench", comm, lambda model, loss: TorchReplica(model, loss, comm), comm.device, True)
    session = Session(config, world, config.dataset.load(), Recorded(), None)
    ours = Loop(session)
    session.prepare()
    assert session.replica.noise is not None, "the session gives noise"
    sizes = session.feed.sizes(session.progress)
    batch = Batch(*session.replica.noise(sizes[comm.rank]), sizes)
    session.world = replace(world, batch=lambda sizes: replace(batch, samples_of_rank=sizes))
    ours.begin(None)
    return session, ours, batch


def in_turn(config: schema.RunConfig, comm: TorchCommunicator, link: Any, arms: Arms) -> None:
    """Report the seconds of each block of each arm: the order is turned around from turn to turn."""
    took: dict[str, list[float]] = {name: [] for name in arms}
    turns = int(config.run.tag.split()[0])
    for turn in range(-1, turns):  # the first is a warm-up of all
        for place, name in enumerate(list(arms) if turn % 2 else reversed(list(arms))):
            comm.synchronise()
            started = time.perf_counter()
            arms[name]()
            comm.synchronise()
            if turn >= 0:
                took[name].append(time.perf_counter() - started)
            link.progress(step=len(arms) * (turn + 1) + place + 1)
    device = torch.cuda.get_device_name(comm.device) if comm.device.type == "cuda" else "CPU"
    link.finish("finished", {**took, "device": device}, None)


def steps_of(config: schema.RunConfig) -> int:
    """Steps of a block."""
    return int(config.run.tag.split()[1])


def our_block(trained: Loop, steps: int) -> Callable[[], None]:
    def block() -> None:
        for _ in range(steps):
            trained.step()
            trained.after_step()

    return block


def bare_block(
    config: schema.RunConfig, session: Session, batch: Batch, steps: int, group: Any = None
) -> Callable[[], None]:
    """What one writes without us: autocast, a scaled loss with fp16, channels last, a fused optimizer.

    `group`: over which PyTorch's own DDP averages gradients; None: one device alone.
    """
    inputs, targets, precision = batch.inputs, batch.targets, config.train.precision
    device, autocast = inputs.device, AUTOCAST.get(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    model: nn.Module = config.model.build(InputSpec(*session.data.shape, session.data.classes))
    model = model.to(device, DTYPES[precision]).to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue] (PyTorch's stub leaves it out)
    optimizer = config.optimizer.build(model.parameters())
    if group is not None:
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)

    def block() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                loss = functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return block


def _searching(block: Callable[[], None]) -> Callable[[], None]:
    """`block` while cuDNN tries its kernels and takes the fastest: the first block pays for that."""

    def searched() -> None:
        torch.backends.cudnn.benchmark = True
        try:
            block()
        finally:
            torch.backends.cudnn.benchmark = False

    return searched
