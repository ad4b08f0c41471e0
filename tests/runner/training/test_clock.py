"""Segments cover the process, parts the training; waiting is told from transfer, and data that take long."""

from types import SimpleNamespace
from typing import cast

import pytest

from daso_bench.runner.communication.traffic import Traffic
from daso_bench.runner.config.launchers import LauncherConfig, LocalConfig, SimulatedConfig
from daso_bench.runner.training.clock import Clock
from daso_bench.runner.training.context import TrainContext
from daso_bench.runner.training.state import Account
from daso_bench.runner.training.time_accounting import TimeAccounting
from daso_bench.strategies.topology import Topology


class Hands:
    """A clock set by hand, nanoseconds."""

    def __init__(self) -> None:
        self.time = 0

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def traffic() -> Traffic:
    return Traffic(Topology.of([2, 2]), 0)


def test_segments_are_exclusive_and_cover_all(hands: Hands, traffic: Traffic):
    clock = Clock(hands, traffic)
    hands.time = 5
    clock.enter("train")
    hands.time = 15
    with clock.within("log"):
        hands.time = 18
    hands.time = 20
    clock.enter("eval")
    hands.time = 50
    segments = clock.closed()
    assert {name: value for name, value in segments.items() if value} == {
        "startup": 5,
        "train": 12,
        "log": 3,
        "eval": 30,
    }
    assert sum(segments.values()) == clock.total() == 50


def test_pauses_of_training_are_told_once_each_and_writing_a_log_is_none(hands: Hands, traffic: Traffic):
    clock, calls = Clock(hands, traffic), []
    clock.on_training = calls.append
    for segment in ("train", "log", "train", "make_model", "eval", "log", "train"):
        clock.enter(segment)
    assert calls == [True, False, True], "an inline evaluation, then its row, then training goes on"
    for segment in ("log", "eval", "log", "checkpoint", "train", "checkpoint", "log", "other"):
        clock.enter(segment)
    assert calls == [True, False, True, False, True, False]


def test_startup_counts_from_the_birth_of_the_process(hands: Hands, traffic: Traffic):
    hands.time = 70
    clock = Clock(hands, traffic, started=30)
    clock.enter("train")
    assert clock.segments["startup"] == 40


def test_recorded_times_leave_out_what_was_blocked(hands: Hands, traffic: Traffic):
    clock = Clock(hands, traffic)
    clock.enter("train")
    hands.time = 10
    clock.record_time("data")
    hands.time = 40
    traffic.block(1, 30, 40)
    clock.record_time("compute")
    hands.time = 47
    traffic.block(2, 45, 46)
    clock.record_time("step_other")
    clock.enter("eval")
    hands.time = 100
    interval = clock.end_interval()
    assert (interval.train, interval.data, interval.compute, interval.step_other, interval.blocked) == (
        47,
        10,
        20,
        6,
        11,
    )
    clock.enter("train")
    hands.time = 104
    clock.record_time("data")
    clock.enter("eval")
    again = clock.end_interval()
    assert (again.train, again.data, again.compute, again.blocked) == (4, 4, 0, 0)


def test_what_is_blocked_outside_of_training_is_no_part_of_it(hands: Hands, traffic: Traffic):
    clock = Clock(hands, traffic)
    clock.enter("eval")
    traffic.block(1, 0, 30)
    hands.time = 30
    clock.enter("train")
    hands.time = 33
    clock.record_time("compute")
    clock.enter("eval")
    assert clock.end_interval().blocked == 0


def test_waiting_ends_when_the_last_member_enters(traffic: Traffic):
    """The other rank enters at 30, 55, 130 and 200: waiting of 30, 0, 20 and 0 ns."""
    other = Traffic(Topology.of([2, 2]), 1)
    traffic.summing = "inter"  # as where a rank waits for its leader's sum over nodes
    for entered, left, of_other in ((0, 50, 30), (60, 80, 55), (100, 120, 130), (210, 250, 200)):
        key = traffic.launch("gradients", (0, 1), entered)
        traffic.block(key, entered, left)
        assert other.launch("gradients", (0, 1), of_other) == key
    traffic.block(12345, 90, 99)  # started in an earlier interval: nothing known, counted as transfer
    traffic.split_waiting([[*rank.launches.items()] for rank in (traffic, other)])
    assert traffic.waited_ns == 30 + 20
    assert traffic.blocked_on == {"inter": 30 + 20 + 9, "intra": 20 + 20 + 40}, "transfer is of its own link"


def test_keys_tell_channels_and_groups_apart(traffic: Traffic):
    keys = [
        traffic.launch(channel, members, 0)
        for channel in ("gradients", "control")
        for members in ((0, 1), (0, 1, 2))
    ]
    assert len(set(keys)) == 4
    assert all(0 <= key < 2**63 for key in keys)


def test_what_is_told_of_training_takes_none_of_its_time(hands: Hands, traffic: Traffic):
    """Else it is training time that no part accounts for."""
    clock = Clock(hands, traffic, started=0)

    def looks(_: bool) -> None:
        hands.time += 5

    def waits() -> None:
        hands.time += 1

    clock.on_training = looks
    clock.wait_pending = waits
    clock.enter("train")
    hands.time += 100
    clock.record_time("compute")
    clock.enter("eval")
    hands.time += 10
    clock.enter("train")
    hands.time += 50
    clock.record_time("compute")
    clock.enter("eval")
    assert clock.segments["train"] == 152, "what the device still computes is training"
    assert clock.end_interval().compute == 150
    assert sum(clock.closed().values()) == hands.time == 182


# ------------------------------------------------------------------ input-bound runs


BOUND = "input-bound: more than 10% of training time for data"


@pytest.mark.parametrize(
    ("launcher", "data_ns", "waited_s", "labels"),
    [
        (LocalConfig(), 10**9, None, []),
        (LocalConfig(), 10**9 + 1, None, [f"{BOUND} (launcher.loader_workers)"]),
        (SimulatedConfig(), 4 * 10**9, None, [f"{BOUND} (cluster.device)"]),
        (LocalConfig(network="modelled"), 4 * 10**9, None, [f"{BOUND} (cluster.device)"]),
        (
            LocalConfig(),
            4 * 10**9,
            6.0,
            [f"{BOUND} (75% of it waiting for the reader, the rest work of the rank)"],
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
    reader = None if waited_s is None else {"waited_s": waited_s}
    assert accounting._input_bound(reader) == labels
