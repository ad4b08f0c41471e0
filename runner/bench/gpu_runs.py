"""Whole runs on a GPU: every strategy by two ranks that share it, and a rank on it beside one on the CPU."""

from dataclasses import fields, replace
from typing import Any

import yaml

from ...datasets.digits import Digits
from ...models.small import MLP, SmallCNN
from ...strategies.base import Strategy
from ...strategies.ddp import DDP
from ...strategies.heterogeneous import Heterogeneous
from .. import schema
from ..hardware import ClusterConfig
from ..launcher_config import LocalConfig
from ..listing import CONF
from ..optimizers import SGD
from ..typed import locate_target
from .figures import Figure
from .gpu_options import Options, cluster_of
from .processes import configuration, outcome_of


def function(options: Options) -> list[Figure]:
    """Each strategy's steps, by two ranks on two virtual nodes that share it; and ways of computing."""
    figures = []
    for path in sorted((CONF / "strategy").glob("*.yaml")):
        kind = locate_target(yaml.safe_load(path.read_text(encoding="utf-8")), "strategy")
        config = _run(options, kind, cluster_of(options.device, ranks=(1, 1)), options.steps)
        figures.append(_ran(path.stem, config, f"two ranks on one device, {options.steps} steps"))
    ways: dict[str, dict[str, Any]] = {"fp16": {"precision": "fp16"}}
    if options.device == "cuda":
        ways |= {"tf32": {"precision": "tf32"}, "compiled": {"compile": True, "precision": "bf16"}}
    for name, train in ways.items():
        config = _run(options, DDP, cluster_of(options.device, ranks=(1,)), options.steps)
        config = replace(config, model=SmallCNN(), train=replace(config.train, channels_last=True, **train))
        figures.append(_ran(name, config, f"one rank, {train}, {options.steps} steps"))
    return figures


def _ran(name: str, config: schema.RunConfig, what: str) -> Figure:
    """1 for a run that finished and was judged, else 0 and why."""
    outcome = outcome_of(config)
    accuracy = (outcome.summary or {}).get("final_accuracy")
    fine = outcome.status == "finished" and accuracy is not None
    end = f", accuracy {accuracy:.3f}" if fine else f": {outcome.status}, {outcome.reason}"
    return Figure(f"gpu_runs_{name}", float(fine), 1, what + end, at_least=True)


def mixed(options: Options) -> list[Figure]:
    """The share of a step that the rank on the GPU gets beside one on the CPU, which is slower."""
    config = _run(options, Heterogeneous, cluster_of(options.device, "cpu", ranks=(2,)), options.steps)
    outcome = outcome_of(config)
    if outcome.status != "finished" or outcome.summary is None:
        raise RuntimeError(f"{outcome.reason}\n{outcome.details}")
    told = outcome.summary["strategy"]
    medians = [steps[1] for steps in told["calibration"]["medians_s"]]
    detail = (
        f"of ranks on {options.device} and cpu: batches {told['batches']}; a step of an equal piece took "
        f"{medians[0] * 1e3:.3g} and {medians[1] * 1e3:.3g} ms"
    )
    limit = 0.5 if options.device == "cuda" else None
    return [Figure("gpu_share_beside_a_cpu", told["shares"][0], limit, detail, at_least=True)]


def _run(options: Options, kind: type[Strategy], cluster: ClusterConfig, steps: int) -> schema.RunConfig:
    """A short run on digits; a convolution where ranks are timed, so that a GPU has something to do."""
    timed = kind is Heterogeneous
    return configuration(
        strategy_class=kind,
        strategy=kind.Config(**_keys(kind, steps)),
        model=SmallCNN(channels=[64, 128, 256]) if timed and options.device == "cuda" else MLP(hidden=[32]),
        dataset=Digits(),
        optimizer=SGD(),
        cluster=cluster,
        launcher=LocalConfig(allow_oversubscription=True),
        train=schema.TrainConfig(
            epochs=1, global_batch_size=512 if timed else 64, max_steps=min(steps, 8) if timed else steps
        ),
    )


def _keys(kind: type[Strategy], steps: int) -> dict[str, Any]:
    """What lets a strategy do in a few steps what it does in many."""
    defaults = {entry.name: entry.default for entry in fields(kind.Config)}
    keys: dict[str, Any] = {}
    if "allow_no_cycling" in defaults:  # asynchronous from the first step
        keys |= {"warmup_epochs": 0, "cooldown_epochs": 0}
    if isinstance(every := defaults.get("sync_every"), int) and 2 * every > steps:
        keys["sync_every"] = max(1, steps // 4)
    return keys
