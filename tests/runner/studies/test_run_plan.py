"""Sweeps: the order is fair, what is done is skipped, and no failure stops or hides another."""

import dataclasses
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner.config.compose import Request
from daso_bench.runner.config.launchers import LocalConfig, SimulatedConfig, SlurmConfig, TorchrunConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.launcher import launcher_of
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.runner.records.study_plan import SEEDS
from daso_bench.runner.studies import run_plan
from daso_bench.runner.studies.plan import PlannedRun, StudyPlan, plan_of
from daso_bench.runner.studies.run_plan import exit_code, run_all, run_one
from daso_bench.strategies.errors import ConfigError, MachineError


class World:
    """Where the runs of a test go, and what happens to each arm when it is started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[str] = []
        self.fate: dict[str, Any] = {}

    def config(self, arm: str, seed: int = 0, repeat: int = 0) -> RunConfig:
        return config(seed=seed, run={"arm": arm, "repeat": repeat}, results=self.root)

    def requests(self, *kinds: str, seeds: int = 1) -> list[Request]:
        return [
            Request(words=(kind,), config=self.config(kind, seed)) for kind in kinds for seed in range(seeds)
        ]

    def start(self, directory: RunDirectory, config: RunConfig) -> Outcome:
        self.started.append(f"{config.run.arm}{config.seed}")
        ending = self.fate.get(config.run.arm, Outcome(status="finished"))
        if isinstance(ending, Exception):
            raise ending
        directory.begin_attempt()
        directory.end_attempt(ending.status, ending.reason)
        return ending

    def run(self, wanted: Sequence[Request]) -> list[run_plan.Result]:
        return run_all(in_order(wanted), self.start, lambda _: None)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def in_order(wanted: Sequence[Request]) -> StudyPlan:
    """The plan of what is wanted, in just that order."""
    runs = [PlannedRun.of(request.config) for request in wanted if request.config]
    return StudyPlan(runs=runs, refused=[request for request in wanted if request.config is None])


def order(plan: StudyPlan) -> list[str]:
    names = [f"{run.config.run.arm}{run.config.seed}" for run in plan.runs]
    return names + ["refused" for _ in plan.refused]


def test_the_order_of_the_arms_moves_on_from_block_to_block(world: World) -> None:
    assert order(plan_of(world.requests("A", "B", "C", seeds=4))) == [
        *("A0", "B0", "C0"),
        *("B1", "C1", "A1"),
        *("C2", "A2", "B2"),
        *("A3", "B3", "C3"),
    ]


def test_no_run_is_lost_whatever_its_seed_its_folder_or_its_phase(world: World) -> None:
    one = world.config("A", seed=3)
    late = dataclasses.replace(one, train=dataclasses.replace(one.train, eval_phase=0.5))
    elsewhere = dataclasses.replace(one, results_dir=Path("/elsewhere"))
    others = (world.config("A", seed=3 + SEEDS), late, elsewhere)
    wanted = [Request(words=(), config=config) for config in (one, *others)]
    assert len(plan_of(wanted).runs) == len(wanted)


def test_the_exit_code_says_which_kind_of_failure_there_was(world: World) -> None:
    refused = world.run([*world.requests("A"), Request(words=("x",), error=ConfigError("x"))])
    assert exit_code(refused) == 2
    world.fate = {"B": MachineError("no"), "C": Outcome(status="diverged", reason="loss is NaN", exit_code=1)}
    assert exit_code(world.run(world.requests("B"))) == 3
    diverged = world.run(world.requests("C"))
    assert exit_code(diverged) == 0  # a result of its strategy
    assert world.run(world.requests("C"))[0].outcome.status == "skipped"


def test_an_interrupt_ends_the_sweep(world: World) -> None:
    world.fate = {"B": Outcome(status="cancelled", reason="interrupted (SIGINT)", exit_code=130)}
    results = world.run(world.requests("A", "B", "C", "D"))
    assert world.started == ["A0", "B0"]
    assert [result.outcome.status for result in results] == [
        *("finished", "cancelled", "not started", "not started"),
    ]
    assert exit_code(results) == 130


def test_a_run_that_is_being_run_elsewhere_is_refused_by_name(world: World) -> None:
    wanted = world.requests("A", "B")
    directory, _ = run_one(in_order(wanted).runs[0], lambda directory, config: Outcome(status="finished"))
    with directory.lock():
        results = world.run(wanted)
    assert results[0].outcome.status == "refused"
    assert "is being run by pid" in str(results[0].outcome.reason)
    assert world.started == ["B0"]
    assert exit_code(results) == 2


def test_more_ranks_than_cores_are_refused_where_not_allowed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "usable_cores", lambda: 3)
    asked = world.config("A")
    strict = dataclasses.replace(asked, launcher=LocalConfig(allow_oversubscription=False))
    with pytest.raises(MachineError, match="4 ranks, only 3 usable cores"):
        run_one(PlannedRun.of(strict), world.start)
    assert world.run([Request(words=(), config=strict)])[0].outcome.status == "impossible"
    run_one(PlannedRun.of(asked), world.start)
    assert world.started == ["A0"]
    for elsewhere in (SimulatedConfig(timing_only=True), TorchrunConfig(), SlurmConfig()):
        launcher = dataclasses.replace(elsewhere, allow_oversubscription=False)
        run: Any = types.SimpleNamespace(cluster=asked.cluster, launcher=launcher)
        launcher_of(run).refuse(run)
