"""What virtual time costs: ranks with their gradients, and an epoch of ImageNet's clock."""

import statistics
import time
from typing import Any

import torch
from figures import Figure
from processes import configuration

from daso_bench.datasets.dataset import Dataset
from daso_bench.datasets.digits import Digits
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.cifar_resnet import CifarResNet
from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec, Model
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.parts import TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.simulation import timing_only
from daso_bench.runner.simulation.gradient_pool import GradientPool
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training.device_model import ClusterDevice, Profile
from daso_bench.strategies.daso import DASO
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.lasgd import LASGD

NETWORK = AlphaBeta(5e-6, 1e10, 25e-6, 1e9)
DEVICE = DeviceConfig(samples_per_second=2000.0, fixed_ms=3.0, jitter="gaussian")
STEPS, SAMPLES_OF_RANK = 100, 8
IMAGENET, BATCH_OF_RANK = 1_281_167, 32
FEW_STEPS = 200
WAYS, PAIRS = ("stacked", "one_by_one"), 4
EMPTY = Profile.by_size([])


def virtual_time() -> list[Figure]:
    """Seconds of 64 ranks · 100 steps, of an ImageNet epoch on 1,024 ranks; growth with the ranks."""
    torch.set_num_threads(1)
    with_numbers(DDP, ranks=16, steps=2)  # what is loaded at the first step of all counts for nobody
    figures = []
    for kind in (DDP, LASGD):
        took = with_numbers(kind, ranks=64, steps=STEPS)
        name = f"virtual_{kind.__name__.lower()}_64_ranks_s"
        figures.append(
            Figure(name, took, 5, f"{STEPS} steps of the small CNN, {SAMPLES_OF_RANK} samples a rank")
        )
    few, many = imagenet_epoch(16), imagenet_epoch(1024)
    growth = many / (1024 * steps_of(1024)) / (few / (16 * min(steps_of(16), FEW_STEPS)))
    return [
        *figures,
        Figure("virtual_imagenet_epoch_1024_ranks_s", many, 10, "DASO, ResNet-50, timing only"),
        Figure("virtual_cost_of_a_rank_step_1024_over_16", growth, 1.5, "linear in the ranks is 1"),
        chosen_over_fastest(),
    ]


def chosen_over_fastest() -> Figure:
    """Median time of the way that auto takes for ResNet-20 with batch norm over that of the fastest way."""
    ranks, choices = 16, list[str]()
    for _ in range(2):  # whether it takes another one the next time is a part of the question
        of_auto = GradientPool(ranks, asked="auto", on_choice=lambda choice: choices.append(choice["way"]))
        resnet20(ranks, steps=1, pool=of_auto)
    took = {way: list[float]() for way in WAYS}
    for pair in range(PAIRS):
        for way in WAYS if pair % 2 else WAYS[::-1]:
            # The difference of two lengths: the trial of a stack, once a run, is in both.
            short_s, long_s = (resnet20(ranks, steps=n, pool=GradientPool(ranks, asked=way)) for n in (1, 4))
            took[way].append(long_s - short_s)
    middle_s = {way: statistics.median(took[way]) for way in WAYS}
    value = statistics.geometric_mean([middle_s[way] / min(middle_s.values()) for way in choices])
    ratios = tuple(one / stacked for stacked, one in zip(*took.values(), strict=True))
    detail = f"auto took {', '.join(choices)}; one by one / stacked: {min(ratios):.3f} to {max(ratios):.3f}"
    return Figure("virtual_resnet20_16_ranks_chosen_over_fastest", value, 1.1, detail, samples=ratios)


def resnet20(ranks: int, *, steps: int, pool: GradientPool) -> float:
    """Seconds of a run of ResNet-20 with batch normalisation, 8 samples a rank, without an evaluation."""
    noise = Synthetic(samples=SAMPLES_OF_RANK * ranks * steps, test_samples=1, height=32, width=32)
    return with_numbers(DDP, ranks=ranks, steps=steps, model=CifarResNet(depth=20), dataset=noise, pool=pool)


def steps_of(ranks: int) -> int:
    """Steps of an epoch."""
    return -(-IMAGENET // (ranks * BATCH_OF_RANK))


def with_numbers(
    kind: type[Any],
    *,
    ranks: int,
    steps: int,
    model: Model | None = None,
    dataset: Dataset | None = None,
    pool: GradientPool | None = None,
) -> float:
    """Seconds of a run with gradients, from the first step to the end; default: the small CNN on digits."""
    config = configuration(
        strategy_class=kind,
        strategy=kind.Config(),
        model=model or SmallCNN(),
        dataset=dataset or Digits(),
        cluster=ClusterConfig(nodes=ranks // 4, ranks_per_node=(4,)),
        train=TrainConfig(
            epochs=1000,
            global_batch_size=SAMPLES_OF_RANK * ranks,
            max_steps=steps,
            eval_every_samples=10**9,
            checkpoint_every_samples=None,
        ),
    )
    data = config.dataset.load()
    return timed(config, data, device=lambda rank: ClusterDevice(DEVICE, rank, EMPTY, 0), pool=pool)


def imagenet_epoch(ranks: int) -> float:
    """Seconds of an epoch of DASO's clock, or of its first steps where it has many."""
    config = configuration(
        strategy_class=DASO,
        strategy=DASO.Config(warmup_epochs=0, cooldown_epochs=0),
        model=Torchvision(name="resnet50"),
        dataset=Synthetic(samples=IMAGENET, height=224, width=224, classes=1000),
        cluster=ClusterConfig(nodes=ranks // 4, ranks_per_node=(4,)),
        train=TrainConfig(
            epochs=1,
            global_batch_size=BATCH_OF_RANK * ranks,
            max_steps=min(steps_of(ranks), FEW_STEPS),
            checkpoint_every_samples=None,
        ),
    )
    profile = timing_only.profile_of(config, InputSpec(3, 224, 224, 1000))
    return timed(
        timing_only.without_numbers(config, profile),
        timing_only.ghost_data("imagenet", IMAGENET, 0, 50_000),
        device=lambda rank: ClusterDevice(DEVICE, rank, profile, 0),
        profile=profile,
        timing_only=True,
    )


def timed(config: RunConfig, data: Any, **keys: Any) -> float:
    """Seconds that a simulated run takes on this machine."""
    began = time.perf_counter()
    simulate(config, data, network=NETWORK, **keys)
    return time.perf_counter() - began
