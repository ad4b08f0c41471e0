"""A run on modelled links says of itself whether it measured them or the machine it was on."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from real_runs import launch
from runs import MLP, config
from test_cores import threads
from torch import Tensor

from daso_bench.runner.communication.link_costs import ClusterNetwork
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.launch.emulated import validity_checks
from daso_bench.runner.launch.emulated.validity_checks import Cores, ValidityChecks, off_reason
from daso_bench.runner.launch.rank_process import Meeting
from daso_bench.runner.machine.cores import RunQueue
from daso_bench.strategies.errors import MachineError
from daso_bench.strategies.topology import Group, Topology

MS = 1_000_000
KIB, MIB = 2**10, 2**20
NUMEL = 250_000  # of the model: its gradients take 100 ms on 10 MB/s


def late(share: float, asked_ms: float, floor_ms: float) -> str | None:
    """What is said of sums that last `share` longer than `asked_ms`."""
    asked_s, floor_s = asked_ms / 1e3, floor_ms / 1e3
    return off_reason(256 * KIB, asked_s, asked_s * (1 + share), floor_s=floor_s, sum_s=20 * floor_s)


@pytest.mark.parametrize(
    ("asked_ms", "floor_ms", "share"),
    [
        (26, 0.0, 0.05),
        (26, 1.0, 0.05),
        (20, 1.0, 0.05),  # twenty floors are a long message
        (10, 1.0, 0.1),  # below, it may be off by a twentieth of the sum of all gradients
    ],
)
def test_a_message_may_be_so_much_off_and_no_more(asked_ms: float, floor_ms: float, share: float):
    for sign in (1, -1):
        assert late(sign * (share - 0.005), asked_ms, floor_ms) is None
        assert f"({sign * (share + 0.01):+.0%}, at most 5%)" in (
            late(sign * (share + 0.01), asked_ms, floor_ms) or ""
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the checks see: it passes where somebody sleeps or sends."""
    fake = SimpleNamespace(now=0)

    def sleep(seconds: float) -> None:
        fake.now += round(seconds * 1e9)

    fake.sleep, fake.monotonic_ns = sleep, lambda: fake.now
    fake.monotonic, fake.computed = lambda: fake.now / 1e9, 0.0
    fake.process_time = lambda: fake.computed
    # Else the real machine's other programs would decide.
    monkeypatch.setattr(validity_checks, "Cores", lambda awake: Cores(awake, Path("/no/such/folder")))
    monkeypatch.setattr(validity_checks, "time", fake)
    return fake


class FakeCommunicator:
    """Two nodes of one rank, of which all numbers are this one's, times `of_ranks`; no device is the CPU.

    Args:
        floor_ms: what an unshaped sum takes. `off`: of a sum of so many bytes, achieved over asked.
    """

    def __init__(
        self,
        clock: Any,
        cluster: ClusterConfig,
        *,
        floor_ms: float = 1,
        off: Callable[[int], float] = lambda size: 1.0,
        of_ranks: Sequence[float] = (1, 1),
    ) -> None:
        self.topology, self.rank = Topology.of(cluster.ranks_of_nodes), 0
        self.device = torch.device("meta")
        self.sent: set[int] = set()
        self.traffic = SimpleNamespace(sizes=lambda link: self.sent if link == "inter" else {12})
        self.checked: list[int] = []
        self.of_ranks = of_ranks
        self._clock, self._floor_ms, self._off = clock, floor_ms, off
        self._network = ClusterNetwork(cluster.links.or_free(), self.topology)

    def members(self, group: Group) -> tuple[int, ...]:
        return self.topology.members(group, 0)

    def barrier(self, group: Group) -> None:
        return

    @contextmanager
    def unshaped(self, interface: str | None) -> Iterator[Callable[[Tensor], None]]:
        def sum_over_all(tensor: Tensor) -> None:
            assert tensor.device == self.device
            self._clock.sleep(self._floor_ms / 1e3)

        yield sum_over_all

    def all_reduce(self, tensor: Tensor, group: Group) -> Any:
        assert tensor.device == self.device
        size = 4 * tensor.numel()
        asked = self._network.cost(self.topology, "all_reduce", self.members(group), size).duration_ns
        self.checked.append(size)
        return SimpleNamespace(wait=lambda: self._clock.sleep(asked / 1e9 * self._off(size)))

    def gather(self, vector: Tensor) -> Tensor:
        return torch.stack([torch.where(vector < 0, vector, vector * factor) for factor in self.of_ranks])


