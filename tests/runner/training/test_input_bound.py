"""A run that spends much of its time on data says on what, and names no key that would not help."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from daso_bench.runner.config.launchers import LauncherConfig, LocalConfig, SimulatedConfig
from daso_bench.runner.training.context import TrainContext
from daso_bench.runner.training.packed_loader import ReaderOrder
from daso_bench.runner.training.packed_set import PackedSet
from daso_bench.runner.training.state import Account
from daso_bench.runner.training.time_accounting import TimeAccounting

WORK = "decoding and changing images"
START = "input-bound: more than 10% of training time for data"


def label(launcher: LauncherConfig, data_ns: int, waited_s: float | None) -> list[str]:
    """Of a run of two ranks and 10 s; waited_s: by both together, None without a reader."""
    batch_order = object.__new__(ReaderOrder)
    batch_order.set = cast(PackedSet, SimpleNamespace(codec=SimpleNamespace(work=WORK)))
    context = SimpleNamespace(
        config=SimpleNamespace(launcher=launcher),
        state=SimpleNamespace(account=Account()),
        batch_order=batch_order,
        comm=SimpleNamespace(topology=SimpleNamespace(ranks=2)),
    )
    accounting = TimeAccounting(cast(TrainContext, context))
    accounting.account.parts_ns.update(compute=10**10 - data_ns, data=data_ns)
    reader: dict[str, Any] = {} if waited_s is None else {"reader": {"waited_s": waited_s}}
    return accounting._input_bound(reader)


def test_little_time_for_data_is_no_label() -> None:
    assert label(LocalConfig(), 10**9, None) == []
    assert label(LocalConfig(), 10**9, 2.0) == []
    assert label(LocalConfig(), 10**9 + 1, None) == [f"{START} (launcher.loader_workers)"]


def test_waiting_for_the_reader_and_work_of_the_rank_are_told_apart() -> None:
    (waits,) = label(LocalConfig(), 4 * 10**9, 6.0)
    assert waits == f"{START} (75% of it waiting for the reader: reader.prefetch_batches, the disk)"
    (works,) = label(LocalConfig(), 4 * 10**9, 2.0)
    assert works == f"{START} (75% of it {WORK} in the rank itself, which no key of reader shortens)"
    assert "prefetch" not in works


@pytest.mark.parametrize(
    "launcher",
    [SimulatedConfig(), LocalConfig(network="modelled")],
    ids=["virtual", "emulated"],
)
def test_where_the_cost_of_data_is_said_no_process_would_lower_it(launcher: LauncherConfig) -> None:
    assert label(launcher, 4 * 10**9, None) == [f"{START} (cluster.device)"]
