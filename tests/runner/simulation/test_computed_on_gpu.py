"""Virtual ranks on a GPU, or on one that is not there: the CPU's run, and no tensor in the wrong place."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from pretend_device import DEVICE, pretend_device
from runs import NAMES, PERIODS, Blobs, config, evaluations, simulated, whole_and_resumed

from daso_bench.datasets.data import SPLITS, Split, on_device
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.runner.communication import gpus

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
