"""What LASGD promises, over real processes: nobody waits for a straggler, and nobody for an evaluation.

Compute is slept, so that four ranks fit on two cores: each step takes a fixed time on a fast rank and four
times as long on the slow one, before its forward pass. The sleep contains no wait for others.
"""

import statistics
import time
from functools import partial
from typing import Any

import torch
from figures import Figure
from processes import configuration, context_of, joined, summary_of
from torch import Tensor, nn

from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import MLP
from daso_bench.runner.communication.torch_communicator import TorchCommunicator
from daso_bench.runner.config.optimizers import SGD
from daso_bench.runner.config.parts import RunInfo, TrainConfig
from daso_bench.runner.training.torch_replica import TorchReplica
from daso_bench.runner.training.trainer import Trainer
from daso_bench.strategies.ddp import DDP
from daso_bench.strategies.lasgd import LASGD
from daso_bench.strategies.replica import Batch
from daso_bench.strategies.topology import WORLD

STEP_S, SLOWER = 0.020, 4
RANKS, BATCH = 4, 32
SAMPLES = 16384
LONG = 81920  # what waits once, at the end of a run, is not to count
PAIRS = 3


class SleepyReplica(TorchReplica):
    """A replica on a device of given speed."""

    def __init__(
        self, model: nn.Module, criterion: nn.Module, comm: TorchCommunicator, sleep_s: float
    ) -> None:
        super().__init__(model, criterion, comm)
        self.sleep_s = sleep_s

    def compute_gradients(self, batch: Batch) -> Tensor:
        time.sleep(self.sleep_s)
        return super().compute_gradients(batch)


def asynchronous() -> list[Figure]:
    """Rates of the fast ranks beside a slow one, over their rate alone; and of four times the evaluations."""
    solo = _run(LASGD, LONG // RANKS, ranks=1)
    beside = _run(LASGD, LONG, ranks=RANKS, slow=True)
    ddp_solo, ddp = _run(DDP, SAMPLES // RANKS, ranks=1), _run(DDP, SAMPLES, ranks=RANKS, slow=True)
    fast = f"steps/s over solo of fast ranks, one of {RANKS} {SLOWER} x slower, {STEP_S * 1000:.0f} ms slept"
    rarely, often, again = [], [], []
    for _ in range(PAIRS):  # in turn, so that a slow moment of the machine hits all alike
        for runs, every in ((rarely, 4096), (often, 1024), (again, 4096)):
            runs.append(_run(LASGD, SAMPLES, ranks=RANKS, slow=True, every=every)["ns_per_sample"])
    base = statistics.median(rarely)
    floor = max(abs(a / b - 1) for a in again + rarely for b in again + rarely)
    lasgd_rate = min(beside["rates"]) / solo["rates"][0]
    ddp_rate = max(ddp["rates"]) / ddp_solo["rates"][0]
    return [
        Figure("lasgd_fast_ranks_over_solo", lasgd_rate, 0.95, fast, at_least=True),
        Figure("ddp_fast_ranks_over_solo", ddp_rate, 0.3, fast),
        Figure("lasgd_blocked_share", beside["blocked"], 0.01, "blocked in collectives, of training time"),
        Figure(
            "lasgd_evaluating_4x_as_often",
            abs(statistics.median(often) / base - 1),
            max(floor, 0.01),
            f"change of training time per sample; limit: the spread of {2 * PAIRS} runs at one cadence",
        ),
    ]


def _run(
    kind: type, samples: int, *, ranks: int, slow: bool = False, every: int | None = None
) -> dict[str, Any]:
    """One run over `samples`: rates (steps/s of training) of the fast ranks, and more numbers of rank 0."""
    config = configuration(
        ranks=ranks,
        strategy_class=kind,
        strategy=kind.Config(),
        model=MLP(hidden=[32]),
        dataset=Synthetic(samples=samples, channels=1, height=8, width=8, test_samples=256),
        optimizer=SGD(lr=0.01),
        train=TrainConfig(
            epochs=1,
            global_batch_size=BATCH * ranks,
            eval_every_samples=every,
            checkpoint_every_samples=None,
            max_steps=samples // (BATCH * ranks),
        ),
        run=RunInfo(tag="slow" if slow else ""),
    )
    return summary_of(config, f"{__name__}:train")


def train(*arguments: Any) -> None:
    """A rank of the measurement."""
    config, comm = joined(*arguments)
    ranks = config.cluster.ranks
    slow = config.run.tag == "slow" and comm.rank == ranks - 1
    replica = partial(SleepyReplica, sleep_s=STEP_S * (SLOWER if slow else 1))
    context = context_of(config, comm, replica)
    Trainer(context).run()
    train_s = context.clock.segments["train"] / 1e9
    own = torch.tensor([context.progress.step / train_s, comm.traffic.blocked_ns / 1e9 / train_s])
    everybody = torch.empty(2 * ranks)
    comm.all_gather(everybody, own, WORLD, channel="control").wait()
    rates, blocked = everybody.view(ranks, 2).unbind(1)
    summary = {
        "rates": rates[: max(1, ranks - 1)].tolist(),
        "blocked": blocked.max().item(),
        "ns_per_sample": train_s * 1e9 / context.progress.samples,
    }
    arguments[-1].finish("finished", summary, None)
