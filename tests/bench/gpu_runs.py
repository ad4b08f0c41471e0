"""Whole runs whose ranks share a GPU: every strategy stopped halfway and resumed, and other precisions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from figures import Figure
from gpu_options import Options, cluster_of
from processes import configuration, launched, outcome_of

from daso_bench.datasets.digits import Digits
from daso_bench.models.small import SmallCNN
from daso_bench.runner.config import load
from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import TrainConfig
from daso_bench.runner.config.run_config import RunConfig
from daso_bench.runner.config.typed import locate_target
from daso_bench.runner.launch import rank
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ddp import DDP

NODES = (2, 2)  # ranks of each: sums within nodes and between them


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A strategy with some of its keys."""

    name: str
    kind: type[Strategy]
    keys: dict[str, Any] = field(default_factory=dict)


def arms() -> list[Arm]:
    """Every strategy as it is, and what is summed in other ways than by one all-reduce."""
    found = []
    for path in sorted((CONF / "strategy").glob("*.yaml")):
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        found.append(Arm(name=path.stem, kind=locate_target(tree, "strategy")))
    ways: dict[str, dict[str, Any]] = {
        "hierarchical": {"algorithm": "hierarchical"},
        "sliced": {"algorithm": "sliced"},
        "powersgd": {"hook": "powersgd", "powersgd_start_steps": 2},
    }
    return [*found, *(Arm(name=f"ddp_{name}", kind=DDP, keys=keys) for name, keys in ways.items())]


def function(options: Options) -> Iterator[Figure]:
    """Each strategy's steps, by two nodes of two ranks that share the device; then other precisions."""
    steps, shared = options.steps, cluster_of(options.device, ranks=NODES)
    for arm in arms():
        config = run_of(arm, shared, steps)
        what = f"2 + 2 ranks on one device, stopped after {steps // 2} of {steps} steps and resumed"
        yield judged(f"runs_{arm.name}", what, lambda config=config: in_two_halves(config))
    one = cluster_of(options.device, ranks=(1,))
    ways: dict[str, tuple[ClusterConfig, dict[str, Any]]] = {
        "bf16": (shared, {"precision": "bf16"}),
        "fp16": (one, {"precision": "fp16"}),
    }
    if options.device == "cuda":
        ways["tf32"] = one, {"precision": "tf32"}
    for name, (cluster, train) in ways.items():
        config = run_of(Arm(name="ddp", kind=DDP), cluster, steps)
        config = replace(config, train=replace(config.train, channels_last=True, **train))
        what = f"{cluster.ranks} rank(s), {train}, {steps} steps"
        yield judged(f"runs_{name}", what, lambda config=config: outcome_of(config))


def judged(name: str, what: str, run: Callable[[], Outcome]) -> Figure:
    """1 for a run that finished and was judged, else 0 and why; what it raises is why, too."""
    try:
        outcome = run()
    except Exception as error:
        return Figure(f"gpu_{name}", 0.0, 1, f"{what}: {in_words(error)}", at_least=True)
    accuracy = (outcome.summary or {}).get("final_accuracy")
    fine = outcome.status == "finished" and accuracy is not None
    end = f", accuracy {accuracy:.3f}" if fine else f": {outcome.status}, {outcome.reason}"
    return Figure(f"gpu_{name}", float(fine), 1, what + end, at_least=True)


def in_words(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def in_two_halves(config: RunConfig) -> Outcome:
    """How a run ends that is asked to stop halfway and then resumed. Raises RuntimeError if it was not."""
    with TemporaryDirectory() as folder:
        directory = RunDirectory.create(config.tree, Path(folder))
        stopped = launched(directory, config, f"{__name__}:first_half")
        if stopped.status == "finished":
            raise RuntimeError("it ended before it could be stopped")
        if stopped.status != "cancelled":
            return stopped
        outcome = launched(directory, config)
        rows = read_records(directory.path / "metrics.jsonl").rows
        last_start = [row for row in rows if row["kind"] == "start"][-1]
        if outcome.status == "finished" and last_start["resumed_from"] is None:
            raise RuntimeError("it began anew where it was to resume")
        return outcome


def first_half(*arguments: Any) -> None:
    """A rank of the run that asks to stop once half of the steps are made."""
    run_dir, link = arguments[0].run_dir, arguments[-1]
    half = (load.load(run_dir / "config.yaml").train.max_steps or 0) // 2
    tell = link.progress

    def progress(**numbers: Any) -> None:
        tell(**numbers)
        if numbers.get("step", 0) >= half:
            link.interrupt()

    link.progress = progress
    rank.run_rank(*arguments)


def run_of(arm: Arm, cluster: ClusterConfig, steps: int) -> RunConfig:
    """A short run on digits of a model with convolutions and batch normalisation."""
    return configuration(
        strategy_class=arm.kind,
        strategy=arm.kind.Config(**_within(arm.kind, steps), **arm.keys),
        model=SmallCNN(norm="batch"),
        dataset=Digits(),
        optimizer=SGD(),
        cluster=cluster,
        launcher=LocalConfig(share_gpus=True),
        train=TrainConfig(epochs=1 + steps // 16, global_batch_size=64, max_steps=steps),
    )


def _within(kind: type[Strategy], steps: int) -> dict[str, Any]:
    """What lets a strategy do in a few steps what it does in many."""
    defaults = {entry.name: entry.default for entry in fields(kind.Config)}
    keys: dict[str, Any] = {}
    if "allow_no_cycling" in defaults:  # asynchronous from the first step
        keys |= {"warmup_epochs": 0, "cooldown_epochs": 0}
    every = defaults.get("sync_every", 1)
    if not isinstance(every, int) or 2 * every > steps:  # not a number: once an epoch
        keys["sync_every"] = max(1, steps // 4)
    return keys
