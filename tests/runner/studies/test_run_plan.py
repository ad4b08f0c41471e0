"""Sweeps: the order is fair, what is done is skipped, and no failure stops or hides another."""

import dataclasses
import json
import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner.cli.main import main
from daso_bench.runner.config.compose import Request
from daso_bench.runner.config.launchers import LocalConfig, SimulatedConfig, SlurmConfig, TorchrunConfig
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.launch.launcher import launcher_of
from daso_bench.runner.records.json_lines import read_json, write_json
from daso_bench.runner.records.plan_file import FILE, declared
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.runner.records.seed_ranges import SEEDS
from daso_bench.runner.studies import run_plan
from daso_bench.runner.studies.plan import PlannedRun, StudyPlan, declare, plan_of
from daso_bench.runner.studies.run_plan import estimate, exit_code, failures, run_all, run_one, slurm_limit
from daso_bench.strategies.errors import ConfigError, MachineError


class World:
    """Where the runs of a test go, and what happens to each arm when it is started."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.started: list[str] = []
        self.said: list[str] = []
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

    def run(self, wanted: Sequence[Request], commit: str | None = None) -> list[run_plan.Result]:
        return run_all(in_order(wanted), self.start, self.said.append, lambda: commit)


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
    others = [
        world.config("A", seed=3 + SEEDS),
        late,
        dataclasses.replace(one, results_dir=Path("/elsewhere")),
    ]
    wanted = [Request(words=(), config=config) for config in (one, *others)]
    assert len(plan_of(wanted).runs) == len(wanted)


def test_repeating_a_sweep_runs_only_what_is_missing_or_failed(world: World) -> None:
    wanted = world.requests("A", "B", "C")
    world.fate = {"B": Outcome(status="failed", reason="rank 1 died", exit_code=1)}
    assert exit_code(world.run(wanted[:2])) == 1
    world.fate = {}
    world.started.clear()
    results = world.run(wanted)
    assert world.started == ["B0", "C0"]
    assert [result.outcome.status for result in results] == ["skipped", "finished", "finished"]
    assert exit_code(results) == 0
    assert any("skipped: finished already" in line for line in world.said)
    assert any("goes on after an attempt that did not finish" in line for line in world.said)


def test_a_skip_across_commits_says_so(world: World) -> None:
    wanted = world.requests("A")
    world.run(wanted)
    assert wanted[0].path is not None
    write_json(wanted[0].path / "environment.json", {"commit": "a" * 40})
    world.run(wanted, commit="b" * 40)
    assert "by commit aaaaaaaa and not the present bbbbbbbb" in world.said[-1]
    world.run(wanted, commit="a" * 40)
    assert "by commit" not in world.said[-1]


def test_failures_stop_nobody_and_all_are_listed(world: World) -> None:
    world.fate = {
        "A": Outcome(status="failed", reason="rank 2: SIGKILL", exit_code=1),
        "B": MachineError("launcher.port=80: taken"),
        "D": Outcome(status="timed_out", reason="train.max_seconds", exit_code=1),
    }
    bad = Request(words=("strategy=nosuch",), error=ConfigError("strategy=nosuch: unknown"))
    results = world.run([*world.requests("A", "B", "C", "D"), bad])
    assert world.started == ["A0", "B0", "C0", "D0"]
    assert [(result.outcome.status, result.outcome.reason) for result in failures(results)] == [
        ("failed", "rank 2: SIGKILL"),
        ("impossible", "launcher.port=80: taken"),
        ("timed_out", "train.max_seconds"),
        ("refused", "strategy=nosuch: unknown"),
    ]
    assert exit_code(results) == 1


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
    for elsewhere in (SimulatedConfig(), TorchrunConfig(), SlurmConfig()):
        launcher = dataclasses.replace(elsewhere, allow_oversubscription=False)
        run: Any = types.SimpleNamespace(cluster=asked.cluster, launcher=launcher)
        launcher_of(run).refuse(run)


def planned(folder: Path, *words: str) -> Sequence[PlannedRun]:
    return plan_of(requests(["+study=mission", f"results_dir={folder}", *words], sweep=True, cwd=folder)).runs


def stages(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "mission" / FILE).read_text().splitlines()]


def test_a_plan_lists_runs_arms_and_seeds_and_how_they_will_be_compared(tmp_path: Path) -> None:
    wanted = planned(tmp_path, "seed=0,1", "study.arm=ddp by nodes,daso")
    declare(wanted, ["+study=mission"], unix=100.0, commit=lambda: "abc")
    (stage,) = stages(tmp_path)
    assert stage["runs"] == [run.path.name for run in wanted]
    assert (stage["arms"], stage["seeds"]) == (["ddp by nodes", "daso"], [0, 1])
    assert (stage["baseline"], stage["level"]) == ("ddp by nodes", 0.95)
    assert (stage["targets"], stage["commit"], stage["unix"]) == ([0.95], "abc", 100.0)


def test_more_runs_are_a_new_stage_and_the_same_ones_are_none(tmp_path: Path) -> None:
    first = planned(tmp_path, "seed=0", "study.arm=daso")
    more = planned(tmp_path, "seed=0,1", "study.arm=daso")
    declare(first, [], unix=100.0, commit=lambda: None)
    declare(first, [], unix=150.0, commit=lambda: pytest.fail("nothing is new: nobody asks for the commit"))
    declare(more, [], unix=200.0, commit=lambda: None)
    assert [stage["seeds"] for stage in stages(tmp_path)] == [[0], [1]]
    assert declared(tmp_path / "mission") == {more[0].path.name: 100.0, more[1].path.name: 200.0}


def test_a_plan_is_read_without_trust(tmp_path: Path) -> None:
    assert declared(tmp_path) == {}
    rows = [
        '{"unix": 5.0, "runs": ["a"]}',
        '{"unix": "x", "runs": ["b"]}',
        '{"unix": 7.0}',
        "{",
        '{"unix": true, "runs": ["a"]}',
        '{"unix": 3, "runs": ["a"]}',
    ]
    (tmp_path / FILE).write_text("\n".join(rows))
    assert declared(tmp_path) == {"a": 3}


def test_a_plan_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "mission").write_text("in the way")
    with pytest.raises(MachineError, match="mission"):
        declare(planned(tmp_path, "seed=0", "study.arm=daso"), [], unix=0.0, commit=lambda: None)


def plan(folder: Path, *words: str) -> Sequence[PlannedRun]:
    asked = ["+study=quick", f"results_dir={folder}", *words]
    return plan_of(requests(asked, sweep=True, cwd=folder)).runs


def configs(folder: Path, *words: str) -> list[RunConfig]:
    return [run.config for run in plan(folder, *words)]


def finish(config: RunConfig, *walls_s: float) -> None:
    """The run directory of a run that finished in the last of so many attempts."""
    directory = RunDirectory.create(config.tree, config.results_dir)
    for wall in walls_s:
        directory.begin_attempt()
        directory.end_attempt("finished", None)
        status = read_json(directory.status_file)
        attempt = status["attempts"][-1]
        attempt["ended_unix"] = attempt["started_unix"] + wall
        write_json(directory.status_file, status)


def test_arms_are_taken_to_cost_what_their_finished_runs_did(tmp_path: Path) -> None:
    words = ("strategy=ddp,daso,hsgd", "seed=0,1")
    by_arm = {(run.strategy_name, run.seed): run for run in configs(tmp_path, *words)}
    names = sorted({name for name, _ in by_arm})
    assert estimate(plan(tmp_path, *words)) is None
    finish(by_arm[names[0], 0], 10.0)
    finish(by_arm[names[1], 0], 30.0)
    # One more of either, and two of the arm without a finished run, which take the mean.
    words_shown, each_s = estimate(plan(tmp_path, *words)) or ("", 0.0)
    assert each_s == pytest.approx((10 + 30 + 2 * 20) / 4, abs=0.01)
    assert re.fullmatch(
        r"4 runs to do: about 1 min 20 s here, \S+ core-hours \(from 2 finished runs\)", words_shown
    )


def test_what_was_interrupted_tells_no_time(tmp_path: Path) -> None:
    words = ("strategy=ddp", "seed=0,1")
    finish(configs(tmp_path, *words)[0], 10.0, 10.0)
    assert estimate(plan(tmp_path, *words)) is None


def test_jobs_may_use_up_their_time_limits(tmp_path: Path) -> None:
    words = ("launcher=slurm", "launcher.timeout_min=90", "strategy=ddp", "seed=0,1", "cluster=laptop")
    limit = "at most 12 hours of a rank in all (launcher.timeout_min x ranks)"
    assert slurm_limit(plan(tmp_path, *words)) == limit
    assert slurm_limit(plan(tmp_path, "strategy=ddp")) == ""


def test_a_sweep_starts_at_once_and_tells_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-m", "seed=0,1", "train.epochs=1", "launcher=simulated", "cluster=ethernet_1g"]
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr().out
    folder = tmp_path / "results" / "runs"
    for run, unix in declared(folder).items():
        assert unix < read_json(folder / run / "status.json")["attempts"][0]["started_unix"]
    assert len(declared(folder)) == 2
    assert "to do: about" not in shown
    assert re.search(r"\[2/2\] ddp-small_cnn-digits-s1-\w+  \([\d.]+ s left\)", shown)
    with pytest.raises(SystemExit):
        main([*words, "seed=0,1,2", "--dry-run"])
    assert re.search(
        r"1 run to do: about [\d.]+ s here, \S+ core-hours \(from 2 finished runs\)", capsys.readouterr().out
    )
