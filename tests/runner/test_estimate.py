"""How long a sweep takes is said before it starts, and goes by what its runs really took."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daso_bench.runner import estimate, start, sweep
from daso_bench.runner.cli import main
from daso_bench.runner.compose import compose
from daso_bench.runner.config_tree import to_plain
from daso_bench.runner.estimate import Costs, Pace
from daso_bench.runner.records import read_json, write_json
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.schema import RunConfig
from daso_bench.runner.stages import declared
from daso_bench.strategies.errors import ConfigError


def configs(folder: Path, *words: str) -> list[RunConfig]:
    asked = ["+study=quick", f"results_dir={folder}", *words]
    found = [request.config for request in sweep.requests(compose(asked, sweep=True), folder)]
    return [config for config in found if config is not None]


def finish(config: RunConfig, *walls_s: float) -> None:
    """The run directory of a run that finished in the last of so many attempts."""
    directory = RunDirectory.create(to_plain(config), config.results_dir)
    for wall in walls_s:
        directory.begin_attempt()
        directory.end_attempt("finished", None)
        status = read_json(directory.status_file)
        attempt = status["attempts"][-1]
        attempt["ended_unix"] = attempt["started_unix"] + wall
        write_json(directory.status_file, status)


def test_a_run_costs_its_start_its_steps_and_its_evaluations(tmp_path: Path) -> None:
    (config,) = configs(tmp_path, "strategy=ddp", "seed=0")
    plan = config.plan()
    assert plan.steps == 144  # 8 epochs of 18
    evaluations = 144 * 64 / 574
    assert Costs(fixed_s=2.0, step_s=0.1, evaluation_s=0.5).of(config) == pytest.approx(
        2.0 + 14.4 + 0.5 * (evaluations - 1)
    )
    at_epochs = dataclasses.replace(config, train=dataclasses.replace(config.train, eval_every_samples=None))
    assert Costs(fixed_s=0.0, step_s=0.0, evaluation_s=1.0).of(at_epochs) == pytest.approx(7.0)


def test_arms_are_taken_to_cost_what_their_finished_runs_did(tmp_path: Path) -> None:
    wanted = configs(tmp_path, "strategy=ddp,daso,hsgd", "seed=0,1")
    by_arm = {(config.strategy_class.__name__, config.seed): config for config in wanted}
    names = sorted({name for name, _ in by_arm})
    assert estimate.from_finished(wanted) is None
    finish(by_arm[names[0], 0], 10.0)
    finish(by_arm[names[1], 0], 30.0)
    found = estimate.from_finished(wanted)
    assert found is not None
    # One more of either, and two of the arm that nothing is known of, which take the mean.
    assert (found.runs, found.seconds) == (4, pytest.approx(10 + 30 + 2 * 20, abs=0.01))
    assert found.each_s == pytest.approx(20.0, abs=0.01)
    assert found.basis == "from 2 finished runs"


def test_what_was_interrupted_tells_no_time(tmp_path: Path) -> None:
    wanted = configs(tmp_path, "strategy=ddp", "seed=0,1")
    finish(wanted[0], 10.0, 10.0)
    assert estimate.from_finished(wanted) is None


def test_a_trial_tells_start_steps_and_evaluations_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of this test goes on by what each trial would take."""
    now = [0.0]
    tried: list[RunConfig] = []
    monkeypatch.setattr(estimate.time, "monotonic", lambda: now[0])

    def run(directory: RunDirectory, config: RunConfig) -> bool:
        assert not directory.path.is_relative_to(tmp_path)
        tried.append(config)
        steps, every = config.train.max_steps, config.train.eval_every_samples
        assert steps is not None
        assert every is not None
        loading = 60.0 if len(tried) == 1 else 0.0  # the first process waits until all is loaded
        evaluations = max(1, steps * config.train.global_batch_size // every)
        step = 0.2 if config.strategy_class.__name__ == "DDP" else 0.5
        now[0] += loading + 1.0 + step * steps + 0.05 * (evaluations - 1)
        return True

    wanted = configs(tmp_path, "strategy=daso,ddp", "seed=0,1")
    found = estimate.from_trial(wanted, run)
    assert found is not None
    assert [config.strategy_class.__name__ for config in tried] == ["DDP"] * 4 + ["DASO"] * 4
    both = 2 * (1.0 + 0.05 * (144 * 64 / 574 - 1)) + (0.2 + 0.5) * 144
    assert found.seconds == pytest.approx(2 * both)
    assert (
        found.basis == "taking each run to cost what ddp or daso costs; --no-estimate starts without trying"
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("trouble", [lambda: False, ConfigError("no")])
def test_no_trial_no_estimate(tmp_path: Path, trouble: Any) -> None:
    def run(directory: RunDirectory, config: RunConfig) -> bool:
        if isinstance(trouble, ConfigError):
            raise trouble
        return trouble()

    assert estimate.from_trial(configs(tmp_path, "strategy=ddp,daso", "seed=0"), run) is None


def test_jobs_may_use_up_their_time_limits(tmp_path: Path) -> None:
    words = ("launcher=slurm", "launcher.timeout_min=90", "strategy=ddp", "seed=0,1", "cluster=laptop")
    assert estimate.at_most(configs(tmp_path, *words)) == (
        "at most 12 hours of a rank in all (launcher.timeout_min x ranks)"
    )
    assert estimate.at_most(configs(tmp_path, "strategy=ddp")) == ""


def test_the_pace_goes_by_the_runs_once_there_are_some() -> None:
    pace = Pace(10.0)
    assert pace.left_s(3) == 30.0
    pace.took(4.0)
    pace.took(6.0)
    assert pace.left_s(3) == 15.0
    assert Pace(None).left_s(3) is None


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    monkeypatch.chdir(tmp_path)
    count = [0]

    def tried(*_: Any) -> bool:
        count[0] += 1
        return True

    monkeypatch.setattr(start, "_run_trial", tried)
    return lambda: count[0]


def test_a_sweep_of_few_runs_starts_at_once_and_tells_what_is_left(
    trials: Callable[[], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", "seed=0,1", "train.epochs=1", "launcher=simulated", "cluster=ethernet_1g"]
    with pytest.raises(SystemExit):
        main(words)
    shown = capsys.readouterr().out
    assert trials() == 0
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


@pytest.mark.parametrize("more", [[], ["--no-estimate"]])
def test_a_sweep_of_many_runs_tries_some_first_unless_told_not_to(
    more: list[str],
    trials: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweep, "run_all", lambda *_: [])
    seeds = ",".join(map(str, range(estimate.MANY)))
    with pytest.raises(SystemExit):
        main(["-m", f"seed={seeds}", "launcher=simulated", "cluster=ethernet_1g", *more])
    shown = capsys.readouterr().out
    assert trials() == (0 if more else 4)
    assert ("10 runs to do: about" in shown) is not bool(more)
    assert ("--no-estimate starts without trying" in shown) is not bool(more)
