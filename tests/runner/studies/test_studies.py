"""The studies that end in an answer: they compose, are planned as the method wants, and run to a report."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from asking import run_here

from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report.build import report
from daso_bench.runner.studies.plan import plan_of

# Study: its arms (by name, or by strategy where it has no names) and seeds, and a few arms for a short run.
PAPERS = {
    "paper_hsgd": (9, ("native", "hsgd")),
    "paper_lasgd": (6, ("ddp by nodes", "lasgd")),
    "paper_ednncomm": (6, ("ddp by nodes", "ednncomm")),
    "paper_heterogeneous": (5, ("plain mean", "heterogeneous")),
}
OTHERS = {"heterogeneity": (6, ()), "periods": (19, ("ddp by nodes", "ednncomm K=4"))}
STUDIES = {**PAPERS, **OTHERS}
SIZES = {"heterogeneity": 5}


def planned(study: str, *words: str, cwd: Path) -> list[RunConfig]:
    plan = plan_of(requests([f"+study={study}", *words], sweep=True, cwd=cwd))
    assert not plan.refused, [str(request.error) for request in plan.refused]
    return [run.config for run in plan.runs]


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_has_its_arms_with_the_same_seeds_and_cadence(study: str, tmp_path: Path):
    arms, _ = STUDIES[study]
    seeds = 5 if study in PAPERS else 1
    runs = planned(study, *([] if study in PAPERS else ["seed=0"]), cwd=tmp_path)
    assert len(runs) == arms * seeds * SIZES.get(study, 1)
    assert {run.launcher.name for run in runs} == {"simulated"}
    assert {run.study.name for run in runs} == {study}
    assert len({run.train.eval_every_samples for run in runs}) == 1
    assert len({run.train.global_batch_size for run in runs}) == 1
    repetitions = {(run.seed % 1000, run.train.eval_phase) for run in runs}
    assert len(repetitions) == seeds, "all arms of a repetition are evaluated at the same marks"
    if study in PAPERS:
        check_verdict(runs)


def check_verdict(runs: Sequence[RunConfig]) -> None:
    """The study of a paper has what a verdict needs: a baseline, second ones equal to it, and a placebo.

    Without jitter, runs of the same seeds and the placebo would repeat the baseline.
    """
    copies = set() if runs[0].cluster.device.jitter == "none" else {"same_seeds", "placebo"}
    assert {run.study.role for run in runs} == {"", "fresh_seeds", *copies}
    (baseline,) = {run.study.baseline for run in runs}
    ordinary = {run.study.arm for run in runs if not run.study.role}
    assert baseline in ordinary
    plain = next(run for run in runs if run.study.arm == baseline)
    for role in ("fresh_seeds", *(copies - {"placebo"})):
        again = next(run for run in runs if run.study.role == role)
        assert (again.strategy, again.cluster) == (plain.strategy, plain.cluster)


@pytest.mark.parametrize("study", ["paper_hsgd", "heterogeneity"])
def test_a_short_run_of_it_ends_in_a_report(study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "commit_of", lambda source: ("0" * 40, None))
    words = ["seed=0,1", "train.max_steps=3"]
    wanted = STUDIES[study][1]
    # DASO refuses a schedule of one epoch.
    words += [f"study.arm={','.join(wanted)}"] if wanted else ["strategy=ddp,lasgd", "study.size=straggler"]
    runs = planned(study, *words, cwd=tmp_path)
    assert len(runs) == 4
    assert [run_here(RunDirectory.create(run.tree, run.results_dir)) for run in runs] == ["finished"] * 4
    page = report(tmp_path / "results", tmp_path / "report").read_text(encoding="utf-8")
    assert "not drawn" not in page
    for name in wanted or ("ddp", "lasgd"):
        assert name in page
