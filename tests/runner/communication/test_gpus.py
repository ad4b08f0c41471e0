"""Which device a rank takes, what ranks hear of each other's GPUs when they meet, and what is refused."""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from real_runs import launch
from runs import config

from daso_bench.runner.communication import gpus
from daso_bench.runner.communication.gpus import device_of
from daso_bench.runner.config import load
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import EmulatedConfig, LauncherConfig, LocalConfig, TorchrunConfig
from daso_bench.runner.launch import local
from daso_bench.runner.records.json_lines import read_json
from daso_bench.strategies.errors import ConfigError, MachineError
from daso_bench.strategies.topology import Topology

LOCAL, TORCHRUN = LocalConfig(), TorchrunConfig()
SHAPED = LinksConfig(inter=LinkConfig(rate_gbit=1))


def cluster(*kind: str, nodes: int = 1, ranks: int = 2, rate: float | None = None) -> ClusterConfig:
    """Nodes with devices of these kinds; `rate`: samples per second."""
    device = DeviceConfig(kind=kind, samples_per_second=rate)
    return ClusterConfig(nodes=nodes, ranks_per_node=(ranks,), device=device)


# ------------------------------------------------------------------ cluster.device.kind


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (("cpu", "cuda", "cpu"), "=['cpu', 'cuda', 'cpu']: must be one, or one for each rank"),
        (("cpu", "V100"), "=['cpu', 'V100']: by rank it is cpu or cuda"),
    ],
)
def test_kinds_that_cannot_be_are_refused(kind: tuple[str, ...], says: str):
    with pytest.raises(ConfigError) as error:
        cluster(*kind)
    assert str(error.value) == f"cluster.device.kind{says}"


@pytest.mark.parametrize(
    ("asked", "launcher", "network", "says"),
    [
        (cluster("cpu", "cuda"), "local", "none", None),
        (cluster("cuda"), "local", "none", None),
        (cluster("V100"), "local", "none", "real processes have the links and devices of their machine"),
        # Slowed down layer by layer is a CPU alone.
        (cluster("cpu", "cuda", rate=100.0), "local", "modelled", "=['cpu', 'cuda']: a GPU cannot be slowed"),
        (cluster("cpu", rate=100.0), "local", "modelled", None),
        # Two kinds are joined by gloo, through the host.
        (cluster("cuda", nodes=2, ranks=1), "emulated", "kernel", "NCCL passes by the kernel network"),
        (cluster("cuda", nodes=2, ranks=1), "emulated", "modelled", None),
        (cluster("cuda", "cpu"), "emulated", "kernel", None),
    ],
)
def test_devices_of_real_processes(asked: ClusterConfig, launcher: str, network: str, says: str | None):
    asked = asked if network == "none" else replace(asked, links=SHAPED)
    if says is None:
        asked.check_real(launcher, network)
        return
    with pytest.raises(ConfigError) as error:
        asked.check_real(launcher, network)
    assert says in str(error.value)


def test_an_emulated_run_of_gpus_has_the_modelled_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local, "impossible", lambda *_: None)  # a kernel that has all it takes
    on_gpus = replace(cluster("cuda", nodes=2, ranks=1), links=SHAPED)
    cfg = replace(config(), cluster=on_gpus, launcher=EmulatedConfig())
    assert local.venue_of(cfg).meeting.network == "modelled"


def test_kinds_come_back_from_the_run_directory_as_they_were(tmp_path: Path):
    for kind, shown in (((), None), (("cuda",), "cuda"), (("cpu", "cuda"), ["cpu", "cuda"])):
        cfg = replace(config(ranks=[2], results=tmp_path), cluster=cluster(*kind), launcher=LOCAL)
        text = load.dump(cfg)
        assert (yaml.safe_load(text)["cluster"].get("device") or {}).get("kind") == shown
        (tmp_path / "config.yaml").write_text(text)
        assert load.load(tmp_path / "config.yaml").cluster == cfg.cluster


# ------------------------------------------------------------------ which device a rank takes


