"""Second baselines and the placebo of a study: which seeds, which part of the schedule, which block."""

import dataclasses
import math
from pathlib import Path

import pytest
from runs import config

from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.load import dump, from_composed, load, to_plain
from daso_bench.runner.config.schema import RunConfig, run_id
from daso_bench.runner.config.study import StudyInfo
from daso_bench.runner.records.seed_ranges import FRESH, PILOT, TRIAL, phase_of, repetition_of
from daso_bench.runner.studies import sweep
from daso_bench.strategies.errors import ConfigError


def mission(*words: str, cwd: Path) -> list[RunConfig]:
    wanted = sweep.arrange(sweep.requests(compose(["+study=mission", *words], sweep=True), cwd))
    assert all(request.error is None for request in wanted), [request.error for request in wanted]
    return [request.config for request in wanted if request.config is not None]


def by_arm(runs: list[RunConfig]) -> dict[str, RunConfig]:
    return {run.study.arm: run for run in runs}


def test_a_second_baseline_has_other_seeds_and_one_has_the_first_part_of_the_schedule(tmp_path: Path):
    arms = by_arm(mission("seed=3", cwd=tmp_path))
    base, clock, fresh = (
        arms["ddp by nodes"],
        arms["ddp by nodes, same seeds"],
        arms["ddp by nodes, fresh seeds"],
    )
    assert (base.seed, clock.seed, fresh.seed) == (3, 3, FRESH + 3)
    steps = base.plan().steps
    assert steps is not None
    assert clock.train.max_steps == math.ceil(0.2 * steps)
    assert (base.train.max_steps, fresh.train.max_steps) == (None, None)
    assert (clock.run.arm, fresh.run.arm, arms["placebo"].run.arm) == ("same_seeds", "fresh_seeds", "placebo")
    assert len({run_id(run) for run in arms.values()}) == len(arms)


def test_all_arms_of_a_repetition_are_evaluated_at_the_same_marks_and_repetitions_at_others(tmp_path: Path):
    runs = mission("seed=0,1,2", cwd=tmp_path)
    phases = {seed: {run.train.eval_phase for run in runs if run.seed % FRESH == seed} for seed in (0, 1, 2)}
    assert all(len(found) == 1 for found in phases.values())
    assert len(set.union(*phases.values())) == 3
    assert all(0 <= phase < 1 for found in phases.values() for phase in found)


def test_a_block_is_a_repetition_with_its_second_baselines_and_the_order_of_arms_moves_on(tmp_path: Path):
    runs = mission("seed=0,1", cwd=tmp_path)
    blocks = [run.seed % FRESH for run in runs]
    assert blocks == sorted(blocks)
    first, second = ([run.study.arm for run in runs if run.seed % FRESH == seed] for seed in (0, 1))
    assert second == [*first[1:], first[0]]


def test_what_was_seen_to_is_not_done_twice(tmp_path: Path):
    for run in mission("seed=3", cwd=tmp_path):
        file = tmp_path / "config.yaml"
        file.write_text(dump(run))
        assert load(file) == run


def test_a_role_needs_a_free_name_and_a_scored_seed(tmp_path: Path):
    def composed(**changes: object) -> RunConfig:
        tree = to_plain(config())
        tree["run"].pop("id")
        for key, value in changes.items():
            group, _, name = key.partition("__")
            if name:
                tree[group][name] = value
            else:
                tree[group] = value
        return from_composed(tree, tmp_path)

    with pytest.raises(ConfigError, match=r"run\.arm=mine: study\.role=same_seeds names the arm"):
        composed(study__role="same_seeds", run__arm="mine")
    with pytest.raises(ConfigError, match=rf"must be below {FRESH} with study\.role=fresh_seeds"):
        composed(study__role="fresh_seeds", seed=FRESH)
    assert composed(study__role="fresh_seeds", seed=FRESH - 1).seed == 2 * FRESH - 1
    # The data of these runs do not tell their number before they are loaded: a fifth of what?
    with pytest.raises(ConfigError, match=r"study\.same_seeds_share=0\.2: .* set train\.max_steps"):
        composed(study__role="same_seeds")
    assert composed(study__role="same_seeds", train__max_steps=10).train.max_steps == 2
    assert composed(study__role="same_seeds", study__same_seeds_share=1).train.max_steps is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"role": "second"}, "study.role=second"),
        ({"interval": "bootstrap"}, "study.interval=bootstrap"),
        ({"level": 95}, "study.level=95"),
        ({"level": 0.4}, "study.level=0.4"),
        ({"same_seeds_share": 0}, "study.same_seeds_share=0"),
        ({"same_seeds_share": 1.5}, "study.same_seeds_share=1.5"),
    ],
)
def test_what_a_study_cannot_be_is_refused_by_name(changes: dict[str, object], said: str):
    with pytest.raises(ConfigError) as caught:
        dataclasses.replace(StudyInfo(), **changes)
    assert said in str(caught.value)


def test_uses_of_seeds_share_none():
    assert len({FRESH, PILOT, TRIAL}) == 3
    assert [repetition_of(start + 7) for start in (0, FRESH, PILOT, TRIAL)] == [7] * 4
    assert repetition_of("x") == "x"
    assert phase_of(FRESH + 7) == phase_of(7) != phase_of(8)
