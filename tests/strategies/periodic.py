"""Problems and questions for tests of strategies that average models from time to time."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import Mean
from runs import config  # pyright: ignore[reportMissingImports] (another folder of tests)
from torch import Tensor, nn

from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.conformance.driver import drive as walk
from daso_bench.runner.conformance.scenario import History, Problem, Scenario
from daso_bench.runner.launch import local
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.training import checkpoint
from daso_bench.strategies.base import Strategy

Data = Callable[[int, int], tuple[Tensor, Tensor]]
Optimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class Quadratic(nn.Module):
    """a/2·(θ - c)² for each row (a, c) of the inputs [b, 2]; θ starts at `start`."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0] / 2 * (self.w - x[:, 1]) ** 2


def two_quadratics(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """f_0 = θ²/2 and f_1 = (θ - 4)²."""
    return torch.tensor([[[1.0, 0.0]], [[2.0, 4.0]]][rank], dtype=torch.float64), torch.zeros(1)


def sgd(lr: float = 0.05, **more: Any) -> Optimizer:
    """A maker of plain SGD."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **more)


def classifier(
    dtype: torch.dtype = torch.float64, *, norm: bool = False, dropout: float = 0.0
) -> Callable[[], nn.Module]:
    """A small net for inputs [b, 6], five classes; batch norm and dropout on request."""

    def build() -> nn.Module:
        torch.manual_seed(3)
        middle = [nn.BatchNorm1d(7)] if norm else []
        return nn.Sequential(nn.Linear(6, 7), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 5)).to(
            dtype
        )

    return build


def labelled(sizes: Sequence[int] = (4,), dtype: torch.dtype = torch.float64) -> Data:
    """Random inputs [b, 6] and labels, new ones for each rank and step; rank r has sizes[r % len] samples."""

    def data(rank: int, step: int) -> tuple[Tensor, Tensor]:
        size = sizes[rank % len(sizes)]
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(size, 6, generator=generator).to(dtype) * (1 + rank)
        return inputs, torch.randint(5, (size,), generator=generator)

    return data


def scenario(
    strategy: Strategy,
    ranks_of_nodes: Sequence[int],
    *,
    steps: int,
    epochs: int = 1,
    model: Callable[[], nn.Module] | None = None,
    data: Data | None = None,
    optimizer: Optimizer | None = None,
    **more: Any,
) -> Scenario:
    """A walk of `steps` steps an epoch on the classifier."""
    problem = Problem(
        name="classifier",
        model=model or classifier(),
        data=data or labelled(),
        optimizer=optimizer or sgd(momentum=0.9),
        criterion=more.pop("criterion", nn.CrossEntropyLoss),
    )
    return Scenario(
        strategy_class=type(strategy),
        config=strategy.config,
        ranks_of_nodes=ranks_of_nodes,
        problem=problem,
        steps_per_epoch=steps,
        epochs=epochs,
        **more,
    )


def averaged_after(history: History) -> list[int]:
    """The steps after which all models were averaged, of all epochs."""
    return [step for record in history.records for step in record["averaged_after"]]


def entry(tmp_path: Path, name: str, ranks: int = 4) -> dict[str, Any]:
    """Let `ranks` processes run `gloo_entries_averaging.<name>`; returns rank 0's summary."""
    cfg = config(ranks=[ranks], results=tmp_path)
    directory = RunDirectory.create(cfg.tree, tmp_path)
    outcome = local.launch(
        directory, ranks=ranks, threads=1, port=None, stall_s=60, entry=f"gloo_entries_averaging:{name}"
    )
    assert outcome.status == "finished", outcome.details
    return outcome.summary or {}


def assert_gloo_and_virtual_time_agree(cfg: RunConfig) -> dict[str, Any]:
    """One source, two worlds: the same model, rounds and bytes. Returns the summary."""
    directory = RunDirectory.create(cfg.tree, cfg.results_dir)
    outcome = local.launch(directory, ranks=cfg.cluster.ranks, threads=1, port=None, stall_s=60)
    assert outcome.status == "finished", outcome.details
    simulated = simulate(cfg, cfg.dataset.load())
    theirs = simulated.contexts[0].replica.model.state_dict()
    final = checkpoint.read(directory.checkpoints / "final" / "model.pt")["model"]
    for name, value in final.items():
        assert (value - theirs[name]).abs().max() <= 1e-12, name
    ours, virtual = outcome.summary or {}, simulated.results[0].summary
    assert ours["strategy"] == virtual["strategy"]
    for link in ("intra", "inter"):
        assert ours["payload_bytes"][link] == virtual["payload_bytes"][link]
    return ours


__all__ = [
    "Mean",
    "Quadratic",
    "assert_gloo_and_virtual_time_agree",
    "averaged_after",
    "classifier",
    "entry",
    "labelled",
    "scenario",
    "sgd",
    "two_quadratics",
    "walk",
]
