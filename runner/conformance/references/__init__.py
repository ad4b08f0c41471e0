"""The update rules of all strategies in NumPy float64, written from the papers and papers alone.

No torch, no code of the strategies: `REFERENCES[name](world, **keys)` moves a `World` step by step.
"""

from .asynchronous import lasgd
from .daso import daso
from .gossip import sgp
from .heterogeneous import heterogeneous
from .periodic import diloco, ednncomm, local_sgd, post_local_sgd, slowmo
from .synchronous import ddp, hsgd, placebo
from .world import NoReference, Reference, Setting, World

REFERENCES: dict[str, Reference] = {
    "ddp": ddp,
    "placebo": placebo,
    "hsgd": hsgd,
    "heterogeneous": heterogeneous,
    "local_sgd": local_sgd,
    "post_local_sgd": post_local_sgd,
    "ednncomm": ednncomm,
    "slowmo": slowmo,
    "diloco": diloco,
    "sgp": sgp,
    "daso": daso,
    "lasgd": lasgd,
}

__all__ = ["REFERENCES", "NoReference", "Reference", "Setting", "World"]
