"""`cluster.device.kind`: a word for people, or which ranks of real processes take a CPU and which a GPU."""

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml
from runs import config

from daso_bench.runner.communication.gpus import device_of
from daso_bench.runner.config import load, schema
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.compose import compose
from daso_bench.runner.config.launchers import EmulatedConfig, LauncherConfig, LocalConfig, SimulatedConfig
from daso_bench.runner.doctor.calibration import measure
from daso_bench.runner.launch import local, venue
from daso_bench.runner.records.json_lines import write_json
from daso_bench.runner.records.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError
from daso_bench.strategies.topology import Topology

LOCAL = LocalConfig()


def cluster(
    *kind: str, nodes: int = 1, ranks: int = 2, samples_per_second: float | None = None
) -> ClusterConfig:
    """One node of two ranks with devices of these kinds."""
    return ClusterConfig(
        nodes=nodes,
        ranks_per_node=(ranks,),
        device=DeviceConfig(kind=kind, samples_per_second=samples_per_second),
    )


@pytest.mark.parametrize(
    ("kind", "of_ranks"),
    [
        (("cpu", "cuda"), ["cpu", "cuda"]),
        (("cuda",), ["cuda", "cuda"]),
        (("cpu",), ["cpu", "cpu"]),
        (("V100",), [None, None]),
        (("",), [None, None]),
        ((), [None, None]),
    ],
)
def test_one_kind_is_for_all_ranks_several_are_theirs_in_order(
    kind: tuple[str, ...], of_ranks: list[str | None]
):
    device = cluster(*kind).device
    assert [device.kind_of(rank) for rank in range(2)] == of_ranks


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (("cpu", "cuda", "cpu"), "=['cpu', 'cuda', 'cpu']: must be one, or 2, one for each of the ranks"),
        (("cpu", "V100"), "=['cpu', 'V100']: kinds by rank are cpu and cuda"),
        (("A100", "V100"), "=['A100', 'V100']: kinds by rank are cpu and cuda"),
    ],
)
def test_kinds_that_cannot_be_are_refused(kind: tuple[str, ...], says: str):
    with pytest.raises(ConfigError) as error:
        cluster(*kind)
    assert str(error.value) == f"cluster.device.kind{says}"


def test_real_processes_can_be_told_a_device_but_have_no_model_of_one():
    cluster("cpu", "cuda").check_real("local", "none")
    cluster("cuda").check_real("local", "none")
    with pytest.raises(ConfigError, match="real processes have the links and devices of their machine"):
        cluster("V100").check_real("local", "none")


def test_a_gpu_is_not_slowed_down_layer_by_layer():
    links = LinksConfig(inter=LinkConfig(rate_gbit=1))
    paced = dataclasses.replace(cluster("cpu", "cuda", samples_per_second=100.0), links=links)
    with pytest.raises(ConfigError) as error:
        paced.check_real("local", "modelled")
    assert str(error.value).startswith("cluster.device.kind=['cpu', 'cuda']: a GPU cannot be slowed down")
    assert "set cluster.device.samples_per_second (tflops, trace) to null" in str(error.value)
    dataclasses.replace(cluster("cpu", "cuda"), links=links).check_real("local", "modelled")
    dataclasses.replace(cluster("cpu", samples_per_second=100.0), links=links).check_real("local", "modelled")


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A machine with so many GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


def test_ranks_that_take_gpus_share_those_of_their_node_in_order(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 2)
    kinds = ("cpu", "cuda", "cuda", "cuda", "cpu", "cuda")
    hardware, topology = cluster(*kinds, nodes=2, ranks=3), Topology.of([3, 3])
    found = [str(device_of(hardware, LOCAL, topology, rank)) for rank in range(6)]
    assert found == ["cpu", "cuda:0", "cuda:1", "cuda:0", "cpu", "cuda:1"]


def test_where_there_is_no_gpu_who_wants_one_is_told(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 0)
    hardware, topology = cluster("cpu", "cuda"), Topology.of([2])
    assert device_of(hardware, LOCAL, topology, 0) == torch.device("cpu")
    with pytest.raises(MachineError) as error:
        device_of(hardware, LOCAL, topology, 1)
    assert str(error.value) == (
        "cluster.device.kind: rank 1 is to take a GPU (cuda), and torch sees none; take cpu"
    )
    assert device_of(cluster(), LOCAL, topology, 1) == torch.device("cpu"), "nobody asked for one"


def test_more_ranks_than_gpus_are_refused_unless_they_may_share(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 2)
    hardware, topology = cluster("cuda", ranks=4), Topology.of([4])
    with pytest.raises(MachineError, match=r"2 are visible; .*launcher\.share_gpus=true"):
        device_of(hardware, LOCAL, topology, 2)
    # Cores are another matter.
    with pytest.raises(MachineError, match=r"launcher\.share_gpus=true"):
        device_of(hardware, LocalConfig(allow_oversubscription=True), topology, 2)
    shared = [device_of(hardware, LocalConfig(share_gpus=True), topology, rank).index for rank in range(4)]
    assert shared == [0, 1, 0, 1]


@pytest.mark.parametrize("launcher", [EmulatedConfig(), LocalConfig(network="modelled")])
def test_an_emulated_rank_takes_a_gpu_only_if_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, launcher: LauncherConfig
):
    """What is slowed down layer by layer is a CPU."""
    gpus(monkeypatch, 2)
    topology = Topology.of([2])
    for kind in ((), ("emulated",), ("cpu",)):
        hardware = cluster(*kind, samples_per_second=100.0)
        assert device_of(hardware, launcher, topology, 1) == torch.device("cpu"), kind
    assert device_of(cluster("cuda"), launcher, topology, 1) == torch.device("cuda", 1)
    assert device_of(cluster(), LOCAL, topology, 1) == torch.device("cuda", 1)


