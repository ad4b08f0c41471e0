"""Keys of strategies that are refused before a run, alone or for its ranks, and what is allowed."""

import math
from typing import Any

import pytest
from runs import strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan
from daso_bench.strategies.topology import Topology


@pytest.mark.parametrize(
    ("strategy", "keys", "message"),
    [
        ("ddp", {"algorithm": "flt"}, r"strategy\.algorithm=flt.*did you mean 'flat'"),
        ("ddp", {"hook": "fp8"}, r"strategy\.hook=fp8"),
        ("ddp", {"weighting": "equal"}, r"strategy\.weighting=equal"),
        ("ddp", {"bucket_mib": 0}, r"strategy\.bucket_mib=0: must be > 0"),
        ("ddp", {"powersgd_rank": 0}, r"strategy\.powersgd_rank=0: must be >= 1"),
        ("ddp", {"powersgd_start_steps": -1}, r"strategy\.powersgd_start_steps=-1: must be >= 0"),
        ("ddp", {"powersgd_min_compression": 0}, r"strategy\.powersgd_min_compression=0: must be > 0"),
        ("heterogeneous", {"weighting": "sample"}, "weighting=sample: unknown"),
        (
            "heterogeneous",
            {"balancing": "manual"},
            r"balancing=manual, strategy\.shares=null: shares are given with manual",
        ),
        (
            "heterogeneous",
            {"shares": (1.0, 2.0)},
            r"balancing=static, strategy\.shares=\[1\.0, 2\.0\]: shares are given",
        ),
        ("heterogeneous", {"balancing": "manual", "shares": (1.0, 0.0)}, r"shares=0\.0: must be > 0"),
        ("heterogeneous", {"balancing": "manual", "shares": (1.0, math.nan)}, "shares=nan: must be > 0"),
        ("hsgd", {"partition": "row"}, r"strategy\.partition="),
        ("hsgd", {"level1": "gpu"}, r"strategy\.level1="),
        ("hsgd", {"level2_algorithm": "ring"}, r"strategy\.level2_algorithm="),
        ("hsgd", {"partition": "tensor", "level1": "collective"}, r"strategy\.partition="),
        ("daso", {"max_sync_every": 2, "sync_every": 4}, "max_sync_every=2.*sync_every=4"),
        ("daso", {"wait_batches": 5, "sync_every": 4}, "wait_batches=5.*sync_every=4"),
        ("daso", {"sync_every": 0}, "sync_every=0.*>= 1"),
        ("daso", {"warmup_epochs": -1}, "warmup_epochs=-1"),
        ("daso", {"warmup_epochs": "four"}, "warmup_epochs=four.*auto"),
        ("daso", {"reduction_factor": 1}, "reduction_factor=1"),
        ("daso", {"staleness_weight": 0.0}, r"staleness_weight=0\.0"),
        ("daso", {"blocking": "gradient"}, "blocking=gradient.*gradients"),
        ("local_sgd", {"sync_every": 0}, r"strategy\.sync_every=0: must be >= 1"),
        (
            "local_sgd",
            {"period_rule": "cubic"},
            r"strategy\.period_rule=cubic: unknown; known: constant, qsr",
        ),
        ("local_sgd", {"period_rule": "qsr"}, r"strategy\.qsr_alpha=None: must be a number > 0 with"),
        ("local_sgd", {"qsr_alpha": 0.1}, r"strategy\.qsr_alpha=0\.1: must be .* null with constant"),
        ("local_sgd", {"period_rule": "qsr", "qsr_alpha": 0.0}, r"strategy\.qsr_alpha=0\.0: must be > 0"),
        (
            "local_sgd",
            {"buffers": "sum"},
            r"strategy\.buffers=sum: unknown.*; known: average, broadcast, none",
        ),
        (
            "local_sgd",
            {"optimizer_state": "drop"},
            r"strategy\.optimizer_state=drop: unknown.*; known: keep, average, reset",
        ),
        (
            "post_local_sgd",
            {"switch_samples": "half"},
            r"strategy\.switch_samples=half: must be auto or a number",
        ),
        ("post_local_sgd", {"switch_samples": -1}, r"strategy\.switch_samples=-1: must be >= 0"),
        ("post_local_sgd", {"sync_every": 0}, r"strategy\.sync_every=0: must be >= 1"),
        ("post_local_sgd", {"unit": "rack"}, r"strategy\.unit=rack: unknown.*; known: rank, node"),
        ("ednncomm", {"sync_every": 0}, r"strategy\.sync_every=0.*>= 1"),
        ("ednncomm", {"sync_every": "epoch"}, r"strategy\.sync_every=epoch.*auto.*>= 1"),
        ("ednncomm", {"exchange": "leaders"}, r"strategy\.exchange=leaders.*leader.*world.*sliced"),
        ("diloco", {"sync_every": 0}, r"strategy\.sync_every=0.*>= 1"),
        ("diloco", {"outer_lr": 0.0}, r"strategy\.outer_lr=0\.0.*> 0"),
        ("diloco", {"outer_momentum": 1.5}, r"strategy\.outer_momentum=1\.5.*between 0 and 1"),
        ("diloco", {"outer_device": "gpu"}, r"strategy\.outer_device=gpu.*cpu.*device"),
        ("slowmo", {"sync_every": 0}, r"strategy\.sync_every=0.*>= 1"),
        ("slowmo", {"slow_momentum": 1.5}, r"strategy\.slow_momentum=1\.5.*between 0 and 1"),
        ("slowmo", {"slow_lr": 0.0}, r"strategy\.slow_lr=0\.0.*> 0"),
        ("sgp", {"num_peers": 0}, "num_peers=0"),
        ("sgp", {"graph": "star"}, "graph=star"),
        ("sgp", {"direction": "pull"}, "direction=pull"),
        ("sgp", {"send_weight": "false"}, "send_weight=false"),
        ("lasgd", {"sync_every": 0}, "sync_every=0.*>= 1"),
        ("lasgd", {"optimizer_state": "reset"}, "optimizer_state=reset.*average"),
    ],
)
def test_refused_keys(strategy: str, keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        strategy_class(strategy).Config(**keys)


def check(strategy: str, keys: dict[str, Any], nodes: list[int], epochs: int = 12, batch: int = 16) -> None:
    """The strategy's look at a run on these ranks of nodes."""
    kind = strategy_class(strategy)
    kind.check(kind.Config(**keys), Plan(Topology.of(nodes), epochs, batch))


@pytest.mark.parametrize(
    ("strategy", "keys", "nodes", "message"),
    [
        (
            "ddp",
            {"algorithm": "sliced"},
            [2, 1],
            r"sliced.*same number of ranks.*\[2, 1\].*hierarchical does not",
        ),
        ("daso", {}, [3, 1], r"daso needs the same number of ranks on every node, got \[3, 1\]"),
        ("ednncomm", {"exchange": "sliced"}, [3, 1], r"sliced needs the same .* on every node, got \[3, 1\]"),
        ("hsgd", {"partition": "tensor"}, [3, 1], r"same number of ranks on every node, got \[3, 1\]"),
        ("sgp", {"num_peers": 4}, [2, 2], "num_peers=4: must be <= 3"),
    ],
)
def test_ranks_for_which_a_key_is_refused(
    strategy: str, keys: dict[str, Any], nodes: list[int], message: str
):
    with pytest.raises(ConfigError, match=message):
        check(strategy, keys, nodes)


@pytest.mark.parametrize(
    ("strategy", "keys", "nodes"),
    [
        ("ddp", {"algorithm": "sliced"}, [2, 2]),
        ("ednncomm", {"exchange": "leader"}, [3, 1]),
        ("ednncomm", {"exchange": "world"}, [3, 1]),
        ("hsgd", {}, [3, 1]),
        ("sgp", {"num_peers": 3}, [2, 2]),
    ],
)
def test_ranks_for_which_a_key_is_allowed(strategy: str, keys: dict[str, Any], nodes: list[int]):
    check(strategy, keys, nodes)


@pytest.mark.parametrize(
    ("epochs", "keys", "message"),
    [
        (3, {"warmup_epochs": 2, "cooldown_epochs": 2}, "=2.*train.epochs=3"),
        (2, {}, "=1.*train.epochs=2"),
    ],
)
def test_daso_without_an_asynchronous_epoch_is_refused(epochs: int, keys: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        check("daso", keys, [2, 2], epochs)
    check("daso", {**keys, "allow_no_cycling": True}, [2, 2], epochs)


@pytest.mark.parametrize(
    ("keys", "total", "message"),
    [
        ({"balancing": "manual", "shares": (1.0, 2.0)}, 512, "must be 3, one for each rank"),
        ({}, 2, r"global_batch_size=2: 3 ranks with at least 1 samples each need 3"),
        ({"max_batch": (0,)}, 512, r"max_batch=0: must be >= 1"),
        ({"max_batch": (100, 200)}, 512, r"max_batch=\[100, 200\]: must be one number or 3"),
        ({"max_batch": (100,)}, 512, r"max_batch=\[100\]: lets 3 ranks take \[100, 100, 100\] samples"),
    ],
)
def test_batches_that_heterogeneous_cannot_cut_are_refused(keys: dict[str, Any], total: int, message: str):
    with pytest.raises(ConfigError, match=message):
        check("heterogeneous", keys, [2, 1], batch=total)
