"""What a role in a study makes of a run: other seeds, a part of the schedule; and what it asks of it."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from ...strategies.errors import ConfigError
from ..records.seed_ranges import FRESH
from .schema import RunConfig


def in_its_role(config: RunConfig) -> RunConfig:
    """The run with what its role in the study changes; `run.arm` says that this has been done.

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
        raise ConfigError(
            f"seed={config.seed}: must be below {FRESH} with study.role=fresh_seeds, which adds it"
        )
    return {"seed": config.seed + FRESH}


def _one_core(config: RunConfig) -> dict[str, Any]:
    """One of the cluster's nodes; the study gives it one core there."""
    cluster = config.cluster
    if max(cluster.ranks_of_nodes) > 1 or config.launcher.threads_per_rank != 1:
        raise ConfigError(
            "study.role=one_core: is one process of one thread (cluster.ranks_per_node=1 "
            "launcher.threads_per_rank=1)"
        )
    if config.launcher.loader_workers:
        raise ConfigError(
            f"launcher.loader_workers={config.launcher.loader_workers}: must be 0 with study.role=one_core, "
            "which is one process of one thread"
        )
    if config.launcher.virtual:
        raise ConfigError("study.role=one_core: no model tells what cores do; real ranks can")
    return {
        "cluster": dataclasses.replace(cluster, nodes=1, ranks_per_node=(1,)),
        "launcher": dataclasses.replace(config.launcher, pin=True),
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
