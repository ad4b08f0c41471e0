"""Virtual ranks on a GPU, or on one that is not there: the CPU's run, and no tensor in the wrong place."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from greenlet import getcurrent
from pretend_device import DEVICE, lies_there, pretend_device
from runs import NAMES, PERIODS, Blobs, config, evaluations, simulated, whole_and_resumed
from torch.overrides import TorchFunctionMode

from daso_bench.datasets.data import SPLITS, Split, on_device
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.runner.communication import gpus
from daso_bench.runner.simulation.rank_compute import OneByOne, Pending
from daso_bench.runner.training.trainer import Trainer

GPU = pytest.param(
    "cuda:0",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@pytest.mark.parametrize("device", ["meta", GPU])
@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("strategy", NAMES)
def test_a_run_and_its_resume_are_those_of_the_cpu(
    tmp_path: Path, strategy: str, norm: str, mode: str, device: str
):
    train = {"epochs": 3, "eval_mode": mode, "eval_every_samples": 40, "clip_norm": 1.0}
    cfg = config(
        strategy,
        keys=PERIODS.get(strategy),
        ranks=[4, 4] if strategy == "ddp" else [2, 2],  # eight are computed together
        model=SmallCNN(channels=[4], norm=norm),
        dataset=Blobs(samples=48, test_samples=16),
        launcher={"device_data_mib": 0 if mode == "deferred" else 1},  # from the host, or there
        checkpoint_every_samples=64,  # inside of a round, with sums under way
        **train,
    )
    run = partial(simulated, cfg, step_time=lambda rank, samples: (rank + 2) * 1000)
    wanted = run(checkpoints=tmp_path / "cpu")
    gpus.choose_precision("fp32", torch.device(device))
    with pretend_device() if device == "meta" else nullcontext():
        made = whole_and_resumed(partial(run, computes_on=torch.device(device)), tmp_path, 7)
        models = [[on_cpu(context.replica.model.state_dict()) for context in one.contexts] for one in made]
    rtol, atol = (0, 0) if device == "meta" else (1e-3, 1e-4)
    for of_ranks in models:
        for state, context in zip(of_ranks, wanted.contexts, strict=True):
            torch.testing.assert_close(state, dict(context.replica.model.state_dict()), rtol=rtol, atol=atol)
    assert [row["train_s"] for row in evaluations(made[0])] == [row["train_s"] for row in evaluations(wanted)]
    assert made[0].contexts[0].comm.traffic.verbs == wanted.contexts[0].comm.traffic.verbs


class Reads(TorchFunctionMode):
    """Counts numbers that come to the host from the device, in steps of ranks and in their helpers."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.in_step = 0, dict[Any, bool]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, made = getattr(func, "__name__", ""), func(*args, **(kwargs or {}))
        if name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
            comes = lies_there(args[0])
        else:
            of = args[1] if name == "copy_" else args[0] if name in ("to", "cpu") else None
            comes = lies_there(of) and not lies_there(made)
        self.number += comes and self.in_step.get(getcurrent(), True)
        return made

    def loop(self) -> type[Trainer]:
        """A loop that says when its rank is in a step."""
        in_step = self.in_step

        class Steps(Trainer):
            def run(self) -> Any:
                in_step[getcurrent()] = False
                return super().run()

            def step(self) -> None:
                in_step[getcurrent()] = True
                super().step()
                in_step[getcurrent()] = False

        return Steps


OF_A_ROUND = {"diloco": 2, "ednncomm": 1, "local_sgd": 1, "post_local_sgd": 1, "slowmo": 2}
"""Each rank reads norms for its record where it averages. (daso: at the end of an epoch.)"""


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        *((name, PERIODS.get(name, {})) for name in NAMES),
        ("ddp", {"algorithm": "hierarchical"}),
        ("ddp", {"hook": "powersgd", "powersgd_start_steps": 2}),
        ("ddp", {"overlap": False}),
    ],
    ids=str,
)
def test_the_host_reads_the_device_once_for_ranks_that_are_computed_together(
    strategy: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    groups, compute, reads = 0, OneByOne.compute, Reads()

    def counted(way: OneByOne, steps: Sequence[Pending]) -> torch.Tensor:
        nonlocal groups
        groups += reads.in_step[getcurrent()]
        return compute(way, steps)

    monkeypatch.setattr(OneByOne, "compute", counted)
    cfg = config(strategy, keys=keys, epochs=3, dataset=Blobs(samples=64))
    with pretend_device(), reads:
        done = simulated(cfg, computes_on=DEVICE, loop=reads.loop(), step_time=lambda rank, n: 1000)
    contexts = done.contexts
    assert groups <= 14, "12 or 13 steps of 4 ranks"
    rounds = cfg.train.epochs if strategy == "daso" else contexts[0].strategy.summary().get("rounds", 0)
    of_records = len(contexts) * rounds * OF_A_ROUND.get(strategy, strategy == "daso")
    assert reads.number == groups + of_records, "no stop flag is read while no rank requests a stop"


def test_splits_that_fit_lie_on_the_device_and_give_the_same_batches():
    blobs, drawn = Blobs().load(), Synthetic(samples=40, height=8, width=8).load()
    flipped = replace(blobs, train=Blobs(augment="flip").load().train)  # changed image by image
    assert isinstance(blobs.train, Split)
    room, indices = blobs.train.nbytes / 2**20, torch.tensor([3, 1, 3])
    cases = [
        (blobs, 1, "111"),
        (blobs, room, "100"),
        (blobs, 0, "000"),
        (flipped, 1, "011"),
        (drawn, 1, "111"),
    ]
    with pretend_device():
        for data, mib, wanted in cases:
            moved = on_device(data, DEVICE, mib)
            for name, there in zip(SPLITS, wanted, strict=True):
                batch = moved.split(name).batch(indices)
                assert [part.device == DEVICE for part in batch] == [there == "1"] * 2
                assert all(map(torch.equal, on_cpu(batch), data.split(name).batch(indices)))
