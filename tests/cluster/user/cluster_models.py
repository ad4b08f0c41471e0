"""Models as a user brings them: one that takes its time, one that raises on a rank of its choice."""

import os
import time
from dataclasses import dataclass
from typing import Any

from torch import nn

from daso_bench.models.small import SmallCNN
from daso_bench.models.spec import InputSpec

PAUSE = "DASO_BENCH_TEST_PAUSE_S"  # of a training step; not in the configuration, so that histories compare


@dataclass(frozen=True, kw_only=True)
class Paced(SmallCNN):
    """The small CNN, asleep before each training step: many such runs share two cores."""

    @property
    def name(self) -> str:
        return "paced"

    def build(self, spec: InputSpec) -> nn.Module:
        """See `SmallCNN`."""
        module = super().build(spec)
        module.register_forward_pre_hook(_pause)
        return module


def _pause(module: nn.Module, _: Any) -> None:
    if module.training:
        time.sleep(float(os.environ.get(PAUSE, "0")))


@dataclass(frozen=True, kw_only=True)
class Raises(SmallCNN):
    """The small CNN, whose 20th training step raises on `rank` (-1: on none), telling when."""

    rank: int

    @property
    def name(self) -> str:
        return "raises"

    def build(self, spec: InputSpec) -> nn.Module:
        """See `SmallCNN`."""
        module = super().build(spec)
        calls = 0

        def count(module: nn.Module, _: Any) -> None:
            nonlocal calls
            calls += module.training
            if calls == 20 and os.environ.get("SLURM_PROCID") == str(self.rank):
                raise RuntimeError(f"this model does not like rank {self.rank}, it is {time.time():.1f}")

        module.register_forward_pre_hook(count)
        return module
