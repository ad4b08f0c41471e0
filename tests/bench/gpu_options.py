"""Options of `make bench-gpu`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from daso_bench.models.small import SmallCNN
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.parts import PRECISIONS
from daso_bench.strategies.errors import ConfigError, at_least, one_of

PARTS = ("loop", "function", "nccl", "virtual")
SMALL = "small_cnn"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be given as KEY=VALUE. `blocks`: of `steps` steps each, of every arm; `only`: of `PARTS`."""

    device: str = "cuda"
    model: str = "resnet50"
    batch: int = 256
    image: int = 224
    precision: str = "bf16"
    blocks: int = 8
    steps: int = 20
    only: str = ""
    json: str = ""

    def __post_init__(self) -> None:
        one_of("device", self.device, ("cuda", "cpu"))
        one_of("only", self.only, ("", *PARTS))
        one_of("precision", self.precision, PRECISIONS)
        # A range of fewer blocks means nothing; a run makes two steps before it is stopped and two after.
        for key, least in (("batch", 1), ("image", 1), ("blocks", 5), ("steps", 4)):
            at_least(key, getattr(self, key), least)

    def of_model(self) -> SmallCNN | Torchvision:
        """The model's configuration."""
        return SmallCNN() if self.model == SMALL else Torchvision(name=self.model)


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises ConfigError."""
    known = {entry.name: entry.type for entry in fields(Options)}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        one_of("bench-gpu", key, known)
        if known[key] is int and not text.isdecimal():
            raise ConfigError(f"{argument}: must be a whole number")
        given[key] = int(text) if known[key] is int else text
    return Options(**given)


def cluster_of(*kinds: str, ranks: tuple[int, ...]) -> ClusterConfig:
    """So many ranks on each node, on devices of these kinds: one for all, or one for each rank."""
    return ClusterConfig(nodes=len(ranks), ranks_per_node=ranks, device=DeviceConfig(kind=kinds))
