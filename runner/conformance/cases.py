"""What the update rules are tried on: configurations of every strategy, optimizers, types, ranks, times."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..communication.link_costs import Network
from ..training.device_model import StepTime
from .checks import RanksOfNodes
from .problems import TwinProblem, autoencoder
from .references.optimizers import ADAMW, DECAYED, LARS_RECIPE, MOMENTUM, NESTEROV, Recipe

NODES: tuple[RanksOfNodes, ...] = ((1, 1), (2, 2))
RAGGED: tuple[RanksOfNodes, ...] = (*NODES, (2, 1))


@dataclass(frozen=True)
class Slow(Network):
    """Only the parameters' all-reduce between nodes takes time, `round_ns`; small messages are free."""

    round_ns: int

    def duration_ns(self, verb: str, members: Sequence[int], payload: int, inter: bool) -> int:
        return self.round_ns if verb == "all_reduce" and inter and payload > 64 else 0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration, on each of `ranks`.

    `dtype`, `odd`: types of the model and of its odd parameter. `rate`: learning rate of a step. `clip_norm`:
    largest norm of the gradients that are applied. `losses` of epochs. `step_ns`: of a step (rank, samples);
    `round_ns`: of an all-reduce of parameters between nodes.
    """

    keys: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[RanksOfNodes, ...] = RAGGED
    recipe: Recipe = NESTEROV
    dtype: str = "float64"
    odd: str | None = None
    rate: Callable[[int], float] | None = None
    clip_norm: float | None = None
    losses: Callable[[int], float] | None = None
    step_ns: StepTime = lambda rank, samples: 1000
    round_ns: int = 0
    epochs: int = 5
    steps_per_epoch: int = 10

    def problem(self, ranks: RanksOfNodes) -> TwinProblem:
        """What is trained."""
        return autoencoder(
            sum(ranks),
            dtype=self.dtype,
            odd=self.odd,
            recipe=self.recipe,
            steps_per_epoch=self.steps_per_epoch,
        )

    @property
    def name(self) -> str:
        """`sync_every=4, adamw, float32 with one float64`."""
        words = [f"{key}={value}" for key, value in self.keys.items()]
        if self.recipe != NESTEROV:
            words.append(self.recipe.kind)
        if self.rate is not None:
            words.append("falling rate")
        if self.clip_norm is not None:
            words.append("clipped")
        if self.losses is not None:
            words.append("losses given")
        if self.epochs > 5:
            words.append(f"{self.epochs} epochs")
        if self.dtype != "float64" or self.odd is not None:
            words.append(self.dtype + (f" with one {self.odd}" if self.odd else ""))
        return ", ".join(words) or "defaults"


def usual(keys: Mapping[str, Any], ranks: tuple[RanksOfNodes, ...] = RAGGED) -> tuple[Case, ...]:
    """The same keys with every kind of optimizer and of types, the costly ones on the last `ranks` alone."""
    case, last = Case(keys=keys, ranks=ranks), ranks[-1:]
    return (
        case,
        replace(case, ranks=last, recipe=ADAMW),
        replace(case, ranks=last, dtype="float32", odd="float64"),
        replace(case, ranks=last, odd="float32", recipe=DECAYED),
        replace(case, ranks=last, rate=warmed, clip_norm=0.2, epochs=3),
    )


def brief(**fields: Any) -> Case:
    """A variant that shows itself in the first two epochs."""
    return Case(epochs=2, **fields)


def falling(every: int, factors: Sequence[float] = (1.0, 0.5, 0.25)) -> Callable[[int], float]:
    """A learning rate of 0.2 that falls after so many steps, then again."""
    return lambda step: 0.2 * factors[min(step // every, len(factors) - 1)]


def warmed(step: int) -> float:
    """A learning rate that rises to 0.1 over six steps, and falls in every step."""
    return 0.1 * min(1.0, (step + 1) / 6) * 0.97**step


def skewed(rank: int, samples: int) -> int:
    """Ranks of unlike speed; on the first, a sample takes four times as long."""
    fixed, each = ((2000, 4000), (3000, 1000), (1000, 1000), (1000, 2000))[rank % 4]
    return fixed + each * samples


def rhythm(*times: int) -> StepTime:
    """Each rank's own step time, whatever the samples."""
    return lambda rank, samples: times[rank % len(times)]


SMALL_BUCKETS = {"bucket_mib": 1e-4}  # 104 bytes: several buckets of the autoencoder's gradients
CYCLING = {"warmup_epochs": 0, "cooldown_epochs": 0}
POWERSGD = {"hook": "powersgd", "powersgd_start_steps": 3}
SHARES = {"balancing": "manual", "shares": (0.7, 0.25, 0.05)}
MOMENTA = {"sync_every": 3, "optimizer_state": "average"}
RAGGED_PACE = rhythm(1000, 1700, 2300)

