"""`cluster.like`: a run's links and devices get the ratios of a named model on a named cluster."""

import copy
import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from collapse import BREAKS, SMALL, as_it_is, largest, named, off, relative, small, tables
from torch import Tensor, nn

import daso_bench
from daso_bench.datasets.data import Data
from daso_bench.datasets.dataset import Dataset
from daso_bench.models.spec import InputSpec
from daso_bench.runner import listing, similarity
from daso_bench.runner.cli import main
from daso_bench.runner.compose import compose
from daso_bench.runner.config_tree import dump, from_composed, load, to_plain
from daso_bench.runner.hardware import LinkConfig
from daso_bench.runner.likeness import LikeConfig, Likeness
from daso_bench.runner.network import ClusterNetwork
from daso_bench.runner.records import read_json
from daso_bench.runner.schema import RunConfig, run_id
from daso_bench.runner.similarity_words import describe, lines
from daso_bench.runner.typed import typed
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.topology import Topology

LIKE = {"model": "resnet50", "cluster": "ethernet_10g"}
PARAMETERS, FLOPS = 25_557_032, 8_178_368_512  # of ResNet-50 and of one image's forward pass
STEP_S = 0.003 + 32 * 3 * FLOPS / 30e12  # fixed_ms, and 32 images at 30 TFLOPS
OWN = 7_178  # parameters of the small CNN on digits


def tree(**changes: Any) -> dict[str, Any]:
    """A composed run in virtual time on laptop's 2 x 2 ranks; `cluster__nodes` changes a value."""
    made = listing.primary()
    composed: dict[str, Any] = {
        key: copy.deepcopy(made[key]) for key in ("seed", "results_dir", "study", "run", "train")
    }
    choices = listing.default_choices() | {"cluster": changes.pop("cluster", "laptop")}
    choices["strategy"] = changes.pop("strategy", "ddp")
    for group, choice in choices.items():
        composed[group] = yaml.safe_load((listing.CONF / group / f"{choice}.yaml").read_text())
    composed["launcher"] = {"name": "simulated"}
    composed["cluster"] |= {"like": dict(changes.pop("like", LIKE))}
    for key, value in changes.items():
        group, name = key.split("__")
        composed[group][name] = value
    return composed


def made(**changes: Any) -> RunConfig:
    return from_composed(tree(**changes), Path("/somewhere"))


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(**changes)
    return str(caught.value)


# ---------------------------------------------------------------- the numbers


def test_links_and_device_are_the_named_ones_with_time_and_bytes_scaled():
    """τ = 0.2 s over the named step, σ = 7,178 over 25,557,032 parameters."""
    cluster = made().cluster
    time, size = 0.2 / STEP_S, OWN / PARAMETERS
    inter, intra, device = cluster.links.inter, cluster.links.intra, cluster.device
    assert inter.rate_gbit == pytest.approx(10 * size / time, rel=1e-6)
    assert intra.rate_gbit == pytest.approx(100 * size / time, rel=1e-6)
    assert (inter.latency_us, intra.latency_us) == pytest.approx((25 * time, 10 * time), rel=1e-6)
    assert (inter.efficiency, intra.efficiency, cluster.links.nics) == (0.94, 1.0, 1)
    assert device.fixed_ms == pytest.approx(3 * time, rel=1e-6)
    assert device.samples_per_second is not None
    # 16 samples a rank: the run's own batch of 64 over its 4 ranks.
    assert device.fixed_ms / 1e3 + 16 / device.samples_per_second == pytest.approx(0.2, rel=1e-9)
    assert (device.tflops, device.forward_share, device.kind) == (None, 0.333, ("like V100",))
    assert (cluster.nodes, cluster.ranks_of_nodes) == (2, (2, 2)), "the run's own"


