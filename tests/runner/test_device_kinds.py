"""`cluster.device.kind`: a word for people, or which ranks of real processes take a CPU and which a GPU."""

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml
from runs import config

from daso_bench.runner import local, schema
from daso_bench.runner.hardware import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.launcher_config import LauncherConfig, LocalConfig
from daso_bench.runner.rank import _device
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.strategies.errors import ConfigError, MachineError
from daso_bench.strategies.topology import Topology


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
    found = [str(_device(hardware, topology, rank, False)) for rank in range(6)]
    assert found == ["cpu", "cuda:0", "cuda:1", "cuda:0", "cpu", "cuda:1"]


def test_where_there_is_no_gpu_who_wants_one_is_told(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 0)
    hardware, topology = cluster("cpu", "cuda"), Topology.of([2])
    assert _device(hardware, topology, 0, False) == torch.device("cpu")
    with pytest.raises(MachineError) as error:
        _device(hardware, topology, 1, False)
    assert str(error.value) == (
        "cluster.device.kind: rank 1 is to take a GPU (cuda), and torch sees none; take cpu"
    )
    assert _device(cluster(), topology, 1, False) == torch.device("cpu"), "nobody asked for one"


@pytest.mark.skipif(torch.cuda.is_available(), reason="here ranks would get their GPU")
def test_a_run_that_wants_a_gpu_ends_before_it_trains(tmp_path: Path):
    cfg = config(ranks=[2], results=tmp_path)
    cfg = dataclasses.replace(cfg, cluster=cluster("cpu", "cuda"))
    directory = RunDirectory.create(schema.to_plain(cfg), tmp_path)
    outcome = local.launch(directory, ranks=2, threads=1, stall_s=60)
    assert (outcome.status, outcome.exit_code) == ("failed", 3)
    assert "cluster.device.kind: rank 1 is to take a GPU" in (outcome.reason or "")


def test_kinds_come_back_from_the_run_directory_as_they_were(tmp_path: Path):
    for kind, shown in (((), None), (("cuda",), "cuda"), (("cpu", "cuda"), ["cpu", "cuda"])):
        cfg = config(ranks=[2], results=tmp_path)
        cfg = dataclasses.replace(cfg, cluster=cluster(*kind), launcher=LocalConfig())
        text = schema.dump(cfg)
        assert (yaml.safe_load(text)["cluster"].get("device") or {}).get("kind") == shown
        (tmp_path / "config.yaml").write_text(text)
        assert schema.load(tmp_path / "config.yaml").cluster == cfg.cluster


def test_a_word_for_people_stays_one_word_and_moves_no_run_id(tmp_path: Path):
    links = LinksConfig(intra=LinkConfig(rate_gbit=100.0), inter=LinkConfig(rate_gbit=10.0))
    cfg = config(ranks=[2], results=tmp_path)
    cfg = dataclasses.replace(
        cfg,
        cluster=dataclasses.replace(cluster("V100", samples_per_second=100.0), links=links),
        launcher=LauncherConfig(name="simulated"),
    )
    text = schema.dump(cfg)
    assert "\n    kind: V100\n" in text
    (tmp_path / "config.yaml").write_text(text)
    again = schema.load(tmp_path / "config.yaml")
    assert again.cluster.device.kind == ("V100",)
    assert schema.run_id(again) == schema.run_id(cfg)
    # Neither does a device that nobody described: real runs have none in their file.
    assert "device" not in schema.to_plain(config())["cluster"]
