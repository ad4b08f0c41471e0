"""A small model on emulated links with the ratios of a big one on a named cluster: `cluster.like`.

Scale all times by τ = step of the run / step of the named side, and all bytes by σ = bytes of the run / bytes
of the named side. A link then has α·τ and β·σ/τ, so that m messages and S bytes, which took m·α + S/β, take
m·α·τ + σ·S·τ/(σ·β) = τ·(m·α + S/β): every transfer, and with it the whole course of a step, is τ times as
long, and strategies compare as before. What a few numbers of one cluster cannot scale is told as not matched.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ..datasets.dataset import Dataset
from ..models.sized import Sized
from ..models.spec import InputSpec
from ..strategies.errors import ConfigError, unknown
from ..strategies.gradients import DEFAULT_BUCKET_MIB
from . import listing
from .batch_parts import input_spec
from .device import ClusterDevice, Profile
from .hardware import ClusterConfig, DeviceConfig, LinkConfig, StragglerConfig
from .likeness import Likeness
from .model_building import build
from .typed import locate_target, typed

DEFAULT_STEP_S = 0.2  # of a run whose cluster has no device of its own
MANY = 10**6  # samples, to tell a sample's time from the nanoseconds of a step
SIZES = 400  # bucket sizes that are tried


@dataclass(frozen=True, kw_only=True)
class Side:
    """A model on a cluster: what its likeness is computed from. `samples`: of a rank and step."""

    model: str
    cluster_name: str
    profile: Profile
    cluster: ClusterConfig
    samples: float
    itemsize: int = 4
    bucket_mib: float = DEFAULT_BUCKET_MIB

    @property
    def bytes(self) -> int:
        """Of all gradients."""
        return sum(self.profile.numels) * self.itemsize


def resolve(
    cluster: ClusterConfig, *, model: Any, dataset: Dataset, batch: int, itemsize: int, cwd: Path
) -> ClusterConfig:
    """`cluster` with links and device like those that `cluster.like` names; unchanged where it names none.

    What is matched already stays as it is: the numbers of a run's own config.yaml do not depend on the files
    that they came from. model, dataset, batch (over all ranks), itemsize (bytes of a gradient): of the run.
    Raises ConfigError for a name that there is not, and for a side that lacks a number.
    """
    like = cluster.like
    if not like.to_be_matched:
        return cluster
    named = named_side(cluster, batch / cluster.ranks, cwd)
    run = run_side(cluster, model=model, dataset=dataset, batch=batch, itemsize=itemsize)
    return dataclasses.replace(matched(run, named), like=dataclasses.replace(like, named=likeness_of(named)))


def run_side(
    cluster: ClusterConfig,
    *,
    model: Any,
    dataset: Dataset,
    batch: int,
    itemsize: int,
    bucket_mib: float = DEFAULT_BUCKET_MIB,
) -> Side:
    """The run's own side, of the parts of its configuration."""
    profile = profile_of(model, spec_of(dataset, "dataset"), cluster.device, "model")
    return Side(
        model=str(getattr(model, "name", type(model).__name__)),
        cluster_name="this run's",
        profile=profile,
        cluster=cluster,
        samples=batch / cluster.ranks,
        itemsize=itemsize,
        bucket_mib=bucket_mib,
    )


def named_side(cluster: ClusterConfig, samples: float, cwd: Path) -> Side:
    """The side that `cluster.like` names, on the nodes and ranks of `cluster`; `samples`: of the run's rank.

    Its gradients are of 4 bytes a number, in PyTorch's buckets. Raises ConfigError.
    """
    like = cluster.like
    assert like.model is not None, "both are named"
    assert like.cluster is not None, "both are named"
    described = _cluster(like.cluster, cluster, cwd)
    profile = _profile(like.model, like.dataset, cwd, described.device)
    own = samples if like.samples_per_rank is None else float(like.samples_per_rank)
    return Side(model=like.model, cluster_name=like.cluster, profile=profile, cluster=described, samples=own)


