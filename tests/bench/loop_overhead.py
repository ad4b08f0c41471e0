"""What our training loop costs: the start of four ranks, and steps against a bare PyTorch loop.

The bare loop has the same model, batches and precision; blocks of steps take turns. On CPUs two ranks of one
thread train ResNet-18 with DDP on 32 x 32 images. On a GPU (`gpu.py`) one rank trains on a batch that lies on
the device.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from figures import Figure, upper_limit
from gpu_options import Options, cluster_of
from processes import configuration, context_of, joined, launched, reported, summary_of
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from daso_bench.datasets.digits import Digits
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import RunInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.training.batch_order import GlobalOrder
from daso_bench.runner.training.context import TrainContext
from daso_bench.runner.training.precision import AUTOCAST, DTYPES
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD

STARTS, START_LIMIT_S = 5, 2.0
PAIRS, STEPS, BATCH = 30, 20, 32
STEP_LIMIT = 1.03  # of a DDP step, over the bare loop's
RATE_LIMIT = 0.95  # of images/s on a GPU, over the bare loop's

Block = Callable[[], None]

# ------------------------------------------------------------------ start


def start() -> list[Figure]:
    """Median seconds from the request to four ranks that have left, after a start that loads torch."""
    took_s = []
    for seed in range(STARTS + 1):
        config = configuration(model=SmallCNN(), dataset=Digits(), cluster=ClusterConfig(), seed=seed)
        with TemporaryDirectory() as folder:
            directory = RunDirectory.create(config.tree, Path(folder))
            started = time.perf_counter()
            reported(launched(directory, config, f"{__name__}:prepare"))
            took_s.append(time.perf_counter() - started)
    detail = (
        f"median of {STARTS} starts and ends of 4 ranks; the first, which loads torch, took {took_s[0]:.1f} s"
    )
    return [Figure("start_4_ranks_s", statistics.median(took_s[1:]), START_LIMIT_S, detail)]


def prepare(*arguments: Any) -> None:
    """A rank that meets the others, builds everything, does the undone step and leaves."""
    config, comm = joined(*arguments)
    context_of(config, comm).prepare()
    comm.barrier(WORLD)
    arguments[-1].finish("finished", {"ready": True})


# ------------------------------------------------------------------ DDP on CPUs


def ddp_step() -> list[Figure]:
    """Ratios of block times of rank 0, and the collectives of a step beyond the strategy's own."""
    took = summary_of(cpu_run(), f"{__name__}:cpu_blocks")
    step_ms = statistics.median(took["bare"]) / STEPS * 1000
    figures = []
    for name, arm, limit in (("ddp_step_over_bare", "ours", STEP_LIMIT), ("bare_over_bare", "again", None)):
        ratios = [a / b for a, b in zip(took[arm], took["bare"], strict=True)]
        detail = f"upper 95 % limit of {PAIRS} pairs of {STEPS} steps of {step_ms:.0f} ms; geometric mean"
        mean = statistics.geometric_mean(ratios)
        figures.append(Figure(name, upper_limit(ratios), limit, f"{detail} {mean:.4f}"))
    detail = f"per step, over {PAIRS * STEPS} steps of ddp"
    return [*figures, Figure("collectives_beyond_strategy", took["extra"], 0, detail)]


def cpu_run() -> RunConfig:
    """The run of which only steps are taken: no evaluation and no end of an epoch falls into a block."""
    return configuration(
        model=Torchvision(name="resnet18", small_images="resize"),
        dataset=Synthetic(samples=BATCH * STEPS * (PAIRS + 2)),
        train=TrainConfig(epochs=2, global_batch_size=BATCH, eval_every_samples=10**9),
    )


def cpu_blocks(*arguments: Any) -> None:
    """A rank of the measurement: ours, bare, bare again."""
    config, comm = joined(*arguments)
    context = context_of(config, comm)
    ours = Trainer(context)
    context.prepare()
    ours.begin(None)
    assert isinstance(context.batch_order, GlobalOrder)
    sampler = context.batch_order.sampler

    def batch(step: int) -> tuple[Tensor, Tensor]:
        indices = sampler.piece(0, step % sampler.steps_per_epoch, comm.rank)
        return context.data.train.batch(indices)

    def wrap(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, process_group=comm.ddp_group())

    link, arms = arguments[-1], {"ours": our_block(ours, STEPS)}
    for name in ("bare", "again"):
        torch.manual_seed(1)
        arms[name] = bare_block(config, context, batch, STEPS, wrap)
    took = in_turn(comm, arms, PAIRS, link)
    extra = _collectives_beyond(comm, context.replica, took)
    link.finish("finished", {**took, "extra": extra}, None)


def _collectives_beyond(comm: TorchCommunicator, replica: Any, took: Mapping[str, list[float]]) -> float:
    """Operations of a step of ours that are neither DDP's buckets nor the barriers between blocks."""
    buckets = len(replica._module._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))
    operations = sum(comm.traffic.verbs.values()) - PAIRS * len(took)
    return operations / (PAIRS * STEPS) - buckets


