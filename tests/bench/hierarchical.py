"""Bytes over a node's link in a step of ddp, flat against hierarchical: counted in virtual time, computed."""

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.strategies.ddp import DDP
from daso_bench.runner import schema
from daso_bench.runner.hardware import ClusterConfig
from daso_bench.runner.simulated_world import simulate
from daso_bench.runner.train_config import TrainConfig
from figures import Figure
from processes import configuration

NODES, RANKS = 2, 2
STEPS, BATCH = 8, 16


def measure() -> list[Figure]:
    """Gradients (of 4(m + 1) bytes) that cross each node's link per direction and step, and their ratio."""
    ranks = NODES * RANKS
    formulas = {
        "flat": ("2(R-1)/R", 2 * (ranks - 1) / ranks),
        "hierarchical": ("2(N-1)/N", 2 * (NODES - 1) / NODES),
    }
    figures, counted = [], {}
    for algorithm, (formula, computed) in formulas.items():
        counted[algorithm] = payloads_per_link(algorithm)
        detail = f"gradients per node link and step on {NODES} x {RANKS}; {formula} = {computed:g}"
        figures.append(Figure(f"{algorithm}_link_payloads", counted[algorithm], computed, detail))
    ratio = formulas["hierarchical"][1] / formulas["flat"][1]
    detail = f"inter-node bytes of hierarchical over flat ddp; computed {ratio:.4f}"
    return [
        *figures,
        Figure(
            "hierarchical_over_flat_link_bytes",
            counted["hierarchical"] / counted["flat"],
            ratio,
            detail,
        ),
    ]


def payloads_per_link(algorithm: str) -> float:
    """Modelled ring bytes between nodes of a short run, per node and step, in units of the gradient."""
    config = arrangement(algorithm)
    done = simulate(config, config.dataset.load())
    summary = done.results[0].summary
    gradient = 4 * (summary["parameters"] + 1)
    return summary["ring_bytes"]["inter"] / (NODES * summary["steps"] * gradient)


def arrangement(algorithm: str) -> schema.RunConfig:
    """A run of `STEPS` steps in virtual time; nothing but gradients crosses the link."""
    return configuration(
        strategy=DDP.Config(algorithm=algorithm),
        dataset=Synthetic(samples=BATCH * STEPS),
        cluster=ClusterConfig(nodes=NODES, ranks_per_node=(RANKS,)),
        train=TrainConfig(epochs=1, global_batch_size=BATCH),
    )
