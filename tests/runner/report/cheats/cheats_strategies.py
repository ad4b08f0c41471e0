"""Two strategies outside the package: an honest one, and one that declares too much its own."""

from dataclasses import dataclass
from typing import Any

from daso_bench.strategies.base import Strategy
from daso_bench.strategies.errors import at_least
from daso_bench.strategies.topology import WORLD


@dataclass(frozen=True, kw_only=True)
class HalfwayConfig:
    every: int = 6  # steps

    def __post_init__(self) -> None:
        at_least("strategy.every", self.every, 1)


class Halfway(Strategy):
    """Averages gradients over all ranks; every few steps goes half the way back."""

    name = "halfway"
    Config = HalfwayConfig
    remembers = ("slow",)

    def setup(self, replica: Any, comm: Any, progress: Any) -> None:
        self.replica, self.comm = replica, comm
        replica.average_gradients_over(WORLD)
        self.slow = replica.flat()

    def after_step(self, progress: Any) -> None:
        if (progress.step + 1) % self.config.every == 0:
            self.slow += 0.5 * (self.replica.flat() - self.slow)
            self.replica.load(self.slow)


class Permissive(Halfway):
    """The same; it declares that training, optimizer and cluster are its own to change."""

    name = "permissive"
    may_differ = ("strategy", "train", "optimizer", "cluster", "hardware")
