"""The studies that end in an answer: they compose, are planned as the method wants, and run to a report."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from asking import run_here

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report.build import report
from daso_bench.runner.simulation.memory_plan import memory_of
from daso_bench.runner.studies.plan import plan_of

# Study: its arms (by name, or by strategy where it has no names) and seeds, and a few arms for a short run.
PAPERS = {
    "paper_hsgd": (9, ("native", "hsgd")),
    "paper_lasgd": (6, ("ddp by nodes", "lasgd")),
    "paper_ednncomm": (6, ("ddp by nodes", "ednncomm")),
    "paper_heterogeneous": (5, ("plain mean", "heterogeneous")),
    "paper_daso_imagenet": (4, ()),
    "paper_lasgd_imagenet": (6, ()),
    "paper_ednncomm_cifar": (6, ()),
}
OTHERS = {"heterogeneity": (6, ()), "periods": (19, ("ddp by nodes", "ednncomm K=4")), "mission_gpu": (9, ())}
STUDIES = {**PAPERS, **OTHERS}
SIZES = {"heterogeneity": 5, "paper_ednncomm_cifar": 2}
# Studies for a GPU, and the hours of all runs, by samples and rate alone.
IMAGENET = {"paper_daso_imagenet": 188, "paper_lasgd_imagenet": 282}
GPU = {"mission_gpu": 0.0813, "paper_ednncomm_cifar": 31.9, **IMAGENET}


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


@pytest.mark.parametrize("study", GPU)
def test_a_study_for_a_gpu_has_a_size_before_there_are_its_data(study: str, tmp_path: Path):
    runs = planned(study, cwd=tmp_path)
    seconds = sum((run.training_samples or 0) / (run.study.samples_per_s or 1) for run in runs)
    assert seconds / 3600 == pytest.approx(GPU[study], rel=0.01)
    arms = {run.arm_id: on_cpu(run) for run in runs}
    assert max(memory_of(arm).total for arm in arms.values()) < 130 * 2**30, "an H200 has 140 GiB"


def on_cpu(run: RunConfig) -> RunConfig:
    """The run on a CPU, which has no TF32."""
    train = dataclasses.replace(run.train, precision=run.train.precision.replace("tf32", "fp32"))
    assert isinstance(run.launcher, SimulatedConfig)
    launcher = dataclasses.replace(run.launcher, device="cpu", loader_workers=0)
    return dataclasses.replace(run, train=train, launcher=launcher)


@pytest.mark.parametrize("study", GPU)
def test_every_arm_of_a_study_for_a_gpu_trains_on_a_cpu(study: str, tmp_path: Path):
    """As it is, but for sizes and TF32."""
    data = Synthetic(samples=64, validation_samples=8, test_samples=16, height=8, width=8)
    for run in map(on_cpu, planned(study, "seed=0", cwd=tmp_path)):
        device = run.cluster.device
        if device.straggler.rank is not None:
            device = dataclasses.replace(device, straggler=dataclasses.replace(device.straggler, rank=3))
        cluster = dataclasses.replace(run.cluster, nodes=2, ranks_per_node=(2,), device=device)
        train = dataclasses.replace(run.train, epochs=3, global_batch_size=16, eval_every_samples=None)
        model = SmallCNN(norm="batch")
        small = dataclasses.replace(run, model=model, dataset=data, cluster=cluster, train=train)
        if (directory := RunDirectory(small.path)).state() == "new":  # sizes may differ in the model alone
            directory = RunDirectory.create(small.tree, small.results_dir)
            assert run_here(directory) == "finished", run.study.arm
