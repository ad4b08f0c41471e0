"""Our loop against a bare PyTorch loop on one device: the same model, batch and precision, blocks in turn."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn import functional

from ...datasets.synthetic import Synthetic
from ...models.small import SmallCNN
from ...models.spec import InputSpec
from ...models.torchvision_zoo import Torchvision
from ...strategies.replica import Batch
from .. import schema
from ..launcher_config import LocalConfig
from ..loop import Loop
from ..optimizers import SGD
from ..precision import AUTOCAST
from ..rank import meet
from ..session import Session, World
from ..simulated_world import Recorded
from ..torch_replica import TorchReplica
from .figures import Figure, geometric_mean
from .gpu_options import Options, cluster_of
from .processes import configuration, summary_of

LIMIT = 0.95  # of the bare loop's images/s


def loop(options: Options) -> list[Figure]:
    """Ratio of images/s, and the bare loop's own."""
    took = summary_of(_of_loop(options), f"{__name__}:blocks")
    ratios = [bare / ours for ours, bare in zip(took["ours"], took["bare"], strict=True)]
    images = options.steps * options.batch
    rates = {name: images / median(took[name]) for name in ("ours", "bare")}
    what = f"{options.model}, batch {options.batch}, {options.precision}, channels last, {took['device']}"
    detail = (
        f"{what}: {rates['ours']:.0f} of {rates['bare']:.0f} images/s; geometric mean of {len(ratios)} "
        f"pairs of {options.steps} steps in turn, {min(ratios):.3f} to {max(ratios):.3f}"
    )
    limit = LIMIT if options.device == "cuda" else None
    return [
        Figure("gpu_loop_over_bare", geometric_mean(ratios), limit, detail, at_least=True),
        Figure("gpu_bare_images_per_s", rates["bare"], None, what),
    ]


def _of_loop(options: Options) -> schema.RunConfig:
    """One rank of ddp of which only steps are taken: no evaluation, no end of an epoch."""
    samples = options.batch * options.steps * (options.blocks + 2)
    side = options.image
    model = SmallCNN() if options.model == "small_cnn" else Torchvision(name=options.model)
    return configuration(
        ranks=1,
        model=model,
        dataset=Synthetic(samples=samples, height=side, width=side, classes=1000),
        optimizer=SGD(),
        cluster=cluster_of(options.device, ranks=(1,)),
        launcher=LocalConfig(),
        train=schema.TrainConfig(
            epochs=2,
            global_batch_size=options.batch,
            eval_every_samples=10**9,
            checkpoint_every_samples=None,
            precision=options.precision,
            channels_last=True,
        ),
        run=schema.RunInfo(tag=f"{options.blocks} {options.steps}"),
    )


def blocks(
    run_dir: Path, rank: int, ranks: int, port: int, listener: socket.socket | None, threads: int, link: Any
) -> None:
    """The rank of the measurement: ours and bare in turn, each on the same batch on the device."""
    config, comm = meet(run_dir, rank, ranks, port, listener, threads, link.meeting)
    pairs, steps = map(int, config.run.tag.split())
    device = comm.device
    world = World("bench", comm, lambda model, criterion: TorchReplica(model, criterion, comm), device, True)
    session = Session(config, world, config.dataset.load(), Recorded(), None)
    ours = Loop(session)
    session.prepare()
    assert session.replica.noise is not None, "the session gives noise"
    inputs, targets = session.replica.noise(config.train.global_batch_size)
    session.world = replace(world, batch=lambda sizes: Batch(inputs, targets, sizes))
    ours.begin(None)
    arms = {"ours": _ours(ours, steps), "bare": _bare(config, session, inputs, targets, steps)}
    took: dict[str, list[float]] = {name: [] for name in arms}
    for pair in range(-1, pairs):  # the first is a warm-up of both
        for name in list(arms) if pair % 2 else reversed(list(arms)):
            comm.synchronise()
            started = time.perf_counter()
            arms[name]()
            comm.synchronise()
            if pair >= 0:
                took[name].append(time.perf_counter() - started)
        link.progress(step=pair + 2)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    link.finish("finished", {**took, "device": name}, None)


def _ours(trained: Loop, steps: int) -> Callable[[], None]:
    def block() -> None:
        for _ in range(steps):
            trained.step()
            trained.after_step()

    return block


def _bare(
    config: schema.RunConfig, session: Session, inputs: torch.Tensor, targets: torch.Tensor, steps: int
) -> Callable[[], None]:
    """PyTorch's own recipe for one device: autocast, channels last, a fused optimizer."""
    device, autocast = inputs.device, AUTOCAST.get(config.train.precision)
    channels, height, width = session.data.shape
    model = config.model.build(InputSpec(channels, height, width, session.data.classes))
    model = model.to(device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
    )

    def block() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()

    return block
