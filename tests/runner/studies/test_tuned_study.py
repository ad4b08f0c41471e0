"""The study that tuning leaves: each arm as it was composed, and the same with other settings."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.study_plan import FRESH
from daso_bench.runner.studies.search_space import with_settings
from daso_bench.runner.studies.tuned_study import StudyArm, arms_of, write_study
from daso_bench.strategies.errors import ConfigError

SETTINGS = {"optimizer.lr": 0.2, "schedule.warmup_epochs": 0.5, "optimizer.weight_decay": 1e-05}
TOLD = {"tune_trials": 4, "tune_space": "all, of it", "tune_failed": 1, "tune_device_hours": 0.5}


def arms(words: Sequence[str], cwd: Path, config_dir: Path | None = None) -> list[StudyArm]:
    return arms_of(requests(words, sweep=True, cwd=cwd, config_dir=config_dir))


def written(
    study_arms: Sequence[StudyArm],
    cwd: Path,
    *,
    baseline: str = "ddp flat",
    settings: Mapping[str, object] = SETTINGS,
    seeds: Sequence[int] = (5,),
    config_dir: Path | None = None,
) -> dict[str, RunConfig]:
    """The runs of the new study with its first seed, by the name of their arm."""
    searched = [arm.name for arm in study_arms if not arm.role]
    by_arm = dict.fromkeys(searched, settings), dict.fromkeys(searched, TOLD)
    folder = cwd / "made"
    write_study(folder, study_arms, *by_arm, seeds=list(seeds), baseline=baseline, config_dir=config_dir)
    name = f"{study_arms[0].config.study.name}_tuned"
    asked = requests([f"+study={name}"], sweep=True, cwd=cwd, config_dir=folder)
    assert [str(request.error) for request in asked if request.error is not None] == []
    runs = [request.config for request in asked if request.config is not None]
    same_seeds = [run.seed for run in runs if run.study.role != "fresh_seeds"]
    assert same_seeds.count(5) * len(seeds) == len(same_seeds)
    return {run.study.arm: run for run in runs if run.seed in (5, FRESH + 5)}


TWO = ("+study=mission", "study.arm=ddp flat,daso", "seed=0")
MISSION = (
    *("+study=mission", "seed=0", "cluster=ethernet_10g", "cluster.nodes=3", "train.epochs=4"),
    *("model.channels=[4,8]", "optimizer.momentum=0.5", "launcher.extrapolate=true"),
    "study.arm=ddp flat,ddp by nodes,'ddp by nodes, same seeds',placebo,daso",
)
Tuned = tuple[list[StudyArm], dict[str, RunConfig]]


@pytest.fixture(scope="module")
def mission(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Five arms, of which one is a second baseline and one a placebo, and the runs of the tuned study."""
    folder = tmp_path_factory.mktemp("mission")
    study_arms = arms(MISSION, folder)
    return study_arms, written(study_arms, folder)


def test_every_arm_stands_in_it_as_it_was_composed_and_once_more_with_tuned_settings(mission: Tuned):
    study_arms, runs = mission
    assert [bool(arm.role) for arm in study_arms] == [False, False, True, True, False]
    assert len(runs) == 5 + 3 + 3
    for arm in study_arms:
        assert runs[arm.name].arm_id == arm.config.arm_id, arm.name
        assert runs[arm.name].study.tuned == ""
        assert runs[arm.name].study.baseline == "ddp by nodes"
        if arm.role:
            continue
        tuned = runs[f"{arm.name} tuned"]
        wanted = with_settings(arm.config, SETTINGS)
        assert (tuned.strategy, tuned.optimizer, tuned.schedule, tuned.cluster) == (
            *(wanted.strategy, wanted.optimizer, wanted.schedule, wanted.cluster),
        )
        assert (tuned.study.tuned, tuned.study.baseline) == (arm.name, "ddp flat tuned")
        assert {key: getattr(tuned.study, key) for key in TOLD} == TOLD


def test_the_tuned_baseline_has_second_ones_and_a_placebo_of_its_own(mission: Tuned):
    runs = mission[1]
    base = runs["ddp flat tuned"]
    same, fresh = runs["ddp flat tuned, same seeds"], runs["ddp flat tuned, fresh seeds"]
    placebo = runs["placebo tuned"]
    roles = [(run.study.role, run.run.arm) for run in (base, same, fresh, placebo)]
    assert roles == [
        ("", "tuned"),
        *((role, f"tuned {role}") for role in ("same_seeds", "fresh_seeds", "placebo")),
    ]
    assert (same.seed, fresh.seed) == (5, FRESH + 5)
    assert same.train.max_steps is not None
    assert base.strategy == same.strategy == fresh.strategy
    assert base.optimizer == placebo.optimizer
    assert (placebo.strategy_class.__name__, placebo.strategy.algorithm) == ("Placebo", "flat")
    assert len({run.run_id for run in runs.values()}) == len(runs)