CASES: Mapping[str, tuple[Case, ...]] = {
    "ddp": (
        *usual({}),
        Case(recipe=MOMENTUM, ranks=((2, 1),), rate=falling(15)),
        brief(recipe=LARS_RECIPE, ranks=((2, 1),)),
        brief(keys={"weighting": "uniform"}, ranks=((2, 1),)),
        brief(keys=SMALL_BUCKETS, ranks=((2, 1),)),
        brief(keys={"algorithm": "hierarchical", **SMALL_BUCKETS}, ranks=((2, 2), (2, 1), (3, 1))),
        brief(keys={"algorithm": "sliced", **SMALL_BUCKETS}, ranks=((2, 2),)),
        brief(keys={"algorithm": "best"}, ranks=((2, 2),)),
        brief(keys={"hook": "bf16", **SMALL_BUCKETS}, ranks=((2, 1),)),
        brief(keys={"hook": "fp16", "algorithm": "hierarchical"}, ranks=((2, 1),)),
        brief(keys=POWERSGD, ranks=((1, 1), (2, 1))),
        brief(
            keys={**POWERSGD, **SMALL_BUCKETS, "powersgd_rank": 2, "powersgd_min_compression": 1.0},
            ranks=((2, 1),),
        ),
        brief(keys={**POWERSGD, "error_feedback": False}, ranks=((2, 1),)),
        brief(keys={**POWERSGD, "warm_start": False}, ranks=((2, 1),)),
        brief(keys={**POWERSGD, "weighting": "uniform", "algorithm": "hierarchical"}, ranks=((2, 2),)),
    ),
    "placebo": (Case(), Case(keys={"weighting": "uniform"}, ranks=((2, 1),))),
    "hsgd": (
        *usual({}),
        brief(recipe=LARS_RECIPE, ranks=((2, 1),)),
        brief(keys={"partition": "tensor"}, ranks=((2, 2),)),
        brief(keys={"shared_weights": False}, ranks=((2, 1),), recipe=LARS_RECIPE),
        brief(keys={"shared_weights": False, "partition": "tensor"}, ranks=((2, 2),)),
        brief(keys={"level1": "collective"}, ranks=((2, 1),)),
        brief(keys={"level2_algorithm": "linear"}, ranks=((2, 2),)),
    ),
    "heterogeneous": (
        *usual(SHARES, ((2, 1),)),
        Case(keys={"balancing": "equal"}),
        brief(keys={**SHARES, "weighting": "speed"}, ranks=((2, 1),)),
        brief(keys={**SHARES, "weighting": "uniform"}, ranks=((2, 1),)),
        brief(keys={**SHARES, "max_batch": (4,)}, ranks=((2, 1),)),
        Case(step_ns=skewed, ranks=((2, 2),)),
        Case(keys={"balancing": "dynamic"}, step_ns=skewed, ranks=((2, 2), (2, 1))),
    ),
    "local_sgd": (
        *usual({"sync_every": 4}),
        Case(keys={}, ranks=((2, 1),)),
        brief(keys={"sync_every": 3, "optimizer_state": "average"}, ranks=((2, 1),)),
        brief(keys={"sync_every": 3, "optimizer_state": "average"}, ranks=((1, 1),), recipe=ADAMW),
        brief(keys={"sync_every": 3, "optimizer_state": "reset", "buffers": "none"}, ranks=((2, 1),)),
        brief(keys={"sync_every": 3, "buffers": "broadcast"}, ranks=((2, 1),)),
        Case(
            keys={"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.25},
            ranks=((2, 1),),
            rate=warmed,
        ),
    ),
    "post_local_sgd": (
        *usual({"sync_every": 4, "switch_samples": 100}),
        Case(keys={"sync_every": 4, "switch_samples": 0}, ranks=((2, 1),)),
        Case(keys={"sync_every": 4, "switch_samples": 100, "unit": "node"}),
        Case(
            keys={"sync_every": 4, "switch_samples": 57, "unit": "node", "optimizer_state": "average"},
            ranks=((2, 1),),
            recipe=ADAMW,
        ),
        Case(
            keys={"sync_every": 4, "switch_samples": 57, "optimizer_state": "reset"},
            ranks=((2, 1),),
            rate=falling(20),
        ),
    ),
    "ednncomm": (
        *usual({"sync_every": 4}),
        Case(),
        brief(keys={"sync_every": 4, "sync_at_epoch_end": False}),
        brief(keys={"sync_every": 4, "exchange": "world"}, ranks=((2, 2), (3, 1))),
        brief(keys={"sync_every": 4, "exchange": "sliced"}, ranks=((2, 2), (3, 3))),
        brief(keys={"sync_every": 4, "optimizer_state": "average"}, ranks=((2, 1),)),
        brief(keys={"sync_every": 4, "optimizer_state": "reset", "buffers": "broadcast"}, ranks=((2, 1),)),
        brief(keys={"sync_every": 1}, ranks=((2, 1),), recipe=ADAMW),
    ),
    "slowmo": (
        *usual({"sync_every": 4}),
        Case(keys={}, ranks=((2, 1),)),
        brief(keys={"sync_every": 3, "slow_momentum": 0.4, "slow_lr": 0.7}, ranks=((2, 1),)),
        brief(keys={"sync_every": 3, "optimizer_state": "reset"}, ranks=((2, 1),)),
        Case(keys={"sync_every": 4}, ranks=((2, 1),), rate=falling(16)),
    ),
    "diloco": (
        *usual({"sync_every": 4}),
        Case(keys={}, ranks=((2, 1),)),
        Case(keys={"sync_every": 3, "outer_momentum": 0.4, "outer_lr": 1.0}, ranks=((2, 1),)),
        Case(keys={"sync_every": 3, "outer_momentum": 0.0}, ranks=((2, 1),)),
    ),
    "sgp": (
        *usual({}),
        brief(keys={"send_weight": "true"}, ranks=((2, 2),)),
        Case(ranks=((4, 4),)),
        brief(ranks=((3, 3),)),
        brief(keys={"num_peers": 2}, ranks=((4, 4), (3, 3), (2, 2))),
        brief(keys={"num_peers": 3}, ranks=((4, 4),)),
        brief(keys={"graph": "ring"}, ranks=((2, 2),)),
        brief(keys={"graph": "ring", "num_peers": 2}, ranks=((3, 2),)),
        brief(keys={"graph": "complete"}, ranks=((2, 1),)),
        brief(keys={"direction": "push_pull"}, ranks=((4, 4), (2, 1))),
        brief(keys={"direction": "push_pull", "graph": "ring"}, ranks=((2, 2),)),
    ),
    "daso": (
        *usual({}, NODES),
        Case(keys={"wait_batches": 2, "sync_every": 3, "warmup_epochs": 2}, ranks=((2, 2),)),
        Case(keys={"wait_batches": 2, "sync_every": 2, **CYCLING}, ranks=((2, 2), (1, 1, 1))),
        Case(keys={"wait_batches": 1, "sync_every": 1}, ranks=((2, 2),)),
        Case(keys={"wait_batches": 0, "sync_every": 3}, ranks=((2, 2),)),
        Case(keys={"staleness_weight": 0.5, "wait_batches": 3}, ranks=((1, 1),)),
        Case(keys={"transport_dtype": "bfloat16"}, ranks=((2, 2),), epochs=3),
        Case(keys={"transport_dtype": "float16", "warmup_epochs": 2}, ranks=((1, 1, 1),), epochs=4),
        Case(keys={"blocking": "gradients", "warmup_epochs": 2}, ranks=((2, 2),), recipe=ADAMW),
        Case(keys={"buffers": "broadcast"}, ranks=((2, 2),), epochs=3),
        Case(keys={"buffers": "none"}, ranks=((2, 2),), epochs=3),
        Case(
            keys={**CYCLING, "sync_every": 6, "wait_batches": 3, "plateau_patience": 0},
            ranks=((2, 2),),
            losses=lambda epoch: 1.0,
        ),
        Case(
            keys={**CYCLING, "sync_every": 2, "plateau_patience": 0, "max_sync_every": 8},
            ranks=((1, 1),),
            losses=lambda epoch: 1.0,
        ),
        Case(keys={**CYCLING, "plateau_patience": 0, "plateau_threshold": 0.5}, ranks=((2, 2),)),
        Case(
            keys={**CYCLING, "plateau_patience": 1},
            ranks=((1, 1),),
            losses=lambda epoch: (1.0, 0.97, 0.9, 0.9, 0.9)[epoch],
        ),
        # Between the best loss and the one of a plateau is no improvement.
        Case(
            keys={**CYCLING, "sync_every": 8, "plateau_patience": 0},
            ranks=((1, 1),),
            losses=lambda epoch: (1.0, 1.2, 1.1, 1.1, 1.1)[epoch],
        ),
        # Long enough for `auto` to be more than one epoch, and for B to be reset.
        Case(ranks=((1, 1),), losses=lambda epoch: 1.0, epochs=36, steps_per_epoch=4),
    ),
    "lasgd": (
        Case(step_ns=RAGGED_PACE, round_ns=2900),
        Case(step_ns=RAGGED_PACE, round_ns=1900, ranks=((2, 1),), recipe=ADAMW),
        Case(step_ns=RAGGED_PACE, round_ns=1900, ranks=((2, 1),), dtype="float32", odd="float64"),
        Case(step_ns=RAGGED_PACE, round_ns=1900, ranks=((2, 1),), odd="float32", recipe=DECAYED),
        Case(step_ns=rhythm(1000, 1000, 1000, 2000), round_ns=1000, ranks=((2, 2),)),
        Case(step_ns=rhythm(1000, 1700, 2300, 4100), round_ns=2900, ranks=((2, 2),), clip_norm=0.2),
        Case(keys={"sync_every": 4}, step_ns=RAGGED_PACE, round_ns=2900, ranks=((2, 1),)),
        brief(keys=MOMENTA, step_ns=RAGGED_PACE, round_ns=1900, ranks=((2, 1),)),
        brief(keys=MOMENTA, step_ns=RAGGED_PACE, round_ns=1900, ranks=((1, 1),), recipe=ADAMW),
    ),
}
