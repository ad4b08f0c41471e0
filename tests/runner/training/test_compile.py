"""train.compile: in the warm-up, for every size, cut by buckets; never in training time; refused in words."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import config
from torch._dynamo.exc import TorchDynamoException

from daso_bench.datasets.sampler import Sampler
from daso_bench.runner.config import load
from daso_bench.runner.launch import local
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.runner.training import warm_up
from daso_bench.runner.training.batch_order import GlobalOrder, IndependentOrder
from daso_bench.strategies.errors import ConfigError, MachineError
from daso_bench.strategies.topology import Topology


def test_a_compiled_model_takes_the_same_steps_under_the_same_names(tmp_path: Path):
    cfg = config(ranks=[2], results=tmp_path)
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    outcome = local.launch(
        directory, ranks=2, threads=1, port=None, stall_s=60, entry="gloo_entries_gpu:compiled_steps"
    )
    assert outcome.status == "finished", outcome.details
    summary = outcome.summary or {}
    assert summary["graphs"] > 2, "one graph for each of two sizes would sum nothing beside backward"
    assert summary["raised"], "what is not compiled yet is an error in training"


def test_a_pass_has_no_other_batches_than_its_first_and_its_last():
    order = GlobalOrder(Sampler(50, 16, 3, 0, short_batch="keep"), 0)
    sizes = {order.sampler.samples_of_rank(batch) for batch in range(order.sampler.steps_per_epoch)}
    assert sizes == set(order.extremes())
    independent = IndependentOrder(order.sampler, Topology.of([2, 1]), 0, 0)
    seen = set()
    for independent._number in range(20):
        seen.add(independent.sizes(SimpleNamespace()))  # pyright: ignore[reportArgumentType]
    independent._number = 0
    assert seen == set(independent.extremes())
    assert len(seen) == 2


def test_what_cannot_be_compiled_is_told_with_the_way_out(monkeypatch: pytest.MonkeyPatch):
    def fails(*_: Any) -> None:
        raise TorchDynamoException("no working C++ compiler")

    monkeypatch.setattr(warm_up, "undone_step", fails)
    averaging = SimpleNamespace(bucket_mib=25.0)
    replica: Any = SimpleNamespace(model=torch.nn.Linear(1, 1), averaging=averaging)
    comm: Any = SimpleNamespace(now=lambda: 0)
    with pytest.raises(MachineError, match=r"no working C\+\+ compiler\); take train.compile=false"):
        warm_up.compile_model(replica, [replica], comm)
    averaging.bucket_mib = 0.5
    with pytest.raises(ConfigError, match=r"buckets of 0.5 MiB .* take 1 or more"):
        warm_up.compile_model(replica, [replica], comm)