def visible(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A machine with so many GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


def test_ranks_that_take_gpus_share_those_of_their_node_in_order(monkeypatch: pytest.MonkeyPatch):
    visible(monkeypatch, 2)
    kinds = ("cpu", "cuda", "cuda", "cuda", "cpu", "cuda")
    hardware, topology = cluster(*kinds, nodes=2, ranks=3), Topology.of([3, 3])
    devices = [str(device_of(hardware, TORCHRUN, topology, rank)) for rank in range(6)]
    assert devices == ["cpu", "cuda:0", "cuda:1", "cuda:0", "cpu", "cuda:1"]


def test_nodes_that_are_all_on_this_machine_have_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch):
    visible(monkeypatch, 4)
    for hardware in (cluster(nodes=2), cluster("cuda", nodes=2)):
        devices = [device_of(hardware, LOCAL, Topology.of([2, 2]), rank).index for rank in range(4)]
        assert devices == [0, 1, 2, 3]
    assert device_of(cluster(nodes=2), TORCHRUN, Topology.of([2, 2]), 3).index == 1


def test_a_rank_that_is_to_take_a_gpu_where_there_is_none_is_refused(monkeypatch: pytest.MonkeyPatch):
    visible(monkeypatch, 0)
    hardware, topology = cluster("cpu", "cuda"), Topology.of([2])
    assert device_of(hardware, LOCAL, topology, 0) == torch.device("cpu")
    with pytest.raises(MachineError) as error:
        device_of(hardware, LOCAL, topology, 1)
    assert str(error.value).startswith("cluster.device.kind of rank 1: torch sees no GPU")
    assert device_of(cluster(), LOCAL, topology, 1) == torch.device("cpu"), "nobody asked for one"


def test_more_ranks_than_gpus_are_refused_unless_they_may_share(monkeypatch: pytest.MonkeyPatch):
    hardware, topology = cluster("cuda", ranks=4), Topology.of([4])
    visible(monkeypatch, 1)  # a batch system shows each task a GPU of its own
    assert [device_of(hardware, LOCAL, topology, rank).index for rank in range(4)] == [0] * 4
    visible(monkeypatch, 2)
    for launcher in (LOCAL, LocalConfig(allow_oversubscription=True)):  # cores are another matter
        with pytest.raises(MachineError, match=r"2 are visible; .*launcher\.share_gpus=true"):
            device_of(hardware, launcher, topology, 2)
    for asked, launcher in ((hardware, LocalConfig(share_gpus=True)), (cluster(ranks=4), LOCAL)):
        assert [device_of(asked, launcher, topology, rank).index for rank in range(4)] == [0, 1, 0, 1]
    for launcher in (LocalConfig(share_gpus=False), TORCHRUN):  # asked for, or with a batch system
        with pytest.raises(MachineError, match="2 are visible"):
            device_of(cluster(ranks=4), launcher, topology, 2)


@pytest.mark.parametrize("launcher", [EmulatedConfig(), LocalConfig(network="modelled")])
def test_an_emulated_rank_takes_a_gpu_only_if_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, launcher: LauncherConfig
):
    visible(monkeypatch, 2)
    topology = Topology.of([2])
    for kind in ((), ("emulated",), ("cpu",)):
        assert device_of(cluster(*kind, rate=100.0), launcher, topology, 1) == torch.device("cpu"), kind
    assert device_of(cluster("cuda"), launcher, topology, 1) == torch.device("cuda", 1)
    assert device_of(cluster(), LOCAL, topology, 1) == torch.device("cuda", 1)


# ------------------------------------------------------------------ what ranks hear of each other


@pytest.mark.parametrize(
    ("names", "asked", "says"),
    [
        (["a", "cpu", "b", "cpu"], {}, "cluster.device.kind: ranks 1, 3 of 4 see no GPU, and the others do"),
        (["cpu", "a"], {"share": True}, "cluster.device.kind: rank 0 of 2 sees no GPU, and the others do"),
        (["a", "b", "a", "a"], {}, "launcher.share_gpus: 3 ranks would share a GPU"),
        (["a", "cpu", "a"], {"mixed": True}, "launcher.share_gpus: 2 ranks would share a GPU"),
        (["a", "b"], {}, None),
        (["cpu", "cpu"], {}, None),
        (["a", "cpu"], {"mixed": True}, None),
        (["a", "a"], {"share": True}, None),
    ],
)
def test_devices_that_nobody_asked_for_are_refused(
    names: list[str], asked: dict[str, bool], says: str | None
):
    wanted = {"mixed": False, "share": False, **asked}
    if says is None:
        gpus.check(names, **wanted)
        return
    with pytest.raises(MachineError) as error:
        gpus.check(names, **wanted)
    assert str(error.value).startswith(says)


