"""Virtual ranks with real gradients on one GPU: images/s of `launcher=simulated`, through the whole product.

On the GPU of `LIMITED` they have fixed limits. Elsewhere a bare loop beside them, without strategy, clock or
records, computes the same ranks in the quickest way known: a captured graph on scratch memory, into which the
parameters of each rank are copied, or all ranks stacked.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from figures import Figure
from gpu_options import Options
from processes import STALL_S, configuration, reported
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.cifar_resnet import CifarResNet
from daso_bench.models.spec import InputSpec, Model
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.communication import gpus
from daso_bench.runner.config import load
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import RunInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local, rank
from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.training.precision import AUTOCAST
from daso_bench.runner.training.workload import memory_format
from daso_bench.strategies.daso import DASO
from daso_bench.strategies.ddp import DDP

LIMITED, OF_BARE = "H200", 0.85
WARM, STEPS = 2, 6  # of all ranks: not timed, timed
STAMPS = "stamps.json"


@dataclass(frozen=True, kw_only=True)
class Load:
    """So many ranks that each compute a batch; `limit`: images/s; `stacked`: the bare loop's way."""

    name: str
    model: Model
    ranks: int = 64
    batch: int = 32
    side: int = 224
    classes: int = 1000
    precision: str = "bf16"
    stacked: bool = False
    limit: float | None = None

    def run(self, kind: type[Any]) -> RunConfig:
        """The run of a strategy, on nodes of four ranks."""
        link = LinkConfig(rate_gbit=100.0, latency_us=10.0)
        keys = {"warmup_epochs": 0, "cooldown_epochs": 0} if kind is DASO else {}
        samples = self.ranks * self.batch * (WARM + STEPS)
        return configuration(
            strategy_class=kind,
            strategy=kind.Config(**keys),
            model=self.model,
            dataset=Synthetic(
                samples=samples, test_samples=64, height=self.side, width=self.side, classes=self.classes
            ),
            optimizer=SGD(),
            cluster=ClusterConfig(
                nodes=self.ranks // 4,
                ranks_per_node=(4,),
                links=LinksConfig(intra=link, inter=link),
                device=DeviceConfig(samples_per_second=1000.0),
            ),
            launcher=SimulatedConfig(),
            train=TrainConfig(
                epochs=1,
                global_batch_size=self.ranks * self.batch,
                checkpoint_every_samples=None,
                precision=self.precision,
                channels_last=not self.stacked,
            ),
            run=RunInfo(tag="stacked" if self.stacked else ""),
        )


def loads(options: Options) -> list[Load]:
    """The loads of a GPU; on CPUs the same code with the model and batch of the options."""
    if options.device == "cpu":
        tiny = Load(name="tiny", model=options.of_model(), ranks=8, batch=options.batch, side=options.image)
        return [replace(tiny, precision="fp32", classes=10)]
    large = Load(name="resnet50_64x32", model=Torchvision(name="resnet50"), limit=2900)
    small = replace(large, name="resnet20_64x32", model=CifarResNet(depth=20), side=32, classes=10)
    return [
        large,
        replace(large, name="resnet50_64x64", batch=64, limit=3600),
        replace(small, precision="tf32", stacked=True, limit=35_000),
    ]


def virtual(options: Options) -> Iterator[Figure]:
    """Images/s of `ddp` and `daso` for each load, or their share of the bare loop's."""
    limited = options.device == "cuda" and LIMITED in torch.cuda.get_device_name()
    for each in loads(options):
        bare = None if limited else images_per_s(each, DDP, "bare_loop")
        for kind in (DDP, DASO):
            rate = images_per_s(each, kind, "timed_run")
            name = f"gpu_virtual_{each.name}_{kind.__name__.lower()}"
            detail = f"{each.ranks} ranks x {each.batch}, {each.precision}: {rate:.0f} images/s"
            if bare is None:
                yield Figure(name, rate, each.limit, detail, at_least=True)
            else:
                detail = f"{detail} of the bare loop's {bare:.0f}"
                limit = OF_BARE if options.device == "cuda" else None
                yield Figure(f"{name}_over_bare", rate / bare, limit, detail, at_least=True)


