"""Whole studies of ddp against itself under another name: plan, virtual cluster, records, report, verdict.

The noise of the virtual machine is drawn anew for each run, as that of a real one is. What is claimed of the
other name is false, so hardly a study may say that it holds: at most 5 in 100. `make placebo` runs 100; here
are a few (DASO_BENCH_STUDIES), each of 20 runs that train.
"""

import dataclasses
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from asking import run_here

from daso_bench.runner.config.load import requests
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.launch import rank as rank_module
from daso_bench.runner.machine import environment
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.report.claims import paper_claims
from daso_bench.runner.report.claims.judge import JudgedClaim, judge
from daso_bench.runner.report.claims.speedups import Speedups
from daso_bench.runner.report.claims.study_checks import all_speedups
from daso_bench.runner.report.data.arms import compare
from daso_bench.runner.report.data.load import find_runs, load_run
from daso_bench.runner.studies.plan import plan_of
from daso_bench.runner.training.device_model import ClusterDevice

STUDIES = int(os.environ.get("DASO_BENCH_STUDIES", "2"))
HOLDS = ("supported", "reproduced", "partly")
STUDY = """\
# @package _global_
# ddp against itself under another name
study:
  name: again
  baseline: ddp
hydra:
  mode: MULTIRUN
  sweeper:
    params:
      seed: 0,1,2,3,4
    sets:
      arm:
        ddp: strategy=ddp
        same seeds: strategy=ddp study.role=same_seeds study.same_seeds_share=1
        fresh seeds: strategy=ddp study.role=fresh_seeds
        wonder: strategy=placebo
"""
CLAIMS = """\
paper: {title: Again, authors: Nobody, year: 2026, published_in: null, doi: null, arxiv: null}
study: again
claims:
"""
CLAIM = """\
  - id: wonder_{id}
    says: It is faster.
    headline: {headline}
    quantifier: typical
    {stated}
    metric: {metric}
    quality_margin: 100
    arm: placebo
    comparator: ddp
    conditions: {{model: null, dataset: null, nodes: null, devices_per_node: null, device: null,
      network: null}}
    source: abstract
    certainty: abstract
"""
WORDS = (
    "launcher=simulated",
    "cluster=ethernet_1g",
    "cluster.nodes=2",
    "cluster.ranks_per_node=1",
    "cluster.links.inter.latency_us=3000",  # much of a step is communication: 1.5 times could be
    "cluster.device.jitter=gaussian",
    "cluster.device.jitter_cv=0.3",  # of a step
    "model=mlp",
    "train.epochs=1",
    "train.max_steps=12",
    "train.eval_every_samples=1000000",
    "train.checkpoint_every_samples=null",
)


class Machine:
    """Runs what it is given in this process, with noise of its own for each run; `slower`: times, by arm."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slower: dict[str, float]) -> None:
        self._runs, self._slower, self._factor = 0, slower, 1.0
        monkeypatch.setattr(rank_module, "ClusterDevice", self._device)
        # One code for all, whatever is edited meanwhile; and git is not asked 20 times a study.
        monkeypatch.setattr(environment, "commit_of", lambda source: ("0" * 40, None))

    def _device(self, config: Any, rank: int, profile: Any, seed: int) -> ClusterDevice:
        slow = dataclasses.replace(config, fixed_ms=config.fixed_ms * self._factor)
        return ClusterDevice(slow, rank, profile, 10_000 + self._runs)

    def start(self, directory: RunDirectory, config: RunConfig) -> None:
        self._runs += 1
        self._factor = self._slower.get(config.study.arm, 1.0)
        run_here(directory)


@pytest.fixture
def planned(tmp_path: Path) -> list[RunConfig]:
    """One study, in the order of its plan."""
    (tmp_path / "conf" / "study").mkdir(parents=True)
    (tmp_path / "conf" / "study" / "again.yaml").write_text(STUDY)
    (tmp_path / "conf" / "claims").mkdir()
    said = {"by_half": "value: 1.5", "at_all": "direction: faster"}
    texts = [
        CLAIM.format(id=f"{headline}_{name}", headline=headline, metric=metric, stated=stated)
        for headline, metric in (("fixed_work", "accuracy"), ("efficiency", "samples_per_s"))
        for name, stated in said.items()
    ]
    (tmp_path / "conf" / "claims" / "again.yaml").write_text(CLAIMS + "".join(texts))
    words = ["+study=again", *WORDS]
    plan = plan_of(requests(words, sweep=True, cwd=tmp_path, config_dir=tmp_path / "conf"))
    assert (len(plan.runs), plan.refused) == (20, [])
    return [run.config for run in plan.runs]


def studies(
    planned: Sequence[RunConfig], root: Path, machine: Machine, count: int
) -> Iterator[tuple[Speedups, list[JudgedClaim]]]:
    """`count` studies of their own seeds, each through run directories to its verdicts."""
    told = [claim for claim in paper_claims.load([root / "conf"]) if claim.id.startswith("wonder_")]
    assert len(told) == 4
    for number in range(count):
        folder = root / f"study_{number}"
        for config in planned:
            own = dataclasses.replace(config, seed=config.seed + 5 * number, results_dir=folder)
            machine.start(RunDirectory.create(own.tree, folder), own)
        runs = [load_run(path, path.name) for path in find_runs(folder)]
        assert len(runs) == 20
        (found,) = all_speedups(compare(runs))
        yield found, judge(told, [found])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.timeout(120 + 30 * STUDIES)
def test_another_name_makes_nothing_faster(
    planned: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Counter[str]] = {}
    spreads: list[float] = []
    for found, verdicts in studies(planned, tmp_path, Machine(monkeypatch, {}), STUDIES):
        times = [math.log(run.train_s) for run in found.baseline.runs if run.train_s]
        spreads.append(stdev(times))
        assert found.fixed_floor.floor is not None
        assert len(verdicts) == 4
        for one in verdicts:
            # A verdict is there to be wrong: nothing but the numbers may keep it away.
            assert one.verdict.word not in ("no verdict", "not testable here"), one.verdict
            words.setdefault(one.claim.id, Counter())[one.verdict.word] += 1
    # Shown by `make placebo`.
    print(f"{STUDIES} studies, spread of a run {fmean(spreads):.1%}: {words}")
    assert 0.02 < fmean(spreads) < 0.15  # there is noise to be fooled by
    for counts in words.values():
        assert sum(counts[word] for word in HOLDS) <= max(1, STUDIES // 20), words


def test_what_is_twice_as_fast_is_told_from_what_has_another_name(
    planned: list[RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = {"ddp": 2.0, "same seeds": 2.0, "fresh seeds": 2.0}
    ((_, verdicts),) = studies(planned, tmp_path, Machine(monkeypatch, slower), 1)
    words = {one.claim.id: one.verdict.word for one in verdicts}
    assert words["wonder_efficiency_at_all"] == words["wonder_fixed_work_at_all"] == "supported"
