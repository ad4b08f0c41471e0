"""What a plan detects, against each arm's own ceiling, before a run is started."""

import dataclasses
import math
from functools import cache
from pathlib import Path

import pytest
from asking import code_of, requests, run_here

from daso_bench.runner.config.launchers import EmulatedConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report.claims.bounds import bound_of, reduced
from daso_bench.runner.report.data.arms import Arm
from daso_bench.runner.report.data.load import load_run
from daso_bench.runner.report.statistics.welch import t_limit
from daso_bench.runner.studies import planned_power
from daso_bench.runner.studies.planned_power import (
    baseline_among,
    detectable,
    known_baseline,
    model_error_sd,
    modelled_bound,
    power_sentences,
)

ARMS = "study.arm=ddp by nodes,daso,lasgd"
SLOW = "cluster.links.inter.rate_gbit=0.02"


@cache
def composed(*words: str) -> list[RunConfig]:
    """The first run of each arm, which writes nothing."""
    asked = requests(Path("/nowhere"), "seed=0", *words)
    return [each.config for each in asked if each.config is not None]


def configs(*words: str, runs: int = 5) -> list[RunConfig]:
    """So many runs of each arm of +study=mission."""
    return [dataclasses.replace(config, seed=seed) for config in composed(*words) for seed in range(runs)]


def of_arm(sentences: list[str], arm: str) -> str:
    (found,) = [sentence for sentence in sentences if sentence.startswith(f"  {arm}:")]
    return found


def baseline(*words: str) -> RunConfig:
    found = baseline_among(configs("study.arm=ddp by nodes", *words, runs=1))
    assert found is not None
    return found


def test_the_flagship_study_cannot_decide_what_its_arms_could_gain():
    """docs/method.md, "Power before the run": a spread of 23 %, and 1.20 times at most."""
    arms = f"{ARMS},'ddp by nodes, same seeds',placebo"
    said = power_sentences(configs(arms), None)
    assert said[0] == "power in time to target, spread 23 % (10 stored runs of mission)"
    daso, lasgd = of_arm(said, "daso"), of_arm(said, "lasgd")
    assert "at most 1.12× here (its schedule waits for a global sum in 37 % of the steps)" in daso
    assert lasgd.startswith("  lasgd: at most 1.20× here; 5 runs detect 1.6")
    assert len(said) == 1 + 2, "one line an arm, none of second baselines"
    assert all(sentence.endswith(": it cannot decide") for sentence in said[1:])


def test_a_slow_link_leaves_enough_to_be_gained_and_the_schedule_takes_it_back():
    said = power_sentences(configs(ARMS, SLOW), None)
    assert of_arm(said, "lasgd").endswith(": it can decide")
    assert of_arm(said, "daso").endswith(": it can decide")
    blocking = configs("study.arm=ddp by nodes", SLOW)
    blocking += configs("study.arm=daso", SLOW, "strategy.warmup_epochs=6")
    assert of_arm(power_sentences(blocking, None), "daso").endswith(": it cannot decide")


def test_the_error_of_the_model_is_not_averaged_out(monkeypatch: pytest.MonkeyPatch):
    """Without spread 100 runs detect no less than twice what 95 % of the errors stay below."""
    monkeypatch.setattr(planned_power, "model_error_sd", lambda *_: 0.04)
    many = configs(ARMS, "launcher.timing_only=true", "train.target=null", runs=100)
    said = of_arm(power_sentences(many, None), "lasgd")
    least = detectable(100, 0.04 * math.sqrt(100 / 2))
    assert least > math.exp(1.96 * 0.04)
    assert f"100 runs detect no less than {least:.2f}×" in said


def test_the_error_of_the_model_is_that_of_the_report():
    """Half-widths of docs/method.md, "Model error of virtual time": lasgd inside its ratios, and outside."""
    base, lasgd = (composed(f"study.arm='{arm}'")[0] for arm in ("ddp by nodes", "lasgd"))
    inside, outside = (model_error_sd(lasgd, base, ratio) for ratio in (2.0, 1.1))
    assert inside * float(t_limit(0.95, 19)) == pytest.approx(0.0692, abs=1e-4)
    assert outside * float(t_limit(0.95, 61)) == pytest.approx(0.1008, abs=1e-4)
    assert model_error_sd(lasgd, base, None) == outside


def test_real_time_has_no_error_of_the_model_and_no_bound_before_a_pilot():
    real = ("launcher=local", "cluster=laptop")
    base = baseline(*real)
    assert (model_error_sd(base, base, None), modelled_bound(base)) == (0.0, None)
    said = power_sentences(configs(ARMS, *real), None)
    assert of_arm(said, "lasgd").startswith("  lasgd: ceiling unknown before a pilot; 5 runs detect ")
    assert "decide" not in of_arm(said, "lasgd")


def test_what_gives_no_ratio_has_no_power():
    assert power_sentences(configs(ARMS, runs=2), None) == []
    without = [run for run in configs(ARMS) if run.strategy_name != "ddp"]
    assert power_sentences(without, None) == [], "no baseline"
    few = [run for run in configs(ARMS) if run.study.arm != "daso" or run.seed == 0]
    assert of_arm(power_sentences(few, None), "daso").endswith(
        "; 1 of 3 runs that a ratio needs: it cannot decide"
    )


def test_the_modelled_bound_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "commit_of", lambda source: ("0" * 40, None))
    base = baseline("model=mlp", "train.max_steps=20", "train.eval_phase=0")
    base = dataclasses.replace(base, results_dir=tmp_path)
    runs = []
    for seed in range(3):
        config = dataclasses.replace(base, seed=seed)
        directory = RunDirectory.create(config.tree, config.results_dir)
        assert run_here(directory) == "finished"
        runs.append(load_run(directory.path, directory.path.name))
    assert modelled_bound(base) == pytest.approx(bound_of(Arm(label="", index=0, runs=runs)).value, rel=1e-3)
    known = known_baseline(base, [])
    assert known.bound == pytest.approx(modelled_bound(base), rel=1e-3)
    assert known.sd is None, "none of them reached the target"
    untargeted = dataclasses.replace(base, train=dataclasses.replace(base.train, target=None))
    assert known_baseline(untargeted, []).source == "3 runs"
    real = dataclasses.replace(untargeted, launcher=EmulatedConfig())
    assert known_baseline(real, []).sd is None, "times of another clock"
    other = dataclasses.replace(base.cluster, failures_s=(5.0,))
    assert known_baseline(dataclasses.replace(untargeted, cluster=other), []).sd is None


def test_a_bound_is_reduced_by_the_steps_that_save_nothing():
    assert reduced(1.25, 0.0) == pytest.approx(1.25)
    assert reduced(1.25, 1.0) == pytest.approx(1.0)
    assert reduced(2.0, 0.5) == pytest.approx(4 / 3)


def test_a_dry_run_of_a_study_shows_it_and_of_a_single_run_does_not(
    here: Path, capsys: pytest.CaptureFixture[str]
):
    assert code_of("+study=mission", "study.arm=ddp by nodes,daso", "seed=0,1,2", "--dry-run") == 0
    assert "it cannot decide" in " ".join(capsys.readouterr().out.split())
    assert code_of("strategy=ddp", "--dry-run") == 0
    assert "decide" not in capsys.readouterr().out
    assert not list(here.iterdir())