def images_per_s(each: Load, kind: type[Any], entry: str) -> float:
    """Of the timed steps of all ranks, by the stamps that `entry` leaves."""
    config = each.run(kind)
    with TemporaryDirectory() as folder:
        directory = RunDirectory.create(config.tree, Path(folder))
        entry = f"{__name__}:{entry}"
        reported(local.launch(directory, ranks=1, threads=1, stall_s=STALL_S, entry=entry))
        stamps = read_json(directory.path / STAMPS)["seconds"]
    steps = stamps[WARM - 1 :]
    return each.ranks * each.batch * (len(steps) - 1) / (steps[-1] - steps[0])


# ------------------------------------------------------------------ what the process does


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def timed_run(*arguments: Any) -> None:
    """A whole run that notes when rank 0 has made each step; ranks on one clock step at once."""
    task, link = arguments[0], arguments[-1]
    stamps, tell = dict[int, float](), link.progress

    def progress(**numbers: Any) -> None:
        tell(**numbers)
        if numbers.get("step", 0):
            stamps.setdefault(numbers["step"], _now())

    link.progress = progress
    rank.run_all(task, link)
    write_json(task.run_dir / STAMPS, {"seconds": [*stamps.values()]})


def bare_loop(*arguments: Any) -> None:
    """The same steps of the same ranks, bare."""
    task, link = arguments[0], arguments[-1]
    config = load.load(task.run_dir / "config.yaml")
    torch.set_num_threads(task.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gpus.choose_precision(config.train.precision, device)
    step, stamps = (stacked if config.run.tag else copied_in)(config, device), []
    for number in range(WARM + STEPS):
        step()
        stamps.append(_now())
        link.progress(step=number + 1)
    write_json(task.run_dir / STAMPS, {"seconds": stamps})
    link.finish("finished", {"ready": True}, None)


def _made(config: RunConfig, device: torch.device) -> tuple[Callable[[], nn.Module], Tensor, Tensor]:
    """What makes a rank's model; its images and labels."""
    info, batch = config.dataset.info(), config.train.global_batch_size // config.cluster.ranks
    assert info.shape is not None, "noise has a shape"
    spec = InputSpec(*info.shape, info.classes or 0)
    layout = memory_format(config)
    inputs = torch.randn(batch, *info.shape, device=device).to(memory_format=layout)

    def make() -> nn.Module:
        return config.model.build(spec).to(device, memory_format=layout)  # pyright: ignore[reportCallIssue] (a stub)

    return make, inputs, torch.randint(spec.classes, (batch,), device=device)


def copied_in(config: RunConfig, device: torch.device) -> Callable[[], Tensor]:
    """Ranks one after the other: each one's parameters into scratch memory, one captured graph, SGD."""
    make, inputs, labels = _made(config, device)
    model, dtype = make(), AUTOCAST.get(config.train.precision)
    parameters = list(model.parameters())
    flat, gradient = (torch.zeros(sum(p.numel() for p in parameters), device=device) for _ in range(2))
    at, losses = 0, torch.zeros((), device=device)
    for p in parameters:
        places = [vector[at : at + p.numel()].as_strided(p.shape, p.stride()) for vector in (flat, gradient)]
        p.data, p.grad = places[0].copy_(p.detach()), places[1]
        at += p.numel()

    def one() -> None:
        gradient.zero_()
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False):
            loss = cross_entropy(model(inputs), labels)
        loss.backward()
        losses.copy_(loss.detach())

    replay: Callable[[], None] = one
    if device.type == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                one()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            one()
        replay = graph.replay
    ranks = [(flat.clone(), torch.zeros_like(flat)) for _ in range(config.cluster.ranks)]

    def step() -> Tensor:
        for own, momentum in ranks:
            flat.copy_(own)
            replay()
            own.add_(momentum.mul_(0.9).add_(gradient), alpha=-0.01)
        return losses

    return step


def stacked(config: RunConfig, device: torch.device) -> Callable[[], Tensor]:
    """All ranks at once, by `torch.func.vmap` over parameters and buffers, and SGD."""
    make, inputs, labels = _made(config, device)
    count, base = config.cluster.ranks, make()
    parameters, buffers = stack_module_state([make() for _ in range(count)])
    own = {name: tensor.detach() for name, tensor in parameters.items()}
    momenta = {name: torch.zeros_like(tensor) for name, tensor in own.items()}

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(base, (p, b), (x,)), y)

    together, xs, ys = vmap(grad_and_value(loss)), *(t.expand(count, *t.shape) for t in (inputs, labels))

    def step() -> Tensor:
        gradients, losses = together(own, buffers, xs, ys)
        for name, gradient in gradients.items():
            own[name].add_(momenta[name].mul_(0.9).add_(gradient), alpha=-0.01)
        return losses

    return step