def cluster(rate_gbit: float | None = 0.08, latency_us: float = 0, **device: Any) -> ClusterConfig:
    """Two nodes of one rank on 10 MB/s."""
    inter = LinkConfig(rate_gbit=rate_gbit, latency_us=latency_us)
    return ClusterConfig(
        nodes=2, ranks_per_node=(1,), links=LinksConfig(inter=inter), device=DeviceConfig(**device)
    )


def prepared(
    hardware: ClusterConfig, comm: FakeCommunicator, *, refuse: bool = True, padding: Any = None
) -> ValidityChecks:
    """Checks at the start of a run of steps of 200 ms, or of padded ones."""
    replica = SimpleNamespace(
        parameters=SimpleNamespace(empty=lambda: torch.empty(0)),
        numel=NUMEL,
        time_steps=lambda samples, steps: [0.2] * steps,
        untouched=nullcontext,
        padding=padding,
        measure_layers=lambda samples, steps: None,
    )
    batch_order: Any = SimpleNamespace(first_sizes=lambda: (8, 8))
    met = Meeting(network="modelled")
    checks = ValidityChecks(hardware, cast(TorchCommunicator, comm), met, RunQueue(), refuse=refuse)
    checks.on_prepared(replica, batch_order)
    return checks


def test_a_run_whose_checks_pass_is_valid_and_says_what_was_measured(clock: Any):
    comm = FakeCommunicator(clock, cluster())
    verdict = prepared(cluster(), comm).on_end(100_000 * MS, finished=True)["validity"]
    assert verdict["valid"] is True
    assert verdict["reasons"] == []
    assert verdict["network"] == "modelled"
    assert verdict["floor_s"] == pytest.approx(1e-3)
    assert verdict["sum_s"] == pytest.approx(0.1)
    assert verdict["floor_share"] == pytest.approx(0.01)
    assert verdict["overrun_share"] == [0, 0]
    assert verdict["links"] == [
        {"bytes": 4 * NUMEL, "asked_s": pytest.approx(0.1), "achieved_s": pytest.approx(0.1)}
    ]


def test_the_floor_may_be_a_twentieth_of_the_sum_of_all_gradients(clock: Any):
    prepared(cluster(), FakeCommunicator(clock, cluster(), floor_ms=4))
    with pytest.raises(MachineError) as error:
        prepared(cluster(), FakeCommunicator(clock, cluster(), floor_ms=6))
    text = str(error.value)
    assert "takes 6 ms on this machine, that of all gradients 100 ms on these links" in text
    assert "take cluster.links.inter.rate_gbit=0.066, a larger model or fewer ranks" in text
    assert "launcher=simulated" in text
    assert "launcher.on_invalid=record" in text
    prepared(cluster(0.066), FakeCommunicator(clock, cluster(0.066), floor_ms=6))


def test_the_floor_is_that_of_the_slowest_rank(clock: Any):
    comm = FakeCommunicator(clock, cluster(), floor_ms=4, of_ranks=(1, 1.5))
    with pytest.raises(MachineError, match="takes 6 ms on this machine"):
        prepared(cluster(), comm)


def test_where_it_is_asked_for_an_invalid_run_is_recorded_and_its_resumes_are_invalid_too(clock: Any):
    invalid = prepared(cluster(), FakeCommunicator(clock, cluster(), floor_ms=6), refuse=False)
    resumed = prepared(cluster(), FakeCommunicator(clock, cluster()))
    resumed.load_state_dict(invalid.state_dict(1))
    for checks in (invalid, resumed):
        verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
        assert verdict["valid"] is False
        (reason,) = verdict["reasons"]
        assert "any sum takes 6 ms on this machine" in reason