def test_ratios_of_the_named_side_are_those_of_its_formulas():
    found = made().cluster.like.named
    assert (found.parameters, found.bytes, found.samples_per_rank) == (PARAMETERS, 4 * PARAMETERS, 32)
    assert found.step_s == pytest.approx(STEP_S, rel=1e-6)
    assert found.kappa == pytest.approx(4 * PARAMETERS * 8 / (0.94 * 10e9) / STEP_S, rel=1e-6)
    assert found.latency_inter == pytest.approx(2 * 3 * 25e-6 / STEP_S, rel=1e-6), "a ring of 4 ranks"
    assert found.latency_intra == pytest.approx(2 * 1 * 10e-6 / STEP_S, rel=1e-6), "a ring of 2"
    assert found.rate_ratio == pytest.approx(100 / 9.4)
    assert found.fixed_share == pytest.approx(0.003 / STEP_S, rel=1e-6)
    assert found.buckets == len(found.sizes) == 5
    assert sum(found.sizes) == pytest.approx(1)
    assert found.ready[-1] == 1
    assert list(found.ready) == sorted(found.ready)


@pytest.mark.parametrize(
    "verb", ["all_reduce", "broadcast", "send", "reduce_scatter", "all_gather", "barrier"]
)
@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree", "hierarchical"])
def test_every_transfer_takes_the_same_share_of_a_step(verb: str, algorithm: str):
    side, other = named("slow"), small("small_cnn", "slow")
    size, time = other.bytes / side.bytes, similarity.step_s(other) / similarity.step_s(side)
    topology = Topology.of([4] * 4)
    networks = [
        ClusterNetwork(dataclasses.replace(one.cluster.links, algorithm=algorithm), topology)
        for one in (side, other)
    ]
    for members in (range(16), range(4), (0, 4, 8, 12), (1, 6)):
        for bytes_ in (10**5, 10**8):
            if verb == "send" and len(members) > 2:
                continue
            there, here = (
                network.duration_ns(verb, tuple(members), payload, inter=True)
                for network, payload in zip(networks, (bytes_, round(bytes_ * size)), strict=True)
            )
            assert here == pytest.approx(there * time, rel=0.02, abs=2)


def test_the_step_lasts_what_the_runs_own_device_asks_for():
    """ethernet_1g has a device: 3 ms, and the small CNN's few operations."""
    run = made(cluster="ethernet_1g")
    device = run.cluster.device
    assert device.samples_per_second is not None
    samples = 64 / 16
    assert device.fixed_ms / 1e3 + samples / device.samples_per_second == pytest.approx(0.003, rel=1e-3)
    assert run.cluster.links.inter.rate_gbit != 1, "its links are not its own any more"


def test_a_batch_as_large_as_the_runs_can_be_asked_for():
    found = made(like=LIKE | {"samples_per_rank": None}).cluster.like.named
    assert found.samples_per_rank == 16
    assert found.step_s == pytest.approx(0.003 + 16 * 3 * FLOPS / 30e12, rel=1e-6)


def test_gradients_of_double_precision_are_twice_the_bytes():
    single, double = (made(train__precision=word).cluster.links.inter.rate_gbit for word in ("fp32", "fp64"))
    assert single is not None
    assert double == pytest.approx(2 * single)


def test_cards_speeds_jitter_and_stragglers_come_with_the_named_cluster(tmp_path: Path):
    own = yaml.safe_load((listing.CONF / "cluster" / "juwels_booster.yaml").read_text())
    own["links"] |= {"node_speeds": [1, 0.5], "sharing": "fair"}
    own["device"] |= {
        "speeds": [1, 1, 0.5, 1],
        "jitter": "gaussian",
        "jitter_cv": 0.1,
        "straggler": {"rank": 3},
        "input_stall_ms": 2,
        "checkpoint_s": 4,
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own | {"failures_s": [5]}))
    run = made(like=LIKE | {"cluster": str(path)}, cluster__failures_s=[100])
    links, device = run.cluster.links, run.cluster.device
    assert (links.nics, links.node_speeds, links.sharing) == (4, (1, 0.5), "fair")
    assert (device.speeds, device.jitter, device.jitter_cv) == ((1, 1, 0.5, 1), "gaussian", 0.1)
    assert (device.straggler.rank, device.straggler.times) == (3, 4)
    time = 0.2 / run.cluster.like.named.step_s
    assert (device.input_stall_ms, device.checkpoint_s) == pytest.approx((2 * time, 4 * time))
    assert run.cluster.failures_s == (100,), "when nodes are lost is the run's own business"
    # Two of the four cards carry what leaves a node of two ranks.
    assert run.cluster.like.named.kappa == pytest.approx(
        4 * PARAMETERS * 8 / (2 * 0.95 * 200e9) / run.cluster.like.named.step_s
    )
    assert not [line for line in lines(run) if line.startswith("not matched") and "bucket" not in line]


