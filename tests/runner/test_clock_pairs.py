"""What the clock costs: pairs of blocks with and without it, in turns, undisturbed by pauses."""

import math
from pathlib import Path

import pytest
import torch
from runs import Blobs, config
from test_torch_world import final_model, launch

from daso_bench.runner.clock_pairs import STEPS, PairedClock
from daso_bench.runner.labels import StudyInfo
from daso_bench.runner.launcher_config import LauncherConfig
from daso_bench.runner.roles import in_its_role
from daso_bench.runner.schema import RunConfig
from daso_bench.runner.traffic import Traffic
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.topology import Topology


class Run:
    """Steps of 100 ns, and 3 ns more where the clock is on."""

    def __init__(self) -> None:
        self.time = 0
        self.traffic = Traffic(Topology.of([1]), 0)
        self.clock = PairedClock(lambda: self.time, self.traffic)
        self.on: list[bool] = []
        self.clock.enter("train")

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.clock.begin_step()
            self.on.append(self.traffic.timing)
            self.time += 103 if self.traffic.timing else 100
            self.clock.lap("compute")

    def pause(self) -> None:
        self.clock.enter("eval")
        self.time += 5000
        self.clock.enter("train")


def test_blocks_come_in_pairs_whose_order_turns():
    run = Run()
    run.steps(6 * STEPS + 1)
    assert [run.on[block * STEPS] for block in range(6)] == [True, False, False, True, True, False]
    assert all(run.on[block * STEPS] == run.on[block * STEPS + STEPS - 1] for block in range(6))
    assert run.clock.log_ratios == pytest.approx([math.log(1.03)] * 3)
    assert run.clock.measured() == {"clock_pairs": {"steps": STEPS, "log_ratios": run.clock.log_ratios}}


def test_a_pause_throws_away_the_pair_in_hand_and_no_pause_is_in_a_block():
    run = Run()
    run.steps(STEPS + 7)  # in the second block
    run.pause()
    run.steps(2 * STEPS + 1)
    assert run.clock.log_ratios == pytest.approx([math.log(1.03)])
    run.pause()
    run.steps(2 * STEPS)  # complete, but nobody has begun a step after it
    run.pause()
    assert len(run.clock.log_ratios) == 1


def test_a_log_is_left_out_of_its_block():
    run = Run()
    for _ in range(4):
        run.steps(STEPS // 2)
        with run.clock.within("log"):
            run.time += 700
    run.steps(1)
    assert run.on[: 2 * STEPS] == [True] * STEPS + [False] * STEPS
    assert run.clock.log_ratios == pytest.approx([math.log(1.03)])
    assert run.clock.closed()["log"] == 4 * 700


def test_all_time_of_training_is_booked_whether_the_clock_was_on_or_off():
    run = Run()
    run.steps(3 * STEPS + 5)
    run.clock.enter("other")
    stretch = run.clock.end_stretch()
    assert stretch.compute + stretch.step_other + stretch.data + stretch.blocked == stretch.train
    assert (stretch.compute, stretch.step_other) == (103 * (STEPS + 5), 100 * 2 * STEPS)


def with_role(cfg: RunConfig, launcher: LauncherConfig | None = None) -> RunConfig:
    object.__setattr__(cfg, "study", StudyInfo(role="overhead"))
    object.__setattr__(cfg, "launcher", launcher or cfg.launcher)
    return cfg


def test_where_it_cannot_be_told_it_is_refused():
    with pytest.raises(ConfigError, match=r"^study\.role=overhead: the virtual clock costs no time"):
        in_its_role(with_role(config(), LauncherConfig(name="simulated")))
    with pytest.raises(ConfigError, match=r"^study\.role=overhead: needs .* equal steps, not lasgd$"):
        in_its_role(with_role(config("lasgd")))
    assert in_its_role(with_role(config())).run.arm == "overhead"


def test_real_ranks_train_the_same_with_a_clock_that_measures_itself(tmp_path: Path):
    plain = config(ranks=[2], results=tmp_path / "plain", dataset=Blobs(samples=480), epochs=3)
    measured = with_role(
        config(
            ranks=[2],
            results=tmp_path / "measured",
            dataset=Blobs(samples=480),
            epochs=3,
            eval_every_samples=960,
            checkpoint_every_samples=None,
        )
    )
    models, outcome = [], None
    for cfg in (plain, measured):
        directory, outcome = launch(cfg)
        assert outcome.status == "finished", outcome.details
        models.append(final_model(directory))
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert outcome is not None
    pairs = (outcome.summary or {})["clock_pairs"]
    assert pairs["steps"] == STEPS
    # 60 steps up to the first evaluation, 30 to the second: one pair.
    assert [math.isfinite(ratio) for ratio in pairs["log_ratios"]] == [True]
