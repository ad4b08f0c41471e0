"""Keys of strategies that are refused before a run, each with the key, its value and what is allowed."""

import math
from typing import Any

import pytest
from runs import strategy_class  # pyright: ignore[reportMissingImports] (another folder of tests)

from daso_bench.strategies.errors import ConfigError


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