# ------------------------------------------------------------------ one GPU


def gpu_loop(options: Options) -> Iterator[Figure]:
    """Ratio of images/s, and the bare loop's own."""
    took = summary_of(gpu_run(options), f"{__name__}:gpu_blocks")
    limit = RATE_LIMIT if options.device == "cuda" else None
    what = f"{options.model}, batch {options.batch}, {options.precision}, channels last, {took['device']}"
    yield rate_ratio("gpu_loop_over_bare", options, took, limit, what)
    images = options.steps * options.batch
    yield Figure("gpu_bare_images_per_s", images / statistics.median(took["bare"]), None, what)


def rate_ratio(
    name: str, options: Options, took: Mapping[str, Any], limit: float | None, what: str
) -> Figure:
    """Images/s of ours over those of bare: the geometric mean over pairs of blocks."""
    ours, bare = took["ours"], took["bare"]
    ratios = [other / own for own, other in zip(ours, bare, strict=True)]
    images = options.steps * options.batch
    detail = (
        f"{what}: {images / statistics.median(ours):.0f} of {images / statistics.median(bare):.0f} images/s; "
        f"geometric mean of {len(ratios)} pairs of {options.steps} steps in turn, {min(ratios):.3f} to "
        f"{max(ratios):.3f}"
    )
    return Figure(name, statistics.geometric_mean(ratios), limit, detail, at_least=True)


def gpu_run(options: Options) -> RunConfig:
    """One rank of ddp of which only steps are taken: no evaluation, no end of an epoch."""
    samples = options.batch * options.steps * (options.blocks + 2)
    side = options.image
    return configuration(
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


def gpu_blocks(*arguments: Any) -> None:
    """The rank of the measurement: ours and bare."""
    config, comm = joined(*arguments)
    measure_on_device(config, comm, arguments[-1], lambda ours, bare: {"ours": ours, "bare": bare()})


def measure_on_device(
    config: RunConfig,
    comm: TorchCommunicator,
    link: Any,
    arms: Callable[[Block, Callable[..., Block]], dict[str, Block]],
) -> None:
    """Report the seconds of blocks on one batch that lies on the device.

    `arms`: makes them from our block and from what makes a bare one, given how its model is wrapped.
    """
    blocks, steps = map(int, config.run.tag.split())
    context = context_of(config, comm)
    ours = Trainer(context)
    context.prepare()
    assert context.replica.noise is not None, "the context gives noise"
    sizes = context.batch_order.sizes(context.progress)
    batch = Batch(*context.replica.noise(sizes[comm.rank]), sizes)
    context.backend = replace(context.backend, make_batch=lambda sizes: replace(batch, samples_of_rank=sizes))
    ours.begin(None)

    def bare(wrap: Callable[[nn.Module], nn.Module] = lambda model: model) -> Block:
        return bare_block(config, context, lambda step: (batch.inputs, batch.targets), steps, wrap)

    took = in_turn(comm, arms(our_block(ours, steps), bare), blocks, link)
    device = torch.cuda.get_device_name(comm.device) if comm.device.type == "cuda" else "CPU"
    link.finish("finished", {**took, "device": device}, None)


# ------------------------------------------------------------------ blocks of steps


def in_turn(
    comm: TorchCommunicator, arms: Mapping[str, Block], turns: int, link: Any
) -> dict[str, list[float]]:
    """Seconds of each block of each arm, in rotating order; the first block of each is not counted."""
    names, took = list(arms), {name: [] for name in arms}
    for turn in range(-1, turns):
        if turn == 0:
            comm.traffic.clear()
        first = turn % len(names)
        for place, name in enumerate(names[first:] + names[:first]):
            comm.barrier(WORLD)
            comm.synchronise()
            started = time.perf_counter()
            arms[name]()
            comm.synchronise()
            if turn >= 0:
                took[name].append(time.perf_counter() - started)
            link.progress(step=len(names) * (turn + 1) + place + 1)
    return took


def our_block(ours: Trainer, steps: int) -> Block:
    """Steps of our loop."""

    def block() -> None:
        for _ in range(steps):
            ours.step()
            ours.after_step()

    return block


def bare_block(
    config: RunConfig,
    context: TrainContext,
    batch: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
    wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> Block:
    """Steps as one writes them without us: autocast, a scaled loss with fp16, channels last where ours is."""
    device, precision = context.backend.device, config.train.precision
    autocast = AUTOCAST.get(precision)
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")
    model: nn.Module = config.model.build(InputSpec(*context.data.shape, context.data.classes))
    model = model.to(device, DTYPES[precision]).train()
    if config.train.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue] (PyTorch's stub leaves it out)
    optimizer = config.optimizer.build(model.parameters())
    model, position = wrap(model), 0

    def block() -> None:
        nonlocal position
        for _ in range(steps):
            inputs, targets = batch(position)
            position += 1
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                loss = functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return block
