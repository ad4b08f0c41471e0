"""DiLoCo: hand values, records, refusals."""

from typing import Any

import pytest
import torch
from periodic import scenario, walk
from runs import config  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.strategies.diloco import DiLoCo, DiLoCoConfig
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology


def diloco(**keys: Any) -> DiLoCo:
    return DiLoCo(DiLoCoConfig(**keys))


# ------------------------------------------------------------------ state, judging, resume


def test_what_is_recorded():
    history = walk(scenario(diloco(sync_every=2), [1, 1], steps=5, epochs=2))[1]
    first, second = history.records
    assert (first["averaged_after"], second["averaged_after"]) == ([2, 4], [6, 8, 10])
    assert [len(row["outer_step_norms"]) for row in history.records] == [2, 3]
    moved = torch.linalg.vector_norm(history.parameters[4] - history.parameters[2]).item()
    assert first["outer_step_norms"][1] == pytest.approx(moved, rel=1e-9)
    assert history.labels == []


# ------------------------------------------------------------------ what is refused


def test_fewer_than_two_rounds_are_refused_as_soon_as_the_steps_are_known():
    topology = Topology.of([2, 2])
    wanted = r"strategy.sync_every=20: diloco needs at least two rounds, .* 39 steps"
    with pytest.raises(ConfigError, match=wanted):
        DiLoCo.check(DiLoCoConfig(), Plan(topology, 3, 64, 13, 39))
    DiLoCo.check(DiLoCoConfig(), Plan(topology, 4, 64, 10, 40))
    DiLoCo.check(DiLoCoConfig(), Plan(topology, 3, 64))
    # 6 steps an epoch, which only the loaded data set tells; `max_steps` is known before.
    cfg = config("diloco", epochs=6)
    with pytest.raises(ConfigError, match=r"a run of 36 steps does not have"):
        simulate(cfg, cfg.dataset.load())
    with pytest.raises(ConfigError, match=r"a run of 39 steps does not have"):
        config("diloco", epochs=9, max_steps=39)