def matched(run: Side, named: Side) -> ClusterConfig:
    """The run's cluster with links and device such that all ratios are those of `named`.

    A step lasts what the run's own device would need, DEFAULT_STEP_S where it has none.
    """
    own = _timed(run.cluster.device)
    _no_trace(run.cluster.device, "cluster.device.trace")
    seconds = step_s(named)
    time = (step_s(run) if own else DEFAULT_STEP_S) / seconds
    size = run.bytes / named.bytes
    links, device = named.cluster.links, named.cluster.device
    # Nodes of one rank have no links inside, which not every network can make.
    inside = _scaled(links.intra, time, size) if max(run.cluster.ranks_of_nodes) > 1 else LinkConfig()
    kinds = " and ".join(device.kind) or named.cluster_name
    of_samples = (1 - fixed_share(named)) * seconds * time
    return dataclasses.replace(
        run.cluster,
        links=dataclasses.replace(links, intra=inside, inter=_scaled(links.inter, time, size)),
        device=dataclasses.replace(
            device,
            kind=run.cluster.device.kind if run.cluster.device.real_kinds else (f"like {kinds}",),
            samples_per_second=run.samples / of_samples,
            tflops=None,
            fixed_ms=device.fixed_ms * time,
            input_stall_ms=device.input_stall_ms * time,
            checkpoint_s=device.checkpoint_s * time,
        ),
    )


def likeness_of(side: Side) -> Likeness:
    """The ratios of `side`."""
    cluster, links, device = side.cluster, side.cluster.links, side.cluster.device
    step, most = step_s(side), max(cluster.ranks_of_nodes)
    inside, between = most > 1, cluster.nodes > 1
    cards = min(links.nics, min(cluster.ranks_of_nodes)) if between else 1
    way = links.inter if between else links.intra
    buckets = side.profile.buckets(side.itemsize, side.bucket_mib)
    numels, total = side.profile.numels, sum(side.profile.numels)
    rates = links.intra.rate_gbit, links.inter.rate_gbit
    straggler = device.straggler
    return Likeness(
        model=side.model,
        cluster=side.cluster_name,
        parameters=total,
        bytes=side.bytes,
        samples_per_rank=side.samples,
        step_s=step,
        fixed_share=fixed_share(side),
        kappa=0.0 if way.rate_gbit is None else side.bytes / (cards * way.bytes_per_s) / step,
        latency_intra=2 * (most - 1) * links.intra.latency_us / 1e6 / step if inside else None,
        latency_inter=2 * (cluster.ranks - 1) * links.inter.latency_us / 1e6 / step if between else None,
        rate_ratio=links.intra.bytes_per_s / links.inter.bytes_per_s
        if inside and between and None not in rates
        else None,
        ready=tuple(side.profile.ready[first] for first, _ in buckets),
        sizes=tuple(sum(numels[first:last]) / total for first, last in buckets),
        jitter=device.jitter,
        jitter_cv=0.0 if device.jitter == "none" else device.jitter_cv,
        speeds=device.speeds,
        straggler="" if straggler.rank is None else _told(straggler),
    )


def step_s(side: Side) -> float:
    """Mean seconds of forward and backward of a rank of speed 1."""
    # Neither speeds nor a straggler: both are told by themselves. The mean of all jitter is 1.
    plain = DeviceConfig(
        samples_per_second=side.cluster.device.samples_per_second, tflops=side.cluster.device.tflops
    )
    per_sample = sum(ClusterDevice(plain, 0, side.profile, 0).step_ns(MANY)) / 1e9 / MANY
    return side.cluster.device.fixed_ms / 1e3 + side.samples * per_sample


def fixed_share(side: Side) -> float:
    """The share of a step that does not grow with its samples."""
    return side.cluster.device.fixed_ms / 1e3 / step_s(side)


def bucket_mib_like(side: Side, named: Likeness) -> float:
    """The bucket size, MiB, with which `side` has as many buckets as `named`, or as near as it can.

    Of those with the right number, the one whose buckets are ready, and as large, most nearly as `named`'s.
    """
    numels, total = side.profile.numels, sum(side.profile.numels)
    smallest, largest = min(n for n in numels if n) * side.itemsize, side.bytes
    best, chosen = (float("inf"), float("inf")), DEFAULT_BUCKET_MIB
    for size in np.geomspace(smallest, largest, SIZES).tolist():
        mib = float(f"{size / 2**20:.4g}")
        buckets = side.profile.buckets(side.itemsize, mib)
        off: float = abs(len(buckets) - named.buckets)
        apart = 0.0
        if not off:
            ready = [side.profile.ready[first] for first, _ in buckets]
            sizes = [sum(numels[first:last]) / total for first, last in buckets]
            apart = sum(abs(a - b) for a, b in zip(ready + sizes, named.ready + named.sizes, strict=True))
        if (off, apart) < best:
            best, chosen = (off, apart), mib
    return chosen