def test_a_link_without_a_rate_needs_another_way_out(clock: Any):
    for rate in (None, math.inf):
        hardware = cluster(rate, latency_us=500)
        with pytest.raises(MachineError, match="take a slower link, a larger model or fewer ranks"):
            prepared(hardware, FakeCommunicator(clock, hardware))


def test_links_that_take_no_time_are_not_checked(clock: Any):
    for hardware in (cluster(None), cluster(math.inf), ClusterConfig(nodes=1, ranks_per_node=(2,))):
        comm = FakeCommunicator(clock, hardware, floor_ms=6)
        assert prepared(hardware, comm).on_end(1, finished=True)["validity"]["valid"]
        assert comm.checked == []


def test_every_size_that_is_sent_has_to_be_right(clock: Any):
    """Small messages 7 % off are refused where large ones are exact."""

    def off(size: int) -> float:
        return 1.07 if size <= 256 * KIB else 1.0

    comm = FakeCommunicator(clock, cluster(), off=off)
    comm.sent = {256 * KIB, 4 * MIB}
    with pytest.raises(MachineError, match=r"a sum of 262144 bytes takes 28 ms .* \(\+7%, at most 5%\)"):
        prepared(cluster(), comm)
    assert set(comm.checked) == {256 * KIB, 4 * NUMEL, 4 * MIB}


def test_sizes_that_come_up_in_training_are_checked_at_its_end(clock: Any):
    comm = FakeCommunicator(clock, cluster(), off=lambda size: 0.9 if size == 300_000 else 1.0)
    checks = prepared(cluster(), comm)
    comm.checked.clear()
    comm.sent = {4 * NUMEL + 4, 300_000, 301_000}
    assert checks.on_end(100_000 * MS, finished=False)["validity"]["valid"], "a rank may be gone: none sends"
    verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
    assert set(comm.checked) == {300_000}, "the others are like sizes that have been checked"
    assert verdict["valid"] is False
    assert "a sum of 300000 bytes" in verdict["reasons"][0]


def padded(real_s: float = 0.05, overruns: int = 0) -> Any:
    """A device of 100 ms a step, after 100 steps."""
    return SimpleNamespace(
        measured_s=real_s,
        expected_s=lambda samples: 0.1,
        overruns=overruns,
        steps=100,
        backward=[("fc", 1.0)],
    )


def test_real_computing_may_be_four_fifths_of_the_devices_step(clock: Any):
    hardware = cluster(samples_per_second=80)
    prepared(hardware, FakeCommunicator(clock, hardware), padding=padded(0.079))
    with pytest.raises(MachineError) as error:
        prepared(hardware, FakeCommunicator(clock, hardware), padding=padded(0.09))
    assert "takes 90 ms with all ranks at work, the emulated device 100 ms" in str(error.value)
    assert "take cluster.device.samples_per_second=71, or fewer ranks" in str(error.value)


@pytest.mark.parametrize(("overruns", "valid"), [(1, True), (2, False)])
def test_one_step_of_a_hundred_may_take_longer_than_the_devices(clock: Any, overruns: int, valid: bool):
    hardware = cluster(samples_per_second=80)
    checks = prepared(hardware, FakeCommunicator(clock, hardware), padding=padded(overruns=overruns))
    verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
    assert verdict["valid"] is valid
    assert verdict["overrun_share"] == [overruns / 100] * 2
    assert valid or "in 2.0% of steps" in verdict["reasons"][0]


def test_overruns_of_attempts_that_a_run_goes_on_from_count_in_its_verdict(clock: Any):
    """4 of 100 steps of the first attempt, none of 100 of the second."""
    hardware = cluster(samples_per_second=80)
    first, resumed = (
        prepared(hardware, FakeCommunicator(clock, hardware), padding=padded(overruns=overruns))
        for overruns in (4, 0)
    )
    resumed.load_state_dict(first.state_dict(50_000 * MS))
    verdict = resumed.on_end(50_000 * MS, finished=True)["validity"]
    assert verdict["overrun_share"] == pytest.approx([0.02] * 2)
    assert [reason.split()[0] for reason in verdict["reasons"]] == ["on"]


