"""Roles of a study's arms: seeds, part of the schedule, block; and one core, with the cores of a machine."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner.config import compose as composing
from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.load import from_composed, in_its_role, requests
from daso_bench.runner.config.parts import RunInfo, StudyInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.study_plan import FRESH
from daso_bench.runner.studies.plan import StudyPlan, plan_of
from daso_bench.strategies.errors import ConfigError

JITTER = "cluster.device.jitter=gaussian"  # without it, virtual time has no second baseline of the same seeds
COPIES = "study.arm=ddp by nodes,'ddp by nodes, same seeds','ddp by nodes, fresh seeds',placebo"


def mission(*words: str, cwd: Path) -> list[RunConfig]:
    plan = plan_of(requests(["+study=mission", *words], sweep=True, cwd=cwd))
    assert not plan.refused, [request.error for request in plan.refused]
    return [run.config for run in plan.runs]


def test_a_second_baseline_has_other_seeds_and_one_has_the_first_part_of_the_schedule(tmp_path: Path):
    arms = {run.study.arm: run for run in mission("seed=3", JITTER, COPIES, cwd=tmp_path)}
    base = arms["ddp by nodes"]
    clock, fresh = arms["ddp by nodes, same seeds"], arms["ddp by nodes, fresh seeds"]
    assert (base.seed, clock.seed, fresh.seed) == (3, 3, FRESH + 3)
    steps = base.plan().steps
    assert steps is not None
    assert clock.train.max_steps == math.ceil(0.2 * steps)
    assert (base.train.max_steps, fresh.train.max_steps) == (None, None)
    assert (clock.run.arm, fresh.run.arm, arms["placebo"].run.arm) == ("same_seeds", "fresh_seeds", "placebo")
    assert len({run.run_id for run in arms.values()}) == len(arms)


def test_virtual_time_without_jitter_runs_no_copies_of_the_baseline(tmp_path: Path):
    def plan(*words: str) -> StudyPlan:
        return plan_of(requests(["+study=mission", "seed=0", *words], sweep=True, cwd=tmp_path))

    virtual = plan(COPIES)
    assert [run.config.study.arm for run in virtual.runs] == ["ddp by nodes", "ddp by nodes, fresh seeds"]
    assert virtual.left_out.startswith("not run: ddp by nodes, same seeds, placebo; in virtual time without")
    for words in ([JITTER], ["launcher=local", "cluster=laptop"]):
        real = plan(COPIES, *words)
        assert (real.left_out, len(real.runs)) == ("", 4)
    alone = plan("study.arm=placebo")
    assert not alone.runs
    assert "nothing else was asked for" in str(alone.refused[0].error)
    assert plan(JITTER, "study.arm=placebo").left_out == ""


def test_all_arms_of_a_repetition_are_evaluated_at_the_same_marks_and_repetitions_at_others(tmp_path: Path):
    three = "study.arm=ddp by nodes,'ddp by nodes, fresh seeds',daso"
    runs = mission(three, "seed=0,1,2", cwd=tmp_path)
    assert len(runs) == 9
    phases = {seed: {run.train.eval_phase for run in runs if run.seed % FRESH == seed} for seed in (0, 1, 2)}
    assert all(len(shared) == 1 for shared in phases.values())
    assert len(set.union(*phases.values())) == 3
    assert all(0 <= phase < 1 for shared in phases.values() for phase in shared)


def in_role(role: str, cfg: RunConfig | None = None, **changes: Any) -> RunConfig:
    """A run, changed as its role in the study says."""
    return in_its_role(dataclasses.replace(cfg or config(), study=StudyInfo(role=role), **changes))


def test_a_role_needs_a_free_name_and_a_scored_seed():
    with pytest.raises(ConfigError, match=r"run\.arm=mine: study\.role=same_seeds names the arm"):
        in_role("same_seeds", run=RunInfo(arm="mine"))
    with pytest.raises(ConfigError, match=rf"must be below {FRESH}, which study\.role=fresh_seeds"):
        in_role("fresh_seeds", seed=FRESH)
    assert in_role("fresh_seeds", seed=FRESH - 1).seed == 2 * FRESH - 1
    # The data of these runs do not tell their number before they are loaded: a fifth of what?
    with pytest.raises(ConfigError, match=r"study\.same_seeds_share=0\.2: .* set train\.max_steps"):
        in_role("same_seeds")
    assert in_role("same_seeds", train=TrainConfig(max_steps=10)).train.max_steps == 2
    all_of_it = StudyInfo(role="same_seeds", same_seeds_share=1)
    assert in_its_role(dataclasses.replace(config(), study=all_of_it)).train.max_steps is None


@pytest.fixture(autouse=True)
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composing, "usable_cores", lambda: 6)


def runs(*words: str, cwd: Path) -> list[RunConfig]:
    jobs = compose(list(words), sweep=True)
    assert all(job.composed is not None for job in jobs), [job.error for job in jobs]
    return [from_composed(job.composed, cwd) for job in jobs if job.composed is not None]


def test_a_configuration_may_ask_for_the_cores_and_the_record_holds_the_number(tmp_path: Path):
    (run,) = runs("cluster.nodes=1", "cluster.ranks_per_node=${cores:}", cwd=tmp_path)
    assert run.cluster.ranks_of_nodes == (6,)
    assert run.tree["cluster"]["ranks_per_node"] == [6]
    (run,) = runs("train.global_batch_size=${cores:16,4}", cwd=tmp_path)
    assert run.train.global_batch_size == 24
    (run,) = runs("cluster.nodes=1", "cluster.ranks_per_node=${cores:1,100}", cwd=tmp_path)
    assert run.cluster.ranks == 1, "never none"


@pytest.mark.parametrize("numbers", ["x", "1,0", "-3", "1.5", "1,2,3,4"])
def test_cores_are_asked_for_in_whole_numbers(tmp_path: Path, numbers: str):
    with pytest.raises(ConfigError) as refused:
        runs(f"train.global_batch_size=${{cores:{numbers}}}", cwd=tmp_path)
    assert str(refused.value).startswith(f"train.global_batch_size: ${{cores:{numbers}}}: takes up to three")


def test_the_efficiency_matrix_uses_all_cores_in_every_arm_and_one_alone(tmp_path: Path):
    arms = {run.study.arm: run for run in runs("+study=paper_hsgd_cores", "seed=0", cwd=tmp_path)}
    assert {run.train.global_batch_size for name, run in arms.items() if name != "one core"} == {96}
    assert (arms["native"].cluster.ranks, arms["native"].launcher.threads_per_rank) == (1, "auto")
    assert arms["hsgd"].cluster.ranks == arms["ddp flat"].cluster.ranks == 6
    assert arms["hsgd, half as many ranks"].cluster.ranks == 3
    alone = arms["one core"]
    assert (alone.cluster.ranks, alone.launcher.threads_per_rank, alone.train.global_batch_size) == (1, 1, 16)
    assert (alone.study.role, alone.run.arm) == ("one_core", "one_core")
    assert {name for name, run in arms.items() if not run.launcher.pin} == {"native, one core busy"}
    assert len({run.run_id for run in arms.values()}) == len(arms) == 10


@pytest.mark.parametrize(("ranks", "threads"), [([2], 1), ([1, 2], 1), ([1], 2), ([1], "auto")])
def test_one_core_is_one_process_of_one_thread(ranks: list[int], threads: int | str):
    with pytest.raises(ConfigError, match=r"^study\.role=one_core: is one process of one thread"):
        in_role("one_core", config(ranks=ranks, launcher={"threads_per_rank": threads}))


def test_no_model_tells_what_a_core_does(tmp_path: Path):
    alone = in_role("one_core", config(ranks=[1], launcher={"threads_per_rank": 1}))
    assert alone.run.arm == "one_core"
    assert alone.launcher.pin, "a core of its own"
    virtual = ("launcher=simulated", "cluster=ethernet_1g", "cluster.nodes=1", "cluster.ranks_per_node=1")
    (simulated,) = runs(*virtual, "launcher.threads_per_rank=1", cwd=tmp_path)
    with pytest.raises(ConfigError, match=re.escape("study.role=one_core: no model tells what cores do")):
        in_role("one_core", simulated)