def test_nccl_passes_by_the_kernel_network_and_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch):
    links = LinksConfig(inter=LinkConfig(rate_gbit=1))
    on_gpus = dataclasses.replace(cluster("cuda", nodes=2, ranks=1), links=links)
    with pytest.raises(ConfigError) as error:
        on_gpus.check_real("emulated", "kernel")
    assert str(error.value) == (
        "cluster.device.kind=cuda: NCCL passes by the kernel network between GPUs of one machine; "
        "launcher.network=modelled has it"
    )
    on_gpus.check_real("emulated", "modelled")
    both = dataclasses.replace(cluster("cuda", "cpu"), links=links)  # joined by gloo, through the host
    both.check_real("emulated", "kernel")
    monkeypatch.setattr(venue, "impossible", lambda: None)  # a kernel that has all it takes
    cfg = dataclasses.replace(config(), cluster=on_gpus, launcher=EmulatedConfig())
    assert venue.venue_of(cfg).meeting.network == "modelled"


def test_calibrate_measures_the_devices_that_the_cluster_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gpus(monkeypatch, 2)
    met: list[tuple[str, bool]] = []

    def connect(*_: object, device: torch.device, share_gpus: bool, **more: object) -> None:
        met.append((str(device), share_gpus))
        raise ConnectionError

    monkeypatch.setattr(measure, "connect", connect)
    write_json(tmp_path / measure.TASK, dataclasses.asdict(measure.Task(part="steps", rounds=1, own=4)))
    for kind, share in (("cpu", False), ("cuda", True)):
        cfg = dataclasses.replace(config(), cluster=cluster(kind), launcher=LocalConfig(share_gpus=share))
        (tmp_path / "config.yaml").write_text(load.dump(cfg))
        with pytest.raises(ConnectionError):
            measure.measure(tmp_path, 1, 2, 0, None, 1, None)  # pyright: ignore[reportArgumentType]
    assert met == [("cpu", False), ("cuda:1", True)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here ranks would get their GPU")
def test_a_run_that_wants_a_gpu_ends_before_it_trains(tmp_path: Path):
    cfg = config(ranks=[2], results=tmp_path)
    cfg = dataclasses.replace(cfg, cluster=cluster("cpu", "cuda"))
    directory = RunDirectory.create(load.to_plain(cfg), tmp_path)
    outcome = local.launch(directory, ranks=2, threads=1, stall_s=60)
    assert (outcome.status, outcome.exit_code) == ("failed", 3)
    assert "cluster.device.kind: rank 1 is to take a GPU" in (outcome.reason or "")


def test_kinds_come_back_from_the_run_directory_as_they_were(tmp_path: Path):
    for kind, shown in (((), None), (("cuda",), "cuda"), (("cpu", "cuda"), ["cpu", "cuda"])):
        cfg = config(ranks=[2], results=tmp_path)
        cfg = dataclasses.replace(cfg, cluster=cluster(*kind), launcher=LocalConfig())
        text = load.dump(cfg)
        assert (yaml.safe_load(text)["cluster"].get("device") or {}).get("kind") == shown
        (tmp_path / "config.yaml").write_text(text)
        assert load.load(tmp_path / "config.yaml").cluster == cfg.cluster


def test_a_word_for_people_stays_one_word_and_moves_no_run_id(tmp_path: Path):
    links = LinksConfig(intra=LinkConfig(rate_gbit=100.0), inter=LinkConfig(rate_gbit=10.0))
    cfg = config(ranks=[2], results=tmp_path)
    cfg = dataclasses.replace(
        cfg,
        cluster=dataclasses.replace(cluster("V100", samples_per_second=100.0), links=links),
        launcher=SimulatedConfig(),
    )
    text = load.dump(cfg)
    assert "\n    kind: V100\n" in text
    (tmp_path / "config.yaml").write_text(text)
    again = load.load(tmp_path / "config.yaml")
    assert again.cluster.device.kind == ("V100",)
    assert schema.run_id(again) == schema.run_id(cfg)
    # Neither does a device that nobody described: real runs have none in their file.
    assert "device" not in load.to_plain(config())["cluster"]


@pytest.mark.parametrize("name", ["laptop", "one_node"])
@pytest.mark.parametrize(("word", "kind"), [("cuda", ("cuda",)), ("cpu", ("cpu",)), ("", ())])
def test_the_kind_of_real_ranks_is_a_key_of_every_real_cluster(
    name: str, word: str, kind: tuple[str, ...], tmp_path: Path
):
    words = ["launcher=local", f"cluster={name}"]
    (plain,) = compose(words, sweep=False)
    (told,) = compose([*words, f"cluster.device.kind={word}"], sweep=False)
    assert told.error is None
    configs = [load.from_composed(job.config or {}, tmp_path) for job in (plain, told)]
    assert [made.cluster.device.kind for made in configs] == [(), kind]
    assert (schema.run_id(configs[0]) == schema.run_id(configs[1])) == (word == "")
    assert "device" not in load.to_plain(configs[0])["cluster"]


def test_each_rank_can_be_told_its_kind_in_one_list(tmp_path: Path):
    (told,) = compose(["cluster=one_node", "cluster.device.kind=[cuda,cpu]"], sweep=False)
    assert load.from_composed(told.config or {}, tmp_path).cluster.device.kind == ("cuda", "cpu")
