"""One rank on the GPU beside two on the CPU: `heterogeneous` gives each what lets all end a step together."""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.strategies.heterogeneous import Heterogeneous
from daso_bench.runner import config_tree, schema
from daso_bench.runner.launcher_config import LocalConfig
from daso_bench.runner.optimizers import SGD
from daso_bench.runner.records import read_records
from daso_bench.runner.run_directory import RunDirectory
from daso_bench.runner.train_config import TrainConfig
from figures import Figure
from gpu_options import Options, cluster_of
from gpu_time import Time, told
from processes import configuration

EPOCHS = 8  # a look at the times between two of them: the first of equal pieces, the last of balanced ones
BALANCED = 3  # looks whose median counts
BATCH = 2048
FEWEST = 0.5  # of a step: the share of the rank on the GPU
MOST = 1.2  # the slowest rank's step over the mean; 1.5 where the two on the CPU take all the time


def mixed(options: Options, time_left: Time) -> Iterator[Figure]:
    """The share of the rank on the GPU, and how far apart the ranks' steps are once they are balanced."""
    config = of_ranks(options.device, "cpu", "cpu")
    with TemporaryDirectory() as folder:
        directory = RunDirectory.create(config_tree.to_plain(config), Path(folder))
        summary = told(time_left.launch(directory, config))
        rows = read_records(directory.path / "metrics.jsonl").rows
    looks = [row["strategy"]["rebalance"] for row in rows if "rebalance" in row.get("strategy", {})]
    yield from judged(options, summary["strategy"], looks)


def judged(options: Options, told: dict[str, Any], looks: list[dict[str, Any]]) -> Iterator[Figure]:
    """The figures of a run from its summary and its looks at the times; limits are for GPUs alone."""
    if len(looks) <= BALANCED:
        raise RuntimeError(f"{len(looks)} look(s) at the ranks' times: shares cannot be judged")
    on_gpu = options.device == "cuda"
    ranks = f"ranks on {options.device}, cpu and cpu"
    share = f"of a step, {ranks}: batches {told['batches']}"
    yield Figure("gpu_share_beside_cpus", told["shares"][0], FEWEST if on_gpu else None, share, at_least=True)
    balanced = median(look["ratio"] for look in looks[-BALANCED:])
    apart = (
        f"max over mean of steps, {ranks}: {_ms(looks[0])} ms with equal pieces, {looks[0]['ratio']:.3f}; "
        f"{_ms(looks[-1])} ms at last; the median of {BALANCED} looks counts"
    )
    yield Figure("gpu_steps_apart", balanced, MOST if on_gpu else None, apart)


def _ms(look: dict[str, Any]) -> str:
    return ", ".join(f"{1e3 * time:.3g}" for time in look["times_s"])


def of_ranks(*kinds: str) -> schema.RunConfig:
    """Synchronous training on such devices that starts with equal pieces and is balanced after each epoch.

    The model has much to multiply and few operations: a CPU's share is to be many samples, not one.
    """
    return configuration(
        strategy_class=Heterogeneous,
        strategy=Heterogeneous.Config(balancing="dynamic", rebalance_probe_steps=20),
        model=MLP(hidden=[256, 256]),
        dataset=Synthetic(samples=2 * BATCH, channels=1, height=8, width=8),
        optimizer=SGD(),
        cluster=cluster_of(*kinds, ranks=(1, len(kinds) - 1)),
        launcher=LocalConfig(),
        train=TrainConfig(epochs=EPOCHS, global_batch_size=BATCH),
    )
