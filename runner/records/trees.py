"""Nested configurations of plain values: as YAML that all parsers read alike, with dotted keys, the run id.

Text stays text in YAML, whatever it looks like. Dotted keys: `{"train": {"epochs": 3}}` is
`{"train.epochs": 3}`. The run id is a hash of the keys that decide a run's result. It names run directories,
and the report computes it again: a configuration that was changed after the run has another id.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

LATER = {
    "cluster.links.model": "alpha_beta",
    "cluster.links.launch_us": 0,
    "cluster.links.ramp": 0,
    "cluster.links.nvls_gbit": None,
    "cluster.links.intra.cap_gbit": None,
    "cluster.links.inter.cap_gbit": None,
    "cluster.device.bucket_us": 0,
}
"""Keys that came after the first stored runs, dotted, with the value at which nothing changes."""


class _Dumper(yaml.SafeDumper):
    """PyYAML reads YAML 1.1, other tools 1.2: `1e3` is text for the one and a number for the others."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    try:
        float(value.replace("_", ""))
    except ValueError:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value)
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'")


_Dumper.add_representer(str, _text)


def load_yaml(text: str) -> Any:
    """The builtin values of a YAML text, by PyYAML's loader in C where there is one: ten times as fast.

    Raises yaml.YAMLError.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """`tree` (builtin values only) as YAML, keys in their order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as dotted ones; lists, and mappings without keys, are values."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested ones: `nested(flatten(tree)) == tree` where no key has a dot of its own."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = value
    return tree


def flatten_known(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`flatten` without the keys of `LATER` that change nothing: equal for runs of before and of today."""
    flat = flatten(tree).items()
    return {key: value for key, value in flat if key not in LATER or value != LATER[key]}


def below(key: str, names: Iterable[str]) -> bool:
    """Whether a dotted key is one of `names` or below one."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def id_of_tree(tree: Mapping[str, Any], names: Sequence[str]) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>` of a resolved configuration as `config.yaml` holds it.

    In the hash: every key of strategy, model, dataset, reader (if there is one), optimizer, schedule, cluster
    and train, what a trace of step times holds, the launcher's name and network, seed, `run.arm`,
    `run.repeat`. Not in it: keys of `LATER` that change nothing, where results and packed files lie, labels,
    the study, how the launcher waits and divides the cores (without `pin`), and how far a reader reads ahead
    where times are modelled.

    names: of the strategy, the model and the data set. Raises KeyError, TypeError, AttributeError: a group is
    missing or is no mapping.
    """
    launcher, run = tree["launcher"], tree["run"]
    network = launcher.get("network", "none")
    kept = {key: value for key, value in tree.items() if key not in ("results_dir", "study")}
    kept["launcher"] = {
        "name": launcher["name"],
        "timing_only": launcher["timing_only"],
        "network": network,
        "pin": launcher["pin"],
    }
    # What a packed file holds follows from the data set. Where times are modelled a reader gives an order.
    modelled = launcher["name"] == "simulated" or network != "none"
    usual = {"path": "", **({"prefetch_batches": 2} if modelled else {})}
    kept["reader"] = {key: usual.get(key, value) for key, value in tree["reader"].items()}
    # How far times were validated does not change them.
    cluster = nested(flatten_known({"cluster": tree["cluster"]}))["cluster"]
    cluster.pop("validated_ranks", None)
    device = cluster.get("device") or {}
    if device.get("trace") is not None:
        cluster["device"] = {**device, "trace": _content(Path(device["trace"]))}
    kept["cluster"] = cluster
    kept["run"] = {"arm": run["arm"], "repeat": run["repeat"]}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True, allow_nan=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), f"s{tree['seed']}", digest])


def _content(path: Path) -> str:
    """A hash of what a file holds; its path where it cannot be read: the run itself reports that."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return str(path)
