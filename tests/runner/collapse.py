"""Do small models with the ratios of a large one give strategies its relative throughputs? In virtual time.

Each small model stands for ResNet-50 on a named cluster; then one ratio is broken at a time, by hand.
`python tests/runner/collapse.py` prints the tables of docs/similarity.md.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from runs import config

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP, SmallCNN
from daso_bench.models.spec import InputSpec
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner import timing_only
from daso_bench.runner.device import ClusterDevice, Profile
from daso_bench.runner.hardware import ClusterConfig, LinkConfig
from daso_bench.runner.likeness import LikeConfig
from daso_bench.runner.network import ClusterNetwork
from daso_bench.runner.similarity import Side, bucket_mib_like, likeness_of, matched, named_side
from daso_bench.runner.simulated_world import Stage, play
from daso_bench.strategies.gradients import DEFAULT_BUCKET_MIB
from daso_bench.strategies.topology import Topology

STEPS, SAMPLES = 17, 16  # steps of a run; samples of a rank and step, of the small models
PASSIVE = {"warmup_epochs": 0, "cooldown_epochs": 0}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "ddp by nodes": ("ddp", {"algorithm": "hierarchical"}),
    "ddp, no overlap": ("ddp", {"overlap": False}),
    "local_sgd": ("local_sgd", {}),
    "hsgd": ("hsgd", {}),
    "lasgd": ("lasgd", {}),
    "sgp": ("sgp", {}),
    "daso": ("daso", PASSIVE),
    "ednncomm": ("ednncomm", {}),
}
BY_NODE = ("daso", "ednncomm")  # they sum gradients inside nodes
BUCKETS = ("ddp", "lasgd", *BY_NODE)  # they have strategy.bucket_mib
POINTS = {"slow": ("ethernet_10g", 32), "middle": ("ethernet_25g", 64)}
SMALL: dict[str, tuple[Any, InputSpec]] = {
    "resnet18": (Torchvision(name="resnet18"), InputSpec(3, 32, 32, 10)),
    "small_cnn": (SmallCNN(channels=[8, 16, 16, 32, 32, 64]), InputSpec(3, 32, 32, 10)),
    "mlp": (MLP(hidden=[256] * 8), InputSpec(1, 8, 8, 10)),
}


def like(point: str) -> ClusterConfig:
    """4 nodes of 4 ranks, to be like ResNet-50 at `point`."""
    cluster, samples = POINTS[point]
    return ClusterConfig(
        nodes=4,
        ranks_per_node=(4,),
        like=LikeConfig(model="resnet50", cluster=cluster, samples_per_rank=samples),
    )


@functools.cache
def named(point: str) -> Side:
    """ResNet-50 at `point`."""
    return named_side(like(point), SAMPLES, Path("/"))


@functools.cache
def small(name: str, point: str) -> Side:
    """A small model like ResNet-50 at `point`: every ratio that can be is matched, the buckets too."""
    model, spec = SMALL[name]
    profile = Profile.of(lambda: model.build(spec), spec)
    side = Side(model=name, cluster_name=point, profile=profile, cluster=like(point), samples=SAMPLES)
    side = dataclasses.replace(side, cluster=matched(side, named(point)))
    return cut(side, bucket_mib_like(side, likeness_of(named(point))))


def cut(side: Side, mib: float) -> Side:
    """`side` with gradients in buckets of `mib`."""
    return dataclasses.replace(side, bucket_mib=mib)


@functools.cache
def steps_per_s(side: Side, arm: str) -> float:
    """Steps per second of virtual time."""
    strategy, keys = ARMS[arm]
    keys = keys | ({"bucket_mib": side.bucket_mib} if strategy in BUCKETS else {})
    cluster, profile, batch = side.cluster, side.profile, int(side.samples) * side.cluster.ranks
    run = config(
        strategy,
        keys=keys,
        ranks=list(cluster.ranks_of_nodes),
        dataset=Synthetic(samples=batch * STEPS),
        global_batch_size=batch,
        epochs=1,
        eval_every_samples=10**12,
        checkpoint_every_samples=None,
    )
    stage = Stage(
        network=ClusterNetwork(cluster.links, Topology.of(cluster.ranks_of_nodes)),
        device=lambda rank: ClusterDevice(cluster.device, rank, profile, 0),
        profile=profile,
        timing_only=True,
    )
    data = timing_only.ghost_data("nothing", batch * STEPS, 0, 0)
    results, _ = play(timing_only.without_numbers(run, profile), data, stage)
    return STEPS / results[0].summary["train_s"]


def relative(side: Side, arms: Iterable[str] = ARMS) -> dict[str, float]:
    """By arm: throughput over that of `ddp`."""
    return {arm: steps_per_s(side, arm) / steps_per_s(side, "ddp") for arm in arms}


def off(found: Mapping[str, float], wanted: Mapping[str, float]) -> dict[str, float]:
    """By arm: how far the relative throughput is from that of the named side, as a share."""
    return {arm: value / wanted[arm] - 1 for arm, value in found.items()}


def largest(shares: Mapping[str, float]) -> float:
    """The largest of them, whatever its sign."""
    return max(abs(share) for share in shares.values())


def _links(side: Side, intra: Mapping[str, float], inter: Mapping[str, float]) -> Side:
    """`side` with links whose numbers are multiplied."""

    def times(link: LinkConfig, factors: Mapping[str, float]) -> LinkConfig:
        return dataclasses.replace(link, **{key: getattr(link, key) * by for key, by in factors.items()})

    links = side.cluster.links
    links = dataclasses.replace(links, intra=times(links.intra, intra), inter=times(links.inter, inter))
    return dataclasses.replace(side, cluster=dataclasses.replace(side.cluster, links=links))


def _device(side: Side, **changes: Any) -> Side:
    device = dataclasses.replace(side.cluster.device, **changes)
    return dataclasses.replace(side, cluster=dataclasses.replace(side.cluster, device=device))


BREAKS: dict[str, Callable[[Side], Side]] = {
    "kappa twice as large": lambda side: _links(side, {"rate_gbit": 0.5}, {"rate_gbit": 0.5}),
    "latencies ten times as long": lambda side: _links(side, {"latency_us": 10}, {"latency_us": 10}),
    "one bucket instead of 5": lambda side: cut(side, 1e6),
    "rate inside nodes a quarter": lambda side: _links(side, {"rate_gbit": 0.25}, {}),
    "jitter of cv 0.3 (gaussian)": lambda side: _device(side, jitter="gaussian", jitter_cv=0.3),
    "one rank at half speed": lambda side: _device(side, speeds=(0.5,) + (1.0,) * 15),
}


def as_it_is(side: Side, arms: Iterable[str] = BY_NODE) -> dict[str, float]:
    """`relative` of arms in the buckets that they take by themselves."""
    plain = cut(side, DEFAULT_BUCKET_MIB)
    return {arm: steps_per_s(plain, arm) / steps_per_s(side, "ddp") for arm in arms}


def tables() -> str:
    """The two tables of docs/similarity.md."""
    arms = [arm for arm in ARMS if arm != "ddp"]
    lines = [_row(["", *arms, *(f"{arm} as it is" for arm in BY_NODE)])]
    lines.append("|---" * (len(arms) + 1 + len(BY_NODE)) + "|")
    for point, (cluster, samples) in POINTS.items():
        wanted, kappa = relative(named(point)), likeness_of(named(point)).kappa
        words = f"**resnet50, {cluster}, {samples} samples a rank, kappa {kappa:.2f}**"
        lines.append(_row([words, *(f"{wanted[arm]:.2f}" for arm in [*arms, *BY_NODE])]))
        for name in SMALL:
            side = small(name, point)
            found = [off(relative(side, arms), wanted), off(as_it_is(side), wanted)]
            lines.append(_row([name, *(f"{share:+.1%}" for part in found for share in part.values())]))
    lines += ["", _row(["broken", *arms]), "|---" * (len(arms) + 1) + "|"]
    side, wanted = small("small_cnn", "slow"), relative(named("slow"))
    for words, change in {"nothing": lambda side: side, **BREAKS}.items():
        found = off(relative(change(side), arms), wanted)
        lines.append(_row([words, *(f"{share:+.1%}" for share in found.values())]))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(tables())