def test_one_node_has_no_ratio_between_nodes():
    found = made(cluster="one_node").cluster.like.named
    assert (found.latency_inter, found.rate_ratio) == (None, None)
    assert found.kappa == pytest.approx(4 * PARAMETERS * 8 / 100e9 / STEP_S, rel=1e-6), (
        "through a rank's link"
    )
    assert not any("None" in line for line in lines(made(cluster="one_node")))


def test_nodes_of_one_rank_have_no_links_inside():
    """The kernel's network makes none, and such nodes need none."""
    run = made(cluster__ranks_per_node=1)
    assert run.cluster.links.intra == LinkConfig()
    assert (run.cluster.like.named.latency_intra, run.cluster.like.named.rate_ratio) == (None, None)
    assert run.cluster.kernel_lacks() is None


def test_a_model_of_sizes_can_be_named():
    found = made(like=LIKE | {"model": "billion"}).cluster.like.named
    assert (found.parameters, found.bytes) == (10**9, 4 * 10**9)
    assert found.step_s == pytest.approx(0.003 + 32 * 3 * 2048e9 / 30e12)


# ---------------------------------------------------------------- the run keeps them


def test_a_run_read_from_its_own_file_is_the_same_run(tmp_path: Path):
    run = made()
    (tmp_path / "config.yaml").write_text(dump(run))
    again = load(tmp_path / "config.yaml")
    assert again == run
    assert dump(again) == dump(run)
    assert run_id(again) == run_id(run)


def test_numbers_that_are_matched_already_do_not_depend_on_the_files_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "config.yaml").write_text(dump(made()))
    run = made()
    monkeypatch.setattr(listing, "CONF", tmp_path)
    assert load(tmp_path / "config.yaml") == run
    assert describe(run)["similarity"]["named"]["parameters"] == PARAMETERS


def test_the_id_is_that_of_a_run_with_the_same_numbers():
    run = made()
    by_hand = dataclasses.replace(run, cluster=dataclasses.replace(run.cluster, like=LikeConfig()))
    assert run_id(by_hand) == run_id(run) != run_id(made(like=LIKE | {"model": "resnet18"}))


def test_a_run_that_is_like_nothing_says_nothing_of_it():
    run = made(cluster="ethernet_1g", like={})
    assert run.cluster.like == LikeConfig()
    assert "like" not in to_plain(run)["cluster"]
    assert (lines(run), describe(run)) == ([], {})
    assert run.cluster.links.inter.rate_gbit == 1


def test_yaml_shows_every_key_with_its_default():
    shown: Any = listing.primary()["cluster"]
    keys = {field.name for field in dataclasses.fields(LikeConfig)} - {"named"}
    assert shown["like"].keys() == keys
    assert LikeConfig(**shown["like"]) == LikeConfig()


