"""From the user's words, or a run's `config.yaml`, to checked runs, and back to YAML.

One pass: compose (Hydra), fill in `auto`, make typed parts, check (`run_config.CHECKS`), change what the
run's role in the study changes. The front end asks `requests` or `run_config` once and hands the runs on;
ranks, `resume` and `report` use `load`: they read `config.yaml` of the run directory and never compose.
"""

import dataclasses
import inspect
import math
import os.path
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig

from ...datasets.dataset import Dataset
from ...models.spec import Model
from ...strategies.base import Strategy
from ...strategies.errors import ConfigError, one_of
from ..records.study_plan import FRESH, phase_of
from ..records.trees import dump_yaml, load_yaml
from .cluster import ClusterConfig
from .compose import TOP_LEVEL, Request, compose, compose_one
from .launchers import LAUNCHERS, LauncherConfig
from .optimizers import Optimizer
from .parts import RunInfo, StudyInfo, TrainConfig
from .reader_config import PackedReader, ReaderConfig
from .run_config import RunConfig
from .schedules import Schedule
from .tasks import kind_of
from .typed import TARGET, locate_target, plain, shown, typed, unknown_key

T = TypeVar("T")


def requests(
    words: Sequence[str], *, sweep: bool, cwd: Path, config_dir: Path | None = None
) -> list[Request]:
    """All runs that `words` ask for, checked, in Hydra's order: one, or with `sweep` the whole grid.

    Relative paths count from `cwd`. The same run asked for twice is refused the second time. Raises
    ConfigError for words that no run can be composed with.
    """
    first: dict[Path, RunConfig] = {}  # by run directory

    def checked(request: Request) -> Request:
        if request.composed is None:
            return request
        try:
            config = from_composed(request.composed, cwd)
            if first.setdefault(config.path, config) is not config:
                raise _asked_twice(first[config.path], config)
        except ConfigError as error:
            return dataclasses.replace(request, error=error)
        return dataclasses.replace(request, config=config)

    return [checked(request) for request in compose(words, sweep=sweep, config_dir=config_dir)]


def run_config(words: Sequence[str], *, cwd: Path, config_dir: Path | None = None) -> RunConfig:
    """The one run that `words` ask for. Raises ConfigError where it is refused."""
    return from_composed(compose_one(words, config_dir=config_dir), cwd)


def data_of(
    words: Sequence[str], *, cwd: Path, config_dir: Path | None = None
) -> tuple[Dataset, ReaderConfig]:
    """The data set and the reader that `words` choose, for a command without a run. Raises ConfigError."""
    tree = plain(compose_one(words, config_dir=config_dir))
    dataset, reader = dataset_of(tree, cwd), reader_of(tree, cwd)
    if isinstance(reader, PackedReader):
        reader.check_place(dataset)
    return dataset, reader


def load(path: Path) -> RunConfig:
    """The run of a `config.yaml` that holds `config.tree`: equal to `config`. Raises ConfigError."""
    try:
        tree = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict):
        raise ConfigError(f"{path}: is not the configuration of a run")
    tree["run"].pop("id", None)
    return from_composed(tree, path.absolute().parent)


def dump(config: RunConfig) -> str:
    """`config.yaml` as text, keys in reading order."""
    return dump_yaml(config.tree)


def from_composed(cfg: DictConfig | Mapping[str, Any], cwd: Path) -> RunConfig:
    """The checked run of a composed configuration; relative paths count from `cwd`. Raises ConfigError."""
    tree = {key: value for key, value in plain(cfg).items() if key != "hydra"}
    for key in tree:
        if key not in TOP_LEVEL:
            raise unknown_key("", key, TOP_LEVEL)
    missing = [key for key in TOP_LEVEL if tree.get(key) is None]
    if missing:
        raise ConfigError(f"{missing[0]}: must be given")
    strategy_class = _class_of(tree["strategy"], "strategy", Strategy, "a class Config")
    model = _part(tree, "model", Model, "a method build")
    strategy = typed(strategy_class.Config, tree["strategy"], "strategy")
    dataset = dataset_of(tree, cwd)
    seed, cluster = tree["seed"], tree["cluster"]
    if isinstance(cluster, Mapping) and "device" in cluster:
        cluster = {**cluster, "device": _with_absolute(cluster["device"], ("trace",), cwd)}
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed={shown(seed)}: must be a whole number")
    config = RunConfig(
        strategy_class=strategy_class,
        strategy=strategy,
        model=model,
        dataset=dataset,
        reader=reader_of(tree, cwd),
        optimizer=_part(tree, "optimizer", Optimizer, "a method build"),
        schedule=_part(tree, "schedule", Schedule, "a method factor"),
        cluster=typed(ClusterConfig, cluster, "cluster"),
        launcher=_launcher(tree["launcher"]),
        train=typed(TrainConfig, _auto_filled(tree["train"], model, dataset, seed), "train"),
        seed=seed,
        run=typed(RunInfo, tree["run"], "run"),
        study=typed(StudyInfo, tree["study"], "study"),
        results_dir=_absolute(str(tree["results_dir"]), cwd),
    )
    return in_its_role(config)


def dataset_of(tree: Mapping[str, Any], cwd: Path) -> Dataset:
    """The checked data set of a configuration; relative paths count from `cwd`. Raises ConfigError."""
    keys = _with_absolute(tree["dataset"], ("root", "prepared"), cwd)
    return _part({"dataset": keys}, "dataset", Dataset, "a method load")


def reader_of(tree: Mapping[str, Any], cwd: Path) -> ReaderConfig:
    """The checked reader of a configuration; a relative path counts from `cwd`. Raises ConfigError."""
    keys = _with_absolute(tree["reader"], ("path",), cwd)
    return typed(locate_target(keys, "reader"), keys, "reader")


