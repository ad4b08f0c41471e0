"""A run that spends much of its time on data says so, and what it spent it on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from daso_bench.runner.config.launchers import LauncherConfig, LocalConfig, SimulatedConfig
from daso_bench.runner.training.context import TrainContext
from daso_bench.runner.training.state import Account
from daso_bench.runner.training.time_accounting import TimeAccounting

START = "input-bound: more than 10% of training time for data"


@pytest.mark.parametrize(
    ("launcher", "data_ns", "waited_s", "labels"),
    [
        (LocalConfig(), 10**9, None, []),
        (LocalConfig(), 10**9 + 1, None, [f"{START} (launcher.loader_workers)"]),
        (SimulatedConfig(), 4 * 10**9, None, [f"{START} (cluster.device)"]),
        (LocalConfig(network="modelled"), 4 * 10**9, None, [f"{START} (cluster.device)"]),
        (
            LocalConfig(),
            4 * 10**9,
            6.0,
            [f"{START} (75% of it waiting for the reader, the rest work of the rank)"],
        ),
    ],
    ids=["little", "real", "virtual", "emulated", "reader"],
)
def test_input_bound(launcher: LauncherConfig, data_ns: int, waited_s: float | None, labels: list[str]):
    """A run of two ranks and 10 s; waited_s: by both together, None without a reader."""
    context = SimpleNamespace(
        config=SimpleNamespace(launcher=launcher),
        state=SimpleNamespace(account=Account()),
        comm=SimpleNamespace(topology=SimpleNamespace(ranks=2)),
    )
    accounting = TimeAccounting(cast(TrainContext, context))
    accounting.account.parts_ns.update(compute=10**10 - data_ns, data=data_ns)
    reader: dict[str, Any] = {} if waited_s is None else {"reader": {"waited_s": waited_s}}
    assert accounting._input_bound(reader) == labels
