"""The run id: a hash of the keys that decide a run's result; and a run as a tree of plain values."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .cluster import ClusterConfig
from .launchers import LAUNCHERS, LauncherConfig
from .parts import RunParts
from .reader_config import PackedReader, order_alone
from .typed import TARGET, part_name


def derive_run_id(config: RunParts) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>`, a hash of what decides the result.

    Part of it: every key of strategy, model, dataset, reader (if there is one), optimizer, schedule, cluster
    and train, what a trace of step times holds, the launcher's name and network, seed, `run.arm`,
    `run.repeat`. Not part of it: where results and packed files lie, labels, the study, how the launcher
    waits and divides the cores (without `pin`), and how a reader would read where it gives its order alone.
    """
    tree = tree_of(config)
    launcher = config.launcher
    tree["launcher"] = {
        "name": launcher.name,
        "timing_only": launcher.timing_only,
        "network": launcher.asked_network,
        "pin": launcher.pin,
    }
    if isinstance(config.reader, PackedReader):
        # What a packed file holds follows from the data set, wherever it lies.
        usual = _dump_part(type(config.reader)())
        tree["reader"]["path"] = usual["path"]
        if order_alone(launcher) is not None:
            tree["reader"]["prefetch_batches"] = usual["prefetch_batches"]
    tree["cluster"].pop("validated_ranks", None)  # how far times were validated does not change them
    trace = config.cluster.device.trace
    if trace is not None:
        tree["cluster"]["device"]["trace"] = _content(Path(trace))
    tree["run"] = {"arm": config.run.arm, "repeat": config.run.repeat}
    del tree["results_dir"], tree["study"]
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, allow_nan=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    names = [config.strategy_name, part_name(config.model), part_name(config.dataset)]
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), f"s{config.seed}", digest])


def _content(path: Path) -> str:
    """A hash of what a file holds; its path where it cannot be read: the run itself reports that."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return str(path)


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