def test_it_is_said_on_the_command_line_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["launcher=simulated", "cluster=laptop", "cluster.like={model: resnet50, cluster: ethernet_10g}"]
    (found,) = compose(words, sweep=False)
    assert found.config is not None
    assert from_composed(found.config, tmp_path).cluster == made().cluster


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("like", "says"),
    [
        ({"model": "resnet50"}, "cluster.like.model=resnet50: needs cluster.like.cluster too"),
        ({"cluster": "ethernet_1g"}, "cluster.like.cluster=ethernet_1g: needs cluster.like.model too"),
        (
            LIKE | {"model": "densenet12"},
            "cluster.like.model=densenet12: unknown (did you mean 'densenet121'?); known: ",
        ),
        (
            LIKE | {"cluster": "ethernet10g"},
            "cluster.like.cluster=ethernet10g: unknown (did you mean 'ethernet_10g'?); known: ",
        ),
        (
            LIKE | {"dataset": "digit"},
            "cluster.like.dataset=digit: unknown (did you mean 'digits'?); known: ",
        ),
        (LIKE | {"samples_per_rank": 0}, "cluster.like.samples_per_rank=0: must be >= 1"),
        (LIKE | {"modell": "x"}, "cluster.like.modell: unknown key (did you mean cluster.like.model?)"),
        (
            LIKE | {"cluster": "laptop"},
            "cluster.like.cluster=laptop: has neither cluster.device.samples_per_second nor tflops; ",
        ),
        (
            LIKE | {"cluster": "mixed", "samples_per_rank": 1} | {"model": "no.yaml"},
            "cluster.like.model=no.yaml: cannot be read: ",
        ),
    ],
)
def test_what_cannot_be_named(like: dict[str, Any], says: str):
    assert refusal(like=like).startswith(says)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lost(Dataset):
    """A data set whose file is not there."""

    def load(self) -> Data:
        raise FileNotFoundError("images.idx: missing")


def test_a_data_set_that_tells_its_shape_only_when_loaded_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = made(like=LIKE | {"model": "small_cnn", "dataset": "digits"}).cluster.like.named
    assert found.parameters == OWN
    module = types.ModuleType("lost_data")
    module.Lost = Lost  # pyright: ignore[reportAttributeAccessIssue] (made here)
    monkeypatch.setitem(sys.modules, "lost_data", module)
    path = tmp_path / "lost.yaml"
    path.write_text("_target_: lost_data.Lost\n")
    assert refusal(like=LIKE | {"dataset": str(path)}) == (
        f"cluster.like.dataset={path}: its shape is known once it can be loaded: images.idx: missing"
    )


def test_speeds_by_rank_need_the_named_clusters_ranks():
    text = refusal(like=LIKE | {"cluster": "mixed"}, cluster__nodes=3)
    assert text.startswith(
        "cluster.like.cluster=mixed, on this run's 3 nodes with [2, 2, 2] ranks: cluster.device.speeds="
    )
    assert text.endswith("or give the run the named cluster's nodes and ranks_per_node")
    assert made(like=LIKE | {"cluster": "mixed"}).cluster.device.speeds == (1, 1, 0.1667, 0.1667)


def test_measured_steps_cannot_be_scaled(tmp_path: Path):
    own = yaml.safe_load((listing.CONF / "cluster" / "ethernet_1g.yaml").read_text())
    own["device"] |= {"trace": "steps.csv"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own))
    says = "cluster.like cannot scale measured steps, it needs samples_per_second or tflops"
    assert refusal(like=LIKE | {"cluster": str(path)}).startswith(
        f"cluster.like.cluster={path}: cluster.device.trace=steps.csv: {says}"
    )
    text = refusal(cluster="ethernet_1g", cluster__device={"trace": "/steps.csv"})
    assert text.startswith(f"cluster.device.trace=/steps.csv: {says}")


def test_links_without_a_rate_cannot_be_scaled(tmp_path: Path):
    own = yaml.safe_load((listing.CONF / "cluster" / "ethernet_1g.yaml").read_text())
    own["links"]["inter"]["rate_gbit"] = None
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(own))
    text = refusal(like=LIKE | {"cluster": str(path)})
    assert text.startswith(f"cluster.like.cluster={path}: has links without a rate_gbit; ")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Uncounted:
    """A model of additions, which nobody counts; or one that looks at its numbers."""

    looks: bool = False

    def build(self, spec: InputSpec) -> nn.Module:
        return Adds(self.looks)


class Adds(nn.Module):
    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.bias, self.looks = nn.Parameter(nn.Linear(1, 10).bias.detach()), looks

    def forward(self, images: Tensor) -> Tensor:
        if self.looks:
            images.sum().item()
        return images.flatten(1)[:, :10] + self.bias