def _asked_twice(first: RunConfig, second: RunConfig) -> ConfigError:
    assumptions = first.study.assumption, second.study.assumption
    if assumptions[0] == assumptions[1]:
        reason = "run.arm or run.repeat tells two equal runs apart"
    else:
        unlike = f"{assumptions[1]!r} changes nothing against {assumptions[0] or 'none'!r}"
        reason = f"assumption {unlike} here: leave it out"
    return ConfigError(f"{second.title}: asked for twice; {reason}")


def _class_of(node: Any, group: str, base: type[T], needed: str) -> type[T]:
    """The class that the group's `_target_` names, a concrete subclass of `base`. Raises ConfigError."""
    kind = locate_target(node, group)
    if not issubclass(kind, base) or inspect.isabstract(kind):
        raise ConfigError(
            f"{group}.{TARGET}={kind.__module__}.{kind.__qualname__}: must be a subclass of "
            f"{base.__module__}.{base.__name__} with {needed} (that class says how to add one)"
        )
    return kind


def _part(tree: Mapping[str, Any], group: str, base: type[T], needed: str) -> T:
    return typed(_class_of(tree[group], group, base, needed), tree[group], group)


def _launcher(node: Any) -> LauncherConfig:
    """Each launcher has keys of its own; one that another launcher has is unknown to it."""
    if isinstance(node, Mapping) and TARGET in node:
        return _part({"launcher": node}, "launcher", LauncherConfig, "its keys")
    name = str(node.get("name")) if isinstance(node, Mapping) else ""
    one_of("launcher.name", name, tuple(LAUNCHERS))
    return typed(LAUNCHERS[name], node, "launcher")


def _auto_filled(train: Any, model: Model, dataset: Dataset, seed: int) -> Any:
    """`train` with its `auto` values as numbers and names, which the record holds.

    `epochs`: what the model suggests. `target_metric`: what models of the data set's task are judged
    by. `eval_phase`: drawn for the repetition.
    """
    if not isinstance(train, Mapping):
        return train
    auto: dict[str, Callable[[], Any]] = {
        "epochs": lambda: model.suggested_epochs,
        "target_metric": lambda: kind_of(dataset.task, "dataset").metrics[0],
        "eval_phase": lambda: phase_of(seed),
    }
    return {key: auto[key]() if key in auto and value == "auto" else value for key, value in train.items()}


def _absolute(text: str, cwd: Path) -> Path:
    # `..` is resolved as text and links are kept, so that users recognise the folder as they wrote it.
    try:
        return Path(os.path.normpath(cwd / Path(text).expanduser()))
    except RuntimeError as error:
        raise ConfigError(f"{text}: {error}") from error


def _with_absolute(keys: Any, names: Sequence[str], cwd: Path) -> Any:
    """`keys` with those paths among them absolute that are given."""
    if not isinstance(keys, Mapping):
        return keys
    return {**keys, **{name: str(_absolute(str(keys[name]), cwd)) for name in names if keys.get(name)}}


def in_its_role(config: RunConfig) -> RunConfig:
    """The run with the changes of its role in the study; `run.arm` shows that they have been made.

    Raises ConfigError for a run that the role cannot have.
    """
    role = config.study.role
    # Tuned settings may be the default ones: their runs have a name, and directories, of their own.
    name = " ".join(word for word in ("tuned" if config.study.tuned else "", role) if word)
    if not name or config.run.arm == name:
        return config
    if config.run.arm:
        key = f"study.role={role}" if role else f"study.tuned={config.study.tuned}"
        raise ConfigError(f"run.arm={config.run.arm}: {key} names the arm; leave run.arm empty")
    changes = _CHANGES[role](config) if role in _CHANGES else {}
    return dataclasses.replace(config, run=dataclasses.replace(config.run, arm=name), **changes)


def _fresh_seeds(config: RunConfig) -> dict[str, Any]:
    """Other seeds than the baseline's."""
    if config.seed >= FRESH:
        raise ConfigError(f"seed={config.seed}: must be below {FRESH}, which study.role=fresh_seeds adds")
    return {"seed": config.seed + FRESH}


def _one_core(config: RunConfig) -> dict[str, Any]:
    """One of the cluster's nodes; the study gives it one core there."""
    cluster = config.cluster
    if max(cluster.ranks_of_nodes) > 1 or config.launcher.threads_per_rank != 1:
        raise ConfigError(
            "study.role=one_core: is one process of one thread (cluster.ranks_per_node=1 "
            "launcher.threads_per_rank=1)"
        )
    if config.launcher.asked_workers:
        raise ConfigError(
            f"launcher.loader_workers={config.launcher.loader_workers}: must be 0 with study.role=one_core, "
            "which is one process of one thread"
        )
    if config.launcher.virtual:
        raise ConfigError("study.role=one_core: no model tells what cores do; real ranks can")
    return {
        "cluster": dataclasses.replace(cluster, nodes=1, ranks_per_node=(1,)),
        "launcher": dataclasses.replace(config.launcher, pin=True, loader_workers=0),
    }


def _same_seeds(config: RunConfig) -> dict[str, Any]:
    """The first part of the schedule."""
    share = config.study.same_seeds_share
    if share == 1:
        return {}
    steps = config.plan().steps
    if steps is None:
        raise ConfigError(
            f"study.same_seeds_share={share}: of a schedule whose length is known once the data are loaded; "
            "set train.max_steps, or study.same_seeds_share=1"
        )
    return {"train": dataclasses.replace(config.train, max_steps=max(1, math.ceil(share * steps)))}


_CHANGES: Mapping[str, Callable[[RunConfig], dict[str, Any]]] = {
    "fresh_seeds": _fresh_seeds,
    "one_core": _one_core,
    "same_seeds": _same_seeds,
}
