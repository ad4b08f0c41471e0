"""Evaluations closer together and further apart: an arm whose training notices them gets no verdict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import config
from test_answer import BASE, study

from daso_bench.runner.claims import load
from daso_bench.runner.report.answer import Answer, answers
from daso_bench.runner.report.answer_words import cells, sentences
from daso_bench.runner.report.arms import compare
from daso_bench.runner.report.judge import judge
from daso_bench.runner.report.load import find_runs, load_run
from daso_bench.runner.simulated_world import simulate

Make = Callable[..., Path]
DISTANCES = {0.25: "evaluations x 1/4", 4.0: "evaluations x 4"}


def beside(make_run: Make, root: Path, strategy: str, slower: dict[float, float], **more: Any) -> None:
    """The runs of `strategy` again at other distances of 1,000 samples, `slower` times as long."""
    for times, longer in slower.items():
        for seed, whole_s in enumerate(BASE):
            factor = 1.0 if strategy == "ddp" else 0.8
            place = {"arm": strategy, "role": "", "assumption": DISTANCES[times]}
            make_run(
                root,
                strategy,
                seed,
                (0.60, 0.70, 0.74, 0.78),
                train_s=whole_s * factor * longer / 4,
                train={"eval_every_samples": int(1000 * times)} | more.get("train", {}),
                place=place,
                world=more.get("world", "local"),
                exposed=0.5,
            )


def whole(make_run: Make, root: Path, **more: Any) -> None:
    """A study whose arms take 0.8 of the baseline's times; clock floor 2 %."""
    study(make_run, root, fresh=1.0, arm=[0.8 * value for value in BASE], exposed=0.5, **more)


def held(root: Path) -> Answer:
    (found,) = answers(compare(load_run(path, path.name) for path in find_runs(root)))
    return found


def verdict(found: Answer) -> tuple[str, tuple[str, ...]]:
    claims = [claim for claim in load() if claim.id == "daso_time"]
    (one,) = judge(claims, [found])
    return one.verdict.word, one.verdict.reasons


def test_an_arm_that_trains_on_as_it_did_keeps_its_verdict_and_that_is_said(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    beside(make_run, tmp_path, "daso", {0.25: 1.01, 4.0: 1.0})
    found = held(tmp_path)
    assert dict(found.cadence["daso"].changes) == {0.25: pytest.approx(1.01), 4.0: pytest.approx(1.0)}
    assert found.cadence["daso"].limit == pytest.approx(0.0198, abs=1e-4)
    assert verdict(found)[0] != "no verdict"
    (cell,) = cells(found)
    assert "evaluations at 0.25 and 4 of their distance leave training as it is" in cell.notes


def test_an_arm_that_is_slowed_down_by_evaluating_gets_no_verdict(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    beside(make_run, tmp_path, "daso", {0.25: 1.05, 4.0: 1.0})
    word, reasons = verdict(held(tmp_path))
    assert word == "no verdict"
    assert any("daso trains at another speed when it is evaluated more or less often" in r for r in reasons)
    assert any("1.05 times as long with evaluations 0.25 times as far apart" in r for r in reasons)


def test_a_baseline_that_is_slowed_down_gives_no_verdict_on_anybody(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    beside(make_run, tmp_path, "ddp", {0.25: 1.05})
    found = held(tmp_path)
    assert verdict(found)[0] == "no verdict"
    assert any(sentence.startswith("ddp trains at another speed") for sentence in sentences(found))


def test_too_few_runs_or_another_mode_or_other_settings_judge_nothing(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path)
    beside(make_run, tmp_path, "daso", {0.25: 1.05}, train={"global_batch_size": 32})
    assert held(tmp_path).cadence == {}
    beside(make_run, tmp_path, "daso", {4.0: 1.05})
    paths = [path for path in find_runs(tmp_path) if load_run(path, "it").assumption == DISTANCES[4.0]]
    for path in paths[:2]:
        file = path / "metrics.jsonl"
        rows = [json.loads(line) | {"mode": "deferred"} for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = held(tmp_path)
    assert found.cadence["daso"].why.startswith("3 pairs of runs")
    assert any("evaluation distance not judged: 3 pairs" in note for note in cells(found)[0].notes)
    assert verdict(found)[0] != "no verdict"


def test_on_the_virtual_clock_a_millionth_is_too_much(make_run: Make, tmp_path: Path):
    whole(make_run, tmp_path, world="simulated")
    beside(make_run, tmp_path, "daso", {0.25: 1.000001}, world="simulated")
    assert verdict(held(tmp_path))[0] == "no verdict"


def per_sample(every: int, mode: str) -> float:
    """Seconds of training a sample on the virtual clock, of lasgd beside a straggler."""
    asked = config("lasgd", eval_every_samples=every, eval_mode=mode)
    done = simulate(asked, asked.dataset.load(), step_time=lambda rank, n: 10**7 * (4 if rank == 3 else 1))
    return done.results[0].summary["train_s"] / done.sessions[0].progress.samples


def test_lasgd_that_is_made_to_stop_for_evaluations_beside_a_straggler_does_not():
    own, *others = [per_sample(every, "inline") for every in (48, 12, 192)]
    assert max(abs(value / own - 1) for value in others) > 1e-3
    own, *others = [per_sample(every, "auto") for every in (48, 12, 192)]
    assert others == pytest.approx([own] * 2, rel=1e-9)