@pytest.mark.parametrize("looks", [False, True])
def test_a_model_whose_operations_cannot_be_counted_needs_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: bool
):
    module = types.ModuleType("uncounted_models")
    module.Uncounted = Uncounted  # pyright: ignore[reportAttributeAccessIssue] (made here)
    monkeypatch.setitem(sys.modules, "uncounted_models", module)
    path = tmp_path / "adds.yaml"
    path.write_text(f"_target_: uncounted_models.Uncounted\nlooks: {str(looks).lower()}\n")
    text = refusal(like=LIKE | {"model": str(path)})
    assert text.startswith(f"cluster.like.model={path}: its operations cannot be counted (")
    assert "cluster.device.tflops=30" in text
    assert text.endswith("take a cluster with cluster.device.samples_per_second")
    counted = yaml.safe_load((listing.CONF / "cluster" / "ethernet_10g.yaml").read_text())
    counted["device"] |= {"tflops": None, "samples_per_second": 100}
    known = tmp_path / "known.yaml"
    known.write_text(yaml.safe_dump(counted))
    named_side = made(like={"model": str(path), "cluster": str(known)}).cluster.like.named
    assert (named_side.parameters, named_side.step_s) == (10, pytest.approx(0.003 + 0.32))


def test_what_is_wrong_with_a_model_is_said_with_its_name(tmp_path: Path):
    path = tmp_path / "odd.yaml"
    path.write_text("_target_: daso_bench.models.torchvision_zoo.Torchvision\nname: resnet51\n")
    assert refusal(like=LIKE | {"model": str(path)}).startswith(
        f"cluster.like.model={path}: model.name=resnet51: unknown to torchvision"
    )


# ---------------------------------------------------------------- what is said


def test_what_is_matched_and_what_is_not_is_said_with_both_numbers():
    said = lines(made())
    assert said[0] == (
        "like resnet50 on ethernet_10g: 102,228,128 bytes of gradients, 32 samples a rank, step 0.02917 s; "
        "here 28,712 bytes, 16 samples, step 0.2 s"
    )
    assert "matched: communication over computation (kappa): 2.983" in said
    assert "not matched: buckets of gradients: 5, here 1" in said
    assert said[-1].endswith("samples to target never follow")


def test_the_bucket_size_that_is_told_gives_as_many_buckets():
    (told,) = (line for line in lines(made()) if "would make it" in line)
    assert told.startswith("1 of 5 buckets: strategy.bucket_mib=")
    size = float(told.split("bucket_mib=")[1].split()[0])
    said = lines(made(strategy__bucket_mib=size))
    assert "matched: buckets of gradients: 5" in said
    assert not any("would make it" in line for line in said)
    assert any(line.startswith("not matched: buckets ready after") for line in said), "other layers"


def test_a_model_of_few_layers_cannot_have_enough_buckets():
    (told,) = (line for line in lines(made(like=LIKE | {"model": "vit_b_16"})) if "would make it" in line)
    assert told.startswith("1 of 14 buckets: ")
    assert told.endswith("would make it 8, and no size comes nearer; a model of more layers has more")


def test_a_strategy_without_that_key_is_named():
    (told,) = (line for line in lines(made(strategy="hsgd")) if "no bucket_mib" in line)
    assert told.startswith("1 of 5 buckets: strategy=hsgd has no bucket_mib")


@pytest.mark.parametrize("strategy", ["daso", "ednncomm", "lasgd", "heterogeneous", "post_local_sgd"])
def test_whoever_sums_gradients_can_cut_them_into_as_many_buckets(strategy: str):
    (told,) = (line for line in lines(made(strategy=strategy)) if "would make it" in line)
    assert told.startswith("1 of 5 buckets: strategy.bucket_mib=")


