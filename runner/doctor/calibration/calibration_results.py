"""What was found out about a machine: the fits, and what they rest on."""

from dataclasses import dataclass

import numpy as np

from .fit import TRUSTED, Interval, JitterFit, LinkFit, StepFit


@dataclass(frozen=True, kw_only=True)
class About:
    """What was measured where. `batch`: samples of a rank's step. `accelerator`: its name, None for CPUs."""

    command: str
    date: str
    processor: str
    cores: int
    accelerator: str | None
    torch: str
    threads: int
    model: str
    dataset: str
    batch: int
    ranks_of_nodes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Of the run."""
        return sum(self.ranks_of_nodes)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds of steps of `sizes` samples, and what follows from them.

    `seconds` [rounds, sizes]: means over the ranks and a round's steps. `own` [ranks, steps]: single steps of
    the run's own size. `data_ms`: to get a batch.
    """

    sizes: tuple[int, ...]
    seconds: np.ndarray
    own: np.ndarray
    fit: StepFit
    forward_share: float
    jitter: JitterFit
    speeds: tuple[float, ...] | None
    data_ms: float


@dataclass(frozen=True, kw_only=True)
class Link:
    """Of one class: the fit after a step, which is written, and the one back to back."""

    payloads: tuple[int, ...]
    rounds: int
    paused: LinkFit
    back_to_back: LinkFit


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """`stretched_ms`: what sums add to forward and backward; `hidden_ms`: how long they run beside it."""

    loss: float
    interval: Interval
    stretched_ms: float
    hidden_ms: float
    rounds: int


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Seconds of a step of ddp at a size that no fit has seen: of each real run, and modelled.

    `drift`: by how much the step alone, timed once more after the runs, differs from what was fitted.
    """

    batch: int
    steps: int
    measured: tuple[float, ...]
    modelled: float
    drift: float

    @property
    def measured_s(self) -> float:
        """The median run's."""
        return float(np.median(self.measured))

    @property
    def error(self) -> float:
        """Modelled over measured, minus 1."""
        return self.modelled / self.measured_s - 1

    @property
    def trusted(self) -> bool:
        """Whether the error is small enough."""
        return abs(self.error) <= TRUSTED


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """All that goes into the file. `links`: by class, intra and inter, those that there are."""

    about: About
    steps: Steps
    links: dict[str, Link]
    overlap: Overlap | None
    hold_out: HoldOut | None = None
