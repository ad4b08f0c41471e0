"""Virtual time without numbers: the same clock and bytes as with them, and those of models of any size."""

import dataclasses
from typing import Any

import pytest
import torch
from runs import MLP, NAMES, Blobs, config

from daso_bench.models.spec import InputSpec, Sized
from daso_bench.models.torchvision_zoo import Torchvision
from daso_bench.runner.communication.link_costs import AlphaBeta
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.records.run_directory import Outcome
from daso_bench.runner.simulation import timing_only
from daso_bench.runner.simulation.simulated_communicator import SimulatedCommunicator
from daso_bench.runner.simulation.simulated_world import simulate
from daso_bench.runner.simulation.virtual_time import Simulator
from daso_bench.runner.training.device_model import Profile
from daso_bench.strategies.topology import WORLD, Topology

NETWORK = AlphaBeta(1e-6, 1e10, 1e-4, 1e8)
# What follows a plateau of the loss or measures times goes its own way with other losses.
KEYS: dict[str, dict[str, Any]] = {
    "daso": {"warmup_epochs": 1, "cooldown_epochs": 1, "buffers": "none"},
    "diloco": {"sync_every": 4},
}


def played(cfg: RunConfig, profile: Profile | None, *, timed: bool) -> list[Outcome]:
    data = cfg.dataset.load()
    if timed:
        assert profile is not None
        cfg = timing_only.without_numbers(cfg, profile)
        data = timing_only.ghost_data("ghosts", len(data.train), 0, 0)
    return simulate(
        cfg,
        data,
        network=NETWORK,
        step_time=lambda rank, n: 100_000 * (rank + 1) + 1000 * n,
        profile=profile,
        timing_only=timed,
    ).results


@pytest.mark.parametrize("name", NAMES)
def test_clock_and_traffic_are_those_of_the_run_with_numbers(name: str):
    cfg = config(name, keys=KEYS.get(name, {}), model=MLP(hidden=[12]), eval_every_samples=10**9)
    profile = Profile.of(lambda: cfg.model.build(InputSpec(1, 4, 4, 4)), InputSpec(1, 4, 4, 4))
    real, timed = played(cfg, profile, timed=False)[0].summary, played(cfg, profile, timed=True)[0].summary
    assert timed["parameters"] == real["parameters"] == sum(profile.numels)
    for key in ("train_s", "parts_s", "steps", "epochs", "calls", "payload_bytes", "ring_bytes"):
        assert timed[key] == real[key], key
    assert timed["final_accuracy"] != timed["final_accuracy"], "NaN: nothing has been judged"
    assert timed["labels"][0] == timing_only.REMARK


def test_bytes_of_a_large_model_are_its_own():
    """A ring of R ranks sends 2(R-1)/R · 4 bytes a parameter and step, over the run's 5 steps."""
    cfg = config("ddp", ranks=[2, 2], dataset=Blobs(samples=80), epochs=1)
    spec = InputSpec(3, 224, 224, 1000)
    models = (
        (Torchvision(name="resnet50"), 25_557_032),
        (Sized(parameters=10**11, tensors=16_000), 10**11),
    )
    for model, numel in models:
        launcher = SimulatedConfig(timing_only=True)
        described = ClusterConfig(
            nodes=2,
            ranks_per_node=(2,),
            links=LinksConfig(inter=LinkConfig(rate_gbit=1), intra=LinkConfig(rate_gbit=1)),
            device=DeviceConfig(samples_per_second=1.0),
        )
        large = dataclasses.replace(cfg, model=model, launcher=launcher, cluster=described)
        profile = timing_only.profile_of(large, spec)
        assert sum(profile.numels) == numel
        summary = played(cfg, profile, timed=True)[0].summary
        sent = sum(summary["ring_bytes"].values())
        assert sent == pytest.approx(4 * 5 * 1.5 * 4 * numel, rel=1e-3)
        assert summary["calls"]["inter"] == 5 * 4 * len(profile.buckets(4, 25.0))


@pytest.mark.parametrize(
    ("dtype", "numel", "channel", "counted"),
    [
        (torch.float32, 100, "parameters", 400 * 50),
        (torch.uint8, 100, "parameters", 100 * 50),  # codes of a compressed vector
        (torch.uint8, 100, "gradients", 100 * 50),
        (torch.uint8, 3, "parameters", 3),  # too few to be a vector's
        (torch.int64, 100, "parameters", 800),  # counts
    ],
)
def test_a_vector_counts_as_that_of_the_large_model_and_its_codes_as_well(
    dtype: torch.dtype, numel: int, channel: Any, counted: int
):
    simulator = Simulator(Topology.of([1, 1]), NETWORK)

    def body(rank: int) -> dict[str, int]:
        comm = SimulatedCommunicator(simulator, rank)
        comm.scale = 50.0
        comm.all_reduce(torch.zeros(numel, dtype=dtype), WORLD, channel=channel).wait()
        if channel == "parameters":
            sends, receives = ({1 - rank: torch.zeros(numel, dtype=dtype)} for _ in range(2))
            comm.exchange(sends, receives, tag=0).wait()
        return comm.traffic.totals()["payload_bytes"]

    calls = 2 if channel == "parameters" else 1
    assert simulator.run(body) == [{"intra": 0, "inter": calls * counted}] * 2


def test_a_model_of_sizes_is_for_clocks():
    model = Sized(parameters=10, tensors=3)
    assert model.numels() == [4, 3, 3]
    with pytest.raises(ValueError, match="timing_only=true"):
        model.build(InputSpec(1, 1, 1, 1))
    with pytest.raises(ValueError, match=r"model\.tensors=11: must be between 1 and model\.parameters=10"):
        Sized(parameters=10, tensors=11)
    with pytest.raises(ValueError, match=r"model\.gflops=0"):
        Sized(parameters=10, tensors=1, gflops=0)
