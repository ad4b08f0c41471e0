"""What a cluster cannot be is refused in one sentence that names the key and what it was given."""

import dataclasses
import math
import re
from typing import Any

import pytest
from runs import config

from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.launchers import SimulatedConfig
from daso_bench.strategies.errors import ConfigError

NAN = math.nan
RATES = LinksConfig(intra=LinkConfig(rate_gbit=100), inter=LinkConfig(rate_gbit=10))
DEVICE = DeviceConfig(samples_per_second=100)


def cluster(*, links: Any = None, device: Any = None, **given: Any) -> ClusterConfig:
    """Two nodes of two ranks; `links` and `device` are their fields."""
    return ClusterConfig(links=LinksConfig(**(links or {})), device=DeviceConfig(**(device or {})), **given)


def sentence(error: pytest.ExceptionInfo[ConfigError], says: str) -> None:
    """It begins with the key and what was given, and is one sentence on one line."""
    text = str(error.value)
    assert text.startswith(says)
    assert re.fullmatch(r"[^\n]+[^\n.]", text), text
    assert not re.search(r"\. [A-Z]", text), text


LINK = [
    ("rate_gbit", 0, "must be > 0 (inf: takes no time)"),
    ("rate_gbit", NAN, "must be > 0 (inf: takes no time)"),
    ("latency_us", -1, "must be between 0 and 1000000000.0"),
    ("efficiency", 1.01, "must be above 0 and at most 1"),
    ("cap_gbit", 0, "must be > 0"),
    ("cap_gbit", 9.6, "is for cluster.links.model=gloo, not alpha_beta"),
]
LINKS = [
    ("nics", 0, "0: must be >= 1"),
    ("algorithm", "rng", "rng: unknown (did you mean 'ring'?); known: auto, "),
    ("sharing", "fare", "fare: unknown (did you mean 'fair'?); known: fifo, fair"),
    ("model", "ncll", "ncll: unknown (did you mean 'nccl'?); known: alpha_beta, nccl, gloo"),
    ("launch_us", -1, "-1: must be between 0 and 1000000000.0"),
    ("ramp", 1.5, "1.5: must be between 0 and 1"),
    ("nvls_gbit", 0, "0: must be > 0"),
    ("ramp", 0.7, "0.7: is for cluster.links.model=nccl, not alpha_beta"),
    ("node_speeds", (1.0,), "[1.0]: must be 2 numbers, one for each of"),
    ("node_speeds", (NAN, 1.0), "[nan, 1.0]: must be > 0, and finite"),
]
DEVICES = [
    ("samples_per_second", 0, "0: must be > 0"),
    ("tflops", -1.0, "-1.0: must be > 0"),
    ("fixed_ms", -0.1, "-0.1: must be between 0 and 1000000000.0"),
    ("bucket_us", -1, "-1: must be between 0 and 1000000000.0"),
    ("input_stall_ms", NAN, "nan: must be between 0 and 1000000000.0"),
    ("checkpoint_s", math.inf, "inf: must be between 0 and 1000000000.0"),
    ("forward_share", 1.5, "1.5: must be between 0 and 1"),
    ("jitter", "normal", "normal: unknown (did you mean 'lognormal'?); known: none, gaussian"),
    ("jitter_cv", 1.1, "1.1: must be between 0 and 1"),
    ("speeds", (1.0, 1.0), "[1.0, 1.0]: must be 4 numbers, one for each of the ranks"),
    ("speeds", (1.0, 1.0, 1.0, -1.0), "[1.0, 1.0, 1.0, -1.0]: must be > 0, and finite"),
]
CLUSTERS = [
    ({"nodes": 0}, "cluster.nodes=0: must be >= 1"),
    (
        {"nodes": 3, "ranks_per_node": (2, 1)},
        "cluster.ranks_per_node=[2, 1]: must be one number or 3 numbers (cluster.nodes=3)",
    ),
    ({"ranks_per_node": (2, -1)}, "cluster.ranks_per_node=-1: must be >= 1"),
    ({"failures_s": (5.0, 0.0)}, "cluster.failures_s=0.0: must be > 0"),
    (
        {"device": {"samples_per_second": 100, "tflops": 30}},
        "cluster.device.samples_per_second=100, cluster.device.tflops=30: only one of them",
    ),
]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(
            ({"links": {name: LinkConfig(**{key: value})}}, f"cluster.links.{name}.{key}={value}: {rule}")
            for name in ("intra", "inter")
            for key, value, rule in LINK
        ),
        *(({"links": {key: value}}, f"cluster.links.{key}={says}") for key, value, says in LINKS),
        *(({"device": {key: value}}, f"cluster.device.{key}={says}") for key, value, says in DEVICES),
        *CLUSTERS,
    ],
)
def test_a_cluster_that_cannot_be_is_refused(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as error:
        cluster(**given)
    sentence(error, says)


@pytest.mark.parametrize("model", ["nccl", "gloo"])
def test_a_model_with_its_own_algorithm_refuses_another(model: str):
    with pytest.raises(ConfigError) as error:
        cluster(links={"model": model, "algorithm": "tree"})
    sentence(error, f"cluster.links.algorithm=tree: cluster.links.model={model} has its own; ")
    assert cluster(links={"model": "gloo", "algorithm": "ring"}).kernel_lacks() is None
    capped = {"model": "gloo", "inter": LinkConfig(cap_gbit=9.6)}
    for links in ({"model": "nccl"}, capped):
        assert (cluster(links=links).kernel_lacks() or "").startswith(f"cluster.links.model={links['model']}")


def test_a_rate_in_bits_and_its_payload_in_bytes():
    assert LinkConfig(rate_gbit=10).bytes_per_s == 1.25e9
    assert LinkConfig(rate_gbit=10, efficiency=0.8).bytes_per_s == 1e9
    assert LinkConfig(rate_gbit=math.inf, efficiency=0.8).bytes_per_s == math.inf


@pytest.mark.parametrize(
    "given",
    [
        {"links": {"inter": LinkConfig(rate_gbit=10)}},
        {"links": {"intra": LinkConfig(latency_us=1)}},
        {"links": {"sharing": "fair"}},
        {"device": {"tflops": 30}},
        {"device": {"jitter": "gaussian"}},
        {"failures_s": (10.0,)},
    ],
)
def test_real_processes_have_the_links_and_devices_that_they_have(given: dict[str, Any]):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(config(), cluster=cluster(**given))
    sentence(error, "launcher=local: ")
    for name in ("cluster.links", "cluster.device", "cluster.failures_s", "launcher=simulated"):
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"device": DEVICE}, "cluster.links.intra.rate_gbit=null: virtual time needs a rate"),
        (
            {"device": DEVICE, "links": LinksConfig(intra=RATES.intra)},
            "cluster.links.inter.rate_gbit=null: virtual time needs a rate",
        ),
        (
            {"device": DEVICE, "ranks_per_node": (1, 2), "links": LinksConfig(inter=RATES.inter)},
            "cluster.links.intra.rate_gbit=null: ",
        ),
        (
            {"links": RATES},
            "cluster.device.samples_per_second=null: virtual time needs samples_per_second, tflops or trace",
        ),
    ],
)
def test_virtual_time_says_which_number_it_lacks(given: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(config(), cluster=ClusterConfig(**given), launcher=SimulatedConfig())
    sentence(error, says)
    assert "daso-bench list clusters" in str(error.value)


def test_far_from_what_was_validated_virtual_time_needs_a_word():
    """64 times the ranks that were compared with measured ones; of four, where fewer were."""
    links = LinksConfig(intra=LinkConfig(rate_gbit=1.0), inter=LinkConfig(rate_gbit=1.0))
    device = DeviceConfig(samples_per_second=1.0)

    def cluster(nodes: int, validated: int) -> ClusterConfig:
        return ClusterConfig(
            nodes=nodes, ranks_per_node=(1,), links=links, device=device, validated_ranks=validated
        )

    cluster(256, 0).check_virtual()
    cluster(512, 8).check_virtual()
    for nodes, validated in ((257, 0), (257, 3), (513, 8)):
        with pytest.raises(ConfigError, match=r"launcher\.extrapolate=true runs it"):
            cluster(nodes, validated).check_virtual()
        cluster(nodes, validated).check_virtual(extrapolate=True)
    with pytest.raises(ConfigError, match=r"cluster\.validated_ranks=-1"):
        cluster(1, -1)


NOT_COMPARED = "no step time of this cluster was compared with a measured one"
COMPARED = "step times of this cluster were compared with measured ones on"


@pytest.mark.parametrize(
    ("ranks", "validated", "says"),
    [
        (4, 0, NOT_COMPARED),
        (32, 2, f"{COMPARED} 2 ranks"),
        (33, 0, f"extrapolated to 33 ranks, {NOT_COMPARED}"),
        (32, 4, f"{COMPARED} 4 ranks"),
        (33, 4, f"extrapolated to 33 ranks, {COMPARED} 4 ranks"),
    ],
)
def test_what_times_rest_on_is_said(ranks: int, validated: int, says: str):
    assert ClusterConfig(nodes=1, ranks_per_node=(ranks,), validated_ranks=validated).validity == says
