"""Whole runs of the bench for GPUs, on the CPU: stopped and resumed, and never longer than there is time."""

import json
from pathlib import Path
from typing import Any

import gpu_runs
import pytest
from gpu_options import STALL_S, Time, TimeUp, parse
from processes import configuration

from daso_bench.runner.config import load
from daso_bench.runner.launch import local
from daso_bench.runner.records.json_lines import RecordWriter
from daso_bench.runner.records.run_directory import Outcome, RunDirectory

SMALL = ["device=cpu", "model=small_cnn", "image=8", "batch=8", "blocks=5", "steps=8"]
DONE = Outcome(status="finished", reason=None, exit_code=0, summary={"final_accuracy": 0.9})
STOPPED = Outcome(status="cancelled", reason="interrupted", exit_code=1)
FAILED = Outcome(status="failed", reason="rank 1: it does not run", exit_code=1)


class Told(Time):
    """Runs end as they are told to, and begin where they are told to."""

    def __init__(self, *outcomes: Outcome, resumed_from: str | None = "step_0000000004") -> None:
        super().__init__(10)
        self.outcomes, self.resumed_from = list(outcomes), resumed_from
        self.entries: list[str] = []

    def launch(
        self, directory: RunDirectory, config: Any, entry: str = local.ENTRY, stall_s: float = STALL_S
    ) -> Outcome:
        self.entries.append(entry)
        with RecordWriter(directory.path / "metrics.jsonl") as rows:
            first = len(self.entries) == 1
            rows.write({"kind": "start", "resumed_from": None if first else self.resumed_from})
        return self.outcomes.pop(0)


def ran(time_left: Time) -> Any:
    config = gpu_runs.run_of(gpu_runs.arms()[0], gpu_runs.cluster_of("cpu", ranks=(2, 2)), 8)
    return gpu_runs.judged("runs_x", "a run", lambda: gpu_runs.in_two_halves(config, time_left))


def test_a_run_that_is_stopped_and_resumed_is_what_is_asked_for():
    time_left = Told(STOPPED, DONE)
    assert ran(time_left).ok
    assert time_left.entries == ["gpu_runs:first_half", local.ENTRY]


@pytest.mark.parametrize(
    ("time_left", "why"),
    [
        (Told(DONE), "it ended before it could be stopped"),
        (Told(FAILED), "failed, rank 1: it does not run"),
        (Told(STOPPED, FAILED), "failed, rank 1: it does not run"),
        (Told(STOPPED, DONE, resumed_from=None), "it began anew where it was to resume"),
        (Told(STOPPED, Outcome(status="finished", reason=None, exit_code=0, summary={})), "finished, None"),
    ],
)
def test_a_run_that_does_not_is_a_figure_that_is_short(time_left: Told, why: str):
    figure = ran(time_left)
    assert not figure.ok
    assert why in figure.detail
    assert "\n" not in figure.detail, "a line per figure"


def test_a_strategy_that_cannot_even_begin_takes_no_other_along():
    def run() -> Outcome:
        raise ValueError("no such key\nand more")

    figure = gpu_runs.judged("runs_x", "a run", run)
    assert (figure.value, figure.ok, figure.detail) == (0, False, "a run: ValueError: no such key")

    def too_late() -> Outcome:
        return Time(1, iter([0.0, 61.0]).__next__).outcome_of(configuration())

    with pytest.raises(TimeUp, match="the 1 minutes are over"):
        gpu_runs.judged("runs_x", "a run", too_late)


def test_all_strategies_are_tried_and_every_way_to_sum():
    arms = gpu_runs.arms()
    assert {path.stem for path in (gpu_runs.CONF / "strategy").glob("*.yaml")} < {arm.name for arm in arms}
    assert [arm.keys for arm in arms if arm.name.startswith("ddp_")] == [
        {"algorithm": "hierarchical"},
        {"algorithm": "sliced"},
        {"hook": "powersgd", "powersgd_start_steps": 2},
    ]
    for arm in arms:
        config = gpu_runs.run_of(arm, gpu_runs.cluster_of("cuda", ranks=gpu_runs.NODES), 20)
        assert config.cluster.ranks_of_nodes == (2, 2), "sums within nodes and between them"
        assert (vars(config.model)["norm"], config.train.max_steps) == ("batch", 20)
        assert config.launcher.share_gpus, "else four ranks on one GPU are refused"
        every = getattr(config.strategy, "sync_every", 1)
        assert every <= 10, f"{arm.name}: twice in the run"


def test_steps_and_a_resume_of_two_nodes_on_one_device(monkeypatch: pytest.MonkeyPatch):
    daso = next(arm for arm in gpu_runs.arms() if arm.name == "daso")
    monkeypatch.setattr(gpu_runs, "arms", lambda: [daso])
    figures = []
    for figure in gpu_runs.function(parse(SMALL), Time(10)):
        assert figure.ok, figure.detail
        figures.append(figure.name)
    assert figures == ["gpu_runs_daso", "gpu_runs_bf16", "gpu_runs_fp16"]


# ------------------------------------------------------------------ time


def test_a_run_is_given_up_when_it_stands_still_for_long_or_for_all_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    given: list[float] = []

    def launch(directory: RunDirectory, **keys: Any) -> Outcome:
        given.append(keys["stall_s"])
        return DONE

    monkeypatch.setattr(local, "launch", launch)
    time_left = Time(1, lambda: now[0])
    config = configuration()
    directory = RunDirectory.create(load.to_plain(config), tmp_path)
    for now[0] in (0.0, 50.0):
        time_left.launch(directory, config)
    assert given == [40, 10]
    now[0] = 60.0
    with pytest.raises(TimeUp):
        time_left.launch(directory, config)
    assert len(given) == 2


def test_a_run_that_goes_on_and_on_is_stopped(tmp_path: Path):
    config = configuration(ranks=1)
    directory = RunDirectory.create(load.to_plain(config), tmp_path)
    (directory.path / "plan.json").write_text(json.dumps({"steps": 500}))
    time_left = Time(10)
    local.warm()
    time_left._end = time_left._now() + 1.5
    with pytest.raises(TimeUp):
        time_left.launch(directory, config, "process_entries:works")
    assert not list(directory.path.glob("seen_*.json")), "it was killed before its end"