def profile_of(model: Any, spec: InputSpec, device: DeviceConfig, where: str) -> Profile:
    """The profile of `model`; `where` names it. Raises ConfigError where `device` needs what is not known."""
    if isinstance(model, Sized):
        return Profile.by_size(model.numels(), model.gflops * 1e9, model.norms, model.channels)
    why = "no operation of it is known"
    try:
        profile = Profile.of(lambda: build(model, spec), spec)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    except (RuntimeError, NotImplementedError) as error:  # a model may look at its numbers
        why = str(error).splitlines()[0]
        profile = Profile.by_size([p.numel() for p in build(model, spec).parameters() if p.requires_grad])
    if device.tflops is not None and not profile.flops:
        raise ConfigError(
            f"{where}: its operations cannot be counted ({why}), and cluster.device.tflops={device.tflops} "
            "needs them; take a cluster with cluster.device.samples_per_second"
        )
    return profile


def spec_of(dataset: Dataset, where: str) -> InputSpec:
    """The shape of a data set's samples; it is loaded where it tells none before. Raises ConfigError."""
    told = input_spec(dataset)
    if told is not None:
        return told
    try:
        data = dataset.load()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: its shape is known once it can be loaded: {error}") from error
    channels, height, width = data.shape
    return InputSpec(channels, height, width, data.classes)


def _scaled(link: LinkConfig, time: float, size: float) -> LinkConfig:
    """`link` with messages `time` times as long, on which `size` times the bytes take so long too."""
    rate = None if link.rate_gbit is None else link.rate_gbit * size / time
    return dataclasses.replace(link, rate_gbit=rate, latency_us=link.latency_us * time)


def _told(straggler: StragglerConfig) -> str:
    slow = f"rank {straggler.rank} takes {straggler.times:g} times as long"
    return f"{slow} in {straggler.steps} of {straggler.every} steps"


def _timed(device: DeviceConfig) -> bool:
    return device.samples_per_second is not None or device.tflops is not None


def _no_trace(device: DeviceConfig, where: str) -> None:
    if device.trace is not None:
        raise ConfigError(
            f"{where}={device.trace}: cluster.like cannot scale measured steps, it needs samples_per_second "
            "or tflops; set the trace to null"
        )


def _cluster(name: str, run: ClusterConfig, cwd: Path) -> ClusterConfig:
    """The named cluster on the nodes and ranks of `run`."""
    where = f"cluster.like.cluster={name}"
    tree = _read("cluster", name, cwd) | {"nodes": run.nodes, "ranks_per_node": list(run.ranks_per_node)}
    try:
        found = typed(ClusterConfig, tree, "cluster")
    except ConfigError as error:
        raise ConfigError(
            f"{where}, on this run's {run.nodes} nodes with {list(run.ranks_per_node)} ranks: {error}; or "
            "give the run the named cluster's nodes and ranks_per_node"
        ) from error
    _no_trace(found.device, f"{where}: cluster.device.trace")
    if not _timed(found.device):
        raise ConfigError(f"{where}: has neither cluster.device.samples_per_second nor tflops; " + _CHOOSE)
    links = found.links
    if (run.nodes > 1 and links.inter.rate_gbit is None) or (
        max(run.ranks_per_node) > 1 and links.intra.rate_gbit is None
    ):
        raise ConfigError(f"{where}: has links without a rate_gbit; " + _CHOOSE)
    return found


_CHOOSE = "`daso-bench list clusters` shows clusters of virtual time, which have all numbers"


@lru_cache(maxsize=16)
def _profile(model: str, dataset: str, cwd: Path, device: DeviceConfig) -> Profile:
    """Of the named model, once for the many runs of a study that are like it."""
    built = _part("model", model, cwd)
    # A model of sizes takes no samples.
    spec = InputSpec(1, 1, 1, 1) if isinstance(built, Sized) else _spec(dataset, cwd)
    return profile_of(built, spec, device, f"cluster.like.model={model}")


def _spec(dataset: str, cwd: Path) -> InputSpec:
    return spec_of(_part("dataset", dataset, cwd), f"cluster.like.dataset={dataset}")


def _part(group: str, name: str, cwd: Path) -> Any:
    tree, where = _read(group, name, cwd), f"cluster.like.{group}={name}"
    return typed(locate_target(tree, where), tree, where)


def _read(group: str, name: str, cwd: Path) -> dict[str, Any]:
    """The file that `name` names: one of conf/<group>, or a path. Raises ConfigError."""
    known = [entry.name for entry in listing.entries(group)]
    path = cwd / Path(name).expanduser() if name.endswith(".yaml") else listing.CONF / group / f"{name}.yaml"
    if not name.endswith(".yaml") and name not in known:
        raise unknown(f"cluster.like.{group}", name, [*known, "PATH.yaml"])
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cluster.like.{group}={name}: cannot be read: {error}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"cluster.like.{group}={name}: must hold keys and values")
    return {str(key): value for key, value in tree.items()}
