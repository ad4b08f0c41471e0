"""What `make bench-gpu` can be told, and the ranks that its measurements take."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...strategies.errors import ConfigError, one_of
from ..hardware import ClusterConfig, DeviceConfig

PARTS = ("loop", "function", "mixed")
FEWEST_BLOCKS = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be given as KEY=VALUE. `blocks`: pairs of blocks of `steps` steps; `only`: one of `PARTS`."""

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
        if self.blocks < FEWEST_BLOCKS:
            raise ConfigError(
                f"blocks={self.blocks}: must be >= {FEWEST_BLOCKS}, for a range means nothing else"
            )


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises ConfigError."""
    known = {entry.name: entry.type for entry in fields(Options)}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        one_of("bench-gpu", key, known)
        if known[key] is int and not text.isdigit():
            raise ConfigError(f"{argument}: must be a whole number")
        given[key] = int(text) if known[key] is int else text
    return Options(**given)


def cluster_of(*kinds: str, ranks: tuple[int, ...]) -> ClusterConfig:
    """So many ranks on each node, on devices of these kinds: one for all, or one for each rank."""
    return ClusterConfig(nodes=len(ranks), ranks_per_node=ranks, device=DeviceConfig(kind=kinds))
