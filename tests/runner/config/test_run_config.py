"""`RunConfig`: round trip through config.yaml, the run id, and what is refused before a process starts."""

import copy
import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.runner.config.cluster import ClusterConfig, DeviceConfig, LinkConfig, LinksConfig
from daso_bench.runner.config.compose import compose_one
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.config.launchers import LocalConfig, SimulatedConfig
from daso_bench.runner.config.load import dump, from_composed, load, requests
from daso_bench.runner.config.parts import RunInfo, StudyInfo, TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.config.typed import plain, typed
from daso_bench.runner.records.trees import LATER, flatten, flatten_known, id_of_tree, nested
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.errors import ConfigError
from daso_bench.strategies.progress import Plan

HARDWARE = {"links", "device", "failures_s", "validated_ranks"}
HERE = Path("/somewhere/deep")


@cache
def composed() -> dict[str, Any]:
    """A bare run on a data set that has a folder."""
    return plain(compose_one(["dataset=fashion_mnist"]))


def tree(**changes: Any) -> dict[str, Any]:
    """A composed configuration; a key such as `train__epochs` changes a value."""
    changed = copy.deepcopy(composed())
    for key, value in changes.items():
        *path, last = key.split("__")
        node = changed
        for name in path:
            node = node[name]
        node[last] = value
    return changed


def config(**changes: Any) -> RunConfig:
    return from_composed(tree(**changes), HERE)


@pytest.mark.parametrize(
    ("group", "kind"),
    [
        *[("train", TrainConfig), ("run", RunInfo), ("study", StudyInfo)],
        *[("launcher", LocalConfig), ("cluster", ClusterConfig)],
    ],
)
def test_the_yaml_shows_every_field_with_its_default(group: str, kind: type) -> None:
    assert getattr(config(), group) == kind()
    names = [field.name for field in dataclasses.fields(kind) if field.name not in HARDWARE]
    assert [name for name in tree()[group] if name != "device"] == names
    assert tree()["cluster"]["device"] == {"kind": ""}, "real ranks can be told one"