def test_an_arm_whose_default_wins_has_runs_of_its_own(tmp_path: Path):
    runs = written(arms(TWO, tmp_path), tmp_path, settings={}, seeds=(5, 6))
    default, tuned = runs["daso"], runs["daso tuned"]
    assert default.study.baseline == "", "ddp by nodes, which the study names, was left out"
    assert default.strategy == tuned.strategy
    assert default.optimizer == tuned.optimizer
    assert default.run_id != tuned.run_id


def test_arms_of_a_study_without_names_are_called_by_their_strategy_and_what_sets_them_apart(tmp_path: Path):
    words = ["+study=quick", "strategy=ddp,daso", "strategy.bucket_mib=5,10", "seed=0"]
    study_arms = arms(words, tmp_path)
    assert [arm.name for arm in study_arms] == [
        *("ddp bucket_mib=5", "ddp bucket_mib=10", "daso bucket_mib=5", "daso bucket_mib=10")
    ]
    runs = written(study_arms, tmp_path, baseline=study_arms[0].name)
    for arm in study_arms:
        assert runs[arm.name].arm_id == arm.config.arm_id


def test_files_of_the_users_own_folder_go_along(tmp_path: Path):
    mine = tmp_path / "mine"
    (mine / "study").mkdir(parents=True)
    (mine / "strategy").mkdir()
    (mine / "strategy" / "slow.yaml").write_text(
        "_target_: daso_bench.strategies.ddp.DDP\nalgorithm: hierarchical\nbucket_mib: 7\n"
    )
    (mine / "study" / "own.yaml").write_text(
        "# @package _global_\nstudy: {name: own}\n"
        "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '5,6', strategy: 'ddp,slow'}}}\n"
    )
    for place in ("convergence", "claims"):
        (mine / place).mkdir()
        (mine / place / "own.yaml").write_text("[]")
    study_arms = arms(["+study=own"], tmp_path, mine)
    assert [arm.name for arm in study_arms] == ["ddp", "slow"]
    runs = written(study_arms, tmp_path, baseline="ddp", config_dir=mine)
    assert runs["slow tuned"].strategy.bucket_mib == 7
    assert (tmp_path / "made" / "convergence" / "own.yaml").is_file(), "the report looks there"
    assert (tmp_path / "made" / "claims" / "own.yaml").is_file()
    assert runs["slow tuned"].optimizer.lr == 0.2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("+study=scaling study.arm=ddp study.assumption=", r"study\.size: .*; tune one: add study\.size="),
        ("+study=mission 'study.arm=ddp flat' train.epochs=2,3", r"; tune one: add train\.epochs=2"),
        ("+study=quick strategy=ddp cluster.nodes=2,3", r"2, 3 for one arm; tune one: add cluster\.nodes=2"),
        ("+study=quick strategy=ddp run.arm=mine", r"run\.arm=mine: tuned arms have names of their own"),
        ("+study=quick strategy=ddp study.tuned=ddp", r"study\.tuned=ddp: is tuned already"),
        ("+study=quick strategy=daso train.epochs=1", "leave no asynchronous epoch"),
    ],
)
def test_a_study_that_is_not_one_comparison_is_refused(words: str, said: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=said):
        arms([*shlex.split(words), "seed=0"], tmp_path)


def test_a_departure_from_what_a_study_assumes_is_no_arm(tmp_path: Path):
    study_arms = arms(
        ["+study=scaling", "study.arm=daso", "study.size=4 nodes", "study.assumption=,rings"], tmp_path
    )
    assert [arm.name for arm in study_arms] == ["daso"]
    assert study_arms[0].config.study.assumption == ""


def test_an_arm_that_is_called_like_a_tuned_row_is_refused(tmp_path: Path):
    (first, second) = arms(TWO, tmp_path)
    clash = StudyArm(
        name="ddp flat tuned", values=second.values, choices=second.choices, config=second.config
    )
    with pytest.raises(ConfigError, match=r"study\.arm=ddp flat tuned: is the name of a tuned row"):
        written([first, clash], tmp_path)
