"""Virtual ranks on a GPU, or on one that is not there: the CPU's run, and no tensor in the wrong place."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_cuda import on_cpu  # pyright: ignore[reportMissingImports] (another folder of tests)
from pretend_device import DEVICE, pretend_device
from runs import NAMES, PERIODS, Blobs, config, evaluations, simulated, whole_and_resumed

from daso_bench.datasets.data import SPLITS, on_device
from daso_bench.datasets.synthetic import Synthetic
from daso_bench.models.small import SmallCNN
from daso_bench.runner.communication import gpus
from daso_bench.runner.training import checkpoint

GPU = pytest.param(
    "cuda:0",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@contextmanager
def meta() -> Iterator[None]:
    """The pretend device, of which PyTorch stores no numbers and thinks that it has no fused kernels."""
    write = checkpoint.write_file
    with pytest.MonkeyPatch.context() as patch, pretend_device():
        patch.setattr(checkpoint, "write_file", lambda path, content: write(path, on_cpu(content)))
        optimizers = sys.modules["torch.optim.optimizer"]
        patch.setattr(optimizers, "_get_fused_kernels_supported_devices", lambda: ["meta"])
        yield


@pytest.mark.parametrize("device", ["meta", GPU])
@pytest.mark.parametrize("mode", ["inline", "deferred"])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("strategy", NAMES)
def test_a_run_and_its_resume_are_those_of_the_cpu(
    tmp_path: Path, strategy: str, norm: str, mode: str, device: str
):
    cfg = config(
        strategy,
        ranks=[4, 4] if strategy == "ddp" else [2, 2],  # eight are computed together
        keys=PERIODS.get(strategy),
        model=SmallCNN(channels=[4], norm=norm),
        dataset=Blobs(samples=48, test_samples=16),
        epochs=3,
        eval_mode=mode,
        eval_every_samples=40,
        checkpoint_every_samples=64,  # inside of a round, with sums under way
        clip_norm=1.0,
        # Data that lie on the device, or come from the host batch by batch.
        launcher={"device_data_mib": 0 if mode == "deferred" else 1},
    )
    run = partial(simulated, cfg, step_time=lambda rank, samples: (rank + 2) * 1000)
    wanted = run(checkpoints=tmp_path / "cpu")
    gpus.choose_precision("fp32", torch.device(device))
    with meta() if device == "meta" else nullcontext():
        made = whole_and_resumed(partial(run, computes_on=torch.device(device)), tmp_path, 7)
        models = [[on_cpu(context.replica.model.state_dict()) for context in one.contexts] for one in made]
    exact = {"rtol": 0, "atol": 0} if device == "meta" else {"rtol": 1e-3, "atol": 1e-4}
    for of_ranks in models:
        for state, context in zip(of_ranks, wanted.contexts, strict=True):
            torch.testing.assert_close(state, dict(context.replica.model.state_dict()), **exact)
    assert [row["train_s"] for row in evaluations(made[0])] == [row["train_s"] for row in evaluations(wanted)]
    assert made[0].contexts[0].comm.traffic.verbs == wanted.contexts[0].comm.traffic.verbs


def test_splits_that_fit_lie_on_the_device_and_give_the_same_batches():
    blobs = Blobs().load()
    flipped = replace(blobs, train=Blobs(augment="flip").load().train)
    drawn = Synthetic(samples=40, height=8, width=8).load()
    room = (blobs.train.images.nbytes + blobs.train.labels.nbytes) / 2**20  # pyright: ignore[reportAttributeAccessIssue] (a split)
    indices = torch.tensor([3, 1, 3])
    with pretend_device():
        for data, mib, wanted in (
            (blobs, 1, "train validation test"),
            (blobs, room, "train"),
            (blobs, 0, ""),
            (flipped, 1, "validation test"),  # changed image by image
            (drawn, 1, "train validation test"),
        ):
            moved, there = on_device(data, DEVICE, mib), []
            for name in SPLITS:
                batch = moved.split(name).batch(indices)
                there += [name] if batch[0].device == DEVICE else []
                assert batch[0].device == batch[1].device
                for mine, theirs in zip(on_cpu(batch), data.split(name).batch(indices), strict=True):
                    assert torch.equal(mine, theirs)
            assert " ".join(there) == wanted
    assert on_device(blobs, torch.device("cpu"), 1).train is blobs.train


@pytest.mark.parametrize("resident", [False, True])
def test_loader_workers_of_virtual_ranks_give_the_same_run_and_are_not_needed_for_data_there(resident: bool):
    cfg = config(ranks=[2], epochs=2, launcher={"loader_workers": 1, "device_data_mib": resident})
    wanted = simulated(config(ranks=[2], epochs=2))
    with meta() if resident else nullcontext():
        made = simulated(cfg, computes_on=torch.device("meta" if resident else "cpu"))
        loaders = {type(context.loader).__name__ for context in made.contexts}
        models = [on_cpu(context.replica.flat()) for context in made.contexts]
    assert loaders == {"Loader" if resident else "Ahead"}
    assert all(torch.equal(m, c.replica.flat()) for m, c in zip(models, wanted.contexts, strict=True))
