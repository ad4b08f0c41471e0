"""A run as a tree of plain values, and its run id."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..records.run_identity import id_of_tree
from .cluster import ClusterConfig
from .launchers import LAUNCHERS, LauncherConfig
from .parts import RunParts
from .typed import TARGET, part_name


def derive_run_id(config: RunParts) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>`, see `id_of_tree`."""
    names = (config.strategy_name, part_name(config.model), part_name(config.dataset))
    return id_of_tree(tree_of(config), names)


def tree_of(config: RunParts) -> dict[str, Any]:
    """Builtin values only: the keys of a run in reading order, `_target_` of each part."""
    groups = ("model", "dataset", "reader", "optimizer", "schedule")
    return {
        "strategy": _dump_part(config.strategy, config.strategy_class),
        **{group: _dump_part(getattr(config, group)) for group in groups},
        "cluster": _cluster(config.cluster),
        "launcher": _launcher(config.launcher),
        "train": _builtin(dataclasses.asdict(config.train)),
        "seed": config.seed,
        "run": _builtin(dataclasses.asdict(config.run)),
        "study": _builtin(dataclasses.asdict(config.study)),
        "results_dir": str(config.results_dir),
    }


def _launcher(launcher: LauncherConfig) -> dict[str, Any]:
    """Its keys; `_target_` only of one that is not built in, whose name says nothing."""
    if LAUNCHERS.get(launcher.name) is type(launcher):
        return _builtin(dataclasses.asdict(launcher))
    return _dump_part(launcher)


def _cluster(cluster: ClusterConfig) -> dict[str, Any]:
    """Its keys; hardware that is not described is left out: real runs have none to describe."""
    given, usual = dataclasses.asdict(cluster), dataclasses.asdict(ClusterConfig())
    if len(cluster.device.kind) < 2:  # as it is written: one word
        given["device"]["kind"], usual["device"]["kind"] = "".join(cluster.device.kind), ""
    described = ("links", "device", "failures_s", "validated_ranks")
    return _builtin({key: v for key, v in given.items() if key not in described or v != usual[key]})


def _dump_part(part: Any, target: type[Any] | None = None) -> dict[str, Any]:
    kind = target or type(part)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **_builtin(dataclasses.asdict(part))}


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _builtin(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_builtin(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value