@pytest.mark.parametrize(("waited_ms", "valid"), [(1100, False), (900, True)])
@pytest.mark.parametrize("of_ranks", [(1, 1), (0.1, 1)])
def test_threads_may_stand_ready_for_a_hundredth_of_training(
    clock: Any, tmp_path: Path, waited_ms: int, valid: bool, of_ranks: tuple[float, float]
):
    comm = FakeCommunicator(clock, cluster())
    checks = prepared(cluster(), comm)
    comm.of_ranks = of_ranks
    checks._queue = RunQueue(threads(tmp_path, t1=0, t2=70))
    checks._queue.training(True)
    threads(tmp_path, t1=waited_ms - 100, t3=100)
    checks._queue.training(False)
    verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
    share = waited_ms / 100_000
    assert verdict["run_queue_share"] == pytest.approx([share * factor for factor in of_ranks])
    assert verdict["valid"] is valid
    worst = 0 if of_ranks[0] == 1 else 1
    assert (
        valid
        or f"threads of rank {worst} stood ready without a core for 0.011 s in each second"
        in verdict["reasons"][0]
    )


@pytest.mark.parametrize(("others_s", "valid"), [(19, True), (21, False)])
def test_others_may_have_a_tenth_of_the_cores(
    clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others_s: int, valid: bool
):
    """Two cores for 100 s; two ranks compute for 30 s each."""
    monkeypatch.setattr(validity_checks.os, "cpu_count", lambda: 2)
    checks = prepared(cluster(), FakeCommunicator(clock, cluster()))
    stat, tick = tmp_path / "stat", validity_checks.os.sysconf("SC_CLK_TCK")
    checks._cores = Cores((7,), tmp_path)
    awake = tmp_path / "7" / "stat"
    awake.parent.mkdir()
    awake.write_text(f"7 (a (b) c) S {'0 ' * 10}{40 * tick} {2 * tick} 99 99\n")
    stat.write_text(f"cpu  {10 * tick} 0 {5 * tick} 900 0 0 0 0 0 0\ncpu0 1 2 3\n")
    checks.on_train_start()
    clock.now += 100_000 * MS
    clock.computed += 30
    more = 60 + others_s + 17 - 20  # 17: of the one that keeps a core awake
    awake.write_text(f"7 (a (b) c) S {'0 ' * 10}{55 * tick} {4 * tick} 99 99\n")
    stat.write_text(f"cpu  {(10 + more) * tick} {15 * tick} {10 * tick} 900 0 77777 7777 0 0 0\n")
    checks.on_pause()
    verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
    assert verdict["others_share"] == pytest.approx(others_s / 200)
    assert verdict["valid"] is valid
    assert valid or "other programs had 10% of the cores' time" in verdict["reasons"][0]


@pytest.mark.parametrize("content", [None, "", "words and words"])
def test_where_the_system_does_not_tell_the_run_stays_valid(clock: Any, tmp_path: Path, content: str | None):
    folder = tmp_path / "task"
    if content is not None:
        (threads(folder, t1=0) / "t1" / "schedstat").write_text(content)
    checks = prepared(cluster(), FakeCommunicator(clock, cluster()))
    checks._queue = RunQueue(folder)
    checks._queue.training(True)
    checks._queue.training(False)
    assert checks._queue.waited_ns is None
    verdict = checks.on_end(100_000 * MS, finished=True)["validity"]
    assert verdict["run_queue_share"] is None
    assert verdict["valid"] is True


def test_ranks_that_send_other_sizes_than_others_check_the_same(tmp_path: Path):
    """Of a hierarchical sum in several buckets only leaders send between nodes."""
    keys = {"algorithm": "hierarchical", "bucket_mib": 0.01}
    cfg = config(keys=keys, model=MLP(hidden=[64, 64]), epochs=1, results=tmp_path)
    slow = dataclasses.replace(cfg.cluster, links=LinksConfig(inter=LinkConfig(rate_gbit=0.01)))
    launcher = LocalConfig(network="modelled", on_invalid="record")
    _, outcome = launch(dataclasses.replace(cfg, cluster=slow, launcher=launcher), stall_s=20)
    assert outcome.status == "finished", outcome.details
    assert len(outcome.summary["validity"]["links"]) >= 2
