"""The run id: a hash of the keys that decide a run's result, computed from the configuration as it is stored.

The front end names run directories with it, and the report computes it again: a configuration that was
changed after the run has another id.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIGITS = 8


def id_of_tree(tree: Mapping[str, Any], names: Sequence[str]) -> str:
    """`<strategy>-<model>-<dataset>-s<seed>-<8 hex>` of a resolved configuration as `config.yaml` holds it.

    In the hash: every key of strategy, model, dataset, reader (if there is one), optimizer, schedule, cluster
    and train, what a trace of step times holds, the launcher's name and network, seed, `run.arm`,
    `run.repeat`. Not in it: where results and packed files lie, labels, the study, how the launcher waits and
    divides the cores (without `pin`), and how far a reader reads ahead where times are modelled.

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
    cluster = {key: value for key, value in tree["cluster"].items() if key != "validated_ranks"}
    device = cluster.get("device") or {}
    if device.get("trace") is not None:
        cluster["device"] = {**device, "trace": _content(Path(device["trace"]))}
    kept["cluster"] = cluster
    kept["run"] = {"arm": run["arm"], "repeat": run["repeat"]}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=True, allow_nan=True)
    digest = hashlib.blake2b(text.encode(), digest_size=DIGITS // 2).hexdigest()
    return "-".join([*(re.sub(r"[^A-Za-z0-9_.]+", "_", name) for name in names), f"s{tree['seed']}", digest])


def _content(path: Path) -> str:
    """A hash of what a file holds; its path where it cannot be read: the run itself reports that."""
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return str(path)
