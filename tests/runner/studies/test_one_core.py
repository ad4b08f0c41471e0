"""`study.role=one_core`, and how a configuration asks for this machine's cores."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from runs import config

from daso_bench.runner.config import compose as composing
from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.load import from_composed, to_plain
from daso_bench.runner.config.schema import RunConfig
from daso_bench.runner.config.study import StudyInfo
from daso_bench.runner.config.study_roles import in_its_role
from daso_bench.strategies.errors import ConfigError


@pytest.fixture(autouse=True)
def six_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composing, "usable_cores", lambda: 6)


def runs(*words: str, cwd: Path) -> list[RunConfig]:
    jobs = compose(list(words), sweep=True)
    assert all(job.config is not None for job in jobs), [job.error for job in jobs]
    return [from_composed(job.config, cwd) for job in jobs if job.config is not None]


def test_a_configuration_may_ask_for_the_cores_and_the_record_holds_the_number(tmp_path: Path):
    (run,) = runs("cluster.nodes=1", "cluster.ranks_per_node=${cores:}", cwd=tmp_path)
    assert run.cluster.ranks_of_nodes == (6,)
    assert to_plain(run)["cluster"]["ranks_per_node"] == [6]
    (run,) = runs("train.global_batch_size=${cores:16,4}", cwd=tmp_path)
    assert run.train.global_batch_size == 24
    (run,) = runs("cluster.nodes=1", "cluster.ranks_per_node=${cores:1,100}", cwd=tmp_path)
    assert run.cluster.ranks == 1, "never none"


@pytest.mark.parametrize("numbers", ["x", "1,0", "-3", "1.5", "1,2,3,4"])
def test_cores_are_asked_for_in_whole_numbers(tmp_path: Path, numbers: str):
    with pytest.raises(ConfigError) as refused:
        runs(f"train.global_batch_size=${{cores:{numbers}}}", cwd=tmp_path)
    assert str(refused.value).startswith(f"train.global_batch_size: ${{cores:{numbers}}}: takes up to three")


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_on_several_nodes_every_core_has_as_many_samples_as_the_one_that_is_alone(
    tmp_path: Path, nodes: int, launcher: str
):
    words = ["+study=paper_hsgd_cores", f"launcher={launcher}", f"cluster.nodes={nodes}", "seed=0"]
    arms = {run.study.arm: run for run in runs(*words, cwd=tmp_path)}
    alone = arms.pop("one core")
    assert (alone.cluster.nodes, alone.cluster.ranks, alone.train.global_batch_size) == (1, 1, 16)
    assert {run.train.global_batch_size for run in arms.values()} == {16 * 6 * nodes}
    assert {run.cluster.nodes for run in arms.values()} == {nodes}


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
    assert len({run._run_id for run in arms.values()}) == len(arms) == 10


def with_role(cfg: RunConfig, **launcher: Any) -> RunConfig:
    changed = dataclasses.replace(cfg, launcher=dataclasses.replace(cfg.launcher, **launcher))
    object.__setattr__(changed, "study", StudyInfo(role="one_core"))
    return changed


@pytest.mark.parametrize(("ranks", "threads"), [([2], 1), ([1, 2], 1), ([1], 2), ([1], "auto")])
def test_one_core_is_one_process_of_one_thread(tmp_path: Path, ranks: list[int], threads: int | str):
    cfg = with_role(config(ranks=ranks, results=tmp_path), threads_per_rank=threads)
    with pytest.raises(ConfigError, match=r"^study\.role=one_core: is one process of one thread"):
        in_its_role(cfg)


def test_no_other_process_makes_batches_for_one_core(tmp_path: Path):
    cfg = with_role(config(ranks=[1], results=tmp_path), threads_per_rank=1, loader_workers=1)
    with pytest.raises(ConfigError, match=r"^launcher\.loader_workers=1: must be 0 with"):
        in_its_role(cfg)


def test_no_model_tells_what_a_core_does(tmp_path: Path):
    cfg = with_role(config(ranks=[1], results=tmp_path), threads_per_rank=1)
    made = in_its_role(cfg)
    assert made.run.arm == "one_core"
    assert made.launcher.pin, "a core of its own"
    simulated = runs(
        "launcher=simulated",
        "cluster=ethernet_1g",
        "cluster.nodes=1",
        "cluster.ranks_per_node=1",
        cwd=tmp_path,
    )[0]
    with pytest.raises(ConfigError, match=re.escape("study.role=one_core: no model tells what cores do")):
        in_its_role(with_role(simulated, threads_per_rank=1))