@pytest.mark.parametrize("path", sorted((CONF / "cluster").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_cluster_describes_all_of_its_hardware_or_none(path: Path) -> None:
    given = yaml.safe_load(path.read_text("utf-8"))
    if not (HARDWARE - {"device"}) & given.keys():
        assert given["device"] == {"kind": ""}, "of a real machine only the kind can be told"
        return
    cluster = typed(ClusterConfig, given, "cluster")
    cluster.check_virtual()
    wanted = dataclasses.asdict(cluster)
    assert given.keys() == wanted.keys()
    assert given["links"].keys() == wanted["links"].keys()
    assert given["links"]["inter"].keys() == given["links"]["intra"].keys() == wanted["links"]["intra"].keys()
    assert given["device"].keys() == wanted["device"].keys()


def test_the_round_trip_through_config_yaml_is_equal(tmp_path: Path) -> None:
    for text in ("Zürich #1", "1e3", "lr=0.1", "12:30:00", "yes", "null", "${oops", "a\nb", "  "):
        made = config(run__tag=text, run__name=text, train__target=0.95, cluster__ranks_per_node=[3, 3])
        file = tmp_path / "config.yaml"
        file.write_text(dump(made), "utf-8")
        again = load(file)
        assert again == made
        assert again.run.tag == text
        assert yaml.safe_load(file.read_text("utf-8"))["run"]["id"] == made.run_id
        assert again.run_id == made.run_id


def test_load_refuses_what_is_no_run(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load(file)
    for text in ("", "a: [", "just text", "run: 3"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=re.escape(str(file))):
            load(file)


def test_relative_paths_count_from_where_the_command_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    made = config(results_dir="../out", dataset__root="../imgs")
    assert made.results_dir == Path("/somewhere/out")
    assert made.dataset.folder() == "/somewhere/imgs"
    assert config(dataset__root="~/imgs").dataset.folder() == "/home/ada/imgs"
    assert config(results_dir="/abs/x").results_dir == Path("/abs/x")
    assert config(dataset__root="").dataset.folder() == ""


DECIDES = {
    "seed": 1,
    "run__arm": "b",
    "run__repeat": 1,
    "strategy__bucket_mib": 5.0,
    "model__norm": "batch",
    "dataset__augment": "flip",
    "optimizer__lr": 0.25,
    "schedule__warmup_epochs": 0.25,
    "cluster__nodes": 3,
    "cluster__ranks_per_node": [1, 2],
    "train__epochs": 13,
    "train__target": 0.9,
    "train__global_batch_size": 65,
}
DECIDES_NOT = {
    "results_dir": "elsewhere",
    "run__name": "x",
    "run__tag": "x",
    "study__name": "x",
    "launcher__allow_oversubscription": False,
    "launcher__share_gpus": True,
    "cluster__ranks_per_node": [2, 2],
}


def test_the_run_id_is_a_hash_of_what_decides_the_result() -> None:
    bare = config().run_id
    assert re.fullmatch(r"ddp-small_cnn-fashion_mnist-s0-[0-9a-f]{8}", bare)
    ids = [config(**{key: value}).run_id for key, value in DECIDES.items()]
    assert len({bare, *ids}) == len(ids) + 1
    assert {config(**{key: value}).run_id for key, value in DECIDES_NOT.items()} == {bare}


def test_a_key_that_came_later_is_in_the_run_id_where_it_changes_something() -> None:
    """An old run's tree lacks these keys: nobody runs it again for that, and the report keeps its arms."""
    words = ["dataset=fashion_mnist", "launcher=simulated", "cluster=ethernet_10g"]
    of_today = from_composed(plain(compose_one(words)), HERE).tree
    before = copy.deepcopy(of_today)
    for key in LATER:
        *path, last = key.split(".")
        node = before
        for name in path:
            node = node[name]
        del node[last]
    names = ("ddp", "small_cnn", "fashion_mnist")
    assert flatten_known(of_today) == flatten(before)
    assert id_of_tree(of_today, names) == id_of_tree(before, names) == of_today["run"]["id"]
    changed = {"links.model": "gloo", "links.launch_us": 1.0, "links.ramp": 0.5, "links.nvls_gbit": 10.0}
    changed |= {"links.intra.cap_gbit": 9.6, "links.inter.cap_gbit": 9.6, "device.bucket_us": 10.0}
    assert {f"cluster.{key}" for key in changed} == set(LATER)
    ids = {id_of_tree(nested(flatten(of_today) | {f"cluster.{key}": changed[key]}), names) for key in changed}
    assert len(ids | {of_today["run"]["id"]}) == len(LATER) + 1


def test_the_run_id_is_the_same_on_every_machine_and_day() -> None:
    """A golden value: a change of it means that no finished run is recognised any more."""
    assert config().run_id == "ddp-small_cnn-fashion_mnist-s0-46d374b7"


def test_the_strategy_is_asked_what_the_run_is_going_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Plan]] = []
    monkeypatch.setattr(DDP, "check", lambda config, plan: asked.append((config, plan)))
    made = config(cluster__nodes=3, train__epochs=5)
    assert asked == [(made.strategy, made.plan())]
    assert (made.plan().topology.ranks_of_nodes, made.plan().epochs) == ((2, 2, 2), 5)
    with pytest.raises(ConfigError, match=r"leave no asynchronous epoch in train\.epochs=2"):
        config(strategy={"_target_": "daso_bench.strategies.daso.DASO"}, train__epochs=2)


def test_steps_are_planned_where_the_data_set_tells_its_size() -> None:
    made = dataclasses.replace(config(train__epochs=3), dataset=Synthetic(samples=1000))
    assert (made.plan().steps_per_epoch, made.plan().steps) == (16, 48)
    short = dataclasses.replace(made, train=dataclasses.replace(made.train, max_steps=20))
    assert short.plan().steps == 20
    with pytest.raises(ConfigError, match="training samples=3: must be at least"):
        dataclasses.replace(made, dataset=Synthetic(samples=3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train__global_batch_size": 3}, "train.global_batch_size=3: must be >= 4, the number of ranks"),
        ({"train__epochs": 0}, "train.epochs=0: must be >= 1"),
        ({"train__eval_phase": 2}, "train.eval_phase=2.0: must be between 0 and 1"),
        ({"train__target": 95}, "train.target=95.0: must be above 0 and at most 1 (0.95 for 95 %)"),
        ({"train__stop": "first"}, "train.stop=first: needs a train.target"),
        ({"train__stop": "never"}, "train.stop=never: unknown; known: budget, confirmed, first"),
        ({"train__precision": "fp61"}, "train.precision=fp61: unknown (did you mean 'fp64'?)"),
        ({"train__checkpoint_every_samples": "often"}, "train.checkpoint_every_samples=often: must be auto"),
        ({"launcher__threads_per_rank": "many"}, "launcher.threads_per_rank=many: must be auto or"),
        ({"launcher__port": 70000}, "launcher.port=70000: must be between 1 and 65535"),
        ({"launcher__name": "slrum"}, "launcher.name=slrum: unknown"),
        ({"launcher__stall_s": 0}, "launcher.stall_s=0.0: must be > 0"),
        ({"seed": "x"}, "seed=x: must be a whole number"),
        ({"seed": -1}, "seed=-1: must be between 0 and"),
        ({"study__name": "a/b"}, "study.name=a/b: must be the name of one folder"),
        ({"study__role": "second"}, "study.role=second: "),
        ({"study__level": 95}, "study.level=95"),
        ({"study__level": 0.4}, "study.level=0.4"),
        ({"study__same_seeds_share": 0}, "study.same_seeds_share=0"),
        ({"study__same_seeds_share": 1.5}, "study.same_seeds_share=1.5"),
        ({"study__samples_per_s": 0}, "study.samples_per_s=0"),
        ({"run__repeat": -1}, "run.repeat=-1: must be >= 0"),
        ({"strategy__fooo": 1}, "strategy.fooo: unknown key"),
        ({"train__foo": 1}, "train.foo: unknown key"),
        ({"foo": 1}, "foo: unknown key"),
        ({"train": 3}, "train=3: must hold keys and values"),
        ({"strategy": None}, "strategy: must be given"),
        (
            {"strategy___target_": "daso_bench.models.small.MLP"},
            "strategy._target_=daso_bench.models.small.MLP: must be a subclass of",
        ),
        ({"model___target_": "nowhere.No"}, "model._target_=nowhere.No: cannot be imported"),
    ],
)
def test_a_bad_request_is_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_trace_counts_by_what_it_holds_wherever_it_lies(tmp_path: Path) -> None:
    def id_of(name: str, content: str) -> str:
        path = tmp_path / name
        path.write_text(content)
        links = LinksConfig(intra=LinkConfig(rate_gbit=1.0), inter=LinkConfig(rate_gbit=1.0))
        cluster = ClusterConfig(links=links, device=DeviceConfig(trace=str(path)))
        return dataclasses.replace(config(), cluster=cluster, launcher=SimulatedConfig()).run_id

    first = id_of("a.csv", "rank,step_s\n0,0.1\n")
    assert id_of("b.csv", "rank,step_s\n0,0.1\n") == first
    assert id_of("a.csv", "rank,step_s\n0,0.2\n") != first


def test_requests_are_checked_and_twins_refused() -> None:
    made, twin, bad, _ = requests(["seed=0,0,-1,1"], sweep=True, cwd=HERE)
    assert made.config is not None
    assert "asked for twice; run.arm or run.repeat" in str(twin.error)
    assert str(bad.error).startswith("seed=-1: must be between 0 and")