def test_numbers_further_apart_than_a_hundredth_are_not_matched():
    run = made()
    links = run.cluster.links

    def with_rate(factor: float) -> list[str]:
        assert links.inter.rate_gbit is not None
        inter = dataclasses.replace(links.inter, rate_gbit=links.inter.rate_gbit * factor)
        cluster = dataclasses.replace(run.cluster, links=dataclasses.replace(links, inter=inter))
        said = lines(dataclasses.replace(run, cluster=cluster))
        return [line for line in said if line.startswith("not matched") and "bucket" not in line]

    assert with_rate(1.005) == []
    kappa, rates = with_rate(1.02)
    assert kappa == "not matched: communication over computation (kappa): 2.983, here 2.924"
    assert rates == "not matched: rate inside nodes over rate between them: 10.64, here 10.43"


def test_the_record_holds_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    words = ["launcher=simulated", "cluster=laptop", "cluster.like={model: resnet50, cluster: ethernet_10g}"]
    assert main_code(*words, "train.epochs=1", "strategy.bucket_mib=0.02", "launcher.timing_only=true") == 0
    (folder,) = Path("results/runs").glob("*/")
    found = read_json(folder / "environment.json")["similarity"]
    sides = found["named"], found["run"]
    assert [side["parameters"] for side in sides] == [PARAMETERS, OWN], "not those of a stand-in"
    assert sides[0]["kappa"] == pytest.approx(sides[1]["kappa"])
    assert found["not_matched"]["buckets of gradients"] == {"named": 5, "run": 2}
    assert (found["bucket_mib"], len(sides[1]["ready"])) == (0.02, 2)
    assert found["holds_for"].endswith("samples to target never follow")
    assert load(folder / "config.yaml").cluster.like.named == typed(Likeness, sides[0], "named")


def test_a_dry_run_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = ["launcher=simulated", "cluster.like={model: resnet50, cluster: ethernet_10g}"]
    assert main_code("--dry-run", *words) == 0
    said = capsys.readouterr().out
    assert "matched: communication over computation (kappa): 2.983" in said
    assert "not matched: buckets of gradients: 5, here 1" in said


def main_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


# ---------------------------------------------------------------- the collapse

MATCHED = 0.05  # of a relative throughput


@pytest.mark.parametrize("model", list(SMALL))
def test_with_all_ratios_matched_three_models_give_the_relative_throughputs_of_the_named_one(model: str):
    found = off(relative(small(model, "slow")), relative(named("slow")))
    assert largest(found) < MATCHED
    spread = relative(named("slow"))
    assert max(spread.values()) / min(spread.values()) > 5, "the strategies differ by much more than that"


@pytest.mark.parametrize("broken", list(BREAKS))
def test_one_ratio_that_is_broken_moves_a_strategy_further_than_all_that_is_not_matched(broken: str):
    side, wanted = small("small_cnn", "slow"), relative(named("slow"))
    whole = off(relative(side), wanted)
    wrong = off(relative(BREAKS[broken](side)), wanted)
    assert largest(wrong) > 2 * largest(whole)
    assert largest(wrong) > MATCHED


def test_first_buckets_that_are_ready_late_cost_up_to_8_percent_where_much_overlaps():
    """The MLP's first bucket is ready after 0.14 of the backward pass, ResNet-50's after 0.0005."""
    wanted = relative(named("middle"))
    found = {name: largest(off(relative(small(name, "middle")), wanted)) for name in SMALL}
    assert MATCHED < found.pop("mlp") < 0.08
    assert max(found.values()) < MATCHED


@pytest.mark.parametrize("arm", ["daso", "ednncomm"])
def test_sums_in_nodes_are_off_where_the_small_model_fits_one_bucket_of_25_mib(arm: str):
    """Inside a node nothing overlaps then; a model with some such buckets is right."""
    wanted = relative(named("slow"), [arm])
    assert -0.25 < off(as_it_is(small("small_cnn", "slow"), [arm]), wanted)[arm] < -0.1
    assert abs(off(as_it_is(small("resnet18", "slow"), [arm]), wanted)[arm]) < 0.03


def test_the_page_shows_the_tables_that_the_command_makes():
    page = (Path(daso_bench.__file__).parent / "docs" / "similarity.md").read_text()
    for table in tables().split("\n\n"):
        assert table in page
