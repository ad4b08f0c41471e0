"""From a composed configuration, or a run's `config.yaml`, to the checked run, and back.

`from_composed` is used by the front end, `load` by the workers and by `resume`: they read `config.yaml` of
the run directory and never compose.
"""

import inspect
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from ...datasets.dataset import Dataset
from ...strategies.errors import ConfigError, one_of
from ..records import plain_yaml
from ..records.seed_ranges import phase_of
from .cluster import ClusterConfig
from .launchers import LAUNCHERS, LauncherConfig
from .reader_config import ReaderConfig
from .schema import RunConfig, run_id, tree_of
from .study import RunInfo, StudyInfo
from .study_roles import in_its_role
from .tasks import task_choice
from .train import TrainConfig
from .typed import TARGET, locate_target, plain, shown, typed, unknown_key

GROUPS = ("strategy", "model", "dataset", "reader", "optimizer", "schedule", "cluster", "launcher")
TOP_LEVEL = (*GROUPS, "train", "seed", "run", "study", "results_dir")


def from_composed(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> RunConfig:
    """The checked run of a composed configuration; relative paths count from `cwd`. Raises ConfigError."""
    tree = {key: value for key, value in plain(cfg).items() if key != "hydra"}
    for key in tree:
        if key not in TOP_LEVEL:
            raise unknown_key("", key, TOP_LEVEL)
    missing = [key for key in TOP_LEVEL if tree.get(key) is None]
    if missing:
        raise ConfigError(f"{missing[0]}: must be given")
    strategy_class = locate_target(tree["strategy"], "strategy")
    config_class = getattr(strategy_class, "Config", None)
    if config_class is None:
        raise ConfigError(f"strategy.{TARGET}={strategy_class.__name__}: the class has no Config")
    model = _part(tree, "model")
    strategy = typed(config_class, tree["strategy"], "strategy")
    dataset = dataset_of(tree, cwd)
    seed = _seed(tree["seed"])
    asked = _with_metric(_with_epochs(tree["train"], model), dataset)
    config = RunConfig(
        strategy_class=strategy_class,
        strategy=strategy,
        model=model,
        dataset=dataset,
        reader=reader_of(tree, cwd),
        optimizer=_part(tree, "optimizer"),
        schedule=_part(tree, "schedule"),
        cluster=typed(ClusterConfig, _traced(tree["cluster"], cwd), "cluster"),
        launcher=_launcher(tree["launcher"]),
        train=typed(TrainConfig, _with_phase(asked, seed), "train"),
        seed=seed,
        run=typed(RunInfo, tree["run"], "run"),
        study=typed(StudyInfo, tree["study"], "study"),
        results_dir=_absolute(str(tree["results_dir"]), cwd),
    )
    return in_its_role(config)


def dataset_of(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> Dataset:
    """The checked data set of a composed configuration; relative paths count from `cwd`.

    Raises ConfigError.
    """
    group = _rooted({"dataset": plain(cfg)["dataset"]}, cwd)["dataset"]
    kind = locate_target(group, "dataset")
    if not issubclass(kind, Dataset) or inspect.isabstract(kind):
        raise ConfigError(
            f"dataset.{TARGET}={kind.__module__}.{kind.__qualname__}: must be a subclass of "
            f"{Dataset.__module__}.{Dataset.__name__} with a method load (that class says how to add one)"
        )
    return typed(kind, group, "dataset")


def reader_of(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> ReaderConfig:
    """The checked reader of a composed configuration; a relative path counts from `cwd`.

    Raises ConfigError.
    """
    group = plain(cfg)["reader"]
    if isinstance(group, Mapping) and group.get("path"):
        group = {**group, "path": str(_absolute(str(group["path"]), cwd))}
    return _part({"reader": group}, "reader")


def to_plain(config: RunConfig) -> dict[str, Any]:
    """What `config.yaml` holds: builtin values only, `_target_` of each part, and `run.id`."""
    tree = tree_of(config)
    tree["run"]["id"] = run_id(config)
    return tree


def load(path: Path) -> RunConfig:
    """The run of a `config.yaml` that holds `to_plain(config)`: equal to `config`. Raises ConfigError."""
    try:
        tree = plain_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
        raise ConfigError(f"{path}: is not the configuration of a run")
    tree["run"].pop("id", None)
    return from_composed(tree, path.absolute().parent)


def dump(config: RunConfig) -> str:
    """`config.yaml` as text, keys in reading order."""
    return plain_yaml.dump(to_plain(config))


def _part(tree: Mapping[str, Any], group: str) -> Any:
    return typed(locate_target(tree[group], group), tree[group], group)


def _launcher(node: Any) -> LauncherConfig:
    """Each launcher has keys of its own; one that another launcher has is unknown to it."""
    if isinstance(node, Mapping) and TARGET in node:
        kind = locate_target(node, "launcher")
        if not issubclass(kind, LauncherConfig):
            raise ConfigError(
                f"launcher.{TARGET}={kind.__module__}.{kind.__qualname__}: must be a subclass of "
                f"{LauncherConfig.__module__}.{LauncherConfig.__name__}"
            )
        return typed(kind, node, "launcher")
    name = str(node.get("name")) if isinstance(node, Mapping) else ""
    one_of("launcher.name", name, tuple(LAUNCHERS))
    return typed(LAUNCHERS[name], node, "launcher")


def _with_epochs(train: Any, model: Any) -> Any:
    """`train` with `epochs: auto` resolved: what the model suggests, else 12. The record holds the number."""
    if isinstance(train, Mapping) and train.get("epochs") == "auto":
        return {**train, "epochs": getattr(model, "suggested_epochs", TrainConfig.epochs)}
    return train


def _with_metric(train: Any, dataset: Dataset) -> Any:
    """`train` with `target_metric: auto` resolved: what models of the data set's task are judged by."""
    if isinstance(train, Mapping) and train.get("target_metric") == "auto":
        return {**train, "target_metric": task_choice.kind_of(dataset.task, "dataset").metrics[0]}
    return train


def _with_phase(train: Any, seed: int) -> Any:
    """`train` with `eval_phase: auto` resolved. The record holds the number."""
    if isinstance(train, Mapping) and train.get("eval_phase") == "auto":
        return {**train, "eval_phase": phase_of(seed)}
    return train


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"seed={shown(value)}: must be a whole number")
    return value


def _absolute(text: str, cwd: Path) -> Path:
    # `..` is resolved by text and links are kept: the user's own spelling of the folder stays recognisable.
    try:
        return Path(os.path.normpath(cwd / Path(text).expanduser()))
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error


def _rooted(tree: dict[str, Any], cwd: Path) -> dict[str, Any]:
    """The tree with the folders of the data set (where it has such keys) absolute."""
    dataset = tree["dataset"]
    if not isinstance(dataset, Mapping):
        return tree
    folders = {key: dataset[key] for key in ("root", "prepared") if dataset.get(key)}
    return {**tree, "dataset": {**dataset, **{k: str(_absolute(str(v), cwd)) for k, v in folders.items()}}}


def _traced(cluster: Any, cwd: Path) -> Any:
    """The cluster with `device.trace` (if there is one) absolute."""
    device = cluster.get("device") if isinstance(cluster, Mapping) else None
    if not isinstance(device, Mapping) or not device.get("trace"):
        return cluster
    return {**cluster, "device": {**device, "trace": str(_absolute(str(device["trace"]), cwd))}}
