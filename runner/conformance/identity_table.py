"""Which strategies are one and the same thing where, and where they may not be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .checks import RanksOfNodes
from .references.optimizers import ADAMW, LARS_RECIPE, NESTEROV, Recipe

EPOCHS, STEPS_PER_EPOCH = 2, 10
LINEAR = (NESTEROV,)
"""Momentum, Nesterov, weight decay of one group of two: all linear in gradients and state, so that averaging
models is averaging gradients."""
EVERY = (NESTEROV, ADAMW)

NODES = ((1, 1), (2, 2))
RAGGED = (*NODES, (2, 1))


@dataclass(frozen=True, kw_only=True)
class Identity:
    """`left` with `keys` is `right` with `right_keys`; without `right`: plain training on all samples.

    `breaks`: optimizers with which it must *not* hold. `samples` of a rank in a step: `even` over ranks,
    `same` over ranks and steps, `full` uneven over ranks, `uneven` over both. `bitwise`: equal bits.
    """

    name: str
    left: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    right: str | None = "ddp"
    right_keys: Mapping[str, Any] = field(default_factory=dict)
    ranks: tuple[RanksOfNodes, ...] = RAGGED
    recipes: tuple[Recipe, ...] = LINEAR
    breaks: tuple[Recipe, ...] = ()
    samples: str = "even"
    bitwise: bool = False
    tolerance: float = 1e-12

    @property
    def says(self) -> str:
        """The identity in one sentence."""
        how = "bit for bit" if self.bitwise else f"to {self.tolerance:.0e}"
        other = "plain training" if self.right is None else spelt(self.right, self.right_keys)
        but = f", but not with {', '.join(recipe.kind for recipe in self.breaks)}" if self.breaks else ""
        return f"{spelt(self.left, self.keys)} is {other}, {how}{but}"


def spelt(strategy: str, keys: Mapping[str, Any]) -> str:
    """`local_sgd sync_every=1`."""
    return " ".join([strategy, *(f"{key}={value}" for key, value in keys.items())])


BLOCKING = {"warmup_epochs": EPOCHS, "cooldown_epochs": 0, "allow_no_cycling": True}
ROUND = {"sync_every": 4}

IDENTITIES: tuple[Identity, ...] = (
    Identity(
        name="one node",
        left="daso",
        keys={"warmup_epochs": 0, "cooldown_epochs": 0},
        ranks=((1,), (3,)),
        recipes=EVERY,
        samples="uneven",
        bitwise=True,
    ),
    Identity(name="blocking", left="daso", keys=BLOCKING, ranks=NODES, breaks=(ADAMW,)),
    Identity(
        name="blocking gradients",
        left="daso",
        keys={**BLOCKING, "blocking": "gradients"},
        ranks=NODES,
        recipes=EVERY,
    ),
    Identity(
        name="no wait, every batch",
        left="daso",
        keys={"warmup_epochs": 0, "cooldown_epochs": 0, "sync_every": 1, "wait_batches": 0},
        ranks=NODES,
        breaks=(ADAMW,),
    ),
    Identity(
        name="synchronous",
        left="hsgd",
        ranks=((1, 1), (2, 2), (4,), (3, 1)),
        recipes=(NESTEROV, LARS_RECIPE),
        samples="uneven",
    ),
    Identity(
        name="one rank",
        left="lasgd",
        right=None,
        ranks=((1,),),
        samples="same",
        recipes=EVERY,
        bitwise=True,
    ),
    Identity(
        name="every step",
        left="ednncomm",
        keys={"sync_every": 1},
        ranks=(*RAGGED, (3, 1)),
        samples="full",
        breaks=(ADAMW,),
    ),
    Identity(
        name="one node",
        left="ednncomm",
        keys={"sync_every": 3},
        ranks=((1,), (3,)),
        samples="uneven",
        recipes=EVERY,
        bitwise=True,
    ),
    Identity(
        name="one rank a node",
        left="ednncomm",
        keys={**ROUND, "sync_at_epoch_end": False},
        right="local_sgd",
        right_keys=ROUND,
        ranks=((1, 1), (1, 1, 1)),
        recipes=EVERY,
    ),
    Identity(
        name="equal shares",
        left="heterogeneous",
        keys={"balancing": "equal"},
        ranks=RAGGED,
        recipes=EVERY,
        samples="uneven",
    ),
    Identity(
        name="any shares",
        left="heterogeneous",
        keys={"balancing": "manual", "shares": (0.7, 0.25, 0.05)},
        right=None,
        ranks=((2, 1),),
        recipes=(NESTEROV, ADAMW),
        samples="uneven",
    ),
    Identity(name="every step", left="local_sgd", keys={"sync_every": 1}, breaks=(ADAMW,)),
    Identity(name="one rank", left="local_sgd", right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
    Identity(
        name="qsr at one rate",
        left="local_sgd",
        keys={"sync_every": 2, "period_rule": "qsr", "qsr_alpha": 0.25},
        right="local_sgd",
        right_keys={"sync_every": 6},  # (0.25 / 0.1)² = 6.25
        ranks=((1, 1),),
        recipes=(NESTEROV,),
        bitwise=True,
    ),
    Identity(
        name="switch at once",
        left="post_local_sgd",
        keys={"switch_samples": 0, **ROUND},
        right="local_sgd",
        right_keys=ROUND,
        recipes=EVERY,
        bitwise=True,
    ),
    Identity(
        name="no switch",
        left="post_local_sgd",
        keys={"switch_samples": 10**9},
        recipes=EVERY,
        samples="uneven",
        bitwise=True,
    ),
    Identity(
        name="one node as unit",
        left="post_local_sgd",
        keys={"switch_samples": 0, "unit": "node", **ROUND},
        ranks=((3,),),
        recipes=EVERY,
        samples="uneven",
    ),
    Identity(
        name="one rank",
        left="post_local_sgd",
        keys={"switch_samples": 20, **ROUND},
        right=None,
        ranks=((1,),),
        recipes=EVERY,
        bitwise=True,
    ),
    Identity(name="two ranks", left="sgp", ranks=((1, 1), (2,)), breaks=(ADAMW,)),
    Identity(name="complete graph", left="sgp", keys={"graph": "complete"}, ranks=RAGGED, breaks=(ADAMW,)),
    Identity(
        name="ring of two",
        left="sgp",
        keys={"graph": "ring"},
        right="sgp",
        right_keys={"send_weight": "true"},
        ranks=((1, 1),),
        recipes=EVERY,
    ),
    Identity(name="one rank", left="sgp", right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
    Identity(
        name="no slow momentum",
        left="slowmo",
        keys={**ROUND, "slow_momentum": 0.0, "slow_lr": 1.0},
        right="local_sgd",
        right_keys=ROUND,
        recipes=EVERY,
    ),
    Identity(
        name="no outer momentum",
        left="diloco",
        keys={**ROUND, "outer_lr": 1.0, "outer_momentum": 0.0},
        right="local_sgd",
        right_keys=ROUND,
        recipes=EVERY,
    ),
    Identity(
        name="no outer momentum, every step",
        left="diloco",
        keys={"sync_every": 1, "outer_lr": 1.0, "outer_momentum": 0.0},
        breaks=(ADAMW,),
    ),
    Identity(name="one rank", left="ddp", right=None, ranks=((1,),), recipes=EVERY, bitwise=True),
    Identity(name="one big batch", left="ddp", right=None, ranks=RAGGED, recipes=EVERY, samples="uneven"),
    Identity(
        name="two levels",
        left="ddp",
        keys={"algorithm": "hierarchical"},
        ranks=((2, 2), (4, 2), (2, 1), (3, 1)),
        recipes=(NESTEROV,),
        samples="uneven",
    ),
    Identity(
        name="slices",
        left="ddp",
        keys={"algorithm": "sliced"},
        ranks=((2, 2), (3, 3)),
        recipes=(NESTEROV,),
        samples="uneven",
    ),
    Identity(
        name="powersgd of full rank",
        left="ddp",
        keys={
            "hook": "powersgd",
            "powersgd_rank": 5,
            "powersgd_start_steps": 2,
            "powersgd_min_compression": 0.1,
        },
        ranks=((1, 1), (2, 1)),
        recipes=(NESTEROV,),
        samples="uneven",
        tolerance=1e-9,
    ),
    Identity(
        name="two ranks",
        left="placebo",
        ranks=((1, 1), (2,)),
        recipes=EVERY,
        samples="uneven",
        bitwise=True,
    ),
    Identity(name="more ranks", left="placebo", ranks=((2, 1), (2, 2)), recipes=EVERY, samples="uneven"),
)
