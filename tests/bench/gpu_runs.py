"""Whole runs on a GPU: every strategy stopped halfway and resumed, other precisions, a GPU beside CPUs.

`function`: ranks share the GPU. `mixed`: one rank on the GPU beside two on the CPU, to each of which
`heterogeneous` gives what lets all end a step together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from figures import Figure
from gpu_options import COMPILE_S, STALL_S, Options, Time, TimeUp, cluster_of, in_words
from processes import configuration, reported

from daso_bench.datasets.digits import Digits
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP, SmallCNN
from daso_bench.runner.config import load, schema
from daso_bench.runner.config.cluster import ClusterConfig
from daso_bench.runner.config.groups import CONF
from daso_bench.runner.config.launchers import LocalConfig
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import TrainConfig
from daso_bench.runner.config.typed import locate_target
from daso_bench.runner.launch import rank
from daso_bench.runner.records.json_lines import read_records
from daso_bench.runner.records.run_directory import Outcome, RunDirectory
from daso_bench.strategies.base import Strategy
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.heterogeneous import Heterogeneous

NODES = (2, 2)  # ranks of each: sums within nodes and between them
EPOCHS = 8  # a look at the times between two of them: the first of equal pieces, the last of balanced ones
BALANCED = 3  # looks whose median counts
BATCH = 2048
FEWEST = 0.5  # of a step: the share of the rank on the GPU
MOST = 1.2  # the slowest rank's step over the mean; 1.5 where the two on the CPU take all the time


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


def function(options: Options, time_left: Time) -> Iterator[Figure]:
    """Each strategy's steps, by two nodes of two ranks that share the device; then other precisions."""
    steps, shared = options.steps, cluster_of(options.device, ranks=NODES)
    for arm in arms():
        config = run_of(arm, shared, steps)
        what = f"2 + 2 ranks on one device, stopped after {steps // 2} of {steps} steps and resumed"
        yield judged(f"runs_{arm.name}", what, lambda config=config: in_two_halves(config, time_left))
    one = cluster_of(options.device, ranks=(1,))
    ways: dict[str, tuple[ClusterConfig, dict[str, Any]]] = {
        "bf16": (shared, {"precision": "bf16"}),
        "fp16": (one, {"precision": "fp16"}),
    }
    if options.device == "cuda":
        ways |= {
            "tf32": (one, {"precision": "tf32"}),
            "compiled": (one, {"compile": True, "precision": "bf16"}),
        }
    for name, (cluster, train) in ways.items():
        config = run_of(Arm(name="ddp", kind=DDP), cluster, steps)
        config = replace(config, train=replace(config.train, channels_last=True, **train))
        stall_s = COMPILE_S if config.train.compile else STALL_S
        yield judged(
            f"runs_{name}",
            f"{cluster.ranks} rank(s), {train}, {steps} steps",
            lambda config=config, stall_s=stall_s: time_left.outcome_of(config, stall_s=stall_s),
        )


def judged(name: str, what: str, run: Callable[[], Outcome]) -> Figure:
    """1 for a run that finished and was judged, else 0 and why; what it raises is why, too, but no TimeUp."""
    try:
        outcome = run()
    except TimeUp:
        raise
    except Exception as error:
        return Figure(f"gpu_{name}", 0.0, 1, f"{what}: {in_words(error)}", at_least=True)
    accuracy = (outcome.summary or {}).get("final_accuracy")
    fine = outcome.status == "finished" and accuracy is not None
    end = f", accuracy {accuracy:.3f}" if fine else f": {outcome.status}, {outcome.reason}"
    return Figure(f"gpu_{name}", float(fine), 1, what + end, at_least=True)


def in_two_halves(config: schema.RunConfig, time_left: Time) -> Outcome:
    """How a run ends that is asked to stop halfway and then resumed. Raises RuntimeError if it was not."""
    with TemporaryDirectory() as folder:
        directory = RunDirectory.create(load.to_plain(config), Path(folder))
        stopped = time_left.launch(directory, config, f"{__name__}:first_half")
        if stopped.status == "finished":
            raise RuntimeError("it ended before it could be stopped")
        if stopped.status != "cancelled":
            return stopped
        outcome = time_left.launch(directory, config)
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


def run_of(arm: Arm, cluster: ClusterConfig, steps: int) -> schema.RunConfig:
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


# ------------------------------------------------------------------ a GPU beside CPUs


def mixed(options: Options, time_left: Time) -> Iterator[Figure]:
    """The share of the rank on the GPU, and how far apart the ranks' steps are once they are balanced."""
    config = of_ranks(options.device, "cpu", "cpu")
    with TemporaryDirectory() as folder:
        directory = RunDirectory.create(load.to_plain(config), Path(folder))
        summary = reported(time_left.launch(directory, config))
        rows = read_records(directory.path / "metrics.jsonl").rows
    looks = [row["strategy"]["rebalance"] for row in rows if "rebalance" in row.get("strategy", {})]
    yield from balanced(options, summary["strategy"], looks)


def balanced(options: Options, told: dict[str, Any], looks: list[dict[str, Any]]) -> Iterator[Figure]:
    """The figures of a run from its summary and its looks at the times; limits are for GPUs alone."""
    if len(looks) <= BALANCED:
        raise RuntimeError(f"{len(looks)} look(s) at the ranks' times: shares cannot be judged")
    on_gpu = options.device == "cuda"
    ranks = f"ranks on {options.device}, cpu and cpu"
    share = f"of a step, {ranks}: batches {told['batches']}"
    yield Figure("gpu_share_beside_cpus", told["shares"][0], FEWEST if on_gpu else None, share, at_least=True)
    ratio = median(look["ratio"] for look in looks[-BALANCED:])
    apart = (
        f"max over mean of steps, {ranks}: {_ms(looks[0])} ms with equal pieces, {looks[0]['ratio']:.3f}; "
        f"{_ms(looks[-1])} ms at last; the median of {BALANCED} looks counts"
    )
    yield Figure("gpu_steps_apart", ratio, MOST if on_gpu else None, apart)


def _ms(look: dict[str, Any]) -> str:
    return ", ".join(f"{1e3 * time:.3g}" for time in look["times_s"])


def of_ranks(*kinds: str) -> schema.RunConfig:
    """Synchronous training on such devices that starts with equal pieces and is balanced after each epoch.

    The model has much to multiply and few operations: a CPU's share is to be many samples, not one.
    """
    return configuration(
        strategy_class=Heterogeneous,
        strategy=Heterogeneous.Config(balancing="dynamic"),
        model=MLP(hidden=[256, 256]),
        dataset=Synthetic(samples=2 * BATCH, channels=1, height=8, width=8),
        optimizer=SGD(),
        cluster=cluster_of(*kinds, ranks=(1, len(kinds) - 1)),
        launcher=LocalConfig(),
        train=TrainConfig(epochs=EPOCHS, global_batch_size=BATCH),
    )
