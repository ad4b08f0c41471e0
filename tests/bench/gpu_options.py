"""Options of `make bench-gpu`, the ranks that its measurements take, and the minutes that it may take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from processes import launched, outcome_of, reported

from daso_bench.models.small import SmallCNN
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig
from daso_bench.runner.config.parts import PRECISIONS
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.supervisor import Event
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.errors import ConfigError, at_least, one_of

PARTS = ("loop", "function", "nccl", "mixed")
FEWEST_BLOCKS = 5
FEWEST_STEPS = 4  # of a run: two before it is stopped and two after it is resumed
SMALL = "small_cnn"
STALL_S = 40.0  # without progress of any rank, a run is given up: long for a step, short for the bench


@dataclass(frozen=True, kw_only=True)
class Options:
    """What can be given as KEY=VALUE. `blocks`: of `steps` steps each, of every arm; `only`: one of `PARTS`;
    `minutes`: after which nothing new is begun."""

    device: str = "cuda"
    model: str = "resnet50"
    batch: int = 256
    image: int = 224
    precision: str = "bf16"
    blocks: int = 8
    steps: int = 20
    minutes: int = 10
    only: str = ""
    json: str = ""

    def __post_init__(self) -> None:
        one_of("device", self.device, ("cuda", "cpu"))
        one_of("only", self.only, ("", *PARTS))
        one_of("precision", self.precision, PRECISIONS)
        if self.device == "cpu" and self.precision == "tf32":
            raise ConfigError("precision=tf32: products of TF32 are a GPU's; with device=cpu take fp32")
        one_of("model", self.model, models())
        for key, least in (("batch", 1), ("image", 1), ("steps", FEWEST_STEPS), ("minutes", 1)):
            at_least(key, getattr(self, key), least)
        if self.blocks < FEWEST_BLOCKS:
            raise ConfigError(
                f"blocks={self.blocks}: must be >= {FEWEST_BLOCKS}, for a range means nothing else"
            )

    def of_model(self) -> SmallCNN | Torchvision:
        """The model's configuration."""
        return SmallCNN() if self.model == SMALL else Torchvision(name=self.model)


def models() -> list[str]:
    """The names that `model` may have."""
    from torchvision import models as zoo  # takes a second, and only the bench itself asks

    return [SMALL, *zoo.list_models(module=zoo)]


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises ConfigError."""
    known = {entry.name: entry.type for entry in fields(Options)}
    given: dict[str, Any] = {}
    for argument in arguments:
        key, _, text = argument.partition("=")
        one_of("bench-gpu", key, known)
        if known[key] is int and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{argument}: must be a whole number")
        given[key] = int(text) if known[key] is int else text
    return Options(**given)


def cluster_of(*kinds: str, ranks: tuple[int, ...]) -> ClusterConfig:
    """So many ranks on each node, on devices of these kinds: one for all, or one for each rank."""
    return ClusterConfig(nodes=len(ranks), ranks_per_node=ranks, device=DeviceConfig(kind=kinds))


class TimeUp(Exception):
    """The bench's minutes are over."""


class Time:
    """What is left of so many minutes. Raises TimeUp where a run is begun, or goes on, after them."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._now = minutes, now
        self._end = now() + 60 * minutes

    def left_s(self) -> float:
        """Seconds left. Raises TimeUp if there are none."""
        left = self._end - self._now()
        if left <= 0:
            raise TimeUp(f"the {self._minutes:g} minutes are over (minutes=N for more)")
        return left

    def summary_of(self, config: RunConfig, entry: str = local.ENTRY) -> dict[str, Any]:
        """What rank 0 of `entry` (module:function) reports. Raises RuntimeError if the run fails."""
        return reported(self.outcome_of(config, entry))

    def outcome_of(self, config: RunConfig, entry: str = local.ENTRY, stall_s: float = STALL_S) -> Outcome:
        """How a run ends whose ranks do `entry`; its directory is gone afterwards."""
        return outcome_of(config, entry, partial(self.launch, stall_s=stall_s))

    def launch(
        self,
        directory: RunDirectory,
        config: RunConfig,
        entry: str = local.ENTRY,
        stall_s: float = STALL_S,
    ) -> Outcome:
        """How an attempt at the run in `directory` ends. It goes on no longer than there is time."""
        return launched(directory, config, entry, min(stall_s, self.left_s()), self._go_on)

    def _go_on(self, event: Event) -> None:
        if event["kind"] != "end":
            self.left_s()


def in_words(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