def meet(
    monkeypatch: pytest.MonkeyPatch, devices: Sequence[str], uuids: Sequence[str], **asked: bool
) -> list[Any]:
    """What `connect` gives each rank, or raises, where GPUs have these names; no process group is made."""

    class Made:
        def __init__(self, *_: Any, mixed: bool) -> None:
            self.mixed, self.ranks_on_a_gpu, self.some_on_gpus = mixed, 0, False

    listener = socket.create_server(("127.0.0.1", 0))
    port, topology = listener.getsockname()[1], Topology.of([len(devices)])
    monkeypatch.setattr(gpus, "TorchCommunicator", Made)
    monkeypatch.setattr(
        gpus, "name_of", lambda device: uuids[device.index] if device.type == "cuda" else "cpu"
    )

    def come(rank: int) -> Any:
        try:
            return gpus.connect(
                topology,
                rank,
                host="127.0.0.1",
                port=port,
                listener_fd=listener.detach() if rank == 0 else None,
                device=torch.device(devices[rank]),
                timeout_s=20,
                mixed=asked.get("mixed", False),
                share_gpus=asked.get("share_gpus", False),
            )
        except MachineError as error:
            return str(error)

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(come, range(len(devices))))


def test_ranks_with_a_gpu_do_not_wait_for_what_ranks_without_one_never_say(monkeypatch: pytest.MonkeyPatch):
    results = meet(monkeypatch, ["cuda:0", "cpu"], ["GPU-a"])
    assert results[0] == results[1]
    assert results[0].startswith("cluster.device.kind: rank 1 of 2 sees no GPU")


def test_ranks_that_share_a_gpu_are_joined_by_gloo_where_that_was_asked_for(monkeypatch: pytest.MonkeyPatch):
    made = meet(monkeypatch, ["cuda:0", "cuda:0"], ["GPU-a"], share_gpus=True)
    assert [(comm.mixed, comm.ranks_on_a_gpu) for comm in made] == [(True, 2)] * 2
    made = meet(monkeypatch, ["cuda:0", "cuda:1"], ["GPU-a", "GPU-b"])
    assert [(comm.mixed, comm.ranks_on_a_gpu) for comm in made] == [(False, 1)] * 2
    results = meet(monkeypatch, ["cuda:0", "cpu"], ["GPU-a"], mixed=True)
    assert [comm.some_on_gpus for comm in results] == [True, True], "also of a rank on the CPU"
    assert [comm.some_on_gpus for comm in meet(monkeypatch, ["cpu", "cpu"], [])] == [False, False]
    refused = meet(monkeypatch, ["cuda:0", "cuda:0"], ["GPU-a"])
    assert all("launcher.share_gpus=true" in results for results in refused)


@pytest.mark.parametrize("asked", [{}, {"share_gpus": True}, {"share_gpus": False}])
def test_times_of_ranks_that_share_a_gpu_are_not_valid_and_say_why(asked: dict[str, Any], tmp_path: Path):
    """Two ranks take their CPU for the same GPU."""
    cfg = config(ranks=[2], epochs=1, results=tmp_path, launcher=asked)
    directory, outcome = launch(cfg, entry="gloo_entries_gpu:on_one_gpu")
    if asked.get("share_gpus") is False:
        assert "2 ranks would share a GPU, which nobody asked for" in (outcome.reason or "")
        return
    assert outcome.status == "finished", outcome.details
    status = read_json(directory.path / "status.json")
    assert status["timing"]["valid"] is False
    assert "2 ranks share a GPU, joined by gloo" in status["timing"]["reasons"]
    assert "2 ranks share a GPU, joined by gloo" in status["labels"]
    assert read_json(directory.path / "environment.json")["backend"] == "gloo"
